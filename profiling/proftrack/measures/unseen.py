"""Without steps: work that was queued when recording began, which the trace does not show.

host  |L-L-L-L-L-L-L|-- waits ------------------------|
GPU       (earlier work, not recorded)  |==========|
         |<-------- left out --------->|

A program that is recorded amid its work has a queue, and the first recorded work of a stream starts when that is done.
Had the device really done nothing, that would still not be the host's doing, nor happen again.
"""

from __future__ import annotations

import numpy as np

from proftrack.measures.idle import CAUSES, find_gaps
from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.view import View
from proftrack.measures.waits import waiting_calls
from proftrack.measures.window import QUEUE_DELAY_NS, Windows
from proftrack.trace.table import NONE, Ints


def without_unseen_queue(seen: View, windows: Windows) -> Windows:
    """The windows of a trace without steps, whose typical time leaves out waiting in queues that it does not show."""
    first = _first_of_streams(seen)
    work, launch = seen.on_device, seen.links.launch
    if len(seen.steps) or not (work.start[first] - seen.table.ts[launch[first]] > QUEUE_DELAY_NS).any():
        return windows
    gaps = find_gaps(seen, windows)
    waits = (gaps.cause == CAUSES.index("queued")) & np.isin(gaps.launch, launch[first])
    waits &= np.isin(gaps.end, work.start[first])
    if not waits.any():
        return windows
    typical = intersection(windows.typical, _outside(union(gaps.start[waits], gaps.end[waits]), windows))
    unseen = max(_host_time(seen, windows) - typical.length, 0)
    return windows._replace(typical=typical, unrecorded=True, unseen=unseen)


def _outside(queues: Intervals, windows: Windows) -> Intervals:
    return queues.gaps(windows.device_low, windows.device_high)


def _first_of_streams(seen: View) -> Ints:
    """Positions in `links.gpu` of the first work of each stream, where its launch was recorded."""
    work, lane = seen.on_device, seen.table.lane[seen.links.gpu]
    order = np.lexsort((work.start, lane))
    order = order[work.usable[order]]
    first = order[np.flatnonzero(np.diff(lane[order], prepend=NONE - 1))]
    return np.asarray(first[seen.links.launch[first] != NONE])


def _host_time(seen: View, windows: Windows) -> int:
    """How long the launching threads took until the last launch without waiting: a queue hides if that is long."""
    table, calls = seen.table, seen.links.calls
    until = int(table.end[calls].max(initial=windows.device_low))
    waits = waiting_calls(table, seen.links) & np.isin(table.thread, np.unique(table.thread[calls]))
    waited = union(table.ts[waits], table.end[waits]).clipped(windows.device_low, until)
    return until - windows.device_low - waited.length
