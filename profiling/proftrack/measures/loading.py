"""How long the recorded steps spent getting their data, to be held against what steps wait without the profiler."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from proftrack.measures import idle
from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.view import View
from proftrack.measures.window import Windows, busy
from proftrack.record.figures import LOADING_REGION, Idle
from proftrack.trace.categories import Kind

_TIMED = re.compile(rf"^enumerate\(DataLoader\)#|^{LOADING_REGION}$")
"""Rows of the calls that capture times without the profiler, too (`capture/input_waits.py`)."""


class Loading(Struct, frozen=True, kw_only=True):
    """What the threads that run the steps did in the typical steps. Microseconds, sums."""

    timed_us: float
    """Time in calls that get data and are timed without the profiler, too."""
    over_gpu_us: float
    """The part of it in which the GPU worked: it delays nothing."""
    workers: bool
    """Whether worker processes made the data."""
    in_process: bool
    """Whether a DataLoader without workers made it, in the thread that runs the steps."""
    other_idle: Idle
    """The GPU's idle time outside these calls, by cause. A gap that is mostly a wait for data has the cause `input` as
    a whole; here it has the cause of its rest."""


def loading(view: View, windows: Windows, gpu_busy: Intervals | None = None) -> Loading | None:
    """The figures for one trace; `gpu_busy` is the GPU's busy time in its typical steps, None without GPU work.

    None if no data was got in such a call.
    """
    table = view.table
    rows = table.valid & table.of_kind(Kind.CPU_OP, Kind.ANNOTATION) & table.named(_is_timed)
    if len(view.steps):
        rows &= np.isin(table.thread, np.unique(view.steps.thread))
    if not rows.any():
        return None
    calls = union(table.ts[rows], table.end[rows])
    within = intersection(calls, windows.typical)
    return Loading(
        timed_us=within.length / 1000,
        over_gpu_us=intersection(within, gpu_busy).length / 1000 if gpu_busy is not None else 0.0,
        workers=bool((rows & table.named(lambda name: "MultiProcessing" in name)).any()),
        in_process=bool((rows & table.named(lambda name: "SingleProcess" in name)).any()),
        other_idle=_idle_outside(calls, view, windows) if gpu_busy is not None else NO_IDLE,
    )


NO_IDLE = Idle(by_cause_us_per_step={}, largest=[])


def _idle_outside(calls: Intervals, view: View, windows: Windows) -> Idle:
    low, high = windows.device_low, windows.device_high
    rest = intersection(busy(view.on_device).gaps(low, high), calls.gaps(low, high))
    return idle.summarize(view, idle.explained(view, windows, rest), windows)


def _is_timed(name: str) -> bool:
    return _TIMED.match(name) is not None
