"""Start-up within a recording: which calls are, and where the device window then begins; values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from traces import BACKWARD, TraceBuilder, flags

from proftrack.measures.cold import start_up_calls, start_up_end
from proftrack.verdict.judge import judge


def names_of(trace: TraceBuilder) -> list[str]:
    table = trace.table()
    return [table.names[code] for code in table.name[start_up_calls(table)].tolist()]


def kernels(trace: TraceBuilder, at: float, count: int = 3) -> TraceBuilder:
    """Kernels of 90 us, one every 100 us, each launched 10 us before it starts."""
    for i in range(count):
        trace.work(100 + i, launch=at + 100 * i, at=at + 100 * i + 10, dur=90)
    return trace


def test_long_calls_in_order_of_time() -> None:
    trace = kernels(TraceBuilder(), 500_000)
    trace.call("cuLibraryLoadData", at=200_000, dur=20_001, cat="cuda_driver").call("cudaFree", at=0, dur=150_000)
    trace.call("cudaGetDeviceCount", at=300_000, dur=20_000)  # not over 20 ms
    assert names_of(trace) == ["cudaFree", "cuLibraryLoadData"]


@pytest.mark.parametrize(
    "name",
    ["cudaMemcpyAsync", "hipMemcpyWithStream", "cudaMemsetAsync", "cudaDeviceSynchronize", "hipStreamSynchronize"],
)
def test_copies_and_waits_are_none(name: str) -> None:
    assert names_of(kernels(TraceBuilder(), 50_000).call(name, at=0, dur=40_000)) == []


def test_a_call_during_which_the_gpu_works_waits_for_it() -> None:
    """A launch that finds the queue full, and a cudaFree while a kernel runs: 21 and 24 of 40 ms are busy."""
    for busy, found in ((21_000, []), (19_000, ["cudaLaunchKernel"])):
        trace = kernels(TraceBuilder(), 90_000).launch(at=0, dur=40_000, correlation=1).kernel(at=1000, dur=busy)
        assert names_of(trace) == found
    assert names_of(kernels(TraceBuilder(), 90_000).call("cudaFree", at=0, dur=40_000).kernel(at=9, dur=24_000)) == []


def test_other_threads_start_nothing_up() -> None:
    """A thread that pins memory in the background delays no launch, though the GPU is idle meanwhile."""
    trace = kernels(TraceBuilder(), 0).call("cudaHostAlloc", at=1000, dur=60_000, thread=BACKWARD)
    assert names_of(trace) == []
    assert names_of(trace.call("cudaHostAlloc", at=1000, dur=60_000)) == ["cudaHostAlloc"]


@pytest.mark.parametrize(
    ("lengths", "share", "end"),
    [
        ([10, 10, 10, 10], 1.0, 30_000_000),  # all of the work lies behind the first call only
        ([10, 10, 10, 10], 0.5, 90_000_000),  # exactly half of it lies behind the second, too
        ([20, 20, 10, 10], 0.5, 30_000_000),  # and here a third
        ([10, 10, 10, 10], 0.51, 30_000_000),
        ([0, 0, 0, 0], 0.5, None),
    ],
)
def test_where_it_ends(lengths: list[int], share: float, end: int | None) -> None:
    """Two calls, until 30 and 90 ms; two launches return at 50 ms, one with the second call, one at 95 ms."""
    trace = kernels(TraceBuilder(), 50_000).call("cudaFree", at=0, dur=30_000).call("cudaMalloc", at=60_000, dur=30_000)
    launched = np.array([50_000_000, 50_000_000, 90_000_000, 95_000_000])
    assert start_up_end(trace.table(), launched, np.array(lengths), share) == end


def test_it_is_over_only_behind_the_last_call() -> None:
    """Of ten kernels, eight lie behind the second call, six behind the third: the first alone precedes them all."""
    trace = kernels(TraceBuilder(), 40_000).call("cudaFree", at=0, dur=30_000)
    trace.call("hipLaunchKernel", at=60_000, dur=25_000).call("cuLibraryLoadData", at=90_000, dur=25_000)
    launched = np.array([40, 41, 86, 87, 120, 121, 122, 123, 124, 125]) * 1_000_000
    for share, end in ((0.75, 30_000_000), (0.6, 115_000_000)):
        assert start_up_end(trace.table(), launched, np.full(10, 7), share) == end


def test_none_ends_where_none_is() -> None:
    assert start_up_end(kernels(TraceBuilder(), 0).table(), np.array([5]), np.array([9]), 0.0) is None


def test_without_steps_the_device_window_begins_behind_it() -> None:
    """30 ms of cudaFree, then 20 us, a launch, and 10 us later three kernels of 90 us with 10 us between them."""
    trace = TraceBuilder().op("aten::empty", at=0, dur=30_000).call("cudaFree", at=0, dur=30_000)
    measures = kernels(trace, 30_020).measures()
    assert flags(measures)["cold_start"] == 1
    assert next(f.message for f in measures.flags if f.code == "cold_start").endswith(
        "30 ms, the longest call is cudaFree."
    )
    assert (measures.window.duration_us, measures.window.device_duration_us) == (30_320, 320)
    assert measures.idle.by_cause_us_per_step == {"dispatch": 20 + 3 * 10}


def test_a_first_launch_that_loads_its_kernel() -> None:
    """The launch takes 25 ms and its kernel starts 5 us before it returns: nothing before that is idle time."""
    trace = TraceBuilder().op("aten::mm", at=0, dur=25_100).launch(at=50, dur=25_000, correlation=1)
    trace.kernel(at=25_045, dur=955, correlation=1).work(2, launch=25_500, at=26_000, dur=1000)
    measures = trace.measures()
    assert flags(measures)["cold_start"] == 1
    assert measures.window.device_duration_us == 1955
    assert measures.idle.by_cause_us_per_step == {}


def test_a_single_step_begins_behind_it_too() -> None:
    trace = TraceBuilder().step(1, at=0, dur=30_400).region("train", at=0, dur=30_400)
    trace.call("hipMalloc", at=100, dur=30_000)
    measures = kernels(trace, 30_120).measures()  # kernels from 30,130 to 30,420
    assert flags(measures) == {"cold_start": 1}
    assert measures.window.device_duration_us == 30_420 - 30_100
    assert (measures.window.duration_us, measures.totals.gpu_idle_us) == (30_420, 30_420 - 270)


def loading(names: list[str], each: float, *, prefix: int = 0) -> TraceBuilder:
    """One launch after the other, each over this long, of kernels of these names that run 10 us behind it."""
    trace, at = TraceBuilder(), float(prefix)
    for i, name in enumerate(names):
        trace.launch(at=at, dur=each, correlation=i + 1).kernel(name, at=at + each, dur=10, correlation=i + 1)
        at += each + 20
    return trace


@pytest.mark.parametrize(("kernels_", "each", "found"), [(5, 4100, 5), (5, 3900, 0), (30, 900, 0), (9, 2500, 9)])
def test_many_short_loads_count_if_they_take_long_together(kernels_: int, each: float, found: int) -> None:
    """Each first launch of a kernel loads it. 5 of 4.1 ms are over 20 ms, 5 of 3.9 ms are not; 0.9 ms is no load."""
    assert len(names_of(loading([f"gemm_{i}" for i in range(kernels_)], each))) == found


def test_a_kernel_is_loaded_once() -> None:
    """Ten launches of 5 ms, all of one kernel: the first alone loads it, and 5 ms is too little to be start-up."""
    assert names_of(loading(["gemm"] * 10, 5000)) == []


@pytest.mark.parametrize("call", ["hipModuleLoadData", "cuLibraryLoadData", "cudaFuncGetAttributes"])
def test_calls_that_load_by_their_names(call: str) -> None:
    trace = kernels(TraceBuilder(), 200_000)
    for i in range(12):
        trace.call(call, at=i * 2100, dur=2000)
    assert names_of(trace) == [call] * 12


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "cudaMalloc"])
def test_other_calls_may_take_a_few_milliseconds(name: str) -> None:
    trace = TraceBuilder().work(1, launch=99_000, at=99_010, dur=10)
    for i in range(12):
        trace.call(name, at=i * 5000, dur=4000, correlation=50 + i).kernel(f"k{i}", at=i * 5000 + 4000, dur=5)
    assert names_of(trace) == []


def test_loads_between_the_kernels_of_a_step_are_start_up() -> None:
    """5 loads of 4.1 ms, a kernel of 10 us behind each, and 10 us more: T begins with the first kernel, at 4.1 ms."""
    trace = loading([f"gemm_{i}" for i in range(5)], 4100).step(1, at=0, dur=5 * 4120)
    measures = trace.measures()
    assert flags(measures)["cold_start"] == 5
    assert (measures.step_time_profiled_us, measures.gpu_busy_per_step_us) == (4 * 4120 + 20, 50)
    assert measures.idle.by_cause_us_per_step == {"startup": 4 * 4110, "dispatch": 10}


def test_a_runtime_call_and_the_driver_call_in_it_take_their_time_once() -> None:
    trace = kernels(TraceBuilder(), 500_000).call("cudaFree", at=0, dur=150_000)
    trace.call("cuLibraryLoadData", at=10, dur=149_000, cat="cuda_driver")
    message = next(f.message for f in trace.measures().flags if f.code == "cold_start")
    assert message.endswith("150 ms, the longest call is cudaFree.")


@pytest.mark.parametrize(("call", "flagged"), [("cuLibraryLoadData", True), ("cudaDeviceSynchronize", False)])
def test_start_up_in_the_second_of_two_steps_is_told(call: str, flagged: bool) -> None:
    """Steps of 1 and 91 ms, 900 us of GPU work in each: none is an outlier by its length, and T leaves 90 ms out."""
    trace = TraceBuilder().step(1, at=0, dur=1000).step(2, at=1000, dur=91_000)
    trace.work(1, launch=10, at=20, dur=900).call(call, at=1010, dur=90_000).work(2, launch=91_050, at=91_060, dur=900)
    measures = trace.measures()
    assert ("cold_start" in flags(measures)) is flagged
    assert ("startup" in measures.idle.by_cause_us_per_step) is flagged


def first_pass(*, behind: int, before: int = 1) -> TraceBuilder:
    """Without steps: kernels of 90 us every 100 us, `before` a launch of 40 ms that loads its kernel and `behind`."""
    trace = kernels(TraceBuilder(), 0, before)
    at = 100 * before
    trace.launch(at=at, dur=40_000, correlation=1).kernel(at=at + 39_990, dur=90, correlation=1)
    for i in range(behind - 1):
        trace.work(1000 + i, launch=at + 40_020 + 100 * i, at=at + 40_090 + 100 * i, dur=90)
    return trace


def test_a_first_pass_is_judged_behind_the_start_up_that_most_work_follows() -> None:
    """One kernel, and 90 us later 40 ms of loading; behind it, four kernels with 10 us between them are 390 us."""
    measures = first_pass(behind=4).measures()
    assert measures.window.duration_us == 100 + 39_990 + 390 - 10
    assert measures.window.device_duration_us == 390
    assert measures.gpu_busy_per_step_us == 360
    assert "startup" not in measures.idle.by_cause_us_per_step
    assert flags(measures)["cold_start"] == 1


def test_start_up_amid_the_work_stays() -> None:
    """Three kernels behind the launch that loads, and two before it: 60 % of the work."""
    measures = first_pass(behind=3, before=2).measures()
    assert measures.window.device_duration_us == measures.window.duration_us
    assert measures.idle.by_cause_us_per_step["startup"] == 200 + 39_990 - 200  # from the second kernel's end


def test_a_step_is_not_cut_in_two() -> None:
    trace = first_pass(behind=9).step(0, at=0, dur=41_000)
    assert trace.measures().window.device_duration_us == 41_000


def flushing(at: float, *, earlier: bool) -> TraceBuilder:
    """Three steps of 100 ms with a kernel of 80 ms each but the first, which frees memory for 60 ms from `at`.

    If `earlier`, a kernel that was launched before the steps still runs in the first one's first 5 ms.
    """
    trace = TraceBuilder()
    if earlier:
        trace.work(9, launch=0, at=20, dur=5980)
    for i in range(3):
        start = 1000 + 100_000 * i
        trace.step(i, at=start, dur=100_000)
        late, dur = (70_000, 20_000) if i == 0 else (5010, 80_000)
        trace.work(i + 1, launch=start + late, at=start + late + 10, dur=dur)
    for i in range(2):
        trace.call("cudaFree", at=at + 30_000 * i, dur=30_000)
    return trace


def test_a_program_that_ran_before_frees_memory_but_starts_nothing_up() -> None:
    first = flushing(7000, earlier=True).measures()
    assert "cold_start" not in flags(first)
    assert first.window.outlier_steps == 0
    assert first.idle.by_cause_us_per_step["allocator"] == pytest.approx(70_010 / 3 - 5000 / 3, abs=0.01)
    # Without a sign of earlier work, it may have been the first allocation of all.
    assert flags(flushing(7000, earlier=False).measures())["cold_start"] == 2


def test_a_program_that_ran_before_may_still_load_code() -> None:
    trace = flushing(7000, earlier=True).call("cuLibraryLoadData", at=38_000, dur=28_000, cat="cuda_driver")
    assert flags(trace.measures())["cold_start"] == 1


def test_an_allocation_that_recurs_raises_no_flag() -> None:
    trace = flushing(7000, earlier=False).call("cudaFree", at=190_000, dur=25_000)
    assert "cold_start" not in flags(trace.measures())


def test_the_verdict_says_that_its_time_leaves_the_start_up_out() -> None:
    """30 ms of cudaFree, then 320 us, of which 290 - 20 are busy."""
    trace = TraceBuilder().op("aten::empty", at=0, dur=30_000).call("cudaFree", at=0, dur=30_000)
    verdict = judge(kernels(trace, 30_020).measures()).verdict
    assert "270 us of a 320 us recording without its start-up (84%)" in verdict.summary
    assert verdict.evidence[0].text == "The recording without its start-up takes 320 us in the trace."
    verdict = judge(kernels(TraceBuilder(), 0).measures()).verdict
    assert "of a 290 us recording (93%)" in verdict.summary
