"""What holds for every trace: sums and bounds, and what shifting, scaling, shuffling and merging must not change."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_measures_real import check_sums
from traces import TraceBuilder, table_of

from proftrack.measures import Measures, measure
from proftrack.verdict.judge import judge

COPIES = ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD"]
KERNELS = ["gemm", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce", "something"]


@st.composite
def traces(draw: st.DrawFn, steps: int = 3) -> TraceBuilder:
    """Steps, host rows on two threads, launches before, in and behind them, work on two devices of two streams."""
    trace = TraceBuilder(devices=2)
    index = iter(range(10_000))
    at = draw(st.integers(0, 30))
    for number in range(draw(st.integers(0, steps))):
        dur = draw(st.integers(5, 60))
        trace.step(number, at=at, dur=dur, Ev_Idx=next(index))
        at += dur + draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 8))):
        row = draw(st.sampled_from(["op", "region", "call", "sync"]))
        start, dur, thread = draw(st.integers(0, 150)), draw(st.integers(0, 40)), draw(st.sampled_from([101, 102]))
        name = {"op": "aten::mm", "region": "forward", "call": "cudaMalloc", "sync": "cudaStreamSynchronize"}[row]
        category = {"op": "cpu_op", "region": "user_annotation"}.get(row, "cuda_runtime")
        trace.row(category, name, start, dur, thread=thread, Ev_Idx=next(index))
    calls = draw(st.lists(st.integers(0, 80), unique=True, max_size=10))  # one behind the other: none runs in another
    for correlation, called in enumerate((2 * c for c in calls), start=1):
        delay, dur = draw(st.integers(-3, 40)), draw(st.integers(0, 30))
        where = {"device": draw(st.sampled_from([0, 0, 0, 1])), "stream": draw(st.sampled_from([7, 20]))}
        if draw(st.integers(0, 9)):
            thread = draw(st.sampled_from([101, 102]))
            trace.launch(at=called, dur=2, correlation=correlation, thread=thread, Ev_Idx=next(index))
        if draw(st.integers(0, 4)):
            trace.kernel(draw(st.sampled_from(KERNELS)), at=called + delay, dur=dur, correlation=correlation, **where)
        elif draw(st.booleans()):
            trace.memcpy(draw(st.sampled_from(COPIES)), at=called + delay, dur=dur, correlation=correlation, **where)
    return trace


def changed(trace: TraceBuilder, change: Any) -> TraceBuilder:
    """A copy of the trace with `change(event)` applied to each event."""
    other = copy.deepcopy(trace)
    for event in other.events:
        change(event)
    return other


def figures(measures: Measures) -> Any:
    """All figures as plain data; collectives, which lie on the trace's own clock, from the first one's start."""
    first = min((c.start_us for c in measures.collectives), default=0.0)
    moved = [msgspec.structs.replace(c, start_us=round(c.start_us - first, 3)) for c in measures.collectives]
    return msgspec.to_builtins(
        {f.name: getattr(measures, f.name) for f in dataclasses.fields(measures)} | {"collectives": moved}
    )


@settings(max_examples=120, deadline=None)
@given(traces())
def test_sums_and_bounds(trace: TraceBuilder) -> None:
    got = trace.measures()
    totals = got.totals
    # Work without a length, or before its own step, is in no window: then nothing is measured.
    assert (totals.gpu_busy_us is None) == (got.busy_us is None)
    if totals.gpu_busy_us is not None:
        check_sums(got)
        assert totals.self_cuda_time_total_us is not None
        assert totals.gpu_busy_us <= totals.self_cuda_time_total_us + 1e-9
        assert 0 <= (totals.gpu_busy_fraction_profiled or 0) <= 1
        assert all(d.gpu_busy_us <= d.self_cuda_time_total_us + 1e-9 for d in got.devices)
        assert totals.gpu_busy_us == pytest.approx(max(d.gpu_busy_us for d in got.devices))
    assert all(o.self_cpu_time_us >= 0 for o in got.ops)
    assert sum(s.gpu_events for s in got.per_step) <= totals.gpu_events
    # No NaN, no infinity, and a verdict for everything.
    judged = judge(got)
    json.loads(msgspec.json.encode([figures(got), judged.verdict]), parse_constant=pytest.fail)


def counted_ends(work: list[dict[str, Any]]) -> dict[int, int]:
    """Where each piece of work (by its place in the list) stops counting as busy, read off row by row."""
    ends = {i: e["ts"] + e["dur"] for i, e in enumerate(work)}
    cut = dict(ends)
    for lane in {(e["args"]["device"], e["args"]["stream"]) for e in work}:
        rows = [i for i, e in enumerate(work) if (e["args"]["device"], e["args"]["stream"]) == lane and e["dur"]]
        rows.sort(key=lambda i: (work[i]["ts"], ends[i]))
        for place, i in enumerate(rows):
            if any(ends[i] > ends[later] + 1 for later in rows[place + 1 :]):
                cut[i] = work[rows[place + 1]]["ts"]
    return cut


@settings(max_examples=120, deadline=None)
@given(traces())
def test_busy_time_and_ownership_equal_a_plain_reading(trace: TraceBuilder) -> None:
    got = trace.measures()
    rows = [e for e in trace.events if e["ph"] == "X"]
    work = [e for e in rows if e["cat"] in ("kernel", "gpu_memcpy")]
    steps = [e for e in rows if e["name"].startswith("ProfilerStep")]
    launches = {e["args"]["correlation"]: e for e in rows if e["name"] == "cudaLaunchKernel"}

    def step_of(event: dict[str, Any]) -> int | None:
        launch = launches.get(event["args"]["correlation"])
        inside = [i for i, s in enumerate(steps) if launch and s["ts"] <= launch["ts"] < s["ts"] + s["dur"]]
        return inside[0] if inside else None

    assert got.totals.gpu_events_without_launch == sum(e["args"]["correlation"] not in launches for e in work)
    assert got.totals.launches == (len(launches) or (None if work else 0))  # without any, none is known
    for i, step in enumerate(got.per_step):
        own = [e for e in work if step_of(e) == i]
        assert step.gpu_events == len(own)
        assert (step.launches or 0) == sum(
            steps[i]["ts"] <= e["ts"] < steps[i]["ts"] + steps[i]["dur"] for e in launches.values()
        )
        if work:
            assert step.self_cuda_time_us == sum(e["dur"] for e in own)
    spans = steps or [e for e in rows if e["cat"] in ("cpu_op", "kernel", "gpu_memcpy")]
    if not work or not spans:
        return
    cut = counted_ends(work)
    ends = [e["ts"] + e["dur"] for e in spans if e not in work]
    ends += [cut[i] for i, e in enumerate(work) if step_of(e) is not None or not steps]
    low, high = min(e["ts"] for e in spans), max(ends)
    assert got.window.duration_us == high - low
    for device in got.devices:
        here = [(e["ts"], cut[i]) for i, e in enumerate(work) if e["args"]["device"] == device.device]
        covered = {p for start, end in here for p in range(start, end)}
        assert device.gpu_busy_us == len(covered & set(range(low, high)))


SHIFTS = [1, 1_000_000, -250, 5_126_585_184_358, 1_712_195_495_519_689]


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from(SHIFTS))
def test_shifting_time_changes_nothing(trace: TraceBuilder, shift: int) -> None:
    moved = changed(trace, lambda event: event.update(ts=event["ts"] + shift))
    assert figures(moved.measures()) == figures(trace.measures())


@settings(max_examples=60, deadline=None)
@given(traces(), st.integers(0, 999), st.sampled_from([0, *SHIFTS[1:2], *SHIFTS[3:]]))
def test_nanoseconds_survive_any_shift(trace: TraceBuilder, nanoseconds: int, shift: int) -> None:
    """Times of three decimals, written as text into the file: to epoch microseconds and back."""
    assume(all(event["ts"] >= 0 for event in trace.events))  # "-1.001" is not a nanosecond after -1

    def text(offset: int) -> bytes:
        events = []
        for event in trace.events:
            ns = event["ts"] * 1000 + nanoseconds
            raw = json.dumps({**event, "ts": "TS", "dur": "DUR"}).replace(
                '"TS"', f"{ns // 1000 + offset}.{ns % 1000:03d}"
            )
            events.append(raw.replace('"DUR"', f"{trace.events[len(events)]['dur']}.007"))
        return (json.dumps(trace.members)[:-1] + ', "traceEvents": [' + ",\n".join(events) + "]}").encode()

    here, there = table_of(text(0)), table_of(text(shift))
    if len(here):
        assert there.origin_ns - here.origin_ns == shift * 1000
        assert (here.dur % 1000 == 7).all()
    assert (here.ts == there.ts).all()
    assert (here.dur == there.dur).all()
    assert figures(measure(here)) == figures(measure(there))


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from([2, 3, 10]))
def test_scaling_time_scales_the_figures(trace: TraceBuilder, factor: int) -> None:
    # By a microsecond or less a row outlives another by rounding alone, at any scale: here none does.
    trace = changed(trace, lambda e: e.update(ts=e["ts"] * 2, dur=e["dur"] * 2))
    bigger = changed(trace, lambda e: e.update(ts=e["ts"] * factor, dur=e["dur"] * factor)).measures()
    got = trace.measures()
    for name in ("self_cpu_time_total_us", "self_cuda_time_total_us", "gpu_busy_us", "gpu_idle_us"):
        before = getattr(got.totals, name)
        assert getattr(bigger.totals, name) == (None if before is None else before * factor)
    for name in ("gpu_events", "kernels", "launches", "gpu_events_without_launch", "gpu_busy_fraction_profiled"):
        assert getattr(bigger.totals, name) == getattr(got.totals, name)
    assert {(k.name, k.calls, k.total_us) for k in bigger.kernels} == {
        (k.name, k.calls, k.total_us * factor) for k in got.kernels
    }
    assert {(o.name, o.calls, o.self_cpu_time_us) for o in bigger.ops} == {
        (o.name, o.calls, o.self_cpu_time_us * factor) for o in got.ops
    }
    assert [s.self_cuda_time_us for s in bigger.per_step] == [
        None if s.self_cuda_time_us is None else s.self_cuda_time_us * factor for s in got.per_step
    ]


@settings(max_examples=60, deadline=None)
@given(traces(), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(trace: TraceBuilder, order: random.Random) -> None:
    shuffled = copy.deepcopy(trace)
    order.shuffle(shuffled.events)
    assert figures(shuffled.measures()) == figures(trace.measures())


@settings(max_examples=60, deadline=None)
@given(traces(), traces())
def test_merging_two_disjoint_traces_adds(a: TraceBuilder, b: TraceBuilder) -> None:
    def apart(event: dict[str, Any]) -> None:
        event["ts"] += 100_000
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 1000
        if event["name"].startswith("ProfilerStep"):
            event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 100}"

    later = changed(b, apart)
    both = copy.deepcopy(a)
    both.events += later.events
    x, y, got = a.measures(), later.measures(), both.measures()
    for name in ("self_cpu_time_total_us", "self_cuda_time_total_us"):
        assert (getattr(got.totals, name) or 0) == (getattr(x.totals, name) or 0) + (getattr(y.totals, name) or 0)
    for name in ("gpu_events", "kernels", "launches", "gpu_events_without_launch"):
        assert (getattr(got.totals, name) or 0) == (getattr(x.totals, name) or 0) + (getattr(y.totals, name) or 0)

    def by_name(measures: Measures, rows: str, figure: str) -> Counter[Any]:
        return Counter({r.name: n for r in getattr(measures, rows) if (n := getattr(r, figure))})

    for rows, figure in (("kernels", "total_us"), ("kernels", "calls"), ("regions", "calls"), ("regions", "launches")):
        assert by_name(got, rows, figure) == by_name(x, rows, figure) + by_name(y, rows, figure)
    for figure in ("calls", "self_cpu_time_us", "cuda_time_us"):
        assert by_name(got, "ops", figure) == by_name(x, "ops", figure) + by_name(y, "ops", figure)
    assert [s.self_cuda_time_us or 0 for s in got.per_step] == [
        s.self_cuda_time_us or 0 for s in [*x.per_step, *y.per_step]
    ]
