"""Events that stand in a file twice count once; events that only look alike count as they are."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_measures_properties import figures, traces
from traces import TraceBuilder, clean, flags, table_of

from proftrack.measures import measure


def twice(trace: TraceBuilder) -> TraceBuilder:
    both = copy.deepcopy(trace)
    both.events += copy.deepcopy(trace.events)
    return both


def numbered() -> TraceBuilder:
    """As torch writes it: every operator and region has an id."""
    trace = clean()
    for number, event in enumerate(trace.events, start=1):
        if event["cat"] in ("cpu_op", "user_annotation"):
            event["args"].update({"External id": number, "Ev Idx": number})
    return trace


def test_a_trace_merged_with_itself_has_the_figures_of_one() -> None:
    once, merged = numbered().measures(), twice(numbered()).measures()
    assert len(numbered().events) == 10
    assert flags(merged) == {"duplicate_rows": 10}
    assert figures(merged) == {**figures(once), "flags": figures(merged)["flags"]}


def test_rows_without_ids_count_once_where_others_show_that_the_file_was_written_twice() -> None:
    once, merged = clean().measures(), twice(clean()).measures()
    assert flags(merged) == {"duplicate_rows": 10}
    assert figures(merged) == {**figures(once), "flags": figures(merged)["flags"]}


def test_in_a_doubled_file_work_of_no_length_counts_once_by_its_id() -> None:
    trace = clean().launch(at=50, correlation=9).kernel("z", at=60, dur=0, correlation=9)
    trace.launch(at=52, correlation=10).kernel("lost", at=-(10**12), dur=5, correlation=10)
    once, merged = trace.measures(), twice(trace).measures()
    assert (once.totals.gpu_events, merged.totals.gpu_events) == (4, 4)
    assert flags(merged)["invalid_timestamps"] == 1


def test_the_first_of_equal_rows_stays() -> None:
    trace = TraceBuilder().op("a", at=0, dur=9, External_id=1).op("b", at=1, dur=2, External_id=2)
    trace.op("a", at=0, dur=9, External_id=1).op("a", at=0, dur=9, External_id=1)
    table = trace.table()
    assert [table.names[n] for n in table.name] == ["a", "b"]
    assert table.notes.duplicates == 2


ONCE = {
    "an operator with its id": TraceBuilder().op("a", at=0, dur=5, External_id=4),
    "an operator with its index": TraceBuilder().op("a", at=0, dur=5, Ev_Idx=4),
    "a region of no length": TraceBuilder().region("a", at=0, dur=0, External_id=4),
    "a step": TraceBuilder().step(1, at=0, dur=5),
    "a Python function": TraceBuilder().python("f", at=0, dur=5, Ev_Idx=3),
    "a call with its id": TraceBuilder().launch(at=0, dur=0, correlation=9),
    "a kernel": TraceBuilder().kernel(at=0, dur=5, correlation=9),
    "a kernel without an id": TraceBuilder().kernel(at=0, dur=5),
    "a short kernel": TraceBuilder().kernel(at=0.5, dur=0.7, correlation=9),
    "a copy": TraceBuilder().memcpy(at=0, dur=5, correlation=9),
}


@pytest.mark.parametrize("what", ONCE)
def test_what_cannot_be_two_counts_once(what: str) -> None:
    assert len(twice(ONCE[what]).table()) == 1


TWO = {
    "a wrapper and what it wraps": TraceBuilder().op("a", at=0, dur=5).op("a", at=0, dur=5),
    "other ids": TraceBuilder().op("a", at=0, dur=5, External_id=1).op("a", at=0, dur=5, External_id=2),
    "recursion": TraceBuilder().python("f", at=0, dur=5, Ev_Idx=1).python("f", at=0, dur=5, Ev_Idx=2),
    "markers of no length": TraceBuilder().region("m", at=0, dur=0).region("m", at=0, dur=0),
    "calls of one operator": TraceBuilder()
    .call("cudaPeekAtLastError", at=0, dur=0, External_id=5)
    .call("cudaPeekAtLastError", at=0, dur=0, External_id=5),
    "calls with ids of their own": TraceBuilder()
    .call("cudaEventQuery", at=0, dur=0, External_id=5, correlation=1)
    .call("cudaEventQuery", at=0, dur=0, External_id=5, correlation=2),
    "kernels of a graph in one microsecond": TraceBuilder()
    .kernel(at=3, dur=1, correlation=9)
    .kernel(at=3, dur=1, correlation=9),
    "kernels of no length": TraceBuilder().kernel(at=3, dur=0, correlation=9).kernel(at=3, dur=0, correlation=9),
    "kernels of a graph": TraceBuilder().kernel(at=3, dur=5, correlation=9).kernel(at=9, dur=5, correlation=9),
    "two streams": TraceBuilder().kernel(at=3, dur=5, correlation=9).kernel(at=3, dur=5, correlation=9, stream=8),
    "no stream": TraceBuilder().kernel(at=3, dur=5, stream=-1).kernel(at=3, dur=5, stream=-1),
    "two threads": TraceBuilder().op("a", at=0, dur=5, Ev_Idx=1).op("a", at=0, dur=5, Ev_Idx=1, thread=7),
    "another category": TraceBuilder().op("a", at=0, dur=5, Ev_Idx=1).region("a", at=0, dur=5, Ev_Idx=1),
    "no usable time": TraceBuilder().kernel(at=3, dur=-5).kernel(at=3, dur=-5),
}


@pytest.mark.parametrize("what", TWO)
def test_what_can_be_two_counts_twice(what: str) -> None:
    table = TWO[what].table()
    assert (len(table), table.notes.duplicates) == (2, 0)


@settings(max_examples=40, deadline=None)
@given(traces(), st.randoms(use_true_random=False))
def test_any_trace_twice_is_that_trace(trace: TraceBuilder, order: random.Random) -> None:
    work = [e for e in trace.events if e["cat"] not in ("kernel", "gpu_memcpy") or e["dur"] > 1]
    trace.events = [{**e, "args": {**e["args"], "correlation": i + 1}} for i, e in enumerate(work)]
    merged = twice(trace)
    order.shuffle(merged.events)
    once, got = measure(table_of(trace.json())), measure(table_of(merged.json()))
    assert [f for f in got.flags if f.code != "duplicate_rows"] == once.flags
    assert {**figures(got), "flags": []} == {**figures(once), "flags": []}
