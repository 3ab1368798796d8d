"""Captured CUDA graphs: launch calls that launched nothing, and the names that their kernels must have.

    host    |BeginCapture|  mm[L]  add[L]  mm[L]  |EndCapture|     |GraphLaunch|
    GPU                     (nothing)                                   gemm add gemm

A call's row in a capture tells its operator, but on CUDA not its kernel. What must run when the graph is replayed is
known from one of these, the first that there is:

- the capture's own replay, in regions that bear its number (`CAPTURED`, `CAPTURED_REPLAY`);
- the rows of the launch calls, which name their kernels on ROCm;
- the same operators with the same shapes, run in the same order just before, not captured: servers warm up like that.

The replay that follows a capture is no evidence: it may be another graph's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.autograd import EVALUATE
from proftrack.measures.links import Links, launched_from, link
from proftrack.measures.nesting import Forest, nest
from proftrack.trace.categories import (
    CALL_KINDS,
    CAPTURED,
    CAPTURED_REPLAY,
    ONE_BRANCH,
    Kind,
    is_copy,
    is_graph_launch,
    is_memory_set,
)
from proftrack.trace.table import NONE, Bools, EventTable, Ints

THIS_TRACE = "this trace"
COPY, SET, GRAPH = -2, -3, -4
"""What stands in `Sequence.work` for a copy, a memory set, and the launch of a graph."""
_MOST_THREADS = 1 << 12
"""More than any block has."""
_API = r"^(?:cuda|cu|hip|musa|mu)Stream"
_BEGIN, _END, _FORK = (re.compile(_API + name) for name in (r"BeginCapture", r"EndCapture", r"WaitEvent"))

_LEAF = f"{EVALUATE}torch::autograd::AccumulateGrad"


class Sequence(NamedTuple):
    """Pieces of GPU work in order."""

    work: Ints
    """The code of a kernel's name; COPY or SET for other work."""
    extent: Ints
    """A number for a kernel's grid and block, or the bytes of a copy or set; NONE if the rows do not tell.

    A graph captured for another batch size may run the same kernels.
    """

    def agrees(self, other: Sequence) -> Bools:
        """For each piece, whether it may be the other's."""
        unknown = (self.extent == NONE) | (other.extent == NONE)
        return np.asarray((self.work == other.work) & (unknown | (self.extent == other.extent)))


class Capture(NamedTuple):
    """One captured graph."""

    calls: Ints
    """Rows of its launch calls, in order."""
    shape: Ints
    """For each call, COPY, SET, GRAPH or 0 for a kernel."""
    forks: bool
    """A stream waited for another within it, so that its work may run in branches (`_forks`), and nothing says that it
    is a chain nevertheless (ONE_BRANCH)."""
    begin: int
    end: int
    """Where it was captured: end of the call that began it, start of the one that ended it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Captures:
    """A trace with the graphs that were captured while it was recorded."""

    name: str
    """The file's name; THIS_TRACE for the trace whose replays are to be named."""
    table: EventTable
    forest: Forest
    links: Links
    graphs: list[Capture]
    _running: dict[int, dict[bytes, list[Capture]]] = field(default_factory=dict)
    """Captures by the number of their launches, then by the work that they run; only those of which that is known."""
    _kernels: dict[int, Sequence | None] = field(default_factory=dict)

    def owner(self, calls: Ints) -> Ints:
        """For each of these calls, the position in the forest of what launched it (`links.launched_from`).

        The region around a capture is no part of the program.
        """
        return launched_from(self.table, self.forest, calls, self._ignored)

    def launching_rows(self, calls: Ints) -> Ints:
        """The same as rows of the table; the call itself where nothing is known to have launched it."""
        owner = self.owner(calls)
        return np.where(owner == NONE, calls, self.forest.rows[owner])

    @cached_property
    def regions(self) -> tuple[Ints, Ints]:
        """Rows of the regions around captures, and around their replays, in order of time."""
        return _regions(self.table, CAPTURED), _regions(self.table, CAPTURED_REPLAY)

    @cached_property
    def _ignored(self) -> Bools:
        return self.table.named(lambda name: name.startswith(CAPTURED))

    def kernels(self, capture: Capture) -> Sequence | None:
        """What runs when the graph is replayed; None if nothing tells."""
        if capture.begin not in self._kernels:
            sequences = (known(self, capture) for known in (_of_own_replay, _of_calls, _of_warm_up))
            self._kernels[capture.begin] = next((found for found in sequences if found is not None), None)
        return self._kernels[capture.begin]

    def running(self, sequence: Sequence) -> list[Capture]:
        """The captures that run this. Its names have the codes of this table (`code_of`)."""
        size = len(sequence.work)
        if size not in self._running:
            found = self._running[size] = {}
            for capture in self.graphs:
                kernels = self.kernels(capture) if len(capture.calls) == size else None
                if kernels is not None:
                    found.setdefault(kernels.work.tobytes(), []).append(capture)
        return [
            capture
            for capture in self._running[size].get(sequence.work.tobytes(), [])
            if (kernels := self.kernels(capture)) is not None and kernels.agrees(sequence).all()
        ]

    @cached_property
    def code_of(self) -> dict[str, int]:
        """The codes of the table's names."""
        return {name: code for code, name in enumerate(self.table.names)}

    @cached_property
    def warm_ups(self) -> tuple[Ints, bytes]:
        """Rows of the calls that launched one piece of work, in order of time, and their operators (`_operators`)."""
        calls = self.links.calls[(self.links.caused == 1) & ~self.links.graph_calls]
        calls = calls[np.argsort(self.table.ts[calls], kind="stable")]
        return calls, _operators(self, calls).tobytes()


def recorded_captures(name: str, table: EventTable) -> Captures:
    """The captures in a trace."""
    forest = nest(table, table.host)
    return captures_in(name, table, forest, link(table, forest))


def captures_in(name: str, table: EventTable, forest: Forest, links: Links) -> Captures:
    """The same for a trace that is nested and joined already."""
    graphs = _captures(table, forest, links) if has_captures(table) else []
    return Captures(name=name, table=table, forest=forest, links=links, graphs=graphs)


def has_captures(table: EventTable) -> bool:
    """Whether any graph was captured while the trace was recorded."""
    return any(_BEGIN.match(name) for name in table.names)


def _captures(table: EventTable, forest: Forest, links: Links) -> list[Capture]:
    silent = links.calls[(links.caused == 0) & table.valid[links.calls]]
    silent = silent[np.argsort(table.ts[silent], kind="stable")]
    called, shapes = table.ts[silent], shape_of_calls(table, silent)
    forks = _forks(table, forest, silent)
    chains, around = _regions(table, ONE_BRANCH), _regions(table, CAPTURED)
    found = []
    for begin, end in _intervals(table):
        during = np.array([table.end[begin], table.ts[end]])
        first, behind = np.searchsorted(called, during)
        threads = np.append(table.thread[silent[first:behind]], table.thread[begin])
        waits = forks[slice(*np.searchsorted(table.ts[forks], during))]
        waits = waits[table.ts[waits] < called[first:behind].max(initial=0)]  # one after all launches orders none
        forked = bool(np.isin(table.thread[waits], threads).any()) and not _is_chain(table, chains, around, end)
        found.append(Capture(silent[first:behind], shapes[first:behind], forked, *during.tolist()))
    return [capture for capture in found if len(capture.calls)]


def _forks(table: EventTable, forest: Forest, launches: Ints) -> Ints:
    """Rows of the calls by which a stream waits for another that may run some of these launches, in order of time.

    A gradient that is ready on one stream may be of a parameter that was first used on another: that one then waits, in
    autograd's node that adds the gradient up. No node comes after it, so if it launches nothing, nothing runs there.
    """
    calls = table.of_kind(*CALL_KINDS) & table.valid
    waits = np.flatnonzero(calls & table.named(lambda name: _FORK.match(name) is not None))
    if len(waits):
        position = forest.position_of(len(table))
        is_leaf = table.named(lambda name: name.startswith(_LEAF))[forest.rows]
        leaf = forest.nearest(position[waits], is_leaf)
        launched = np.sort(position[launches])
        first, behind = np.searchsorted(launched, [leaf, forest.last[leaf]])
        waits = waits[(leaf == NONE) | (first < behind)]
    return waits[np.argsort(table.ts[waits], kind="stable")]


def _is_chain(table: EventTable, chains: Ints, around: Ints, end: int) -> bool:
    """Whether one of the marks `chains` follows the end of a capture, in the innermost of the regions `around` it."""
    around = around[(table.ts[around] <= table.ts[end]) & (table.end[around] >= table.end[end])]
    if not len(around):
        return False
    inside = (table.ts[chains] >= table.end[end]) & (table.end[chains] <= table.end[around[-1]])
    return bool(inside.any())


def _intervals(table: EventTable) -> list[tuple[int, int]]:
    """Rows of the calls that begin and end a capture, in pairs: both are on one thread."""
    calls = table.of_kind(*CALL_KINDS) & table.valid
    begins = calls & table.named(lambda name: _BEGIN.match(name) is not None)
    rows = np.flatnonzero(begins | (calls & table.named(lambda name: _END.match(name) is not None)))
    rows = rows[np.lexsort((table.ts[rows], table.thread[rows]))]
    pair = begins[rows[:-1]] & ~begins[rows[1:]] & (table.thread[rows[:-1]] == table.thread[rows[1:]])
    at = np.flatnonzero(pair)
    pairs = sorted(zip(rows[at].tolist(), rows[at + 1].tolist(), strict=True), key=lambda each: int(table.ts[each[0]]))
    return [(begin, end) for begin, end in pairs if table.end[begin] <= table.ts[end]]


def shape_of_calls(table: EventTable, calls: Ints) -> Ints:
    """For each launch call, COPY, SET, GRAPH or 0 for a kernel."""
    shape = np.zeros(len(table.names), dtype=np.int64)
    for code in np.unique(table.name[calls]).tolist():
        name = table.names[code]
        shape[code] = GRAPH if is_graph_launch(name) else SET if is_memory_set(name) else COPY if is_copy(name) else 0
    return np.asarray(shape[table.name[calls]])


def sequence_of(table: EventTable, work: Ints) -> Sequence:
    """The sequence of this GPU work, given as rows."""
    kind, config = table.kind[work], table.config[work]
    names = np.where(kind == Kind.MEMCPY, COPY, np.where(kind == Kind.MEMSET, SET, table.name[work]))
    extents = [
        NONE if NONE in (each.blocks, each.block_threads) else each.blocks * _MOST_THREADS + each.block_threads
        for each in table.configs
    ]
    grids = np.array([*extents, NONE], dtype=np.int64)[config]  # NONE is the last
    return Sequence(names.astype(np.int64), np.where(kind == Kind.KERNEL, grids, table.size[work]))


def same_shape(shape: Ints, sequence: Sequence) -> bool:
    """Whether calls of this shape launch work of this sequence, as far as kernels, copies and sets are told apart."""
    return len(shape) == len(sequence.work) and bool((shape == np.minimum(sequence.work, 0)).all())


# ---- what a captured graph runs --------------------------------------------------------------------------------------


def _of_own_replay(captures: Captures, capture: Capture) -> Sequence | None:
    """By the replay in the region that bears the number of the capture's own."""
    table, links = captures.table, captures.links
    number = _number(captures, capture)
    if number is None:
        return None
    replays = captures.regions[1]
    replays = replays[table.ts[replays] >= capture.end].tolist()
    mine = [row for row in replays if table.names[table.name[row]].removeprefix(CAPTURED_REPLAY) == number]
    if not mine:
        return None
    launches = links.calls[links.graph_calls & (links.caused > 0)]
    inside = launches[(table.ts[launches] >= table.ts[mine[0]]) & (table.ts[launches] < table.end[mine[0]])]
    return _checked(captures, capture, int(inside[0])) if len(inside) == 1 else None


def _number(captures: Captures, capture: Capture) -> str | None:
    """What follows CAPTURED in the name of the region around a capture, which may be nothing; None without a region."""
    table, around = captures.table, captures.regions[0]
    around = around[(table.ts[around] <= capture.begin) & (table.end[around] >= capture.end)]
    return table.names[table.name[around[-1]]].removeprefix(CAPTURED) if len(around) else None


def _regions(table: EventTable, name: str) -> Ints:
    """Rows of the regions with names that begin like this, in order of time."""
    rows = np.flatnonzero(
        table.of_kind(Kind.ANNOTATION, Kind.CPU_OP) & table.valid & table.named(lambda each: each.startswith(name))
    )
    return rows[np.argsort(table.ts[rows], kind="stable")]


def _of_calls(captures: Captures, capture: Capture) -> Sequence | None:
    """By the names in the launch calls' own rows."""
    named = captures.table.launches[capture.calls].astype(np.int64)
    kernel = capture.shape == 0
    if not kernel.any() or (named[kernel] == NONE).any():
        return None
    return Sequence(np.where(kernel, named, capture.shape), np.full(len(named), NONE, dtype=np.int64))


def _of_warm_up(captures: Captures, capture: Capture) -> Sequence | None:
    """By the last time before it that the same operators launched the same kinds of work, one piece for each call."""
    table, links = captures.table, captures.links
    calls, operators = captures.warm_ups
    before = int(np.searchsorted(table.ts[calls], capture.begin))
    at = _last_of(_operators(captures, capture.calls).tobytes(), operators, before)
    if at is None:
        return None
    mine = calls[at : at + len(capture.calls)]
    order = np.argsort(links.launch, kind="stable")
    first = np.searchsorted(links.launch[order], mine)
    sequence = sequence_of(table, links.gpu[order[first]])
    return sequence if same_shape(capture.shape, sequence) else None


def _operators(captures: Captures, calls: Ints) -> npt.NDArray[np.int64]:
    """For each launch call, a number for its operator, the operator's shapes and the kind of what it launches."""
    table, row = captures.table, captures.launching_rows(calls)
    code = table.name[row].astype(np.int64) * (len(table.signatures) + 1) + table.signature[row] + 1
    return code * 8 - shape_of_calls(table, calls)


def _last_of(wanted: bytes, codes: bytes, before: int) -> int | None:
    """Where `wanted` last occurs in the first `before` of `codes`, both of eight bytes each."""
    behind = 8 * before
    while (at := codes.rfind(wanted, 0, behind)) != -1:
        if at % 8 == 0:
            return at // 8
        behind = at + len(wanted) - 1
    return None


def _checked(captures: Captures, capture: Capture, launch: int) -> Sequence | None:
    """The sequence that this launch of a graph ran, if it may be the capture's."""
    table, links = captures.table, captures.links
    work = np.flatnonzero(links.launch == launch)
    work = links.gpu[work[np.argsort(table.ts[links.gpu[work]], kind="stable")]]
    sequence = sequence_of(table, work)
    return sequence if same_shape(capture.shape, sequence) else None
