"""Operators, kernels, regions, launches and the split; values by hand, microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from traces import BACKWARD, TraceBuilder, clean

from proftrack.measures import Measures
from proftrack.record.figures import Kernel, Op, Region


def op(measures: Measures, name: str) -> Op:
    return next(o for o in measures.ops if o.name == name)


def kernel(measures: Measures, name: str) -> Kernel:
    return next(k for k in measures.kernels if k.name == name)


def region(measures: Measures, name: str) -> Region:
    return next(r for r in measures.regions if r.name == name)


# -- operators


def test_gpu_time_goes_to_the_innermost_operator_around_the_launch() -> None:
    trace = TraceBuilder().step(0, at=0, dur=100).op("aten::linear", at=10, dur=50).op("aten::addmm", at=20, dur=30)
    trace.work(1, launch=25, at=40, dur=70).work(2, launch=55, at=120, dur=5)
    measures = trace.measures()
    assert (op(measures, "aten::addmm").self_cuda_time_us, op(measures, "aten::addmm").cuda_time_us) == (70, 70)
    assert (op(measures, "aten::linear").self_cuda_time_us, op(measures, "aten::linear").cuda_time_us) == (5, 75)
    assert op(measures, "ProfilerStep#0").cuda_time_us == 75
    assert op(measures, "cudaLaunchKernel").self_cuda_time_us == 0
    assert sum(o.self_cuda_time_us for o in measures.ops) == 75


def test_a_launch_outside_every_operator_keeps_its_gpu_time() -> None:
    measures = TraceBuilder().work(1, launch=5, at=10, dur=70).measures()
    assert op(measures, "cudaLaunchKernel").self_cuda_time_us == 70


def test_self_cpu_of_rows_adds_up_and_calls_count() -> None:
    trace = clean().op("aten::mm", at=60, dur=4)
    measures = trace.measures()
    assert sum(o.self_cpu_time_us for o in measures.ops) == measures.totals.self_cpu_time_total_us == 200
    mm = op(measures, "aten::mm")
    assert (mm.calls, mm.self_cpu_time_us, mm.cpu_time_us) == (3, 9 + 4 + 9, 24)


def test_rows_of_one_name_and_two_categories_stay_apart() -> None:
    measures = TraceBuilder().op("a", at=0, dur=5).region("a", at=10, dur=7).measures()
    assert {(o.category, o.cpu_time_us) for o in measures.ops} == {("cpu_op", 5), ("user_annotation", 7)}


# -- kernels


def test_kernels_by_name() -> None:
    trace = TraceBuilder(sms=100).step(0, at=0, dur=100)
    for i, (at, dur) in enumerate(((10, 5.5), (20, 0.75), (30, 1.75)), start=1):
        trace.work(i, launch=i, at=at, dur=dur, name="void gemm<float>")
    trace.memcpy(at=60, dur=2, bytes=1000).memcpy(at=70, dur=2, bytes=24)
    measures = trace.measures()
    gemm = kernel(measures, "void gemm<float>")
    assert (gemm.calls, gemm.total_us, gemm.mean_us, gemm.min_us, gemm.max_us) == (3, 8, 2.667, 0.75, 5.5)
    assert (gemm.kind, gemm.limit, gemm.blocks) == ("matmul", "arithmetic", 1000)
    assert gemm.share == round(8 / 12, 5)
    copy = kernel(measures, "Memcpy HtoD (Pinned -> Device)")
    assert (copy.kind, copy.limit, copy.bytes, copy.calls) == ("host-device copy", "transfer", 1024, 2)
    assert [k.name for k in measures.kernels] == ["void gemm<float>", "Memcpy HtoD (Pinned -> Device)"]
    assert sum(k.total_us for k in measures.kernels) == measures.totals.self_cuda_time_total_us


def test_a_grid_under_half_the_multiprocessors_is_limited_by_latency() -> None:
    def limit(blocks: int, sms: int | None = 100) -> str:
        trace = TraceBuilder(sms=sms).work(1, launch=0, at=5, dur=10, grid=[blocks, 1, 1])
        return kernel(trace.measures(), "gemm").limit

    assert limit(49) == "latency"
    assert limit(50) == "arithmetic"
    assert limit(1) == "latency"
    assert limit(1, sms=None) == "arithmetic"  # not known
    trace = TraceBuilder().work(1, launch=0, at=5, dur=10, grid=[7, 7, 1])
    assert kernel(trace.measures(), "gemm").blocks == 49


@pytest.mark.parametrize(
    "grid", [[0, 0, 0], [64, 0, 1], [-1, -1, 1], [1.0, 1, 1], [True, 1, 1], "0", [], None, [2**40, 2**40, 1]]
)
def test_a_grid_that_cannot_be_says_nothing_about_size(grid: Any) -> None:
    gemm = kernel(TraceBuilder().work(1, launch=0, at=5, dur=10, grid=grid).measures(), "gemm")
    assert (gemm.blocks, gemm.small_us, gemm.limit) == (None, 0, "arithmetic")


def test_of_a_name_only_the_launches_with_a_known_grid_are_small() -> None:
    trace = TraceBuilder().work(1, launch=0, at=5, dur=10, grid=[0, 0, 0]).work(2, launch=1, at=20, dur=3, grid=[7])
    gemm = kernel(trace.measures(), "gemm")
    assert (gemm.small_us, gemm.limit, gemm.calls) == (3, "arithmetic", 2)


def test_small_copies_are_still_copies() -> None:
    measures = TraceBuilder().memset(at=0, dur=1, grid=[1, 1, 1]).memcpy(at=5, dur=1, grid=[1, 1, 1]).measures()
    assert {k.limit for k in measures.kernels} == {"bandwidth", "transfer"}


# -- regions


def test_regions_with_their_gpu_work_on_any_thread() -> None:
    # main      |---- forward ----|---- backward ---------|-- optimizer --|
    # backward                      [MmBackward0 L2 L3]
    trace = TraceBuilder().step(0, at=0, dur=300)
    trace.region("forward", at=0, dur=100).region("backward", at=100, dur=100).region("optimizer", at=200, dur=50)
    trace.work(1, launch=10, at=20, dur=30)
    trace.op("MmBackward0", at=110, dur=50, thread=BACKWARD)
    for i, at in ((2, 120), (3, 130)):
        trace.launch(at=at, correlation=i, thread=BACKWARD).kernel("gemm", at=100 + at, dur=60, correlation=i, stream=i)
    measures = trace.measures()
    assert (region(measures, "forward").gpu_busy_us, region(measures, "forward").launches) == (30, 1)
    backward = region(measures, "backward")
    assert (backward.calls, backward.cpu_time_us, backward.launches) == (1, 100, 2)
    assert backward.gpu_busy_us == 70  # 220 .. 280 and 230 .. 290: a union
    assert (region(measures, "optimizer").gpu_busy_us, region(measures, "optimizer").launches) == (0, 0)


def test_nested_regions_both_hold_the_work_and_a_region_in_itself_counts_launches_once() -> None:
    trace = TraceBuilder().region("outer", at=0, dur=100).region("inner", at=10, dur=50).region("inner", at=20, dur=20)
    trace.work(1, launch=25, at=30, dur=7)
    measures = trace.measures()
    assert (region(measures, "outer").gpu_busy_us, region(measures, "outer").launches) == (7, 1)
    inner = region(measures, "inner")
    assert (inner.gpu_busy_us, inner.launches, inner.calls, inner.cpu_time_us) == (7, 1, 2, 70)


def test_steps_are_no_regions_and_without_gpu_work_there_is_no_gpu_time() -> None:
    measures = TraceBuilder().step(0, at=0, dur=10).region("forward", at=1, dur=5).measures()
    assert [r.name for r in measures.regions] == ["forward"]
    assert measures.regions[0].gpu_busy_us is None


# -- launches


def test_launch_delay_and_queue_depth() -> None:
    # calls end at 1, 2, 3, 4; the kernels start at 10, 20, 30 and, on another stream, at 2 (before its call ended)
    trace = TraceBuilder()
    for i, at in enumerate((10, 20, 30)):
        trace.work(i + 1, launch=i, at=at, dur=5)
    trace.work(9, launch=3, at=2, dur=1, stream=20)
    launch = trace.measures().launch
    assert launch is not None
    assert launch.delay_median_us == 13.5  # of 9, 18, 27 and 0
    assert launch.queue_depth_max == 3
    assert launch.launch_call_mean_us == 1


def test_queue_depth_counts_each_stream_apart_and_no_queue_of_no_length() -> None:
    trace = TraceBuilder()
    for i in range(4):
        trace.work(i + 1, launch=i * 10, at=i * 10 + 1, dur=5, stream=i % 2)  # starts as its call ends
    launch = trace.measures().launch
    assert launch is not None
    assert launch.queue_depth_max == 0
    assert launch.delay_median_us == 0


# -- the split


def test_the_split_is_exclusive_and_adds_up() -> None:
    # compute        10..60
    # nccl               40..90        exposed 60..90
    # copy   0..20                 80..100   exposed 0..10 and 90..100
    # window 0 .. 120
    trace = TraceBuilder().step(0, at=0, dur=120)
    trace.work(1, launch=0, at=10, dur=50)
    trace.work(2, launch=2, at=40, dur=50, stream=20, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    trace.launch(at=0, correlation=3, name="cudaMemcpyAsync").memcpy(at=0, dur=20, correlation=3, stream=21)
    trace.launch(at=4, correlation=4, name="cudaMemcpyAsync").memcpy(at=80, dur=20, correlation=4, stream=21)
    measures = trace.measures()
    split = measures.split
    assert split is not None
    assert split.compute_us == 50
    assert split.exposed_communication_us == 30
    assert split.exposed_copy_us == 20
    assert split.idle_us == 20
    assert measures.window.duration_us == 120
    # B by limit: the same, of the device window 0 .. 100
    assert measures.busy_by_limit_us == {"arithmetic": 50, "communication": 30, "transfer": 20}


def test_overlapping_kernels_share_the_busy_time_by_limit() -> None:
    # gemm 0..100 and an elementwise kernel 50..150: 150 busy, by 100 to 100
    trace = TraceBuilder().step(0, at=0, dur=150).work(1, launch=0, at=0, dur=100)
    trace.work(2, launch=2, at=50, dur=100, stream=20, name="vectorized_elementwise_kernel")
    by_limit = trace.measures().busy_by_limit_us
    assert by_limit == {"arithmetic": 75, "bandwidth": 75}


def test_waits_over_gpu_work_are_what_a_host_without_waits_would_save() -> None:
    # The kernel runs 10..110; the host waits 20..112 on the launching thread and 0..300 on another.
    trace = TraceBuilder().step(0, at=0, dur=200).work(1, launch=5, at=10, dur=100).sync(at=20, dur=92)
    trace.sync(at=0, dur=300, thread=BACKWARD)
    assert trace.measures().waits_over_gpu_us == 90


def test_a_sparse_product_is_not_told_by_its_shapes() -> None:
    """aten::addmm of a sparse matrix has the shapes of a dense one, and launches cuSPARSE."""
    for name, flops in (("sgemm", 2 * 8**3), ("void cusparse::csrmm_alg2_kernel<float>", None)):
        trace = TraceBuilder().step(0, at=0, dur=100).op("aten::addmm", at=0, dur=10)
        trace.events[-1]["args"] |= {"Input Dims": [[8, 8]] * 3, "Input type": ["float"] * 3}
        [kernel] = trace.work(1, launch=1, at=5, dur=50, name=name).measures().kernels
        assert kernel.flops == flops
