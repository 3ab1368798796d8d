"""Advice: weighed by what it can save, the largest first, and nothing that saves next to nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from traces import TraceBuilder, flags

from proftrack.measures import Measures, combine
from proftrack.measures.waits import Wait
from proftrack.record.ceilings import REPLAYED_GRAPH, Ceilings, StepWork
from proftrack.record.figures import IdleCause, IdleGap
from proftrack.record.verdict import Cause, Regime, Verdict
from proftrack.verdict.advice import Step, advise
from proftrack.verdict.context import Context
from proftrack.verdict.evidence import headroom, summary
from proftrack.verdict.judge import judge
from proftrack.verdict.rules import StepFacts
from proftrack.verdict.thresholds import THRESHOLDS


def loop(
    count: int = 3, *, dur: float = 1000, launches: int = 2, busy: float = 200, name: str = "gemm"
) -> TraceBuilder:
    """Steps with `launches` kernels of `busy` us each, launched at once, 10 us apart."""
    trace = TraceBuilder()
    for i in range(count):
        trace.step(i, at=i * dur, dur=dur).region("train", at=i * dur, dur=dur)
        for k in range(launches):
            at = i * dur + 10 * k
            trace.work(i * launches + k + 1, launch=at, at=i * dur + 5 + k * busy, dur=busy, name=name)
    return trace


def facts(time: float, busy: float, *, waits: float = 0.0, **causes: float) -> StepFacts:
    return StepFacts(
        step_time_us=time,
        gpu_busy_us=busy,
        idle_by_cause_us=causes,  # type: ignore[arg-type]
        busy_by_limit_us={"arithmetic": busy},
        waits_over_gpu_us=waits,
    )


def advice(
    name: Regime, trace: TraceBuilder | Measures, given: StepFacts, cause: Cause = "dispatch", *, profiled: bool = False
) -> list[str]:
    measures = trace.measures() if isinstance(trace, TraceBuilder) else trace
    return advise(name, cause, Step(measures, given, None, profiled, THRESHOLDS))


def verdict_of(trace: TraceBuilder, step_time_us: float | None = None) -> Verdict:
    return judge(trace.measures(), Context(step_time_us=step_time_us)).verdict


# ---- the profiler's own calls ----------------------------------------------------------------------------------------


def test_the_profilers_own_synchronization_is_no_advice() -> None:
    """torch's profiler synchronizes the device where recording ends: once in three steps, after the last."""
    trace = loop().sync(at=3005, dur=400)
    assert trace.measures().waits == []
    assert not any("Synchronize" in text for text in verdict_of(trace, 700).advice)


def test_nor_is_the_one_before_the_first_step_or_in_front_of_its_work() -> None:
    """Before the window the GPU works on earlier steps: 300 us of that are no step's."""
    trace = TraceBuilder().work(90, launch=0, at=5, dur=400).sync(at=50, dur=60)
    for i in range(3):
        at = 100 + i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.work(i + 1, launch=at + 350, at=at + 360, dur=600)
    trace.sync(at=105, dur=300)
    waits = trace.measures().waits
    assert [(wait.calls, wait.over_gpu_us) for wait in waits] == [(1, 0)]
    assert not any("Synchronize" in text for text in verdict_of(trace, 900).advice)


def test_without_steps_what_follows_the_last_launch_delays_nothing() -> None:
    trace = TraceBuilder().op("train", at=0, dur=900)
    trace.work(1, launch=0, at=5, dur=100).sync(at=10, dur=95).work(2, launch=200, at=205, dur=100).sync(at=210, dur=95)
    assert [(wait.calls, wait.over_gpu_us) for wait in trace.measures().waits] == [(1, 95)]


# ---- waits -----------------------------------------------------------------------------------------------------------


def waiting(operator: str | None, *, each: float = 300, call: str = "cudaStreamSynchronize") -> TraceBuilder:
    """Steps of 1000 us in which the host waits for `each` us of a kernel of 400 us."""
    trace = loop(launches=1, busy=400)
    for i in range(3):
        at = i * 1000 + 5 + 400 - each
        if operator:
            trace.op(operator, at=at - 1, dur=each + 2)
        trace.sync(at=at, dur=each, name=call)
    return trace


def test_waits_are_told_by_call_and_operator_with_the_time_over_gpu_work() -> None:
    trace = waiting("aten::_local_scalar_dense").sync(at=700, dur=50, name="cudaEventSynchronize")
    assert trace.measures().waits == [
        Wait(call="cudaStreamSynchronize", operator="aten::_local_scalar_dense", calls=3, over_gpu_us=900),
        Wait(call="cudaEventSynchronize", operator="", calls=1, over_gpu_us=0),
    ]


def test_a_runtime_call_and_the_driver_call_inside_it_are_one_wait() -> None:
    trace = waiting(None, call="cudaMemcpy").call("cuMemcpyDtoH_v2", at=200, dur=150, cat="cuda_driver")
    assert trace.measures().waits == [Wait(call="cudaMemcpy", operator="", calls=3, over_gpu_us=900)]


def test_cycles_add_up() -> None:
    both = combine([waiting("aten::item").measures(), waiting("aten::item", each=100).measures()])
    assert both.waits == [Wait(call="cudaStreamSynchronize", operator="aten::item", calls=6, over_gpu_us=1200)]


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ("aten::_local_scalar_dense", ".item() or a similar call reads 1 value per step from the GPU: keep them there"),
        ("aten::copy_", "A copy between host and device waits for the GPU once per step: use pinned memory"),
        ("aten::nonzero", "aten::nonzero waits for the GPU once per step: it needs a value or a size"),
        (None, "cudaStreamSynchronize waits for the GPU once per step: find its caller and remove it"),
    ],
)
def test_a_wait_that_costs_something_says_how_much(operator: str | None, says: str) -> None:
    """T = 1000, B = 400; the host waits 300 us a step over GPU work."""
    first = advice("sync-bound", waiting(operator), facts(1000, 400, waits=300))[0]
    assert first.startswith(says)
    assert first.endswith("(at most 300 us of a 1 ms step).")


def test_a_wait_cannot_save_more_than_the_gpus_idle_time() -> None:
    assert "(at most 60 us of a 460 us step)" in advice("mixed", waiting("aten::item"), facts(460, 400, waits=300))[0]


@pytest.mark.parametrize(("each", "given"), [(45, True), (55, True), (40, False), (2, False)])
def test_waits_that_cost_less_than_a_twentieth_of_the_step_are_not_mentioned(each: float, given: bool) -> None:
    """Of T = 900 us, a twentieth is 45 us."""
    texts = advice("overhead-bound", waiting("aten::item", each=each), facts(900, 400, dispatch=500))
    assert any(".item()" in text for text in texts) is given


# ---- the order -------------------------------------------------------------------------------------------------------


def test_mixed_begins_with_what_saves_most() -> None:
    trace = waiting("aten::item", each=300)
    waits = advice("mixed", trace, facts(700, 400, waits=300, dispatch=100, synchronization=150))
    assert ".item()" in waits[0]
    launches = advice("mixed", loop(), facts(700, 400, dispatch=280, input=20))
    assert launches[0].startswith("2 launches per step: replay the step as a CUDA graph (at most 280 us of a 700 us st")
    data = advice("mixed", loop(), facts(700, 400, dispatch=100, input=140, host=60))
    assert data[0] == "The GPU waits for data: load it ahead (at most 140 us of a 700 us step)."
    assert "100 us" in data[1]
    assert "60 us" in data[2]


def test_mixed_may_begin_with_the_gpus_part() -> None:
    """Of T = 700 us, 400 us are float32 products without tensor cores, 300 us idle time."""
    trace = loop(name="ampere_sgemm_128x64_nn")
    first, second, *_ = advice("mixed", trace, facts(700, 400, dispatch=300))
    assert first.startswith("Float32 arithmetic without tensor cores takes 400 us of a 700 us step")
    assert second.startswith("2 launches")


def test_mixed_says_what_each_side_can_gain() -> None:
    texts = advice("mixed", loop(), facts(700, 400, dispatch=300))
    assert texts[-2] == (
        "Both sides matter: the GPU idles 300 us of a 700 us step; beyond that only less work for the GPU helps, most "
        "of all gemm (100% of its time)."
    )
    assert "400 us" in texts[-1]


def test_a_profiled_step_is_called_one() -> None:
    assert "of a 700 us step as profiled" in advice("mixed", loop(), facts(700, 400, dispatch=300), profiled=True)[0]


def test_a_graph_must_not_wait_and_the_advice_names_what_does() -> None:
    trace = loop(launches=10, busy=20)
    for i in range(3):
        trace.op("aten::nonzero", at=i * 1000 + 150, dur=30)
        trace.sync(at=i * 1000 + 155, dur=20, name="cudaStreamSynchronize")
    texts = advice("overhead-bound", trace, facts(1000, 200, dispatch=800))
    assert any("step) once nothing in it waits for the GPU (here aten::nonzero), or" in text for text in texts), texts


def test_launches_that_explain_nothing_are_no_advice() -> None:
    """All but 20 us of the idle time have other causes."""
    texts = advice("overhead-bound", loop(), facts(1000, 400, dispatch=20, input=290, host=290))
    assert not any("graph" in text for text in texts)
    assert texts[-1].startswith("Faster kernels or lower precision do not help")


def test_an_optimizer_is_weighed_by_its_launches_and_the_graph_by_the_rest() -> None:
    """30 of 40 launches are the optimizer's: of 800 us of launching, 600; the graph comes second for the other 200."""
    trace = loop(2, dur=2000, launches=40, busy=10)
    for at in (0, 2000):
        trace.region("Optimizer.step#SGD.step", at=at + 95, dur=300)
    texts = advice("overhead-bound", trace, facts(1200, 400, dispatch=800))
    assert texts[0].startswith("SGD.step makes 30 of 40 launches per step: pass it foreach=True or fused=True")
    assert "600 us of a 1.2 ms step" in texts[0]
    assert texts[1].startswith("40 launches per step")
    assert "800 us of a 1.2 ms step" in texts[1]


def test_where_the_optimizer_makes_nearly_all_launches_it_is_the_only_specific_advice() -> None:
    """38 of 40: 40 us of 800 us of launching are left, under a twentieth of 1.2 ms."""
    trace = loop(2, dur=2000, launches=40, busy=10)
    for at in (0, 2000):
        trace.region("Optimizer.step#SGD.step", at=at + 15, dur=380)
    texts = advice("overhead-bound", trace, facts(1200, 400, dispatch=800))
    assert "SGD.step makes 38 of 40 launches" in texts[0]
    assert texts[1].startswith("Launch less")


def test_kernels_side_by_side_take_no_longer_than_the_gpu_is_busy() -> None:
    trace = loop(launches=1, busy=900, name="sgemm_a")
    for i in range(3):
        trace.launch(at=i * 1000 + 3, correlation=50 + i)
        trace.kernel("sgemm_b", at=i * 1000 + 5, dur=900, correlation=50 + i, stream=9)
    assert (
        verdict_of(trace, 1000).advice[0].startswith("Float32 arithmetic without tensor cores takes 900 us of a 1 ms")
    )


def test_elementwise_kernels_that_take_no_time_are_not_mentioned() -> None:
    """Ten of 1 us a step beside 900 us: 1 % of T. Ten of 20 us: 20 %."""
    few = loop(dur=1000, launches=10, busy=1, name="vectorized_elementwise_kernel")
    many = loop(dur=1000, launches=10, busy=20, name="vectorized_elementwise_kernel")
    assert not any("elementwise" in t for t in advice("memory-bound", few, facts(1000, 910)))
    assert advice("memory-bound", many, facts(1000, 910))[0].startswith(
        "10 elementwise kernels per step take 200 us of a 1 ms step"
    )


def test_pageable_copies_count_only_where_no_kernel_hides_them() -> None:
    trace = loop(launches=1, busy=900)
    for i in range(3):
        trace.launch(at=i * 1000 + 3, correlation=50 + i, name="cudaMemcpyAsync")
        trace.memcpy("Memcpy HtoD (Pageable -> Device)", at=i * 1000 + 10, dur=300, correlation=50 + i, stream=9)
    hidden = verdict_of(trace, 1000)
    assert hidden.regime == "compute-bound"
    assert not any("pageable" in text for text in hidden.advice)


def with_an_outlier(extra: int) -> TraceBuilder:
    """Six steps of 1 ms with 900 us of matmul; in the third, `extra` kernels of 50 us more, waited for."""
    trace, at = TraceBuilder(), 0.0
    for i in range(6):
        more = extra if i == 2 else 0
        dur = 1000 + 50 * more
        trace.step(i, at=at, dur=dur).region("train", at=at, dur=dur)
        trace.work(1000 * i + 1, launch=at, at=at + 5, dur=500).work(1000 * i + 2, launch=at + 2, at=at + 505, dur=400)
        for k in range(more):
            start = at + 905 + 50 * k
            trace.work(1000 * i + 3 + k, launch=at + 10 + k, at=start, dur=50, name="vectorized_elementwise_kernel")
        if more:
            trace.sync(at=at + 500, dur=450 + 50 * more)
        at += dur
    return trace


@pytest.mark.parametrize("extra", [100, 400])
def test_kernels_and_waits_of_an_outlier_are_no_advice(extra: int) -> None:
    """5 and 20 ms of elementwise kernels in one step of six: the others have none, and wait for nothing."""
    trace = with_an_outlier(extra)
    assert flags(trace.measures())["outlier_steps"] == 1
    assert trace.measures().waits == []
    assert not any("elementwise" in text for text in verdict_of(trace, 1000).advice)


def test_beside_copies_better_kernels_are_not_all_that_helps() -> None:
    """Per 1000 us: 500 us of matmul, then 450 us of an exposed copy that the host waits for, 50 us idle."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000).work(i + 1, launch=at, at=at + 5, dur=500)
        trace.call("cudaMemcpyAsync", at=at + 10, dur=950, correlation=50 + i)
        trace.memcpy("Memcpy DtoH (Device -> Pageable)", at=at + 505, dur=450, correlation=50 + i)
    texts = verdict_of(trace, 1000).advice
    assert texts[0].startswith("Copies to pageable memory take 450 us of a 1 ms step")
    assert texts[1].startswith("Beyond copies and collectives, only better kernels")


def updating(op: str, *, optimizer: str = "AdamW", busy: float = 300) -> TraceBuilder:
    """Steps of 950 us of kernels, `busy` of them in an optimizer's step."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.work(2 * i + 1, launch=at, at=at + 5, dur=950 - busy)
        trace.region(f"Optimizer.step#{optimizer}.step", at=at + 20, dur=40).op(op, at=at + 25, dur=20)
        trace.work(2 * i + 2, launch=at + 30, at=at + 955 - busy, dur=busy, name="multi_tensor_apply_kernel")
    return trace


def test_an_optimizer_that_passes_over_its_states_several_times_can_be_fused() -> None:
    said = "AdamW.step takes 300 us of a 1 ms step, in several passes over parameters and states: pass it fused=True"
    assert verdict_of(updating("aten::_foreach_mul_"), 1000).advice[0].startswith(said)
    for trace in (
        updating("aten::_fused_adamw_"),
        updating("aten::_foreach_mul_", optimizer="RMSprop"),  # it has no such option
        updating("aten::_foreach_mul_", busy=40),  # under a twentieth of the step
    ):
        assert not any("fused=True" in text for text in verdict_of(trace, 1000).advice)


def test_copies_take_no_longer_than_the_step_and_leave_no_room_for_kernels() -> None:
    """1080 us of copies under the profiler, 1000 without. R + copies is B: nothing is near a limit because of that."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1100
        trace.step(i, at=at, dur=1100).region("train", at=at, dur=1100)
        trace.call("cudaMemcpyAsync", at=at + 10, dur=1080, correlation=50 + i)
        trace.memcpy("Memcpy DtoH (Device -> Pageable)", at=at + 15, dur=1080, correlation=50 + i)
    work = StepWork(flops_by_dtype={}, bytes=4_000_000, source="counted")
    ceilings = Ceilings(device="Test GPU 0", flops_per_s={}, bytes_per_s=4e12)
    verdict = judge(trace.measures(), Context(step_time_us=1000, ceilings=ceilings, work=work)).verdict
    assert verdict.regime == "transfer-bound"
    assert verdict.advice[0].startswith("Copies to pageable memory take 1 ms of a 1 ms step")
    assert not any("close to this device's limit" in text or "roofline" in text for text in verdict.advice)


def test_launching_less_does_not_gain_what_waits_cost() -> None:
    """Of 100 us without GPU work, 60 us are dispatch and 40 us waits."""
    texts = advice("compute-bound", loop(), facts(1000, 900, dispatch=60, synchronization=40))
    assert texts[-1].endswith("gains at most 60 us of a 1 ms step.")


def test_one_launch_cannot_be_fewer() -> None:
    texts = advice("overhead-bound", loop(launches=1, busy=10), facts(1000, 10, dispatch=990))
    assert texts[0].startswith("One launch per step")
    assert texts[1].startswith("Faster kernels or lower precision do not help")


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_what_replays_graphs_is_not_told_to(call: str) -> None:
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=i * 1000, dur=1000).region("train", at=i * 1000, dur=1000)
        for k in range(4):
            at = i * 1000 + 250 * k
            trace.launch(at=at, dur=200, correlation=9 * i + k + 1, name=call)
            trace.kernel(at=at + 205, dur=20, correlation=9 * i + k + 1)
    texts = advice("overhead-bound", trace, facts(1000, 80, dispatch=920))
    assert texts[0].startswith("The step already replays a graph")
    assert not any("a CUDA graph" in text for text in texts)


# ---- what the evidence says ------------------------------------------------------------------------------------------


def sleeping(sleep: float, busy: float = 100, count: int = 3) -> TraceBuilder:
    """Steps that sleep this long, launch one kernel, and wait for it."""
    trace, dur = TraceBuilder(), sleep + busy + 30
    for i in range(count):
        at = i * dur
        trace.step(i, at=at, dur=dur).region("train", at=at, dur=dur)
        trace.work(i + 1, launch=at + sleep, at=at + sleep + 5, dur=busy).sync(at=at + sleep + 2, dur=busy + 10)
    return trace


def test_the_launch_rate_limits_only_what_waits_for_launches() -> None:
    def rate(trace: TraceBuilder) -> str:
        return next(e.text for e in verdict_of(trace).evidence if e.name == "launch_interval_us")

    assert rate(sleeping(20_000)).endswith("the trace has one every 20.1 ms.")
    assert rate(loop(launches=2, busy=5, dur=900)).endswith("the launch rate is the limit.")


def test_shares_that_would_read_zero_are_left_out() -> None:
    trace = loop(launches=2, busy=450)  # and a copy of 1 us
    trace.launch(at=30, correlation=90, name="cudaMemcpyAsync").memcpy(at=910, dur=1, correlation=90)
    names = [e.name for e in verdict_of(trace, 1000).evidence]
    assert "busy_arithmetic_us" in names
    assert "busy_transfer_us" not in names


def test_several_causes_are_not_called_slow_launching() -> None:
    """Of 900 us of idle time: 380 input, 360 host, 160 dispatch. None explains half of it."""
    mixed = facts(1000, 100, input=380, host=360, dispatch=160)
    assert summary("overhead-bound", mixed).endswith("the host launches late, for several reasons.")
    most = facts(1000, 100, input=300, dispatch=600)
    assert summary("overhead-bound", most).endswith("the host cannot launch fast enough.")


# ---- the host --------------------------------------------------------------------------------------------------------


def with_gap(cause: IdleCause, us: float, during: str) -> Measures:
    found = loop().measures()
    gap = IdleGap(start_us=0, duration_us=us, cause=cause, during=during)
    return dataclasses.replace(found, idle=msgspec.structs.replace(found.idle, largest=[gap]))


def test_host_work_is_named_where_it_is_known() -> None:
    """The host at work for 2.65 s beside the GPU's 100 us."""
    given = facts(2.7e6, 100, host=2.65e6)
    assert advice("host-bound", with_gap("host", 2.65e6, "collate"), given, "host")[0] == (
        "The host's own work that launches nothing costs at most 2.65 s of a 2.7 s step. The longest such gap takes "
        "2.65 s, during collate."
    )
    unknown = advice("host-bound", with_gap("host", 2.65e6, "unrecorded host activity"), given, "host")[0]
    assert unknown.endswith("The longest such gap takes 2.65 s.")


def allocating(*calls: str) -> TraceBuilder:
    """Steps of 1000 us with 100 us of GPU work, in which these calls take 200, 190 ... us before the launch."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        for k, name in enumerate(calls):
            trace.call(name, at=at + 10 + 250 * k, dur=200 - 10 * k)
        trace.work(i + 1, launch=at + 800, at=at + 805, dur=100)
    return trace


@pytest.mark.parametrize("calls", [("hipFree", "hipMalloc"), ("cudaFree", "cudaMalloc"), ("cuMemUnmap", "cuMemCreate")])
def test_an_allocator_that_is_exhausted_has_its_own_advice(calls: tuple[str, ...]) -> None:
    texts = advice("host-bound", allocating(*calls), facts(1000, 100, allocator=600), "allocator")
    assert texts[0].startswith(f"Calls of {calls[0]} and {calls[1]} leave the GPU idle for at most 600 us of a 1 ms")
    assert "empty_cache" in texts[0]
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in texts[0]
    assert texts[-1].startswith("A CUDA graph or fused kernels do not help here")
    assert not any("numpy" in text for text in texts)


@pytest.mark.parametrize(
    "calls", [("cudaMalloc",), ("cuMemCreate", "cuMemMap"), ("hipMalloc", "hipExtMallocWithFlags")]
)
def test_an_allocator_that_gives_nothing_back_still_grows(calls: tuple[str, ...]) -> None:
    text = advice("host-bound", allocating(*calls), facts(1000, 100, allocator=600), "allocator")[0]
    assert text.startswith(f"Calls of {' and '.join(calls)} leave the GPU idle for at most 600 us of a 1 ms")
    assert "gives none back" in text
    assert "empty_cache" not in text


def test_pinned_memory_is_allocated_once() -> None:
    texts = advice("host-bound", allocating("cudaHostAlloc"), facts(1000, 100, allocator=600), "allocator")
    assert texts[0].endswith("allocate pinned memory once and use it again.")


# ---- headroom --------------------------------------------------------------------------------------------------------


def test_headroom_of_a_bare_trace_is_a_bound_in_both_readings() -> None:
    """B = 100 of 900 us, the rest dispatch: 9x as recorded; with a quarter of the 800 us left, 300 of 100 us, 3x."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=i * 900, dur=900).region("train", at=i * 900, dur=900)
        trace.work(i + 1, launch=i * 900 + 798, at=i * 900 + 800, dur=100)
    bare = next(e for e in verdict_of(trace).evidence if e.name == "overhead_headroom")
    assert "at most 3.0x to 9.0x faster. That is a bound from a profiled step" in bare.text, bare.text
    given = next(e for e in verdict_of(trace, 900).evidence if e.name == "overhead_headroom")
    assert given.text == "If the GPU never idled: at most 9.0x faster."


@pytest.mark.parametrize(
    ("recorded", "without", "text"),
    [(10.0, 9.96, "at most 10x"), (1.01, 1.0, "at most 1.01x"), (1.82, 1.75, "at most 1.75x to 1.82x")],
)
def test_two_readings_that_hardly_differ_are_one(recorded: float, without: float, text: str) -> None:
    assert headroom(recorded, without) == text


CEILINGS = Ceilings(device="Test GPU", flops_per_s={"float32": 1e12}, bytes_per_s=1e12)


def work(flops: float, *uncounted: str) -> StepWork:
    return StepWork(flops_by_dtype={"float32": flops}, bytes=1e6, source="counted", uncounted_ops=list(uncounted))


def custom(custom_us: float) -> TraceBuilder:
    """Steps of 1000 us: a custom operator's kernel, and products for the rest of 900 us."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("flash_attn::_forward", at=at, dur=5).work(10 * i + 1, launch=at + 1, at=at + 3, dur=custom_us)
        trace.op("aten::add", at=at + 6, dur=4)
        trace.work(10 * i + 2, launch=at + 7, at=at + 3 + custom_us, dur=900 - custom_us)
    return trace


@pytest.mark.parametrize(("custom_us", "known"), [(80, True), (100, False), (600, False)])
def test_no_kernel_headroom_from_a_part_of_the_work(custom_us: float, known: bool) -> None:
    """A tenth of B = 900 us is 90 us."""
    context = Context(step_time_us=1000, ceilings=CEILINGS, work=work(1e8, "flash_attn._forward"))
    verdict = judge(custom(custom_us).measures(), context).verdict
    assert (verdict.figure("kernel_headroom") is not None) is known
    assert verdict.figure("roofline_time_us") == 100
    assert any("above the roofline" in text for text in verdict.advice) is known
    said = next(e.text for e in verdict.evidence if e.name == "roofline_time_us")
    assert "at least 100 us" in said
    assert ("lower bound" in said) is not known


def shaped(name: str = "gemm") -> TraceBuilder:
    """Steps with a product of 100 x 100 matrices: 2e6 FLOPs, 900 us."""
    trace = TraceBuilder()
    shapes = {"Input Dims": [[100, 100], [100, 100]], "Input type": ["float", "float"]}
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("aten::mm", at=at, dur=10)
        trace.events[-1]["args"] |= shapes
        trace.work(i + 1, launch=at + 1, at=at + 3, dur=900, name=name)
    return trace


@pytest.mark.parametrize(("flops", "known"), [(2e6, True), (1.9e6, True), (1e5, False)])
def test_products_that_the_counter_missed_leave_no_headroom(flops: float, known: bool) -> None:
    context = Context(step_time_us=1000, ceilings=CEILINGS, work=work(flops))
    verdict = judge(shaped().measures(), context).verdict
    assert (verdict.figure("kernel_headroom") is not None) is known


@pytest.mark.parametrize(("name", "known"), [("gemm", True), ("vectorized_elementwise_kernel", False)])
def test_arithmetic_alone_says_nothing_about_kernels_that_move_data(name: str, known: bool) -> None:
    """Without a counted step only the arithmetic is known, from shapes."""
    verdict = judge(shaped(name).measures(), Context(step_time_us=1000, ceilings=CEILINGS)).verdict
    assert (verdict.figure("kernel_headroom") is not None) is known
    assert verdict.figure("roofline_time_us") == 2


# ---- what is not counted ---------------------------------------------------------------------------------------------


def mixed(*, replayed: str = "", direct: str = "", operator: str = "aten::mm") -> TraceBuilder:
    """Steps of 1000 us: 600 us of a kernel of `operator`, 200 us of one of a graph, 100 us of one without either."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("MyFunctionBackward", at=at, dur=40)
        trace.op(operator, at=at, dur=5).work(10 * i + 1, launch=at + 1, at=at + 3, dur=600)
        if replayed:
            trace.call("cudaGraphLaunch", at=at + 10, dur=2, correlation=10 * i + 2)
            trace.kernel(replayed, at=at + 610, dur=200, correlation=10 * i + 2)
        if direct:
            trace.launch(at=at + 20, correlation=10 * i + 3).kernel(
                direct, at=at + 820, dur=100, correlation=10 * i + 3
            )
    return trace


def share(trace: TraceBuilder, *uncounted: str, launched: tuple[str, ...] = ()) -> float:
    counted = StepWork(
        flops_by_dtype={"float32": 1e8},
        bytes=1e6,
        source="counted",
        uncounted_ops=list(uncounted),
        launched_kernels=list(launched),
    )
    return Context(step_time_us=1000, ceilings=CEILINGS, work=counted).uncounted_share(trace.measures())


def test_kernels_without_an_operator_are_not_counted() -> None:
    """A launch inside an autograd node, but in no operator: of Triton, or of an extension that bypasses torch."""
    assert share(mixed(direct="flash_fwd_kernel")) == pytest.approx(100 / 700)
    assert share(mixed(direct="triton_poi_fused_add_0")) == 0  # torch.compile's: the operators were counted
    assert share(mixed(direct="triton_mine"), launched=("triton_mine",)) == pytest.approx(100 / 700)
    assert share(mixed(direct="ncclDevKernel_AllReduce_Sum_f32_RING_LL")) == 0


def test_a_replayed_graph_was_counted_at_its_capture() -> None:
    assert share(mixed(replayed="nvjet_tst_128x64")) == 0
    assert share(mixed(replayed="nvjet_tst_128x64"), REPLAYED_GRAPH) == pytest.approx(200 / 800)
    assert share(mixed(replayed="poly_kernel"), launched=("poly_kernel",)) == pytest.approx(200 / 800)


def test_an_operator_inside_a_graph_is_found_by_its_kernels() -> None:
    sort = "at_cuda_detail::cub::DeviceRadixSortOnesweepKernel"
    assert share(mixed(replayed=sort), "aten.sort") == pytest.approx(200 / 800)
    # No kernel has its name: it may be any of the graph's.
    assert share(mixed(replayed="fmha_kernel"), "mylib.attend") == pytest.approx(200 / 800)
    assert share(mixed(replayed="fmha_kernel", operator="mylib::attend"), "mylib.attend") == pytest.approx(600 / 800)


def test_what_is_not_counted_has_a_name() -> None:
    context = Context(
        step_time_us=1000,
        ceilings=CEILINGS,
        work=StepWork(
            flops_by_dtype={"float32": 1e8},
            bytes=1e6,
            source="counted",
            uncounted_ops=["aten.topk", "aten.sort"],
            launched_kernels=["poly_kernel"],
        ),
    )
    verdict = judge(mixed(direct="poly_kernel", operator="aten::sort").measures(), context).verdict
    said = next(e.text for e in verdict.evidence if e.name == "roofline_time_us")
    assert "100% of the GPU's time is in work that was not counted (aten::sort, aten::topk, poly_kernel)" in said
    assert verdict.figure("kernel_headroom") is None


def test_an_operator_that_calls_itself_is_left_out_once() -> None:
    """aten::sort calls aten::sort: 100 of 900 us, not 200."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("aten::sort", at=at, dur=20).op("aten::sort", at=at + 2, dur=10)
        trace.work(10 * i + 1, launch=at + 4, at=at + 6, dur=100, name="radixSortKVInPlace")
        trace.op("aten::mm", at=at + 30, dur=5).work(10 * i + 2, launch=at + 31, at=at + 110, dur=800)
    assert share(trace, "aten.sort") == pytest.approx(100 / 900)


def test_on_a_cpu_the_share_is_of_the_operators_time() -> None:
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000)
        trace.op("aten::sort", at=at, dur=400).op("aten::sort", at=at + 2, dur=390).op("aten::mm", at=at + 400, dur=600)
    assert share(trace, "aten.sort") == pytest.approx(400 / 1000)
