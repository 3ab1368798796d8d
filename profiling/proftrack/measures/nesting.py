"""Which host row ran inside which, on each thread, and what that leaves each of them as self time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.events.table import NONE, Bools, EventTable, Ints
from proftrack.measures.intervals import union


class Forest(NamedTuple):
    """Host rows in the order parent before child (thread, start, longest first).

    thread 1  |---------- a ----------|  |-- d --|      rows   a  b  c  d
                 |--- b ---|  |- c -|                   parent -  0  0  -
    """

    rows: Ints
    """Row numbers in the event table."""
    parent: Ints
    """Position in `rows` of the row it runs in, NONE for a root."""
    start: Ints
    end: Ints
    """Clipped to the parent's: what a child overhangs by (a nanosecond, by rounding) is taken from nobody."""
    last: Ints
    """Position behind its last descendant: descendants of i are i + 1 .. last[i] - 1."""
    self_ns: Ints

    def position_of(self, size: int) -> Ints:
        """For each row of the event table (`size` rows), its position here, or NONE."""
        position: Ints = np.full(size, NONE, dtype=np.int64)
        position[self.rows] = np.arange(len(self.rows))
        return position

    def subtree_sums(self, values: Ints) -> Ints:
        """For each position, the sum of `values` over it and its descendants."""
        before: Ints = np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
        sums: Ints = before[self.last] - before[np.arange(len(values))]
        return sums

    def nearest(self, position: Ints, wanted: Bools) -> Ints:
        """For each position, itself or its nearest ancestor for which `wanted` holds; NONE where there is none."""
        answer: Ints = position.copy()
        while True:
            climb = (answer != NONE) & ~wanted[answer]
            if not climb.any():
                return answer
            answer[climb] = self.parent[answer[climb]]


def nest(table: EventTable, mask: Bools) -> Forest:
    """Nest the valid rows of `mask` by time on each thread. Rows that overlap without nesting are siblings."""
    rows = np.flatnonzero(mask & table.valid)
    start, end = table.ts[rows], table.end[rows]
    # Where times tie, torch's own order decides; where that is missing, the file's.
    order = np.lexsort((table.ev_idx[rows], -end, start, table.thread[rows]))
    rows, start, end = rows[order], start[order], end[order]
    span = int(end.max() - start.min()) + 1 if len(rows) else 1
    shift = table.thread[rows].astype(np.int64) * span - (int(start.min()) if len(rows) else 0)
    start, end = start + shift, end + shift
    parent, end = _parents(start, end)
    last = np.maximum(np.searchsorted(start, end, side="left"), np.arange(len(rows)) + 1)
    own = table.dur[rows].copy()
    child = parent != NONE
    np.subtract.at(own, parent[child], (end - start)[child])
    return Forest(rows, parent, start - shift, end - shift, last, own)


def _parents(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Parents and clipped ends of rows sorted by start, a level of nesting at a time."""
    parent = np.full(len(start), NONE, dtype=np.int64)
    end = end.copy()
    left = np.arange(len(start))
    while len(left):
        is_top, top = _tops(start[left], end[left])
        inner = left[~is_top]
        parent[inner] = left[top[~is_top]]
        end[inner] = np.minimum(end[inner], end[parent[inner]])
        left = inner
    return parent, end


def _tops(start: Ints, end: Ints) -> tuple[Bools, Ints]:
    """Which of these sorted rows lie in no earlier one, and for each row the top row at or before it."""
    reach = np.maximum.accumulate(end)
    is_top = np.concatenate([[True], start[1:] >= reach[:-1]])
    while True:
        top = np.maximum.accumulate(np.where(is_top, np.arange(len(start)), 0))
        # A row may start in what a child overhangs its parent by; it then lies in neither, and is a top row itself.
        outside = ~is_top & (start >= end[top])
        if not outside.any():
            return is_top, top
        candidates = np.flatnonzero(outside)
        first_of_each = np.unique(top[candidates], return_index=True)[1]
        is_top[candidates[first_of_each]] = True


def covered_by(table: EventTable, mask: Bools) -> int:
    """Length of the union of the valid rows of `mask`, in nanoseconds."""
    rows = mask & table.valid
    return union(table.ts[rows], table.end[rows]).length
