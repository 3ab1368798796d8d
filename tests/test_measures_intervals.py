"""Interval algebra against sets of whole nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proftrack.measures.intervals import EMPTY, Intervals, intersection, union, union_by_group
from proftrack.trace.table import Ints


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def of(*pairs: tuple[int, int]) -> Intervals:
    return union(ints([a for a, _ in pairs]), ints([b for _, b in pairs]))


def points(intervals: Intervals) -> set[int]:
    return {x for a, b in pairs_of(intervals) for x in range(a, b)}


def pairs_of(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def test_union_joins_overlapping_and_touching_intervals_and_leaves_empty_ones_out() -> None:
    # |----|   |--|
    #    |---|    |-|  .
    # |------| |----|
    joined = of((10, 12), (0, 5), (3, 8), (12, 14), (20, 20), (9, 7))
    assert pairs_of(joined) == [(0, 8), (10, 14)]
    assert joined.length == 12
    assert pairs_of(of((0, 100), (10, 20), (30, 40))) == [(0, 100)]


def test_clipped_and_gaps() -> None:
    busy = of((2, 4), (6, 10))
    assert pairs_of(busy.clipped(3, 7)) == [(3, 4), (6, 7)]
    assert pairs_of(busy.gaps(0, 12)) == [(0, 2), (4, 6), (10, 12)]
    assert pairs_of(busy.gaps(2, 10)) == [(4, 6)]
    assert pairs_of(busy.gaps(3, 3)) == []
    assert pairs_of(EMPTY.gaps(0, 5)) == [(0, 5)]


def test_intersection_and_covered_within() -> None:
    a, b = of((0, 10), (20, 30)), of((5, 25))
    assert pairs_of(intersection(a, b)) == [(5, 10), (20, 25)]
    assert intersection(a, EMPTY) is EMPTY
    assert a.covered_within(ints([0, 5, 12, 8]), ints([30, 25, 18, 3])).tolist() == [20, 10, 0, 0]
    assert pairs_of(of((0, 3), (5, 10)).longer_than(3)) == [(5, 10)]


def test_union_by_group_where_the_groups_are_far_apart() -> None:
    far = 2**61
    lengths = union_by_group(ints([0, 1, 1, 0]), ints([0, 0, 5, far]), ints([10, 10, 15, far + 7]), 3)
    assert lengths.tolist() == [17, 15, 0]


pairs = st.lists(st.tuples(st.integers(-20, 40), st.integers(-3, 15)), max_size=15)
bounds = st.tuples(st.integers(-25, 50), st.integers(0, 40))


def from_lengths(drawn: list[tuple[int, int]]) -> Intervals:
    return of(*[(start, start + length) for start, length in drawn])


@settings(max_examples=150, deadline=None)
@given(pairs, pairs, bounds)
def test_the_algebra_is_that_of_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]], bound: tuple[int, int]
) -> None:
    low, high = bound[0], bound[0] + bound[1]
    x, y = from_lengths(a), from_lengths(b)
    window = set(range(low, high))
    assert points(x) == {p for start, length in a for p in range(start, start + length)}
    assert x.length == len(points(x))
    assert points(x.clipped(low, high)) == points(x) & window
    assert points(x.gaps(low, high)) == window - points(x)
    assert x.clipped(low, high).length + x.gaps(low, high).length == high - low
    assert points(intersection(x, y)) == points(x) & points(y)
    assert x.covered_within(ints([low]), ints([high])).tolist() == [len(points(x) & window)]
    for result in (x, x.gaps(low, high), intersection(x, y)):
        assert (result.end > result.start).all()
        assert (result.start[1:] > result.end[:-1]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 40), st.integers(-3, 15)), max_size=20))
def test_union_by_group_is_the_union_of_each(rows: list[tuple[int, int, int]]) -> None:
    group, start, length = (ints(list(c)) for c in zip(*rows, strict=True)) if rows else (ints([]),) * 3
    lengths = union_by_group(group, start, start + length, 4)
    assert lengths.tolist() == [
        len({p for g, s, n in rows if g == wanted for p in range(s, s + n)}) for wanted in range(4)
    ]


@pytest.mark.parametrize("shift", [0, 2**61])
def test_a_union_is_never_longer_than_the_sum(shift: int) -> None:
    start = ints([0, 3, 3, 10]) + shift
    assert union(start, start + ints([5, 5, 1, 2])).length == 10
