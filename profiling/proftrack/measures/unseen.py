"""Without steps: work that was queued when recording began, which the trace does not show.

host  |L-L-L-L-L-L-L|-- waits ------------------------|
GPU       (earlier work, not recorded)  |==========|
         |<-------- left out --------->|

A program that is recorded amid its work has a queue, and the first recorded work of a stream starts when that is done.
Had the device really done nothing, that would still not be the host's doing, nor happen again.
"""

from __future__ import annotations

import numpy as np

from proftrack.measures.idle import CAUSES, explained
from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.view import View
from proftrack.measures.waits import waiting_calls
from proftrack.measures.window import QUEUE_DELAY_NS, Windows, busy
from proftrack.trace.table import NONE, Ints


def without_unseen_queue(seen: View, windows: Windows) -> Windows:
    """The windows of a trace without steps, whose typical time leaves out waiting in queues that it does not show."""
    work, launch, first = seen.on_device, seen.links.launch, _first_of_streams(seen)
    first = first[work.start[first] - seen.table.ts[launch[first]] > QUEUE_DELAY_NS]
    idle = busy(work).gaps(windows.device_low, windows.device_high)
    ended = np.isin(idle.end, work.start[first])
    if len(seen.steps) or not ended.any():
        return windows
    gaps = explained(seen, windows, Intervals(idle.start[ended], idle.end[ended]))
    waits = (gaps.cause == CAUSES.index("queued")) & np.isin(gaps.launch, launch[first])
    if not waits.any():
        return windows
    queues = union(gaps.start[waits], gaps.end[waits])
    typical = intersection(windows.typical, queues.gaps(windows.device_low, windows.device_high))
    unseen = max(_host_time(seen, windows) - typical.length, 0)
    return windows._replace(typical=typical, unrecorded=True, unseen=unseen)


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
