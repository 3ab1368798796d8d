"""Joins GPU work with the host calls that launched it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.events.categories import CALL_KINDS, is_graph_launch, is_launch, is_wait
from proftrack.events.table import NONE, Bools, EventTable, Ints
from proftrack.measures.nesting import Forest


class Links(NamedTuple):
    """GPU work and its launch calls."""

    gpu: Ints
    """Rows of GPU work in the event table, invalid times included."""
    launch: Ints
    """For each of `gpu`, the row of the call that launched it, or NONE."""
    calls: Ints
    """Rows of all calls that enqueue GPU work, one each: a launch call within a launch call is one launch."""
    caused: Ints
    """For each of `calls`, how much GPU work joined it."""
    graph_calls: Bools
    """Which of `calls` replay a graph."""


def link(table: EventTable, forest: Forest) -> Links:
    """Join by correlation id, through runtime and driver calls. A graph's replay is one call for many kernels."""
    gpu = np.flatnonzero(table.gpu_work)
    calls = _launch_calls(table, forest)
    launch = _join(table, gpu, calls)
    position = np.full(len(table), NONE, dtype=np.int64)
    position[calls] = np.arange(len(calls))
    joined = position[launch[launch != NONE]]
    caused = np.bincount(joined[joined != NONE], minlength=len(calls)).astype(np.int64)
    return Links(gpu, launch, calls, caused, table.named(is_graph_launch)[calls])


def _launch_calls(table: EventTable, forest: Forest) -> Ints:
    """Rows of launch calls; of nested ones (a runtime call that goes through a driver call) the outermost."""
    is_call = table.of_kind(*CALL_KINDS) & table.named(is_launch)
    position = forest.position_of(len(table))
    rows = np.flatnonzero(is_call)
    nested = np.zeros(len(rows), dtype=bool)
    placed = position[rows] != NONE
    parent = np.where(placed, forest.parent[position[rows]], NONE) if len(forest.rows) else np.full(len(rows), NONE)
    above = forest.nearest(parent.astype(np.int64), is_call[forest.rows])
    nested[placed] = above[placed] != NONE
    return rows[~nested]


def _join(table: EventTable, gpu: Ints, calls: Ints) -> Ints:
    """For each row of `gpu` the call with its correlation id. A launch call wins over another call of that id."""
    launch = np.full(len(gpu), NONE, dtype=np.int64)
    others = np.flatnonzero(table.of_kind(*CALL_KINDS) & ~table.named(is_wait) & (table.correlation > 0))
    for candidates in (calls, others):
        ids = table.correlation[candidates]
        known = ids != NONE
        ids, rows = ids[known], candidates[known]
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], rows[order]
        wanted = table.correlation[gpu]
        index = np.searchsorted(ids, wanted)
        found = index < len(ids)
        found[found] = ids[index[found]] == wanted[found]
        take = found & (launch == NONE) & (wanted != NONE)
        launch[take] = rows[index[take]]
    return launch
