"""The host's waits for the GPU by call and operator, and what each could cost."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from proftrack.measures.intervals import Intervals
from proftrack.measures.view import View
from proftrack.trace.categories import CALL_KINDS, Kind, is_wait
from proftrack.trace.table import NONE, Ints


class Wait(Struct, frozen=True, kw_only=True):
    """All waits by one call in one operator that can delay a step.

    Waits before the first step and after the last one belong to no step: torch's profiler and proftrack themselves
    synchronize the device there.
    """

    call: str
    operator: str
    """The innermost operator that the call ran in; empty if none."""
    calls: int
    over_gpu_us: float
    """The part in which the GPU worked: the host could have launched ahead."""


def waits(view: View, gpu_busy: Intervals) -> list[Wait]:
    """The waits of launching threads inside the steps, the longest first; `gpu_busy` is that of the device window.

    Without steps, those before the last launch: what follows it delays nothing in the trace.
    """
    rows, operator = _outermost(view, _candidates(view))
    if not len(rows):
        return []
    table = view.table
    over = gpu_busy.covered_within(table.ts[rows], table.end[rows])
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
    table, steps, calls = view.table, view.steps, view.links.calls
    launching = np.isin(table.thread, np.unique(table.thread[calls]))
    rows = np.flatnonzero(table.of_kind(*CALL_KINDS) & table.valid & table.named(is_wait) & launching)
    if len(steps):
        return np.asarray(rows[steps.containing(table.ts[rows]) != NONE], dtype=np.int64)
    return np.asarray(rows[table.ts[rows] < table.ts[calls].max(initial=0)], dtype=np.int64)


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
