"""Which steps a step's figures leave out. Every trace is drawn to scale in its test; values follow from the drawing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import TraceBuilder, flags

from proftrack.measures import combine

MS = 1000.0


def loop(*lengths: float, kernel: float = 0.5, first: int = 0) -> TraceBuilder:
    """Steps of these lengths in ms, one after the other; each launches a kernel for this share of its time."""
    trace, at = TraceBuilder(), 0.0
    for i, length in enumerate(lengths):
        dur = length * MS
        trace.step(first + i, at=at, dur=dur).region("loop", at=at, dur=dur)
        trace.work(1 + i, launch=at + 1, at=at + 10, dur=kernel * dur - 10)
        at += dur
    return trace


def test_a_long_step_that_does_not_recur_is_left_out() -> None:
    measures = loop(10, 10, 140, 10, 10).measures()
    assert measures.step_time_profiled_us == 10 * MS
    assert measures.step_time_all_steps_us == 180 * MS / 5
    assert measures.gpu_busy_per_step_us == 5 * MS - 10
    assert sum(measures.idle.by_cause_us_per_step.values()) == pytest.approx(5 * MS + 10)
    assert [step.outlier is not None for step in measures.per_step] == [False, False, True, False, False]
    assert [step.device_us for step in measures.per_step] == [10 * MS, 10 * MS, 140 * MS, 10 * MS, 10 * MS]
    assert (measures.window.steps, measures.window.outlier_steps, measures.window.typical_steps) == (5, 1, 4)
    assert sum(site.busy_us for site in measures.sites) == pytest.approx(4 * (5 * MS - 10))
    assert sum(measures.busy_by_limit_us.values()) == pytest.approx(4 * (5 * MS - 10))
    message = next(f.message for f in measures.flags if f.code == "outlier_steps")
    assert "ProfilerStep#2 takes 140" in message
    assert "over all steps, the mean is 36" in message


def test_totals_operators_and_kernels_stay_whole() -> None:
    measures = loop(10, 10, 140, 10, 10).measures()
    assert measures.window.duration_us == measures.window.device_duration_us == 180 * MS
    assert measures.totals.self_cuda_time_total_us == 90 * MS - 50
    assert sum(kernel.calls for kernel in measures.kernels) == 5
    assert measures.totals.gpu_busy_us is not None
    assert measures.totals.gpu_idle_us is not None
    assert measures.totals.gpu_busy_us + measures.totals.gpu_idle_us == 180 * MS


@pytest.mark.parametrize(
    "lengths",
    [
        (10, 10, 40, 10, 10, 40, 10, 10, 40),  # an optimizer's step after two micro-steps
        (100, 10, 10, 10, 10, 120, 10, 10),  # prefill among decode, not quite equal
        (140, 10),  # which of two is the usual one?
        (140,),
        (10, 10, 10),
    ],
)
def test_these_are_all_typical(lengths: tuple[float, ...]) -> None:
    measures = loop(*lengths).measures()
    assert measures.window.outlier_steps == 0
    assert "outlier_steps" not in flags(measures)
    assert measures.step_time_profiled_us == pytest.approx(sum(lengths) * MS / len(lengths), abs=0.001)
    assert measures.step_time_all_steps_us is None


@pytest.mark.parametrize(("length", "outliers"), [(29, 0), (31, 1)])
def test_long_is_more_than_three_times_the_median(length: float, outliers: int) -> None:
    assert loop(10, 10, length, 10).measures().window.outlier_steps == outliers


def test_two_long_steps_of_different_kinds_are_both_left_out() -> None:
    measures = loop(500, 10, 10, 10, 60, 10, 10).measures()
    assert [step.step for step in measures.per_step if step.outlier is not None] == [0, 4]
    assert measures.step_time_profiled_us == 10 * MS


def test_the_gpu_work_that_fills_an_outlier_is_named() -> None:
    """All steps are launched at once, and the first collective waits 1300 ms for another rank."""
    trace = TraceBuilder().step(1, at=0, dur=1).step(2, at=1, dur=1).step(3, at=2, dur=1308 * MS)
    trace.work(1, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", launch=0.5, at=10, dur=1300 * MS)
    trace.work(2, launch=1.5, at=10 + 1300 * MS, dur=4 * MS)
    trace.work(3, launch=2.5, at=10 + 1304 * MS, dur=4 * MS)
    measures = trace.measures()
    assert [step.outlier for step in measures.per_step] == ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None, None]
    # Step 1 ends with its own work at 1300.010 ms, step 2 at 1304.010, step 3 with its host interval at 1308.002.
    assert [step.device_us for step in measures.per_step] == [1_300_010, 4000, 4000]
    assert measures.gpu_busy_per_step_us == 4 * MS
    assert measures.busy_by_limit_us.keys() == {"arithmetic"}


def test_the_host_work_that_fills_an_outlier_is_named() -> None:
    trace = loop(10, 10, 10, 200, 10).region("save_checkpoint", at=36 * MS, dur=180 * MS)
    measures = trace.measures()
    assert [step.outlier for step in measures.per_step] == [None, None, None, "save_checkpoint", None]
    assert "(save_checkpoint)" in next(f.message for f in measures.flags if f.code == "outlier_steps")


def test_a_start_up_in_the_first_step_is_left_out_even_of_two() -> None:
    trace = TraceBuilder().step(1, at=0, dur=30 * MS).step(2, at=30 * MS, dur=10 * MS)
    trace.call("cudaMalloc", at=10, dur=21 * MS).work(1, launch=22 * MS, at=22 * MS + 10, dur=7 * MS)
    trace.work(2, launch=30 * MS + 5, at=30 * MS + 10, dur=9 * MS)
    measures = trace.measures()
    assert flags(measures)["cold_start"] == 1
    assert flags(measures)["outlier_steps"] == 1
    assert measures.step_time_profiled_us == 10 * MS
    assert measures.gpu_busy_per_step_us == 9 * MS
    assert (measures.per_step[0].outlier or "").startswith("start-up, cudaMalloc 21")


def test_a_long_call_that_every_step_makes_is_no_start_up() -> None:
    trace = TraceBuilder()
    for i in range(3):
        at = i * 40 * MS
        trace.step(i, at=at, dur=40 * MS).call("cudaFree", at=at + 10, dur=25 * MS)
        trace.work(i + 1, launch=at + 30 * MS, at=at + 30 * MS + 10, dur=5 * MS)
    measures = trace.measures()
    assert "cold_start" not in flags(measures)
    assert measures.window.outlier_steps == 0


def test_a_launch_that_blocks_because_the_queue_is_full_is_no_start_up() -> None:
    trace = TraceBuilder().step(0, at=0, dur=60 * MS).step(1, at=60 * MS, dur=50 * MS)
    trace.work(1, launch=1, at=10, dur=55 * MS)
    trace.call("cudaLaunchKernel", at=20, dur=50 * MS, correlation=2)
    trace.kernel("gemm", at=55 * MS + 20, dur=50 * MS, correlation=2)
    trace.work(3, launch=60 * MS + 5, at=105 * MS + 30, dur=4 * MS)
    assert "cold_start" not in flags(trace.measures())


def test_an_evaluation_is_left_out_and_named() -> None:
    trace = loop(10, 10, 25, 10).region("validation_loop", at=22 * MS, dur=20 * MS)
    measures = trace.measures()
    assert [step.outlier for step in measures.per_step] == [None, None, "evaluation", None]
    assert measures.step_time_profiled_us == 10 * MS


def test_cycles_are_means_over_their_typical_steps() -> None:
    both = combine([loop(10, 10, 140, 10, 10).measures(), loop(20, 20, first=9).measures()])
    assert (both.window.steps, both.window.outlier_steps) == (7, 1)
    assert both.step_time_profiled_us == pytest.approx((4 * 10 + 2 * 20) * MS / 6, abs=0.001)
    assert both.step_time_all_steps_us == pytest.approx(220 * MS / 7, abs=0.001)
    assert sum(both.idle.by_cause_us_per_step.values()) == pytest.approx((4 * 5010 + 2 * 10_010) / 6, abs=0.01)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.floats(0.05, 0.95))
def test_typical_time_is_divided_into_busy_and_idle(lengths: list[int], kernel: float) -> None:
    measures = loop(*lengths, kernel=kernel).measures()
    time, busy = measures.step_time_profiled_us, measures.gpu_busy_per_step_us
    assert time is not None
    assert busy is not None
    assert busy + sum(measures.idle.by_cause_us_per_step.values()) == pytest.approx(time, abs=0.05)
    typical = [step.device_us or 0.0 for step in measures.per_step if step.outlier is None]
    assert time == pytest.approx(sum(typical) / len(typical), abs=0.01)
    assert sum(step.device_us or 0.0 for step in measures.per_step) == measures.window.device_duration_us
    assert 1 <= len(typical) <= len(lengths)


def test_compilations_are_left_out_even_if_they_recur() -> None:
    """Two shapes, each compiled once: 40 ms of 50 and 45 ms of 55."""
    trace = loop(10, 50, 10, 55, 10)
    trace.region("compile_fx.<locals>.compile_inner", at=11 * MS, dur=40 * MS)
    trace.region("compile_fx.<locals>.compile_inner", at=71 * MS, dur=45 * MS)
    measures = trace.measures()
    assert [step.outlier for step in measures.per_step] == [
        None,
        "compilation, 40 ms",
        None,
        "compilation, 45 ms",
        None,
    ]
    assert measures.step_time_profiled_us == 10 * MS
    assert measures.compiling_us == 0
    assert flags(measures)["recompiled_in_window"] == 2


def test_a_short_compilation_makes_no_step_another_kind() -> None:
    trace = loop(10, 10, 10).region("compile_fx.<locals>.compile_inner", at=11 * MS, dur=900)
    measures = trace.measures()
    assert measures.window.outlier_steps == 0
    assert measures.compiling_us == 900


def accumulating(*lengths: float, updates: set[int]) -> TraceBuilder:
    """As `loop`; these steps update the model in their last millisecond."""
    trace, at = loop(*lengths), 0.0
    for i, length in enumerate(lengths):
        at += length * MS
        if i in updates:
            trace.region("Optimizer.step#AdamW.step", at=at - MS, dur=0.9 * MS)
    return trace


@pytest.mark.parametrize(("lengths", "update"), [((10, 10, 10, 70), 3), ((10, 50, 10, 10, 10, 10), 1)])
def test_the_one_update_of_several_micro_steps_comes_again(lengths: tuple[float, ...], update: int) -> None:
    """Four micro-steps to an update, recorded once; and six."""
    measures = accumulating(*lengths, updates={update}).measures()
    assert measures.window.outlier_steps == 0
    assert measures.step_time_profiled_us == pytest.approx(sum(lengths) * MS / len(lengths))


def test_a_long_step_is_one_where_every_step_updates() -> None:
    measures = accumulating(10, 10, 90, 10, updates={0, 1, 2, 3}).measures()
    assert [step.outlier is not None for step in measures.per_step] == [False, False, True, False]


def test_what_waits_for_the_gpu_does_not_say_what_filled_a_step() -> None:
    """30 kernels of 4 ms in a step of 125 ms that .item() waits for: they are named, and not the wait."""
    trace = loop(10, 10, 125, 10, kernel=0.01)
    for i in range(30):
        trace.work(100 + i, name="gemm_a" if i % 4 else "gemm_b", launch=20_005 + i, at=22_000 + 4000 * i, dur=4000)
    trace.op("aten::item", at=20_040, dur=122_100).op("aten::_local_scalar_dense", at=20_041, dur=122_090)
    trace.sync(name="cudaStreamSynchronize", at=20_042, dur=122_000)
    trace.events = [event for event in trace.events if event["name"] != "loop"]
    message = next(f.message for f in trace.measures().flags if f.code == "outlier_steps")
    assert "ProfilerStep#2 takes 125 ms (gemm_a)" in message, message


def test_a_last_step_in_which_nothing_runs_is_none() -> None:
    """Two steps of 1 ms with a kernel of 600 us, and what is left of a third when recording ends."""

    def recording(*, launches: bool = False, middle: bool = False) -> TraceBuilder:
        trace = TraceBuilder()
        for i, at in enumerate((0, 1000)):
            trace.step(i, at=at, dur=1000)
            if not (middle and i):
                trace.op("aten::mm", at=at + 5, dur=20).work(i + 1, launch=at + 10, at=at + 20, dur=600)
        trace.step(2, at=2000, dur=40)
        return trace.work(9, launch=2001, at=2002, dur=10) if launches else trace

    measures = recording().measures()
    assert (measures.window.steps, measures.window.typical_steps) == (3, 2)
    assert (measures.step_time_profiled_us, measures.gpu_busy_per_step_us) == (1000, 600)
    assert [step.outlier for step in measures.per_step] == [None, None, "nothing: recording ended"]
    message = next(f.message for f in measures.flags if f.code == "outlier_steps")
    assert "ProfilerStep#2 takes 40 us (nothing: recording ended)" in message
    # One that launches is a step, however short; and where the one before it launches nothing, empty steps are usual.
    for trace in (recording(launches=True), recording(middle=True)):
        assert trace.measures().window.typical_steps == 3


def test_of_two_steps_an_empty_one_counts() -> None:
    trace = TraceBuilder().step(7, at=0, dur=1000).work(1, launch=10, at=20, dur=900).step(8, at=1000, dur=15)
    measures = trace.measures()
    assert measures.window.typical_steps == 2
    assert measures.gpu_busy_per_step_us == 450
    assert flags(measures)["uneven_steps"] == 1
