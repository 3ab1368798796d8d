"""The forward operator of each backward operator, by sequence number and forward thread."""

from __future__ import annotations

from typing import Any

import pytest
from traces import BACKWARD, MAIN, TraceBuilder

from proftrack.measures.autograd import EVALUATE, forward_rows, forward_threads
from proftrack.trace.table import NONE, EventTable

OTHER = 103


def forward(trace: TraceBuilder, name: str, *, at: float, sequence: Any, dur: float = 5, **more: Any) -> TraceBuilder:
    return trace.op(name, at=at, dur=dur, Sequence_number=sequence, Fwd_thread_id=0, **more)


def backward(
    trace: TraceBuilder, name: str, *, at: float, sequence: Any, number: int = 1, thread: Any = BACKWARD
) -> TraceBuilder:
    """The engine's row, and within it that of the node, 1 us later."""
    named = {"Sequence_number": sequence, "Fwd_thread_id": number, "thread": thread}
    return trace.op(EVALUATE + name, at=at, dur=8, **named).op(name, at=at + 1, dur=6, **named)


def flow(trace: TraceBuilder, number: Any, *, source: tuple[Any, float], target: tuple[Any, float]) -> TraceBuilder:
    """An arrow from the (thread, time) of a forward operator to that of a backward one."""
    for phase, (thread, at) in (("s", source), ("f", target)):
        trace.event(ph=phase, id=number, pid=trace.pid, tid=thread, ts=at, cat="fwdbwd", name="fwdbwd")
    return trace


def pairs(table: EventTable) -> list[tuple[str, str | None]]:
    """The names of backward rows, in file order, and those of their forward rows with the time in microseconds."""
    found = forward_rows(table)
    return [
        (name, f"{table.names[table.name[row]]}@{table.ts[row] // 1000}" if row != NONE else None)
        for name, row in zip([table.names[code] for code in table.name], found.tolist(), strict=True)
        if "Backward" in name
    ]


def chain() -> TraceBuilder:
    """linear is made of t (no node of its own: it has the number of the next one) and addmm; then gelu.

    main      0 linear(7) [ 1 t(7)  3 addmm(7) ]   10 gelu(8)
    backward  50 gelu(8)   60 addmm(7)
    """
    trace = forward(TraceBuilder(), "aten::linear", at=0, sequence=7, dur=9)
    forward(trace, "aten::t", at=1, sequence=7, dur=1)
    forward(trace, "aten::addmm", at=3, sequence=7)
    forward(trace, "aten::gelu", at=10, sequence=8)
    backward(trace, "GeluBackward0", at=50, sequence=8)
    return backward(trace, "AddmmBackward0", at=60, sequence=7)


EXPECTED = [
    (f"{EVALUATE}GeluBackward0", "aten::gelu@10"),
    ("GeluBackward0", "aten::gelu@10"),
    (f"{EVALUATE}AddmmBackward0", "aten::addmm@3"),
    ("AddmmBackward0", "aten::addmm@3"),
]


def test_the_last_of_those_with_the_number_is_the_nodes() -> None:
    assert pairs(chain().table()) == EXPECTED


def test_whatever_the_order_in_the_file() -> None:
    trace = chain()
    trace.events.reverse()
    assert pairs(trace.table()) == EXPECTED[::-1]


def test_at_the_same_time_the_inner_one_started_last() -> None:
    trace = forward(TraceBuilder(), "aten::matmul", at=0, sequence=3, Ev_Idx=4)
    forward(trace, "aten::mm", at=0, sequence=3, dur=4, Ev_Idx=5)
    trace.events.reverse()
    backward(trace, "MmBackward0", at=20, sequence=3)
    assert pairs(trace.table())[1] == ("MmBackward0", "aten::mm@0")


def test_numbers_as_text() -> None:
    trace = forward(TraceBuilder(), "aten::relu", at=0, sequence="12")
    trace.op("ReluBackward0", at=9, dur=1, thread=BACKWARD, Sequence_number="12", Fwd_thread_id="1")
    assert pairs(trace.table()) == [("ReluBackward0", "aten::relu@0")]


def test_backward_on_the_calling_thread() -> None:
    """As on a CPU."""
    trace = forward(TraceBuilder(), "aten::relu", at=0, sequence=0)
    backward(trace, "ReluBackward0", at=9, sequence=0, thread=MAIN)
    assert pairs(trace.table())[1] == ("ReluBackward0", "aten::relu@0")


def test_the_engines_row_is_one_without_a_forward_thread() -> None:
    trace = forward(TraceBuilder(), "aten::relu", at=0, sequence=4)
    forward(trace, f"{EVALUATE}ReluBackward0", at=9, sequence=4, thread=BACKWARD)
    assert pairs(trace.table()) == [(f"{EVALUATE}ReluBackward0", "aten::relu@0")]


def test_a_row_with_an_impossible_time_made_no_node() -> None:
    trace = forward(chain(), "aten::mul", at=1e11, sequence=7)
    assert pairs(trace.table()) == EXPECTED


def test_rows_without_a_number_have_none() -> None:
    trace = chain()
    trace.op(f"{EVALUATE}torch::autograd::AccumulateGrad", at=70, dur=5, thread=BACKWARD)
    trace.op("aten::copy_", at=71, dur=2, thread=BACKWARD)
    table = trace.table()
    assert forward_rows(table)[-2:].tolist() == [NONE, NONE]
    assert forward_rows(table)[:4].tolist() == [NONE] * 4  # forward rows


def test_a_forward_outside_of_the_recording_has_no_row() -> None:
    trace = chain()
    backward(trace, "MulBackward0", at=80, sequence=6)
    assert pairs(trace.table())[-1] == ("MulBackward0", None)


@pytest.mark.parametrize("trace", [TraceBuilder(), TraceBuilder().op("aten::mm", at=0, dur=1)])
def test_without_numbers(trace: TraceBuilder) -> None:
    assert forward_rows(trace.table()).tolist() == [NONE] * len(trace.table())
    assert forward_threads(trace.table()) == {}


# -- several forward threads count on their own, so that a number occurs on each


def two_threads() -> TraceBuilder:
    """Activation checkpointing: the block's forward runs again on the backward thread (torch's number 2).

    main      0 mul(5)
    backward  50 mul(5) again   60 its backward (forward thread 2)   70 backward of main's mul (forward thread 1)
    """
    trace = forward(TraceBuilder(), "aten::mul", at=0, sequence=5)
    forward(trace, "aten::mul", at=50, sequence=5, thread=BACKWARD)
    backward(trace, "MulBackward0", at=60, sequence=5, number=2)
    return backward(trace, "MulBackward0", at=70, sequence=5, number=1)


def test_flows_tell_the_threads_apart() -> None:
    trace = flow(two_threads(), 1, source=(BACKWARD, 50), target=(BACKWARD, 61))
    flow(trace, 2, source=(MAIN, 0), target=(BACKWARD, 71))
    table = trace.table()
    threads = {number: table.threads[index] for number, index in forward_threads(table).items()}
    assert threads == {1: ("100", str(MAIN)), 2: ("100", str(BACKWARD))}
    assert [row for _, row in pairs(table)] == ["aten::mul@50", "aten::mul@50", "aten::mul@0", "aten::mul@0"]


def test_without_flows_a_number_of_several_threads_is_nobodys() -> None:
    trace = forward(two_threads(), "aten::exp", at=20, sequence=6, thread=OTHER)
    backward(trace, "ExpBackward0", at=90, sequence=6, number=3)
    assert [row for _, row in pairs(trace.table())] == [None] * 4 + ["aten::exp@20"] * 2


def test_a_known_thread_without_the_number_is_not_replaced_by_another() -> None:
    """Its forward was before the recording; that another thread has the number means nothing."""
    trace = flow(chain(), 1, source=(MAIN, 10), target=(BACKWARD, 51))
    forward(trace, "aten::exp", at=20, sequence=99, thread=OTHER)
    backward(trace, "ExpBackward0", at=90, sequence=99, number=1)
    assert pairs(trace.table())[-1] == ("ExpBackward0", None)


def test_flows_that_contradict_each_other_are_outvoted() -> None:
    trace = flow(chain(), 1, source=(MAIN, 10), target=(BACKWARD, 51))
    flow(trace, 2, source=(MAIN, 3), target=(BACKWARD, 61))
    flow(trace, 3, source=(OTHER, 5), target=(BACKWARD, 50))
    assert [trace.table().threads[i] for i in forward_threads(trace.table()).values()] == [("100", str(MAIN))]


def test_flows_that_lead_nowhere_say_nothing() -> None:
    trace = flow(chain(), 1, source=(MAIN, 10), target=(BACKWARD, 999))
    trace.event(ph="f", id=2, pid=trace.pid, tid=BACKWARD, ts=51, cat="fwdbwd", name="fwdbwd")
    trace.event(ph="s", id=3, pid=trace.pid, tid=MAIN, ts=10, cat="ac2g", name="ac2g")
    trace.event(ph="f", id=3, pid=trace.pid, tid=BACKWARD, ts=51, cat="ac2g", name="ac2g")
    assert forward_threads(trace.table()) == {}
    assert pairs(trace.table()) == EXPECTED


def test_a_number_without_an_operator_is_a_further_node_of_the_one_before() -> None:
    """What changes a view in place makes a node for the view (8), for itself (9), and for the whole (10)."""
    trace = forward(TraceBuilder(), "aten::sin", at=0, sequence=7)
    forward(trace, "aten::mul_", at=10, sequence=8)
    forward(trace, "aten::cos", at=20, sequence=11)
    for at, number in ((30, 11), (40, 10), (50, 9), (60, 8), (70, 7)):
        backward(trace, f"Backward{number}", at=at, sequence=number)
        flow(trace, number, source=(MAIN, 0), target=(BACKWARD, at))
    made_by = {11: "aten::cos@20", 7: "aten::sin@0"}
    assert pairs(trace.table())[1::2] == [
        (f"Backward{number}", made_by.get(number, "aten::mul_@10")) for number in (11, 10, 9, 8, 7)
    ]


@pytest.mark.parametrize(("after", "number"), [(13, 9), (None, 11), (11, 7)])
def test_where_operators_may_not_have_been_recorded_it_is_nobodys(after: int | None, number: int) -> None:
    """Numbers 9 to 12 are missing at once; 11 is too far behind the last; 7 is before the first."""
    trace = forward(TraceBuilder(), "aten::mul_", at=10, sequence=8)
    if after is not None:
        forward(trace, "aten::cos", at=20, sequence=after)
    backward(trace, "MulBackward0", at=30, sequence=8)
    flow(trace, 1, source=(MAIN, 10), target=(BACKWARD, 30))
    backward(trace, "SinBackward0", at=40, sequence=number)
    assert pairs(trace.table())[2:] == [(f"{EVALUATE}SinBackward0", None), ("SinBackward0", None)]


def test_a_thread_that_was_not_recorded_made_none_of_anothers_nodes() -> None:
    """Thread 2 has the numbers of thread 1, which alone was recorded; with flows and without."""
    trace = chain()
    backward(trace, "SinBackward0", at=80, sequence=8, number=2)
    unseen = [(f"{EVALUATE}SinBackward0", None), ("SinBackward0", None)]
    assert pairs(trace.table())[-2:] == unseen
    flow(trace, 1, source=(MAIN, 10), target=(BACKWARD, 50))
    assert pairs(trace.table()) == [*EXPECTED, *unseen]


def test_a_file_written_twice() -> None:
    trace = flow(chain(), 1, source=(MAIN, 10), target=(BACKWARD, 51))
    trace.events = [{**event, "args": {**event.get("args", {}), "Ev Idx": i}} for i, event in enumerate(trace.events)]
    trace.events += trace.events
    assert pairs(trace.table()) == EXPECTED
    assert len(forward_threads(trace.table())) == 1
