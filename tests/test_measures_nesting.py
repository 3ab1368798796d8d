"""Nesting and self time: by hand, and against a plain stack and a plain search written here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import BACKWARD, MAIN, TraceBuilder

from proftrack.measures import nesting
from proftrack.measures.nesting import Forest, nest
from proftrack.trace.table import NONE, EventTable


def forest_of(trace: TraceBuilder) -> tuple[EventTable, Forest]:
    table = trace.table()
    return table, nest(table, table.host)


def self_us(trace: TraceBuilder) -> dict[str, float]:
    table, forest = forest_of(trace)
    return {table.names[table.name[r]]: ns / 1000 for r, ns in zip(forest.rows, forest.self_ns.tolist(), strict=True)}


def parents(trace: TraceBuilder) -> dict[str, str | None]:
    table, forest = forest_of(trace)
    name = [table.names[table.name[r]] for r in forest.rows]
    return {n: None if p == NONE else name[p] for n, p in zip(name, forest.parent.tolist(), strict=True)}


def test_self_time_is_what_direct_children_leave() -> None:
    # a |----------------------|    100
    # b   |------------|             60
    # c     |----|                   20
    # d                   |--|       10
    trace = TraceBuilder().op("a", at=0, dur=100).op("b", at=10, dur=60).op("c", at=20, dur=20).op("d", at=80, dur=10)
    assert self_us(trace) == {"a": 30, "b": 40, "c": 20, "d": 10}
    assert parents(trace) == {"a": None, "b": "a", "c": "b", "d": "a"}


def test_a_child_that_ends_a_nanosecond_late_takes_nothing_negative() -> None:
    trace = TraceBuilder().op("a", at=0, dur=10).op("b", at=2, dur=8.001).op("c", at=10, dur=5)
    assert self_us(trace) == {"a": 2, "b": 8, "c": 5}  # the nanosecond in which both b and c run is c's
    assert parents(trace) == {"a": None, "b": "a", "c": None}


def test_what_starts_in_the_overhang_of_a_child_lies_in_neither() -> None:
    # a |-----|        0 .. 10
    # b    |-----|     5 .. 15, clipped to 10
    # c       |--|    12 .. 14: a is over, and b has what is left: 5 .. 12 and 14 .. 15
    trace = TraceBuilder().op("a", at=0, dur=10).op("b", at=5, dur=10).op("c", at=12, dur=2)
    assert parents(trace) == {"a": None, "b": "a", "c": None}
    assert self_us(trace) == {"a": 5, "b": 8, "c": 2}


def test_regions_that_cross_count_once() -> None:
    # step  |-------------------------------|    0 .. 100
    # load      |---------------|               10 .. 60
    # train           |=========|~~~~~~~~|      30 .. 90: its overhang is the step's
    # mm               |--|                     31 .. 41
    trace = TraceBuilder().step(1, at=0, dur=100).region("load", at=10, dur=50).region("train", at=30, dur=60)
    trace.op("mm", at=31, dur=10)
    assert self_us(trace) == {"ProfilerStep#1": 50, "load": 20, "train": 20, "mm": 10}
    assert {op.name: op.cpu_time_us for op in trace.measures().ops}["train"] == 60  # as recorded


def test_regions_that_cross_outside_any_step() -> None:
    # a |------|              0 .. 10
    # b     |--|~~~~~~|       5 .. 20
    # c        |--|~~~~~|     9 .. 22 in b, a is over at 10
    # d                   |-| 30 .. 33
    trace = TraceBuilder().region("a", at=0, dur=10).region("b", at=5, dur=15).region("c", at=9, dur=13)
    trace.region("d", at=30, dur=3)
    # b's overhang is 10 .. 20, c's is 10 .. 22, of which 20 .. 22 is left.
    assert self_us(trace) == {"a": 5, "b": 14, "c": 3, "d": 3}
    assert trace.measures().totals.self_cpu_time_total_us == 25  # 0 .. 22 and 30 .. 33


def test_crossing_calls_of_two_threads_do_not_mix() -> None:
    trace = TraceBuilder().region("a", at=0, dur=10).region("b", at=8, dur=6)
    trace.region("x", at=0, dur=40, thread=BACKWARD).region("y", at=20, dur=30, thread=BACKWARD)
    assert self_us(trace) == {"a": 8, "b": 6, "x": 20, "y": 30}


@pytest.mark.parametrize("early", [0.001, 0.4, 1])
def test_a_call_that_begins_just_before_its_operator_runs_inside_it(early: float) -> None:
    trace = TraceBuilder().step(1, at=0, dur=200).op("aten::add", at=100, dur=50, External_id=7)
    trace.launch(at=100 - early, dur=10 + early, correlation=7, External_id=7, name="hipLaunchKernel")
    trace.kernel(at=120, dur=30, correlation=7)
    assert parents(trace)["hipLaunchKernel"] == "aten::add"
    assert self_us(trace) == {"ProfilerStep#1": 150, "aten::add": 40, "hipLaunchKernel": 10}
    ops = {op.name: op for op in trace.measures().ops}
    assert ops["aten::add"].self_cuda_time_us == 30
    assert ops["hipLaunchKernel"].cpu_time_us == pytest.approx(10 + early)  # as recorded


@pytest.mark.parametrize("late", [-40, -0.001, 0, 0.001, 1])
@pytest.mark.parametrize("call_first", [True, False])
def test_an_early_call_may_end_with_its_operator_or_just_after_it(late: float, call_first: bool) -> None:
    trace = TraceBuilder().launch(at=99.999, dur=50.001 + late, correlation=7, External_id=7)
    trace.op("op", at=100, dur=50, External_id=7)
    if not call_first:
        trace.events.reverse()
    assert parents(trace) == {"op": None, "cudaLaunchKernel": "op"}
    inside, beyond = min(50 + late, 50), max(late, 0)
    assert self_us(trace) == pytest.approx({"op": 50 - inside, "cudaLaunchKernel": inside + beyond})


def test_a_call_as_long_as_its_operator_runs_inside_it_whatever_comes_first() -> None:
    trace = TraceBuilder().launch(at=0, dur=10, correlation=1).op("op", at=0, dur=10)  # neither has an Ev Idx
    assert parents(trace) == {"op": None, "cudaLaunchKernel": "op"}


def test_the_operator_of_the_id_may_be_an_inner_one() -> None:
    # call        |----|           99.9 .. 104, of id 8
    # outer        |-----------|   100 .. 150, id 7
    # inner         |-------|      100.5 .. 140, id 8
    trace = TraceBuilder().op("outer", at=100, dur=50, External_id=7).op("inner", at=100.5, dur=39.5, External_id=8)
    trace.launch(at=99.9, dur=4.1, correlation=1, External_id=8)
    assert parents(trace) == {"outer": None, "inner": "outer", "cudaLaunchKernel": "inner"}
    assert self_us(trace) == {"outer": 10.5, "inner": 36, "cudaLaunchKernel": 3.5}


OUTSIDE = {
    "another id": {"at": 99.9, "dur": 10, "External_id": 8},
    "no id": {"at": 99.9, "dur": 10},
    "id 0, which is none": {"at": 99.9, "dur": 10, "External_id": 0},
    "over a microsecond early": {"at": 98.9, "dur": 10, "External_id": 7},
    "over before the operator begins": {"at": 99.5, "dur": 0.4, "External_id": 7},
    "over a microsecond longer": {"at": 99.9, "dur": 51.2, "External_id": 7},
    "another thread": {"at": 99.9, "dur": 10, "External_id": 7, "thread": BACKWARD},
}


@pytest.mark.parametrize("why", OUTSIDE)
def test_other_early_calls_stay_outside(why: str) -> None:
    number = 0 if why.startswith("id 0") else 7
    trace = TraceBuilder().op("op", at=100, dur=50, External_id=number).launch(correlation=1, **OUTSIDE[why])
    assert parents(trace)["cudaLaunchKernel"] is None


def test_of_two_rows_at_the_same_time_the_one_recorded_first_is_the_parent() -> None:
    trace = TraceBuilder().op("second", at=0, dur=10, Ev_Idx=2).op("first", at=0, dur=10, Ev_Idx=1)
    assert parents(trace) == {"first": None, "second": "first"}
    assert self_us(trace) == {"first": 0, "second": 10}


def test_a_call_that_fills_its_operator_runs_inside_it() -> None:
    # Runtime calls have no "Ev Idx".
    trace = TraceBuilder().launch(at=0, dur=10, correlation=1).op("op", at=0, dur=10, Ev_Idx=5)
    assert parents(trace) == {"op": None, "cudaLaunchKernel": "op"}


def test_without_ev_idx_the_order_in_the_file_breaks_ties() -> None:
    assert parents(TraceBuilder().op("a", at=0, dur=10).op("b", at=0, dur=10)) == {"a": None, "b": "a"}
    assert parents(TraceBuilder().op("b", at=0, dur=10).op("a", at=0, dur=10)) == {"b": None, "a": "b"}


def test_rows_of_no_length() -> None:
    trace = TraceBuilder().op("a", at=0, dur=10).op("in", at=5, dur=0).op("end", at=10, dur=0).op("start", at=0, dur=0)
    assert parents(trace) == {"a": None, "start": "a", "in": "a", "end": None}
    assert self_us(trace) == {"a": 10, "start": 0, "in": 0, "end": 0}


def test_threads_do_not_mix() -> None:
    trace = TraceBuilder().op("a", at=0, dur=100, thread=MAIN).op("b", at=10, dur=50, thread=BACKWARD)
    trace.op("c", at=20, dur=10, thread=MAIN).op("other process", at=0, dur=200, thread=MAIN, pid=7)
    assert self_us(trace) == {"a": 90, "b": 50, "c": 10, "other process": 200}


def test_python_rows_do_not_take_from_operators() -> None:
    trace = TraceBuilder().op("a", at=0, dur=100).python("train.py(3): f", at=10, dur=50).op("b", at=20, dur=10)
    assert self_us(trace) == {"a": 90, "b": 10}


def test_subtree_sums_and_nearest() -> None:
    trace = TraceBuilder().op("a", at=0, dur=100).op("b", at=10, dur=60).op("c", at=20, dur=20).op("d", at=80, dur=10)
    _, forest = forest_of(trace)  # in the order a b c d
    assert forest.subtree_sums(np.array([1, 10, 100, 1000])).tolist() == [1111, 110, 100, 1000]
    wanted = np.array([True, False, False, True])
    assert forest.nearest(np.arange(4), wanted).tolist() == [0, 0, 0, 3]
    assert forest.nearest(np.array([2, NONE]), ~wanted).tolist() == [2, NONE]
    assert forest.nearest(np.array([0, 3]), np.array([False, True, True, False])).tolist() == [NONE, NONE]


def test_thousands_of_nested_rows_take_no_time() -> None:
    count = 20_000
    trace = TraceBuilder()
    for i in range(count):
        trace.op("f", at=i, dur=2 * (count - i))
    _, forest = forest_of(trace)
    assert forest.parent.tolist() == [NONE, *range(count - 1)]
    top = np.zeros(count, dtype=bool)
    top[0] = True
    assert forest.nearest(np.arange(count), top).tolist() == [0] * count


def test_thousands_of_staggered_rows_take_no_time() -> None:
    trace = TraceBuilder()
    for i in range(20_000):
        trace.op("f", at=i, dur=1.5)
    _, forest = forest_of(trace)
    # Of each pair the second starts while the first runs; the third starts behind the first.
    assert forest.parent.tolist() == [NONE if i % 2 == 0 else i - 1 for i in range(20_000)]


# -- against plain implementations

intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.integers(-1, 3)), min_size=0, max_size=40
)


def build(rows: list[tuple[int, int, int, int]]) -> TraceBuilder:
    trace = TraceBuilder()
    for i, (thread, start, length, index) in enumerate(rows):
        extra = {} if index < 0 else {"Ev_Idx": index}
        trace.op(str(i), at=start, dur=length, thread=thread, **extra)
    return trace


def plain_nesting(rows: list[tuple[int, int, int, int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Parent and self time of each row, by walking up from the row that ran last."""
    key = {i: (t, s, -(s + n), 10**9 if x < 0 else x, i) for i, (t, s, n, x) in enumerate(rows)}
    order = sorted(key, key=lambda i: key[i])
    parent: dict[int, int] = {}
    end: dict[int, int] = {}
    own = dict.fromkeys(key, 0)
    last: int | None = None
    for i in order:
        thread, start, length, _ = rows[i]
        above = last
        while above is not None and (rows[above][0] != thread or end[above] <= start):
            above = parent[above] if parent[above] >= 0 else None
        parent[i] = -1 if above is None else above
        end[i] = start + length if above is None else min(start + length, end[above])
        last = i
    for thread in {row[0] for row in rows}:
        mine = [i for i in order if rows[i][0] == thread]
        for time in range(50):
            inside = [i for i in mine if rows[i][1] <= time < end[i]]
            behind = [i for i in mine if end[i] <= time < rows[i][1] + rows[i][2]]
            if inside:  # the last of them runs in all others
                own[inside[-1]] += 1
            elif behind:  # of several overhangs, the one that began first has it
                own[min(behind, key=lambda i: (end[i], order.index(i)))] += 1
    return parent, own


@settings(max_examples=120, deadline=None)
@given(intervals)
def test_nesting_equals_a_plain_walk(rows: list[tuple[int, int, int, int]]) -> None:
    table = build(rows).table()
    parent, own = plain_nesting(rows)
    for rounds in (nesting.MAX_ROUNDS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nesting, "MAX_ROUNDS", rounds)  # 0: by the stack
            forest = nest(table, table.host)
        row = forest.rows.tolist()
        assert {row[i]: row[p] if p >= 0 else -1 for i, p in enumerate(forest.parent.tolist())} == parent
        assert {r: ns // 1000 for r, ns in zip(row, forest.self_ns.tolist(), strict=True)} == own
        assert (forest.self_ns >= 0).all()
        there = {(t, time) for t, start, length, _ in rows for time in range(start, start + length)}
        assert forest.self_ns.sum() == 1000 * len(there)
        for i in range(len(row)):  # the descendants are those behind it up to `last`
            inside = [j for j in range(len(row)) if _is_below(forest, j, i)]
            assert inside == list(range(i + 1, forest.last[i]))


def _is_below(forest: Forest, child: int, above: int) -> bool:
    while (child := int(forest.parent[child])) >= 0:
        if child == above:
            return True
    return False


@st.composite
def nested_calls(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Calls as programs make them: children inside their parents, one after the other."""
    rows: list[tuple[int, int, int, int]] = []

    def call(start: int, length: int, depth: int) -> None:
        rows.append((0, start, length, len(rows)))
        position = start
        while depth < 4 and position < start + length and draw(st.booleans()):
            gap, size = draw(st.integers(0, 3)), draw(st.integers(0, length))
            size = min(size, start + length - position - gap)
            if size < 0:
                break
            call(position + gap, size, depth + 1)
            position += gap + size

    at = 0
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.integers(0, 40))
        call(at, length, 0)
        at += length + draw(st.integers(0, 5))
    return rows


@settings(max_examples=80, deadline=None)
@given(nested_calls())
def test_self_times_add_up_to_the_roots(rows: list[tuple[int, int, int, int]]) -> None:
    table = build(rows).table()
    forest = nest(table, table.host)
    roots = forest.parent == NONE
    assert forest.self_ns.sum() == table.dur[forest.rows[roots]].sum()
