"""Start-up: calls that load the driver, libraries or kernels, which happens once: it says nothing about later steps."""

from __future__ import annotations

import re

import numpy as np

from proftrack.measures.intervals import union
from proftrack.trace.categories import (
    CALL_KINDS,
    Kind,
    is_allocator_call,
    is_copy,
    is_graph_launch,
    is_launch,
    is_wait,
)
from proftrack.trace.table import NONE, Bools, EventTable, Ints

START_UP_NS = 20_000_000
"""A longer call that neither copies nor waits does more than call: launching and allocating take microseconds, while
creating a context, loading a library, or loading a kernel when it is first launched take tens of milliseconds."""

LOADING_NS = 1_000_000
"""A shorter call, but longer than this, starts something up if it is one that loads: by its name, or as the first
launch of its kernel. Together such calls must take START_UP_NS, too."""

_LOADS = re.compile(r"(?:Module|Library)Load|GetFunction|Func(?:Get|Set)Attribute")

RECURRING = 10
"""The first allocations of a program create its context; a name that takes this long more often than this without
steps, or once more behind the first step, is how the program allocates."""


def start_up_calls(table: EventTable, second_step: int | None = None, *, running: bool = False) -> Ints:
    """Rows, in order of time, of the calls of launching threads that start something up.

    They take over 20 ms (each; those that load something, together), neither copy nor wait, and the GPU does not work
    for most of them: a launch that finds the queue full, or a cudaFree while kernels run, takes that long because it
    waits. Nor do allocations that recur count; `second_step` is when the second step starts, if there is one. In a
    program that was `running` before its recorded steps, no allocation counts: its allocator then flushes its cache,
    which may happen again at any time.
    """
    rows = np.flatnonzero(table.dur > LOADING_NS)
    rows = rows[table.valid[rows] & np.isin(table.kind[rows], CALL_KINDS)]
    if not len(rows):
        return rows
    rows = rows[~(table.named(is_copy) | table.named(is_wait))[rows]]
    launching = np.unique(table.thread[table.of_kind(*CALL_KINDS) & table.named(is_launch)])
    rows = rows[np.isin(table.thread[rows], launching)]
    work = np.flatnonzero(table.gpu_work & table.valid)
    busy = union(table.ts[work], table.end[work]).covered_within(table.ts[rows], table.end[rows])
    rows = rows[busy * 2 < table.dur[rows]]
    long = table.dur[rows] > START_UP_NS
    rows = rows[long | _loads(table, rows)]
    if union(table.ts[rows], table.end[rows]).length <= START_UP_NS:
        return rows[:0]
    rows = rows[np.argsort(table.ts[rows], kind="stable")]
    allocates = table.named(is_allocator_call)[rows]
    name, again = table.name[rows], np.zeros(len(rows), dtype=bool)
    if running:
        again[:] = True
    elif second_step is None:
        again = np.bincount(name, minlength=1)[name] > RECURRING
    else:
        again = np.isin(name, name[table.ts[rows] >= second_step])
    return rows[~(allocates & again)]


def _loads(table: EventTable, rows: Ints) -> Bools:
    """Which of these calls load something: by their names, or as the first launch of a kernel."""
    work = np.flatnonzero(table.of_kind(Kind.KERNEL) & table.valid & (table.correlation != NONE))
    work = work[np.argsort(table.ts[work], kind="stable")]
    first = work[np.unique(table.name[work], return_index=True)[1]]
    launches = table.named(is_launch) & ~table.named(is_graph_launch)
    loads = launches[rows] & np.isin(table.correlation[rows], table.correlation[first])
    return np.asarray(loads | table.named(lambda name: _LOADS.search(name) is not None)[rows])


def start_up_end(table: EventTable, launched: Ints, length: Ints, share: float, *, running: bool = False) -> int | None:
    """When the start-up was over: all of it, if this share of the GPU work (by its time) was launched behind it.

    host  |-cudaFree(0)-------------|  |-L-|  |-cuLibraryLoadData-|  |-L-|
    GPU                                   |=|                           |===============
                                                                  ^
    Otherwise, that ahead of all work; None if there was none. `launched` is when the launch call of each piece of work
    returned, `length` how long the work took. The first launch may itself be the call that loads something.
    """
    calls = start_up_calls(table, running=running)
    order = np.argsort(launched, kind="stable")
    behind = np.concatenate([np.cumsum(length[order][::-1])[::-1], [0]])
    ends = np.sort(table.end[calls])
    rest = behind[np.searchsorted(launched[order], ends)]
    least = np.full(len(ends), float(behind[0]))
    least[-1:] = behind[0] * share
    ends = ends[(rest > 0) & (rest >= least)]
    return int(ends[-1]) if len(ends) else None
