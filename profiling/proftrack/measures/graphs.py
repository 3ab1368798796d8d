"""Replayed CUDA graphs: which captured launch each piece of their work stands for.

A replay is one call and many pieces of work, and says nothing of operators. If a recorded capture (`captures`) runs the
same kernels in the same order in one branch, the k-th piece of work is that of the k-th captured call. Whatever
differs is refused, with the reason: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from proftrack.measures.captures import THIS_TRACE, Capture, Captures, Sequence, same_shape, sequence_of
from proftrack.measures.links import Links
from proftrack.record.modules import Graph
from proftrack.text import brief, counted
from proftrack.trace.codes import Numbering
from proftrack.trace.table import EventTable, Ints

MOST = 100
"""Graphs listed, the largest first: servers have one for each batch size, and pieces of it for each layer."""
_COMPARED = 50
"""Captures of equal size that are compared for the sentence which says how they differ."""
_SHOWN = 60
"""Characters of a kernel's name in a sentence."""


class Match(NamedTuple):
    """Work of one graph, named by the captures that have its sequence."""

    work: Ints
    """Positions in `links.gpu`: a row for each replay, its work in order."""
    captures: list[tuple[Captures, Capture]]
    """Those that have its sequence, and those that may have it. They agree in operators and shapes; the first stands
    for all."""


class Replays(NamedTuple):
    """The replayed graphs of a trace."""

    graphs: list[Graph]
    """The largest first, at most MOST."""
    matches: list[Match]


class _Replayed(NamedTuple):
    """One graph: the replays with the same work."""

    work: Ints
    """As in `Match`."""
    sequence: Sequence
    branches: str
    """Why the order of its work does not tell the order of its launches; empty if it does."""


def replays(table: EventTable, links: Links, captured: Iterable[Captures]) -> Replays:
    """Each graph that is replayed, and what names its work.

    `captured`: traces that may hold its capture; the trace itself is one of them.
    """
    if not links.graph_calls.any():
        return Replays([], [])
    captured = list(captured)
    found = sorted(_replayed(table, links), key=lambda each: -_total(table, links, each))
    graphs, matches = [], []
    for number, graph in enumerate(found):
        named = graph.branches or _named(table, graph, captured)
        match, problem = (None, named) if isinstance(named, str) else (named, "")
        if match is not None:
            matches.append(match)
        if number >= MOST:  # not listed: to say why one has no names takes time for each capture
            continue
        if match is None:
            problem = problem or _why_not(table, graph, captured)
        graphs.append(
            Graph(
                kernels=graph.work.shape[1],
                replays=graph.work.shape[0],
                total_us=_total(table, links, graph) / 1000,
                named=match is not None,
                problem=problem,
                capture=match.captures[0][0].name if match is not None else "",
            )
        )
    return Replays(graphs, matches)


def _total(table: EventTable, links: Links, graph: _Replayed) -> int:
    return int(table.dur[links.gpu[graph.work]].sum())


def _replayed(table: EventTable, links: Links) -> list[_Replayed]:
    """The replays of a trace, those with the same work together."""
    at = np.flatnonzero(np.isin(links.launch, links.calls[links.graph_calls]))
    at = at[np.lexsort((links.gpu[at], table.ts[links.gpu[at]], links.launch[at]))]
    bounds = np.flatnonzero(np.diff(links.launch[at], prepend=-1, append=-1))
    sequence = sequence_of(table, links.gpu[at])
    broken = _broken(table, links, at)
    groups: dict[tuple[bytes, bool], list[Ints]] = {}
    for first, behind in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        in_branches = bool(broken[first:behind].any())
        key = np.stack([sequence.work[first:behind], sequence.extent[first:behind]])
        if in_branches:  # their order may differ from replay to replay
            key = key[:, np.lexsort(key)]
        groups.setdefault((key.tobytes(), in_branches), []).append(at[first:behind])
    return [_graph(table, links, np.stack(work)) for work in groups.values()]


def _broken(table: EventTable, links: Links, at: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which work does not follow the work before it in the same replay: another stream, or before that one's end."""
    rows = links.gpu[at]
    broken = ~table.valid[rows]
    same = links.launch[at[1:]] == links.launch[at[:-1]]
    # Programmatic launches start a little before the end of what is before them, and end after it.
    inside = table.end[rows[1:]] < table.end[rows[:-1]]
    broken[1:] |= same & ((table.lane[rows[1:]] != table.lane[rows[:-1]]) | inside)
    return broken


def _graph(table: EventTable, links: Links, work: Ints) -> _Replayed:
    rows = links.gpu[work]
    streams = len(np.unique(table.lane[rows[0]]))
    if streams > 1:
        branches = f"It runs in branches, on {streams} streams: the order of its work does not tell what is what."
    elif _broken(table, links, work[0]).any():
        branches = "Its work overlaps or has impossible times: its order does not tell what is what."
    else:
        branches = ""
    return _Replayed(work, sequence_of(table, rows[0]), branches)


# ---- which capture ---------------------------------------------------------------------------------------------------


def _named(table: EventTable, graph: _Replayed, captured: list[Captures]) -> Match | str:
    """The captures that name the graph's work; why those of the same work do not; or empty if there are none."""
    equal = [
        (source, capture)
        for source in captured
        if source.graphs
        for capture in source.running(_seen_from(table, source, graph.sequence))
    ]
    if not equal:
        return ""
    forked = next((source for source, capture in equal if capture.forks), None)
    if forked is not None:
        where = _where(forked)
        return f"Its capture{where} has branches (one stream waits for another): they run in an order of their own."
    return _disagreement(equal) or Match(graph.work, [*equal, *_not_replayed(graph, captured, equal[0])])


def _not_replayed(
    graph: _Replayed, captured: list[Captures], equal: tuple[Captures, Capture]
) -> list[tuple[Captures, Capture]]:
    """Captures whose kernels nothing tells, but with the operators and shapes of this one: the graph may be theirs.

    So it is with layers that are captured one by one, of which not all are replayed where they were captured.
    """
    numbers = Numbering()
    operators = _operators(*equal, numbers)
    return [
        (source, capture)
        for source in captured
        for capture in source.graphs
        if same_shape(capture.shape, graph.sequence)
        and source.kernels(capture) is None
        and np.array_equal(_operators(source, capture, numbers), operators)
    ]


def _seen_from(table: EventTable, source: Captures, sequence: Sequence) -> Sequence:
    """The sequence with the codes that this source has for the kernels' names; unknown ones have no code there."""
    if source.table is table:
        return sequence
    kernels, which = np.unique(sequence.work, return_inverse=True)
    codes = [k if k < 0 else source.code_of.get(table.names[k], len(source.table.names) + k) for k in kernels.tolist()]
    return Sequence(np.array(codes, dtype=np.int64)[which.reshape(-1)], sequence.extent)


def _disagreement(equal: list[tuple[Captures, Capture]]) -> str:
    """Why captures with the same kernels do not tell the operators: they have different ones, or other shapes."""
    numbers = Numbering()
    first = _operators(*equal[0], numbers)
    for source, capture in equal[1:]:
        other = _operators(source, capture, numbers)
        different = np.flatnonzero(first != other)
        if len(different):
            place = int(different[0]) + 1
            return (
                f"{counted(len(equal), 'capture')} run its kernels, but their operators or shapes differ from launch "
                f"{place} on: it may be any of them."
            )
    return ""


def _operators(source: Captures, capture: Capture, numbers: Numbering) -> Ints:
    """A number for the operator of each call and its shapes, the same in all traces."""
    table, row = source.table, source.launching_rows(capture.calls)
    keys = [
        (table.names[name], table.signatures[signature] if signature >= 0 else None)
        for name, signature in zip(table.name[row].tolist(), table.signature[row].tolist(), strict=True)
    ]
    return numbers.codes(keys).astype(np.int64)


# ---- why none does ---------------------------------------------------------------------------------------------------


def _where(source: Captures) -> str:
    return f" in {brief(source.name, _SHOWN)}"


def _why_not(table: EventTable, graph: _Replayed, captured: list[Captures]) -> str:
    every = [(source, capture) for source in captured for capture in source.graphs]
    if not every:
        return _without_capture(captured)
    size = len(graph.sequence.work)
    source, nearest = min(every, key=lambda each: abs(len(each[1].calls) - size))
    launches = len(nearest.calls)
    if launches != size:
        return (
            f"No capture{_where(source)} has its {counted(size, 'launch')}; the nearest has {launches:,}: it is of "
            "other code or other sizes, or part of it was not recorded."
        )
    alike = [(source, capture) for source, capture in every if same_shape(capture.shape, graph.sequence)]
    if not alike:
        return f"The capture{_where(source)} has as many launches, but other copies and sets: it is of other code."
    silent = next((source for source, capture in alike if source.kernels(capture) is None), None)
    if silent is not None:
        return (
            f"A capture{_where(silent)} with as many launches does not tell which kernels they are: replay the graph "
            "in the trace of its capture, too."
        )
    return _other_kernels(table, graph, alike[:_COMPARED])


def _without_capture(captured: list[Captures]) -> str:
    given = [source.name for source in captured if source.name != THIS_TRACE]
    if given:
        return f"{', '.join(brief(name, _SHOWN) for name in given)} holds no capture: record one while it is captured."
    return (
        "Its capture was not recorded: name the trace that holds it with --captured-in, or measure the program with "
        "proftrack, which records one."
    )


def _other_kernels(table: EventTable, graph: _Replayed, alike: list[tuple[Captures, Capture]]) -> str:
    best, text = -1, ""
    for source, capture in alike:
        kernels = source.kernels(capture)
        if kernels is None:
            continue
        here = _seen_from(table, source, graph.sequence)
        same = kernels.agrees(here)
        if int(same.sum()) > best:
            best, at = int(same.sum()), int(np.argmin(same))
            text = f"The capture{_where(source)} with as many launches is of other "
            if kernels.work[at] == here.work[at]:
                text += f"sizes: launch {at + 1} has another grid there, or moves another number of bytes."
            else:
                names = (source.table.names[kernels.work[at]], table.names[graph.sequence.work[at]])
                one, other = (brief(name, _SHOWN) for name in names)
                text += f"code: launch {at + 1} is {one} there and {other} here."
    return text
