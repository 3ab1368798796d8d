"""Compilations in a trace: what torch.compile, nvrtc and autotuning did while steps were recorded.

    |-- compile_inner ---------------------------|  op  |-- entire_backward_compile --|  op  |- benchmark_all_configs -|
       |-- compile_fx --|  |-- GraphLowering --|           |-- inductor_compile --|

One compilation has many rows, one inside the other, and its graph's backward pass is compiled when it first runs: above
is one compilation and one autotuning run. Loading a module of kernels that is there already (cuModuleLoadData,
cuLibraryLoadData) is none: CUDA loads kernels when they first run.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from proftrack.measures.intervals import union
from proftrack.measures.nesting import Forest
from proftrack.measures.window import Steps
from proftrack.trace.categories import CALL_KINDS, Kind
from proftrack.trace.table import NONE, Bools, EventTable, Ints

_COMPILING = re.compile(
    r"compile_inner|compile_fx|backend_compile|inductor_compile|entire_(?:frame|backward)_compile|dynamo_timed"
    r"|\bcompile_file\b|nvrtcCompile|autotun|benchmark_all_configs|async_compile|create_aot_dispatcher",
    re.IGNORECASE,
)
_TUNING = re.compile(r"autotun|benchmark_all_configs|do_bench|benchmark_gpu", re.IGNORECASE)
_OF_BACKWARD = re.compile(r"backward_compile|_backward_impl|bw_compiler", re.IGNORECASE)
_LOADING = re.compile(r"^(?:cuda|cu|hip)(?:Module|Library)Load(?:Data|DataEx|FromFile|FatBinary)?$")


class Compilation(NamedTuple):
    """One stretch of compiling. Nanoseconds."""

    start: int
    end: int
    what: Literal["graph", "backward", "tuning"]


def compilations(table: EventTable, steps: Steps, forest: Forest) -> list[Compilation]:
    """The compilations that begin during the steps, in order of time; rows of the same one are joined.

    Outermost rows that overlap (a compiler's own threads) are one compilation. So are different ones in succession, as
    older versions of torch record them, with nothing else of the program between them.
    """
    rows = _outermost(table, forest)
    if not len(steps) or not len(rows):
        return []
    rows = rows[(table.ts[rows] >= steps.start[0]) & (table.ts[rows] < steps.end.max())]
    between = _others_before(table, forest, rows)
    found: list[Compilation] = []
    names: set[int] = set()
    place = (NONE, NONE)
    for row, before in zip(rows.tolist(), between.tolist(), strict=True):
        start, end, name = int(table.ts[row]), int(table.end[row]), int(table.name[row])
        what, last, place = _what(table.names[name]), place, (int(table.thread[row]), before)
        follows = place == last and name not in names and "tuning" not in (what, found[-1].what)
        if follows or (found and start < found[-1].end):
            found[-1] = found[-1]._replace(end=max(found[-1].end, end))
            names.add(name)
        else:
            found.append(Compilation(start, end, what))
            names = {name}
    return found


def number_of(found: list[Compilation]) -> tuple[int, int]:
    """How many graphs were compiled (a graph and its backward pass are one), and how often kernels were tuned."""
    count = {what: sum(each.what == what for each in found) for what in ("graph", "backward", "tuning")}
    return max(count["graph"], count["backward"]), count["tuning"]


def compiling_steps(table: EventTable, steps: Steps, forest: Forest) -> Ints:
    """Nanoseconds of each step in which something was compiled or tuned."""
    found = compilations(table, steps, forest)
    times = np.array([(each.start, each.end) for each in found], dtype=np.int64).reshape(-1, 2)
    return union(times[:, 0], times[:, 1]).covered_within(steps.start, steps.end)


def loading_steps(table: EventTable, steps: Steps) -> Ints:
    """Nanoseconds of each step in which modules of kernels were loaded."""
    rows = table.valid & _loading(table)
    return union(table.ts[rows], table.end[rows]).covered_within(steps.start, steps.end)


def _what(name: str) -> Literal["graph", "backward", "tuning"]:
    if _TUNING.search(name):
        return "tuning"
    return "backward" if _OF_BACKWARD.search(name) else "graph"


def _compiling(table: EventTable) -> Bools:
    return table.host & ~table.of_kind(Kind.MODULE) & table.valid & table.named(_says_compiling)


@lru_cache(maxsize=65536)
def _says_compiling(name: str) -> bool:
    return _COMPILING.search(name) is not None


def _loading(table: EventTable) -> Bools:
    return table.of_kind(*CALL_KINDS) & table.named(lambda name: _LOADING.match(name) is not None)


def _outermost(table: EventTable, forest: Forest) -> Ints:
    """Rows of compilation that are inside no other one, by start."""
    position = np.flatnonzero(_compiling(table)[forest.rows])  # parents come before children
    reach = np.concatenate([[0], np.maximum.accumulate(forest.last[position])])[:-1]
    rows = forest.rows[position[position >= reach]]
    return rows[np.argsort(table.ts[rows], kind="stable")]


def _others_before(table: EventTable, forest: Forest, rows: Ints) -> Ints:
    """For each compilation's row, how many operators and calls outside of all of them began before it on its thread."""
    compiling = np.zeros(len(forest.rows) + 1, dtype=np.int64)
    position = forest.position_of(len(table))[rows]
    np.add.at(compiling, position, 1)
    np.add.at(compiling, forest.last[position], -1)
    outside = forest.rows[np.cumsum(compiling[:-1]) == 0]
    outside = outside[(table.of_kind(Kind.CPU_OP, *CALL_KINDS) & ~_loading(table))[outside]]
    before = np.full(len(rows), NONE, dtype=np.int64)
    for thread in np.unique(table.thread[rows]).tolist():
        here = table.thread[rows] == thread
        starts = np.sort(table.ts[outside[table.thread[outside] == thread]])
        before[here] = np.searchsorted(starts, table.ts[rows[here]])
    return before
