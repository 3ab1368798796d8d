"""What launched each piece of GPU work: the operator, its shapes, and whether there is one at all.

Work that the host launched has the operator around its launch. A replayed graph has one launch for all of its work:
where its capture is known (`graphs`), a piece has the operator that it was captured from, once for each replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.captures import Captures
from proftrack.measures.graphs import Match
from proftrack.measures.links import launching_row
from proftrack.measures.nesting import Forest
from proftrack.measures.view import View
from proftrack.trace.categories import Kind
from proftrack.trace.codes import Numbering
from proftrack.trace.table import NONE, Bools, EventTable, Ints


class Captured(NamedTuple):
    """Work of replays that one trace with captures names."""

    source: Captures
    work: Ints
    """Positions in `links.gpu`."""
    replay: Ints
    """For each, the number of its replay."""
    call: Ints
    """For each, the row of the captured call that it stands for."""
    owner: Ints
    """For each, the position in the source's forest of what made that call."""


class Origins(NamedTuple):
    """The origin of each piece of GPU work, as an index into columns of operators."""

    owner: Ints
    """For each of `links.gpu`, what launched it: an index into the next columns, NONE if no launch is known."""
    row_name: Ints
    """First the rows of the trace's own forest, then those of captured operators, once for each replay."""
    row_signature: Ints
    row_is_operator: Bools
    names: list[str]
    signatures: list[tuple[bytes, bytes, bytes]]
    host: Ints
    """For each of `links.gpu`, the position in the trace's own forest of what launched it (`launching_row`)."""
    dispatched: Bools
    """For each of `links.gpu`, whether an operator launched it, so that dispatch counters could see it."""
    captured: list[Captured]
    matches: list[Match]
    """The graphs that `captured` is of."""

    @property
    def by_capture(self) -> Bools:
        """Which of `links.gpu` have the operator that they were captured from."""
        mask = np.zeros(len(self.owner), dtype=bool)
        for part in self.captured:
            mask[part.work] = True
        return mask

    @property
    def name(self) -> Ints:
        """For each of `links.gpu`, the index in `names` of what launched it, or NONE."""
        return self._of(self.row_name)

    @property
    def signature(self) -> Ints:
        """For each of `links.gpu`, the index in `signatures` of its operator's shapes, or NONE."""
        return self._of(self.row_signature)

    def _of(self, column: Ints) -> Ints:
        if not len(column):
            return np.full(len(self.owner), NONE, dtype=np.int64)
        return np.where(self.owner == NONE, NONE, column[self.owner])


def origins(seen: View, matches: list[Match]) -> Origins:
    """The origins of a trace's GPU work; `matches`: what captures name of its replays."""
    table, forest, links = seen.table, seen.forest, seen.links
    host = launching_row(table, forest, links)
    own = Origins(
        owner=host,
        row_name=table.name[forest.rows].astype(np.int64),
        row_signature=table.signature[forest.rows].astype(np.int64),
        row_is_operator=table.of_kind(Kind.CPU_OP)[forest.rows],
        names=table.names,
        signatures=table.signatures,
        host=host,
        dispatched=_dispatched(table, forest, links.launch),
        captured=[],
        matches=matches,
    )
    return _with_captured(own, _by_source(matches)) if matches else own


def _by_source(matches: list[Match]) -> list[Captured]:
    """The named work, that of each source together."""
    groups: dict[int, list[Match]] = {}
    for match in matches:
        groups.setdefault(id(match.captures[0][0]), []).append(match)
    return [_captured(group) for group in groups.values()]


def _captured(matches: list[Match]) -> Captured:
    source = matches[0].captures[0][0]
    shapes = [match.work.shape for match in matches]
    before = np.cumsum([0, *(replays for replays, _ in shapes)])
    calls = np.concatenate([np.tile(match.captures[0][1].calls, len(match.work)) for match in matches])
    return Captured(
        source=source,
        work=np.concatenate([match.work.ravel() for match in matches]),
        replay=np.concatenate(
            [first + np.repeat(np.arange(n), size) for first, (n, size) in zip(before, shapes, strict=False)]
        ),
        call=calls,
        owner=source.owner(calls),
    )


def _with_captured(own: Origins, captured: list[Captured]) -> Origins:
    """The origins with captured operators: an operator's call is a row of its own in each replay, as it has a cost."""
    names, signatures = _Codes(own.names), _Codes(own.signatures)
    owner, dispatched = own.owner.copy(), own.dispatched.copy()
    columns: list[tuple[Ints, Ints, Bools]] = [(own.row_name, own.row_signature, own.row_is_operator)]
    count = len(own.row_name)
    for part in captured:
        table, forest = part.source.table, part.source.forest
        called, place = np.unique(part.replay * len(forest.rows) + part.owner, return_inverse=True)
        rows = forest.rows[called % len(forest.rows)]
        columns.append(
            (
                names.of(table.names, table.name[rows]),
                signatures.of(table.signatures, table.signature[rows]),
                table.of_kind(Kind.CPU_OP)[rows],
            )
        )
        owner[part.work] = count + place.reshape(-1)
        dispatched[part.work] = _dispatched(table, forest, part.call)
        count += len(called)
    name, signature, is_operator = (np.concatenate(column) for column in zip(*columns, strict=True))
    return own._replace(
        owner=owner,
        row_name=name,
        row_signature=signature,
        row_is_operator=is_operator,
        names=names.items,
        signatures=signatures.items,
        dispatched=dispatched,
        captured=captured,
    )


class _Codes:
    """A list of distinct items that others are added to."""

    def __init__(self, items: list[Any]) -> None:
        self.items = list(items)
        self._code_of = Numbering((item, code) for code, item in enumerate(items))

    def of(self, others: list[Any], codes: npt.NDArray[np.integer]) -> Ints:
        """Codes for these `codes` of `others`, which are added as needed. NONE stays."""
        table = np.full(len(others) + 1, NONE, dtype=np.int64)  # NONE is the last
        for code in np.unique(codes[codes != NONE]).tolist():
            item = others[code]
            if item not in self._code_of:
                self._code_of[item] = len(self.items)
                self.items.append(item)
            table[code] = self._code_of[item]
        return np.asarray(table[codes])


def _dispatched(table: EventTable, forest: Forest, calls: Ints) -> Bools:
    """Which of these launch calls (rows, or NONE) an operator makes."""
    if not len(forest.rows):
        return np.zeros(len(calls), dtype=bool)
    is_operator = (table.of_kind(Kind.CPU_OP) & table.named(_is_operator))[forest.rows]
    at = np.where(calls == NONE, NONE, forest.position_of(len(table))[calls])
    return np.asarray(forest.nearest(at, is_operator) != NONE)


def _is_operator(name: str) -> bool:
    """Whether a row of an operator's category is one: autograd's nodes and compiled regions are named differently."""
    return "::" in name and not name.startswith("autograd::")
