"""Sets of half-open time intervals as sorted columns, and lengths of their unions and overlaps. Nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.trace.table import Bools, Ints


class Intervals(NamedTuple):
    """Disjoint intervals in ascending order: `start[i] < end[i] < start[i + 1]`."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        """Sum of the lengths."""
        return int((self.end - self.start).sum())

    def clipped(self, low: int, high: int) -> Intervals:
        """The parts within [low, high)."""
        start, end = np.maximum(self.start, low), np.minimum(self.end, high)
        keep = end > start
        return Intervals(start[keep], end[keep])

    def gaps(self, low: int, high: int) -> Intervals:
        """The parts of [low, high) outside the intervals."""
        inside = self.clipped(low, high)
        start = np.concatenate([[low], inside.end]).astype(np.int64)
        end = np.concatenate([inside.start, [high]]).astype(np.int64)
        keep = end > start
        return Intervals(start[keep], end[keep])

    def covered_until(self, times: Ints) -> Ints:
        """For each time, the total length of the intervals before it."""
        if not len(self.start):
            return np.zeros(len(times), dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(self.end - self.start)]).astype(np.int64)
        index = np.searchsorted(self.start, times, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.where(index > 0, np.minimum(times, self.end[last]) - self.start[last], 0)
        return np.asarray(np.where(index > 0, before[last] + inside, 0), dtype=np.int64)

    def covered_within(self, low: Ints, high: Ints) -> Ints:
        """For each pair, the total length of the intervals within [low, high)."""
        return self.covered_until(np.maximum(high, low)) - self.covered_until(low)

    def overlapping(self, low: Ints, high: Ints) -> Bools:
        """For each pair, whether any part of an interval lies between `low` and `high`."""
        index = np.searchsorted(self.start, high, side="left") - 1
        if not len(self.start):
            return np.zeros(len(low), dtype=bool)
        return np.asarray((index >= 0) & (self.end[np.maximum(index, 0)] > low))

    def longer_than(self, length: int) -> Intervals:
        """Only the intervals longer than this."""
        keep = self.end - self.start > length
        return Intervals(self.start[keep], self.end[keep])


EMPTY = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """The union of any intervals; touching ones are joined, empty ones left out.

    |----|   |--|         start, end
       |---|    |-|
    |------| |----|       union
    """
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(start[first], reach[last])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The parts that are in both."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    low, high = int(min(a.start[0], b.start[0])), int(max(a.end[-1], b.end[-1]))
    outside_a, outside_b = a.gaps(low, high), b.gaps(low, high)
    outside = union(np.concatenate([outside_a.start, outside_b.start]), np.concatenate([outside_a.end, outside_b.end]))
    return outside.gaps(low, high)


def union_by_group(group: Ints, start: Ints, end: Ints, groups: int) -> Ints:
    """Length of the union of each group's intervals, for groups numbered 0 .. groups - 1."""
    lengths = np.zeros(groups, dtype=np.int64)
    keep = end > start
    group, start, end = group[keep], start[keep], end[keep]
    if not len(start):
        return lengths
    origin, span = int(start.min()), int(end.max() - start.min()) + 1
    if groups * span >= 2**62:  # shifting each group past the previous one would overflow: do them one by one
        for g in np.unique(group).tolist():
            mine = group == g
            lengths[g] = union(start[mine], end[mine]).length
        return lengths
    shift = group.astype(np.int64) * span - origin
    joined = union(start + shift, end + shift)
    # Intervals of neighbouring groups never touch: each group's span has a nanosecond to spare.
    np.add.at(lengths, joined.start // span, joined.end - joined.start)
    return lengths
