"""Start-up: calls that load the driver, libraries or kernels, which happens once: it says nothing about later steps."""

from __future__ import annotations

import numpy as np

from proftrack.measures.intervals import union
from proftrack.trace.categories import CALL_KINDS, is_allocator_call, is_copy, is_launch, is_wait
from proftrack.trace.table import EventTable, Ints

START_UP_NS = 20_000_000
"""A longer call that neither copies nor waits does more than call: launching and allocating take microseconds, while
creating a context, loading a library, or loading a kernel when it is first launched take tens of milliseconds."""

RECURRING = 10
"""The first allocations of a program create its context; a name that takes this long more often than this without
steps, or once more behind the first step, is how the program allocates."""


def start_up_calls(table: EventTable, second_step: int | None = None, *, running: bool = False) -> Ints:
    """Rows, in order of time, of the calls of launching threads that start something up.

    They take over 20 ms, neither copy nor wait, and the GPU does not work for most of them: a launch that finds the
    queue full, or a cudaFree while kernels run, takes that long because it waits. Nor do allocations that recur count;
    `second_step` is when the second step starts, if there is one. In a program that was `running` before its recorded
    steps, no allocation counts: its allocator then flushes its cache, which may happen again at any time.
    """
    rows = np.flatnonzero(table.dur > START_UP_NS)
    rows = rows[table.valid[rows] & np.isin(table.kind[rows], CALL_KINDS)]
    if not len(rows):
        return rows
    rows = rows[~(table.named(is_copy) | table.named(is_wait))[rows]]
    launching = np.unique(table.thread[table.of_kind(*CALL_KINDS) & table.named(is_launch)])
    rows = rows[np.isin(table.thread[rows], launching)]
    work = np.flatnonzero(table.gpu_work & table.valid)
    busy = union(table.ts[work], table.end[work]).covered_within(table.ts[rows], table.end[rows])
    rows = rows[busy * 2 < table.dur[rows]]
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
