"""The part of the typical time that only one step shows: a verdict that rests on it may not hold for other steps.

of several steps, the longest:                  of a single step, what follows its GPU work:
host  |- step 2 -|------ step 3 ------|- step 4 -|     |- step 2 -----------------------|
GPU   |==========|====|        |======|==========|     |==========|
                 |<------------------>|                           |<------------------->|
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from proftrack.measures.idle import Gaps
from proftrack.measures.intervals import intersection, union
from proftrack.measures.typical import step_times
from proftrack.measures.view import View
from proftrack.measures.window import Windows, busy
from proftrack.record.figures import IdleCause


class Single(NamedTuple):
    """Times in microseconds, within the device window."""

    step: str | None
    """The name of the step; None if it is the end of the only one."""
    time_us: float
    busy_us: float
    idle_us: dict[IdleCause, float]


def single(seen: View, windows: Windows, gaps: Gaps, outliers: Collection[int]) -> Single | None:
    """The longest typical step, or the end of the only one; None without steps. `outliers` are indices of steps."""
    typical = np.setdiff1d(np.arange(len(seen.steps)), list(outliers))
    if not len(typical):
        return None
    times = step_times(seen, windows)
    longest = int(typical[np.argmax(times.length[typical])])
    start, end, alone = int(times.start[longest]), int(times.end[longest]), len(typical) == 1
    if alone:
        owned = seen.on_device
        own = owned.usable & (owned.step == longest)
        start = max(start, int(owned.end[own].max(initial=start)))
    span = union(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))
    return Single(
        step=None if alone else seen.steps.name[longest],
        time_us=(end - start) / 1000,
        busy_us=intersection(busy(seen.on_device), span).length / 1000,
        idle_us={cause: ns / 1000 for cause, ns in gaps.within(span).by_cause().items()},
    )
