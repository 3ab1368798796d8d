"""How long the recorded steps spent getting their data, to be held against what steps wait without the profiler."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from proftrack.measures.idle import is_input
from proftrack.measures.intervals import EMPTY, Intervals, intersection, union
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.record.figures import LOADING_REGION
from proftrack.trace.categories import Kind

_TIMED = re.compile(rf"^enumerate\(DataLoader\)#|^{LOADING_REGION}$")
"""Rows of the calls that capture times without the profiler, too (`capture/input_waits.py`)."""


class Loading(Struct, frozen=True, kw_only=True):
    """What the threads that run the steps did in the typical steps. Microseconds, sums."""

    all_us: float
    """Time in regions that get data."""
    timed_us: float
    """The part of it in calls that are timed without the profiler, too."""
    over_gpu_us: float
    """The part of that in which the GPU worked: it delays nothing."""
    workers: bool
    """Whether worker processes made the data."""


def loading(view: View, windows: Windows, gpu_busy: Intervals = EMPTY) -> Loading | None:
    """The figures for one trace; `gpu_busy` is the GPU's busy time in its typical steps. None without such a region."""
    table = view.table
    rows = table.valid & table.of_kind(Kind.CPU_OP, Kind.ANNOTATION) & table.named(is_input)
    if len(view.steps):
        rows &= np.isin(table.thread, np.unique(view.steps.thread))
    if not rows.any():
        return None
    timed = rows & table.named(lambda name: _TIMED.match(name) is not None)
    whole, known = (intersection(union(table.ts[mask], table.end[mask]), windows.typical) for mask in (rows, timed))
    return Loading(
        all_us=whole.length / 1000,
        timed_us=known.length / 1000,
        over_gpu_us=intersection(known, gpu_busy).length / 1000,
        workers=bool((timed & table.named(lambda name: "MultiProcessing" in name)).any()),
    )
