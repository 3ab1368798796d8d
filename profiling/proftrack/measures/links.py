"""Joins GPU work with the host calls that launched it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.nesting import Forest
from proftrack.measures.serial import possible_ends
from proftrack.trace.categories import (
    CALL_KINDS,
    Kind,
    has_known_calls,
    is_graph_launch,
    is_launch,
    is_memory_set,
    is_wait,
)
from proftrack.trace.codes import distinct
from proftrack.trace.table import NONE, Bools, EventTable, Ints

NO_CORRELATION = 0
"""CUPTI's id for anything that belongs to no call."""


class Links(NamedTuple):
    """GPU work and its launch calls."""

    gpu: Ints
    """Rows of GPU work in the event table, invalid times included."""
    end: Ints
    """When each of `gpu` ended: as recorded, but cut where its stream rules that out (`serial.possible_ends`)."""
    launch: Ints
    """For each of `gpu`, the row of the call that launched it, or NONE."""
    calls: Ints
    """Rows of all calls that enqueue GPU work; nested launch calls count once, as the outermost."""
    caused: Ints
    """For each of `calls`, the number of GPU events that it launched."""
    graph_calls: Bools
    """Which of `calls` replay a graph."""
    set_calls: Bools
    """Which of `calls` set memory."""
    counted: bool
    """Whether `calls` are all launches of the trace: False if it has none, but has work or calls of a device."""

    @property
    def launching(self) -> Ints:
        """Rows of the calls that launched work, by their name or by the work that they caused; rows may repeat."""
        return np.concatenate([self.calls, self.launch[self.launch != NONE]])


def link(table: EventTable, forest: Forest) -> Links:
    """Join by correlation id, through runtime and driver calls. A graph replay is one call for many kernels."""
    gpu = np.flatnonzero(table.gpu_work)
    launches, outermost = _launch_calls(table, forest)
    launch = _join(table, gpu, launches)
    inner = np.flatnonzero(np.isin(launch, launches))
    launch[inner] = outermost[np.searchsorted(launches, launch[inner])]
    calls, _ = distinct(outermost, len(table))
    position = np.full(len(table), NONE, dtype=np.int64)
    position[calls] = np.arange(len(calls))
    joined = position[launch[launch != NONE]]
    caused = np.bincount(joined[joined != NONE], minlength=len(calls)).astype(np.int64)
    replays, sets = table.named(is_graph_launch)[calls], table.named(is_memory_set)[calls]
    end = possible_ends(table, gpu, calls)
    return Links(gpu, end, launch, calls, caused, replays, sets, len(calls) > 0 or not _has_device(table))


def _has_device(table: EventTable) -> bool:
    """Whether any row is work on a device, or a call whose name may mean a launch: on a CPU there are none."""
    unknown = np.array([not has_known_calls(name) for name in table.categories], dtype=bool)
    calls = table.of_kind(*CALL_KINDS)
    if table.notes.legacy:  # it has no calls, whatever was launched
        return True
    work = table.gpu_work | (table.of_kind(Kind.OTHER) & (table.dur > 0))
    return bool(work.any() or unknown[table.category[calls]].any())


def _launch_calls(table: EventTable, forest: Forest) -> tuple[Ints, Ints]:
    """Rows of launch calls, and for each its outermost launch call: a runtime call may go through a driver call."""
    rows = np.flatnonzero(table.of_kind(*CALL_KINDS) & table.named(is_launch))
    outermost = rows.copy()
    position = forest.position_of(len(table))[rows]
    order = np.argsort(position, kind="stable")
    order = order[position[order] != NONE]  # parents before children
    position = position[order]
    if len(order):
        reach = np.concatenate([[0], np.maximum.accumulate(forest.last[position])[:-1]])
        is_outer = position >= reach
        outermost[order] = rows[order][np.maximum.accumulate(np.where(is_outer, np.arange(len(order)), 0))]
    return rows, outermost


def _join(table: EventTable, gpu: Ints, launches: Ints) -> Ints:
    """For each row of `gpu`, the call with its correlation id. A launch call takes precedence over other calls."""
    launch = np.full(len(gpu), NONE, dtype=np.int64)
    others = np.flatnonzero(table.of_kind(*CALL_KINDS) & ~table.named(is_wait))
    wanted = table.correlation[gpu]
    for candidates in (launches, others):
        ids = table.correlation[candidates]
        has_id = (ids != NONE) & (ids != NO_CORRELATION)
        ids, rows = ids[has_id], candidates[has_id]
        order = np.lexsort((table.ts[rows], ids))
        ids, rows = ids[order], rows[order]
        first, behind = np.searchsorted(ids, wanted, side="left"), np.searchsorted(ids, wanted, side="right")
        take = np.flatnonzero((behind > first) & (launch == NONE))
        launch[take] = rows[first[take]]
        for i in take[behind[take] - first[take] > 1].tolist():  # an id used twice: the last call before the work
            mine = rows[first[i] : behind[i]]
            before = int(np.searchsorted(table.ts[mine], table.ts[gpu[i]], side="right"))
            launch[i] = mine[max(before - 1, 0)]
    return launch


def launching_row(table: EventTable, forest: Forest, links: Links) -> Ints:
    """For each piece of GPU work, the position in the forest of what launched it (`launched_from`)."""
    return launched_from(table, forest, links.launch)


def launched_from(table: EventTable, forest: Forest, calls: Ints, ignored: Bools | None = None) -> Ints:
    """For each of these rows, launch calls or NONE, the position in the forest of the operator or annotation around it.

    If nothing is around the launch call, the position of the call itself. `ignored`: rows that are nothing of the kind.
    """
    position = forest.position_of(len(table))
    at = np.where(calls == NONE, NONE, position[calls])
    if not len(forest.rows):
        return at
    is_operator = table.of_kind(Kind.CPU_OP, Kind.ANNOTATION)
    if ignored is not None:
        is_operator &= ~ignored
    operator = forest.nearest(at, is_operator[forest.rows])
    return np.where(operator == NONE, at, operator)
