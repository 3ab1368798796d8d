"""What the work of one stream cannot have done: outlive work that it ran later.

stream 7   |== a ==|  |=================== b ==================|     as recorded
                          |== c ==|  |== d ==|
                      |= b|                                          as it counts: until its successor starts
"""

from __future__ import annotations

import numpy as np

from proftrack.trace.table import EventTable, Ints

OUTLIVES_NS = 1000
"""Old traces give whole microseconds: by less than this a row outlives its successor by rounding alone."""


def possible_ends(table: EventTable, gpu: Ints, launches: Ints) -> Ints:
    """The ends of the rows `gpu`, those of impossible ones cut at the start of the next row on their stream.

    A stream runs its work in order. Consecutive rows may overlap (a programmatic launch starts early), but none can
    end after work that its stream started later. None of 388 public traces with GPU work (CUDA and ROCm, with graphs)
    has such a row, and the branches of a CUDA graph get streams of their own. Streams are not told apart in a file of
    several processes (`launches`: their calls), nor is work without a stream: there nothing is cut. A row without a
    length says nothing.
    """
    end: Ints = table.end[gpu].copy()
    at = np.flatnonzero(table.on_stream[gpu] & table.valid[gpu] & (table.dur[gpu] > 0))
    if len(at) < 2 or _processes(table, launches) > 1:
        return end
    lane, start = table.lane[gpu[at]].astype(np.int64), table.ts[gpu[at]]
    order = np.lexsort((end[at], start, lane))
    at, lane, start = at[order], lane[order], start[order]
    origin, span = int(start.min()), int(end[at].max() - start.min()) + OUTLIVES_NS + 1
    if (int(lane[-1]) + 1) * span >= 2**62:  # putting the streams one after the other would overflow
        return end
    ends = end[at] - origin + lane * span
    earliest_behind = np.minimum.accumulate(ends[::-1])[::-1][1:]
    impossible = np.flatnonzero(ends[:-1] > earliest_behind + OUTLIVES_NS)
    end[at[impossible]] = start[impossible + 1]
    return end


def _processes(table: EventTable, launches: Ints) -> int:
    return len({table.threads[thread][0] for thread in np.unique(table.thread[launches]).tolist()})
