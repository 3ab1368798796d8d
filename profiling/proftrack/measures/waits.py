"""Calls in which the host waits for the GPU, when a wait no longer delays anything, and what waits could cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from proftrack.measures.intervals import Intervals
from proftrack.measures.links import Links
from proftrack.measures.view import View
from proftrack.trace.categories import CALL_KINDS, Kind, is_copy, is_wait
from proftrack.trace.table import NONE, Bools, EventTable, Ints


class Wait(Struct, frozen=True, kw_only=True):
    """All waits by one call in one operator that can delay a step.

    Waits before the first step and after the last one belong to no step: torch's profiler and proftrack themselves
    synchronize the device there.
    """

    call: str
    operator: str
    """The innermost operator that the call ran in; empty if none."""
    calls: int
    """In the typical steps."""
    over_gpu_us: float
    """The part of the typical steps in which the GPU worked meanwhile: the host could have launched ahead."""


def waiting_calls(table: EventTable, links: Links) -> Bools:
    """Mask of the calls that wait for the GPU: synchronizations, and copies that return when the data have arrived."""
    mask = table.of_kind(*CALL_KINDS) & table.valid & table.named(is_wait)
    mask[_blocking_copies(table, links)] = True
    return mask


def _blocking_copies(table: EventTable, links: Links) -> Ints:
    """Calls of any name that did not return before their copy ended, as copies to pageable memory do not.

    The end may be a little late on the GPU's clock: of a pageable copy, a call that returned after its start counts.
    """
    copies = links.launch != NONE
    copies[copies] = (table.kind == Kind.MEMCPY)[links.gpu[copies]] & table.named(is_copy)[links.launch[copies]]
    copy, call = links.gpu[copies], links.launch[copies]
    pageable = table.named(lambda name: "Pageable" in name)[copy]
    blocks = table.end[call] >= np.where(pageable, table.ts[copy], table.end[copy])
    return np.unique(call[blocks & table.valid[copy] & table.valid[call]])


def delays_until(view: View) -> int:
    """From here on a wait delays nothing: the last step's end; without steps, the last launch call of the trace."""
    table, steps = view.table, view.steps
    if len(steps):
        return int(steps.end.max())
    return int(table.ts[view.links.calls].max(initial=0))


def waits(view: View, gpu_busy: Intervals, outliers: Sequence[int] = ()) -> list[Wait]:
    """The waits of launching threads inside the steps, the longest first; `gpu_busy` is that of the typical
    steps, `outliers` are the indices of the others.

    Without steps, those before the last launch: what follows it delays nothing in the trace.
    """
    candidates = _candidates(view)
    candidates = candidates[~np.isin(view.steps.containing(view.table.ts[candidates]), outliers)]
    rows, operator = _outermost(view, candidates)
    if not len(rows):
        return []
    table = view.table
    over = gpu_busy.covered_within(table.ts[rows], np.minimum(table.end[rows], delays_until(view)))
    keys = table.name[rows].astype(np.int64) * (len(table.names) + 1) + operator + 1
    unique, group = np.unique(keys, return_inverse=True)
    calls, total = np.bincount(group), np.bincount(group, weights=over)
    found = []
    for key, count, ns in zip(unique.tolist(), calls.tolist(), total.tolist(), strict=True):
        call, code = divmod(key, len(table.names) + 1)
        name = table.names[code - 1] if code else ""
        found.append(Wait(call=table.names[call], operator=name, calls=count, over_gpu_us=ns / 1000))
    return sorted(found, key=lambda wait: -wait.over_gpu_us)


def _candidates(view: View) -> Ints:
    """Rows of waits on launching threads that come before something they can delay."""
    table, steps = view.table, view.steps
    launching = np.isin(table.thread, np.unique(table.thread[view.links.calls]))
    low = int(steps.start[0]) if len(steps) else 0
    here = (table.ts >= low) & (table.ts < delays_until(view))
    return np.flatnonzero(waiting_calls(table, view.links) & launching & here)


def _outermost(view: View, rows: Ints) -> tuple[Ints, Ints]:
    """The rows that run in no other wait (a runtime call may go through a driver call), and the names of the operators
    that they run in, as codes of the table or NONE."""
    table, forest = view.table, view.forest
    at = forest.position_of(len(table))[rows]
    rows, at = rows[at != NONE], at[at != NONE]
    is_one = np.zeros(len(forest.rows), dtype=bool)
    is_one[at] = True
    nested = forest.nearest(forest.parent[at], is_one) != NONE
    rows, at = rows[~nested], at[~nested]
    inside = forest.nearest(at, table.kind[forest.rows] == Kind.CPU_OP)
    return rows, np.where(inside == NONE, NONE, table.name[forest.rows[np.maximum(inside, 0)]]).astype(np.int64)


def profilers_own(table: EventTable) -> Bools:
    """Mask of the profiler's own work, which does not happen without it: requesting and flushing buffers.

    The driver loading code on its first call is not, though it is shown among that.
    """
    return table.valid & table.of_kind(Kind.OVERHEAD) & ~table.named(lambda name: "Loading" in name)
