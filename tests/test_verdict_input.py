"""Waits for data measured without the profiler: what the verdict makes of them, whatever the trace found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from traces import TraceBuilder

from proftrack.measures import Measures, combine
from proftrack.record.ceilings import Ceilings
from proftrack.record.figures import LOADING_REGION, CpuWork
from proftrack.record.timing import Timing
from proftrack.verdict.context import Context
from proftrack.verdict.judge import Judgement, facts_of, judge
from proftrack.verdict.rules import StepFacts

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def timed(step_us: float, wait_us: float | None, *, mode: str = "throughput", **more: Any) -> Timing:
    """Five equal blocks, without the waits of each."""
    given: dict[str, Any] = {
        "mode": mode,
        "step_time_us": step_us,
        "step_latency_us": step_us,
        "step_time_p95_us": step_us,
        "steps_per_block": 10,
        "block_step_times_us": [step_us] * 5,
        "step_latencies_us": [step_us] * 5,
        "input_wait_us": wait_us,
    }
    return Timing(**{**given, **more})


def fed_by(loader: float, *, name: str = WORKERS, count: int = 4, launching: float = 3000) -> TraceBuilder:
    """Steps that get their data in `loader` us and then launch for `launching` us; 500 us of kernels in each.

    host  |--loader--|--aten::linear------------[L]|
    GPU              |                            =====   the kernel of a step runs behind it
    """
    trace, dur = TraceBuilder(), loader + launching
    for i in range(count):
        at = 500 + i * dur
        trace.step(i, at=at, dur=dur).region(name, at=at, dur=loader)
        trace.op("aten::linear", at=at + loader + 10, dur=launching - 20)
        trace.work(i + 1, launch=at + dur - 560, at=at + dur - 555, dur=500)
    return trace


def judged(measures: Measures, timing: Timing, **context: Any) -> Judgement:
    return judge(measures, Context(timing=timing, **context))


def facts(measures: Measures, step_us: float, wait_us: float | None) -> StepFacts:
    return facts_of(measures, step_us, Context(timing=timed(step_us, wait_us)))


def evidence(outcome: Judgement) -> dict[str, str]:
    return {each.name: each.text for each in outcome.verdict.evidence}


# ---- the same step, whatever the trace found ------------------------------------------------------------------------


@pytest.mark.parametrize("loader", [20, 100, 1500, 4000, 30_000])
@pytest.mark.parametrize("name", [WORKERS, SINGLE, LOADING_REGION])
def test_a_queue_that_the_trace_found_full_or_empty_changes_nothing(loader: float, name: str) -> None:
    """T = 7000 us, of which 4000 are a wait, B = 500: the GPU idles 6500, 4000 of them for data."""
    outcome = judged(fed_by(loader, name=name).measures(), timed(7000, 4000))
    assert (outcome.verdict.regime, outcome.verdict.cause, outcome.verdict.confidence) == (
        "input-bound",
        "input",
        "high",
    )
    assert "A step waits 4 ms for its data without the profiler" in evidence(outcome)["input_wait_us"]
    assert "at most 4 ms of a 7 ms step" in outcome.verdict.advice[0]
    assert not evidence(outcome)["launch_interval_us"].endswith("is the limit.")


@pytest.mark.parametrize("loader", [20, 100, 1500, 4000, 30_000])
def test_steps_that_did_not_wait_are_not_input_bound(loader: float) -> None:
    outcome = judged(fed_by(loader).measures(), timed(3000, 20))
    assert (outcome.verdict.regime, outcome.verdict.cause) == ("overhead-bound", "dispatch")
    assert outcome.verdict.confidence == "high"


def test_without_the_measured_wait_the_trace_decides() -> None:
    """What the figures above replace."""
    assert judged(fed_by(4000).measures(), timed(7000, None)).verdict.regime == "input-bound"
    assert judged(fed_by(100).measures(), timed(5500, None)).verdict.regime == "overhead-bound"
    assert judged(fed_by(100).measures(), timed(7000, None)).verdict.regime == "inconclusive"  # 7 ms, and 3.1 traced


def test_a_step_longer_than_its_trace_beyond_its_wait_is_still_not_the_same() -> None:
    outcome = judged(fed_by(100).measures(), timed(11_000, 4000))
    assert outcome.verdict.regime == "inconclusive"
    assert any("step time less its waits for data is 2.29 times" in reason for reason in outcome.verdict.reasons)


def test_a_gpu_that_is_busy_all_the_time_waits_for_no_data() -> None:
    """The host waits while the GPU works off what it was given."""
    trace = TraceBuilder()
    for i in range(4):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region(WORKERS, at=at, dur=700)
        trace.work(i + 1, launch=at + 800, at=at + 805, dur=990)
    assert judged(trace.measures(), timed(1000, 700)).verdict.regime == "compute-bound"


# ---- what of a wait the GPU idles -----------------------------------------------------------------------------------


def hidden(loader: float = 4900) -> TraceBuilder:
    """The GPU works from 2 to 4902; meanwhile, from 100 on, the host gets data; then it launches for 5 ms."""
    trace = TraceBuilder()
    for i in range(4):
        at = i * 10_000
        trace.step(i, at=at, dur=10_000).work(2 * i + 2, launch=at, at=at + 2, dur=4900)
        trace.region(WORKERS, at=at + 100, dur=loader)
        trace.op("aten::linear", at=at + 5010, dur=4980).work(2 * i + 1, launch=at + 9980, at=at + 9982, dur=10)
    return trace


def test_a_wait_that_the_gpus_work_hides_delays_nothing() -> None:
    """4802 of the 4900 us overlap a kernel; the other 98 are the GPU's idle time for data."""
    measures = hidden().measures()
    assert measures.loading is not None
    assert (measures.loading.timed_us, measures.loading.over_gpu_us) == (4 * 4900, 4 * 4802)
    assert facts(measures, 10_000, 4900).idle_by_cause_us["input"] == pytest.approx(98)
    outcome = judged(measures, timed(10_000, 4900))
    assert (outcome.verdict.regime, outcome.verdict.cause) == ("overhead-bound", "dispatch")
    text = "A step waits 4.9 ms for its data without the profiler, and the GPU idles for 98 us of it"
    assert evidence(outcome)["input_wait_us"].startswith(text)


@pytest.mark.parametrize(
    ("wait", "idle"),
    [
        (4900, 98),  # as in the trace
        (2450, 49),  # half as long: half of it was hidden as well
        (6900, 2098),  # longer: the GPU has run dry
        (0, 0),
        (90_000, 5090),  # never more than T - B
    ],
)
def test_what_was_hidden_grows_no_further(wait: float, idle: float) -> None:
    found = facts(hidden().measures(), 10_000, wait).idle_by_cause_us
    assert found.get("input", 0.0) == pytest.approx(idle)
    assert found.get("dispatch", 0.0) <= 5090 - idle


def test_what_is_not_timed_without_the_profiler_keeps_what_the_trace_says() -> None:
    """A region of the program's own of 3 ms, beside a DataLoader that is hardly used."""
    trace = fed_by(3000, name="load_batch")
    for i in range(4):
        trace.region(WORKERS, at=500 + i * 6000 + 3100, dur=30)
    measures = trace.measures()
    assert measures.loading is not None and measures.loading.timed_us == 4 * 30
    assert judged(measures, timed(6000, 30)).verdict.regime == "input-bound"


def test_a_region_around_the_loader_is_the_same_wait() -> None:
    trace = fed_by(3000)
    for i in range(4):
        trace.region("load_batch", at=500 + i * 6000, dur=3005)
    assert judged(trace.measures(), timed(3000, 10)).verdict.regime == "overhead-bound"


# ---- beside other causes --------------------------------------------------------------------------------------------


def reading_back(loader: float) -> TraceBuilder:
    """A batch, a kernel of 4 ms, and a wait for it."""
    trace, dur = TraceBuilder(), loader + 4200
    for i in range(4):
        at = i * dur
        trace.step(i, at=at, dur=dur).region(WORKERS, at=at, dur=loader)
        trace.work(i + 1, launch=at + loader + 50, at=at + loader + 55, dur=4000)
        trace.sync(at=at + loader + 60, dur=4000)
    return trace


def test_batches_that_workers_make_come_no_earlier_for_a_host_that_launches_ahead() -> None:
    """T = 10 ms, 5 ms of them a wait for workers: without the waits for the GPU, the one for data would be longer."""
    measures = reading_back(50).measures()
    assert judged(measures, timed(10_000, 5000)).verdict.regime == "input-bound"
    assert facts(measures, 10_000, 5000).sync_us == pytest.approx(1000)
    assert facts(measures, 10_000, None).sync_us == pytest.approx(4000, rel=0.01)


def test_host_work_beside_a_short_wait() -> None:
    """Of 9 ms 6 are the host's own work and 2 a wait."""
    trace = TraceBuilder()
    for i in range(4):
        at = i * 7000
        trace.step(i, at=at, dur=7000).region(WORKERS, at=at, dur=50)
        trace.work(i + 1, launch=at + 6400, at=at + 6405, dur=500)
    outcome = judged(trace.measures(), timed(9000, 2000))
    assert (outcome.verdict.regime, outcome.verdict.cause) == ("host-bound", "host")


@pytest.mark.parametrize(("name", "wait", "said"), [(WORKERS, 500, True), (SINGLE, 500, False), (WORKERS, 100, False)])
def test_workers_that_are_too_slow_for_a_faster_step(name: str, wait: float, said: bool) -> None:
    verdict = judged(fed_by(100, name=name).measures(), timed(3000 + wait, wait)).verdict
    assert (verdict.regime, verdict.confidence) == ("overhead-bound", "medium" if said else "high")
    assert any("only waits longer" in reason for reason in verdict.reasons) == said


# ---- T is a median -------------------------------------------------------------------------------------------------


def test_waits_in_bursts_are_doubted() -> None:
    """Two blocks in five wait 20 ms a step; T is that of the others."""
    bursts = timed(
        3000, 20, block_step_times_us=[3000, 3000, 3000, 23_000, 23_000], block_input_waits_us=[20, 20, 20, 2e4, 2e4]
    )
    outcome = judged(fed_by(100).measures(), bursts)
    assert outcome.verdict.confidence == "low"
    assert any(
        "on average, a timed step takes 11 ms and waits 8.01 ms of it, which is input-bound; most take 3 ms" in reason
        for reason in outcome.verdict.reasons
    )


def test_the_ends_of_t_have_waits_of_their_own() -> None:
    """Blocks that wait longer take longer: of each the same share is the wait."""
    times = [6000.0, 7000.0, 8000.0, 9000.0, 10_000.0]
    spread = timed(8000, 5000, block_step_times_us=times, block_input_waits_us=[t - 3000 for t in times])
    outcome = judged(fed_by(100).measures(), spread)
    assert (outcome.verdict.regime, outcome.verdict.confidence) == ("input-bound", "high")
    assert not any("spread of the measurements" in reason for reason in outcome.verdict.reasons)


def test_the_other_step_time_is_judged_by_its_own_wait() -> None:
    """One by one the steps leave the workers time: they take 4 ms and hardly wait."""
    other = timed(
        7000,
        4000,
        block_input_waits_us=[4000] * 5,
        step_latency_us=3000,
        step_latencies_us=[3000.0] * 5,
        latency_input_waits_us=[0.0] * 5,
    )
    outcome = judged(fed_by(100).measures(), other)
    assert outcome.verdict.regime == "input-bound"
    assert evidence(outcome)["other_step_time_us"].endswith("overhead-bound.")


@pytest.mark.parametrize(
    ("ahead", "wait", "raised"),
    [
        (64, 20, True),  # 3 steps to warm up, 5 blocks of ten, 5 one by one: 58
        (58, 20, True),
        (57, 20, False),
        (64, 4000, False),  # they wait: no queue hides that
        (0, 20, False),
        (None, None, False),
    ],
)
def test_a_queue_that_lasted_until_the_timing_was_over(ahead: int | None, wait: float | None, raised: bool) -> None:
    timing = timed(3000 + (wait or 0), wait, batches_ahead=ahead, warmup_steps=3)
    outcome = judged(fed_by(100).measures(), timing)
    assert [flag.code for flag in outcome.flags] == ["batches_ready"] * raised
    if raised:
        assert outcome.flags[0].message.endswith("58 steps ran, and its workers hold up to 64 batches.") or ahead == 58
        assert (outcome.verdict.regime, outcome.verdict.confidence) == ("overhead-bound", "medium")
    assert timing.steps == 58


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "name", "wait", "end"),
    [
        (100, WORKERS, 4000, "in the trace it waits 100 us, because its batches were ready."),
        (100, SINGLE, 4000, "in the trace it waits 100 us."),
        (4000, WORKERS, 4000, "in the trace it waits 4 ms."),
        (4000, WORKERS, 1000, "in the trace it waits 4 ms, which profiling or workers that start make longer."),
    ],
)
def test_the_evidence_gives_both(loader: float, name: str, wait: float, end: str) -> None:
    found = evidence(judged(fed_by(loader, name=name).measures(), timed(wait + 3000, wait)))
    assert found["input_wait_us"].endswith(end)
    assert "idle_input_us" not in found  # told once


def test_steps_that_hardly_wait_say_nothing() -> None:
    found = evidence(judged(fed_by(10).measures(), timed(3000, 5)))
    assert not {"input_wait_us", "idle_input_us"} & set(found)


def test_advice_knows_the_workers() -> None:
    advice = judged(fed_by(100).measures(), timed(7000, 4000)).verdict.advice
    assert advice[0].startswith("The DataLoader's workers make batches more slowly than steps use them")
    advice = judged(fed_by(4000, name=SINGLE).measures(), timed(7000, 4000)).verdict.advice
    assert advice[0].startswith("The DataLoader runs in the training process (num_workers=0)")
    trace = fed_by(4000, name=LOADING_REGION).region(SINGLE, at=600, dur=3000, thread=77)  # fills a queue
    advice = judged(trace.measures(), timed(7000, 4000)).verdict.advice
    assert advice[0].startswith("The GPU waits for data: load it ahead")


# ---- the trace's own figure ----------------------------------------------------------------------------------------


def test_only_the_threads_that_run_steps_get_data() -> None:
    trace = fed_by(100)
    trace.region(WORKERS, at=600, dur=3000, thread=77)
    measures = trace.measures()
    assert measures.loading is not None
    assert (measures.loading.timed_us, measures.loading.workers) == (400, True)
    assert TraceBuilder().step(0, at=0, dur=10).measures().loading is None


def test_cycles_are_added() -> None:
    both = combine([fed_by(100).measures(), fed_by(4000, name=SINGLE).measures()]).loading
    assert both is not None
    assert (both.timed_us, both.over_gpu_us, both.workers, both.in_process) == (16_400, 0, True, True)
    assert both.other_idle.by_cause_us_per_step["dispatch"] == 2500
    mixed = combine([fed_by(100).measures(), fed_by(100, name="x").measures()]).loading
    assert mixed is not None and mixed.timed_us == 400
    assert mixed.other_idle.by_cause_us_per_step["dispatch"] == 2550


# ---- a CPU ---------------------------------------------------------------------------------------------------------

CEILINGS = Ceilings(
    device="test", flops_per_s={"float32": 1e9}, bytes_per_s=1e9, dispatch_us=1.0, call_us={"aten::mm": 10.0}
)


def on_cpu(loader: float, step_us: float, wait_us: float | None, *, name: str = WORKERS) -> Judgement:
    """Steps of 100 operators that take 1 ms, half of it work, behind a wait for data."""
    trace, dur = TraceBuilder(), loader + 1000
    for i in range(3):
        at = i * dur
        trace.step(i, at=at, dur=dur).region(name, at=at, dur=loader).op("aten::mm", at=at + loader, dur=1000)
    cpu = CpuWork(
        operators=300,
        operators_us=3000,
        working_us={"arithmetic": 1500},
        least_working_us={"arithmetic": 1500},
    )
    return judged(replace(trace.measures(), cpu=cpu), timed(step_us, wait_us), ceilings=CEILINGS)


@pytest.mark.parametrize("loader", [10, 600, 3000, 4000])
def test_a_cpus_steps_that_wait_for_data(loader: float) -> None:
    outcome = on_cpu(loader, 4000, 3000)
    assert (outcome.verdict.regime, outcome.verdict.cause) == ("input-bound", "input")
    assert "A step waits 3 ms for its data without the profiler;" in evidence(outcome)["input_wait_us"]


def test_a_cpus_steps_that_wait_only_in_the_trace() -> None:
    assert on_cpu(900, 1010, 10).verdict.regime == "overhead-bound"
    assert on_cpu(10, 4000, None).verdict.regime == "inconclusive"  # 3 ms that nothing explains


def test_a_cpus_steps_may_wait_differently() -> None:
    """The first blocks find batches that are ready, and so do the steps one by one, which leave the workers time."""
    times = [1000.0, 1000.0, 4000.0, 6000.0, 7000.0]
    uneven = timed(
        4000,
        3000,
        block_step_times_us=times,
        block_input_waits_us=[t - 1000 for t in times],
        step_latency_us=1000,
        step_latencies_us=[1000.0] * 5,
        latency_input_waits_us=[0.0] * 5,
    )
    trace = TraceBuilder().step(0, at=0, dur=1010).op("aten::mm", at=10, dur=1000)
    cpu = CpuWork(operators=1, operators_us=1000, working_us={"arithmetic": 990}, least_working_us={"arithmetic": 990})
    verdict = judged(replace(trace.measures(), cpu=cpu), uneven, ceilings=CEILINGS).verdict
    assert verdict.regime == "input-bound"
    assert not any("machine's state changed" in reason for reason in verdict.reasons)
    blind = judged(replace(trace.measures(), cpu=cpu), timed(4000, None, block_step_times_us=times), ceilings=CEILINGS)
    assert any("differ by a factor of 7" in reason for reason in blind.verdict.reasons)
