"""Which host row ran inside which, on each thread, and each row's self time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.intervals import union
from proftrack.trace.categories import CALL_KINDS, Kind
from proftrack.trace.table import NONE, Bools, EventTable, Ints

MAX_ROUNDS = 300
"""Limit for rounds of work on whole columns; operators nest about 20 deep. Thousands of levels need a stack."""
FEW_ROUNDS = 64
_UNNUMBERED = np.iinfo(np.int64).max - 1
"""Follows every Ev Idx."""
EARLY_NS = 1000
"""A call that begins at most this long before the operator of its External id runs inside it: the two are recorded by
clocks that differ (seen on ROCm, by a nanosecond)."""
OPERATORS_AT_ONCE = 16
"""Limit for how many rows may begin within EARLY_NS between the call and its operator."""


class Forest(NamedTuple):
    """Host rows with parents before children (ordered by thread, start, longest first).

    thread 1  |---------- a ----------|  |-- d --|      rows   a  b  c  d
                 |--- b ---|  |- c -|                   parent -  0  0  -
    """

    rows: Ints
    """Row numbers in the event table."""
    parent: Ints
    """Position in `rows` of the row it runs in, NONE for a root."""
    start: Ints
    """As recorded; that of a call that begins just before its operator, the operator's (`EARLY_NS`)."""
    end: Ints
    """Clipped to the parent's end."""
    last: Ints
    """Position after its last descendant: the descendants of i are i + 1 .. last[i] - 1."""
    self_ns: Ints
    """Time in the row and in none of its children. On each thread these add up to the time in which it was in any row.

    Rows may cross, by a rounded nanosecond or as regions opened and closed by hand. The one that starts later is a
    child of the other and is clipped to it:

        a |-----------|
        b       |-----|~~~~~~~|        b is in a; ~ is its overhang
        c                 |-------|    c is in neither

    While other rows run, the overhang is theirs (here from c's start). The rest of it is b's own.
    """

    def position_of(self, size: int) -> Ints:
        """For each row of the event table (`size` rows), its position in `rows`, or NONE."""
        position: Ints = np.full(size, NONE, dtype=np.int64)
        position[self.rows] = np.arange(len(self.rows))
        return position

    def subtree_sums(self, values: Ints) -> Ints:
        """For each position, the sum of `values` over it and its descendants."""
        before: Ints = np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
        sums: Ints = before[self.last] - before[np.arange(len(values))]
        return sums

    def without(self, unwanted: Bools) -> Forest:
        """The forest without these of its rows; their self times are those of the rows around them."""
        if not unwanted.any():
            return self
        keep = ~unwanted
        kept = np.flatnonzero(keep)
        position = np.cumsum(keep) - 1
        around = self.nearest(self.parent, keep)
        self_ns = self.self_ns.copy()
        inner = unwanted & (around != NONE)
        np.add.at(self_ns, around[inner], self.self_ns[inner])
        parent = np.where(around == NONE, NONE, position[around])[kept]
        before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        last = before[self.last[kept]]
        return Forest(self.rows[kept], parent, self.start[kept], self.end[kept], last, self_ns[kept])

    def nearest(self, position: Ints, wanted: Bools) -> Ints:
        """For each position, itself or its nearest ancestor for which `wanted` holds; NONE if there is none."""
        answer: Ints = position.copy()
        for _ in range(FEW_ROUNDS):
            climb = (answer != NONE) & ~wanted[answer]
            if not climb.any():
                return answer
            answer[climb] = self.parent[answer[climb]]
        return np.where(answer == NONE, NONE, self._nearest_of_all(wanted)[answer])

    def _nearest_of_all(self, wanted: Bools) -> Ints:
        """`nearest` for every row of a deep forest: each round doubles the distance searched."""
        count = len(self.parent)
        up: Ints = np.where(wanted, np.arange(count), np.where(self.parent == NONE, count, self.parent))
        up = np.append(up, count)  # above the roots
        while not np.array_equal(further := up[up], up):
            up = further
        return np.where(up == count, NONE, up)


def nest(table: EventTable, mask: Bools) -> Forest:
    """Nest the valid rows of `mask` by time on each thread. A row's parent is the row running when it starts.

    Rows that cross: see `Forest.self_ns`. A call that begins up to EARLY_NS before its operator starts with it.
    """
    rows = np.flatnonzero(mask & table.valid)
    start, end, thread = table.ts[rows], table.end[rows], table.thread[rows].astype(np.int64)
    is_call = table.of_kind(*CALL_KINDS)[rows]
    # torch's own order breaks ties in time; runtime calls have none and run inside operators; then the file's order.
    recorded = np.where(table.ev_idx[rows] == NONE, _UNNUMBERED + is_call, table.ev_idx[rows])
    order = np.lexsort((recorded, -end, start, thread))
    early, operator = _early_calls(table, rows[order], is_call[order], start[order], thread[order])
    if len(early):
        call, around = order[early], order[operator]
        start[call] = start[around]
        within = end.copy()
        within[call] = np.minimum(end[call], end[around])  # so that the operator comes first
        order = np.lexsort((recorded, -within, start, thread))
    rows, start, recorded_end, thread = rows[order], start[order], end[order], thread[order]
    nested = _by_level(thread, start, recorded_end)
    parent, end, last = _by_stack(thread, start, recorded_end) if nested is None else nested
    self_ns = end - start
    child = parent != NONE
    np.subtract.at(self_ns, parent[child], (end - start)[child])
    _add_overhang(self_ns, thread, parent, start, end, recorded_end)
    return Forest(rows, parent, start, end, last, self_ns)


def _early_calls(table: EventTable, rows: Ints, is_call: Bools, start: Ints, thread: Ints) -> tuple[Ints, Ints]:
    """Positions in these sorted rows of the calls that begin just before their operator, and of the operators.

    A call that ends before the operator begins or over EARLY_NS after its end is not in it, whatever its id says.
    """
    at = np.flatnonzero(is_call)
    calls, operators = [at[:0]], [at[:0]]
    for ahead in range(1, OPERATORS_AT_ONCE + 1):
        at = at[at + ahead < len(rows)]
        near = (start[at + ahead] - start[at] <= EARLY_NS) & (thread[at + ahead] == thread[at])
        at = at[near]
        if not len(at):
            break
        there = at + ahead
        call, around = rows[at], rows[there]
        operator = (table.kind[around] == Kind.CPU_OP) | (table.kind[around] == Kind.ANNOTATION)
        same = (table.external_id[call] == table.external_id[around]) & (table.external_id[call] > 0)
        inside = (table.end[call] > start[there]) & (table.end[call] <= table.end[around] + EARLY_NS)
        belongs = operator & same & inside & (start[there] > start[at])
        calls.append(at[belongs])
        operators.append(there[belongs])
        at = at[~belongs]
    return np.concatenate(calls), np.concatenate(operators)


def _add_overhang(self_ns: Ints, thread: Ints, parent: Ints, start: Ints, end: Ints, recorded_end: Ints) -> None:
    """Add to `self_ns` the time of each row's overhang in which no row runs; overlapping overhangs count once."""
    over = np.flatnonzero(recorded_end > end)
    over = over[np.lexsort((end[over], thread[over]))]
    for pieces in np.split(over, np.flatnonzero(np.diff(thread[over])) + 1) if len(over) else []:
        first, behind = np.searchsorted(thread, thread[pieces[0]] + np.array([0, 1]))
        roots = first + np.flatnonzero(parent[first:behind] == NONE)
        running = union(start[roots], end[roots])
        reach = np.maximum.accumulate(recorded_end[pieces])
        begin = end[pieces]
        begin[1:] = np.maximum(begin[1:], reach[:-1])
        until = np.maximum(recorded_end[pieces], begin)
        self_ns[pieces] += until - begin - running.covered_within(begin, until)


def _by_level(thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints] | None:
    """Parents, clipped ends and `last` of sorted rows; None if that takes too many rounds."""
    if not len(start):
        return start, end, start
    span = int(end.max() - start.min()) + 1
    if int(thread[-1] + 1) * span >= 2**62:
        return None
    shift = thread * span - int(start.min())  # puts the threads one after the other
    nested = _parents(start + shift, end + shift)
    if nested is None:
        return None
    parent, end = nested
    last = np.maximum(np.searchsorted(start + shift, end, side="left"), np.arange(len(start)) + 1)
    return parent, end - shift, last


def _by_stack(thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The same, row by row: slower, but in linear time for any nesting."""
    parents, ends, lasts = [], end.tolist(), [0] * len(start)
    threads, starts = thread.tolist(), start.tolist()
    running: list[int] = []
    for i, begin in enumerate(starts):
        while running and (threads[running[-1]] != threads[i] or ends[running[-1]] <= begin):
            lasts[running.pop()] = i
        parents.append(running[-1] if running else NONE)
        if running:
            ends[i] = min(ends[i], ends[running[-1]])
        running.append(i)
    for i in running:
        lasts[i] = len(starts)
    return np.array(parents, dtype=np.int64), np.array(ends, dtype=np.int64), np.array(lasts, dtype=np.int64)


def _parents(start: Ints, end: Ints) -> tuple[Ints, Ints] | None:
    """Parents and clipped ends of rows sorted by start, one level of nesting at a time."""
    parent = np.full(len(start), NONE, dtype=np.int64)
    end = end.copy()
    left = np.arange(len(start))
    rounds = 0
    while len(left):
        tops = _tops(start[left], end[left], MAX_ROUNDS - rounds)
        if tops is None:
            return None
        is_top, top, more = tops
        rounds += more
        inner = left[~is_top]
        parent[inner] = left[top[~is_top]]
        end[inner] = np.minimum(end[inner], end[parent[inner]])
        left = inner
    return parent, end


def _tops(start: Ints, end: Ints, rounds: int) -> tuple[Bools, Ints, int] | None:
    """Which of these sorted rows are inside no earlier one, each row's top row at or before it, and rounds taken."""
    reach = np.maximum.accumulate(end)
    is_top = np.concatenate([[True], start[1:] >= reach[:-1]])
    for taken in range(1, rounds + 1):
        top = np.maximum.accumulate(np.where(is_top, np.arange(len(start)), 0))
        # A row may start in a child's overhang past its parent: it is then inside neither, but a top row itself.
        outside = ~is_top & (start >= end[top])
        if not outside.any():
            return is_top, top, taken
        candidates = np.flatnonzero(outside)
        first_of_each = np.unique(top[candidates], return_index=True)[1]
        is_top[candidates[first_of_each]] = True
    return None
