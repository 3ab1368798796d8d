"""Start-up within a recording: which calls are, and where the device window then begins; values by hand."""

from __future__ import annotations

import pytest
from traces import BACKWARD, TraceBuilder, flags

from proftrack.measures.cold import start_up_calls, start_up_end


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
    """A thread that pins memory in the background delays no launch."""
    trace = kernels(TraceBuilder(), 0, 900).call("cudaHostAlloc", at=100, dur=60_000, thread=BACKWARD)
    assert names_of(trace) == []


def test_where_it_ends() -> None:
    trace = kernels(TraceBuilder(), 50_000).call("cudaFree", at=0, dur=30_000).call("cudaMalloc", at=60_000, dur=30_000)
    assert start_up_end(trace.table(), 50_010_000) == 30_000_000
    assert start_up_end(kernels(TraceBuilder(), 0).table(), 10_000) is None


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


def test_loads_are_no_part_of_a_step() -> None:
    """A step of 5 loads of 4.1 ms, each with 20 us of which its kernel takes 10: T without them is 100 us and the
    10 us in which the first kernel runs behind its load are B."""
    trace = loading([f"gemm_{i}" for i in range(5)], 4100).step(1, at=0, dur=5 * 4120)
    measures = trace.measures()
    assert flags(measures)["cold_start"] == 5
    assert measures.gpu_busy_per_step_us == 50
    assert measures.idle.by_cause_us_per_step["startup"] >= 4 * 4100


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
