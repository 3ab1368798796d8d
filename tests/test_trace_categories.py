"""What a row is by its category, over versions and vendors; and what a kernel is by its name."""

from __future__ import annotations

import pytest
from traces import TraceBuilder

from proftrack.measures.kernels import kind_of_copy, kind_of_kernel, limit_of_kind
from proftrack.trace.categories import Kind, is_allocator_call, is_copy, kind_of

KINDS = {
    "cpu_op": Kind.CPU_OP,
    "Operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "privateuse1_driver": Kind.DRIVER,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
    "Trace": Kind.TRACE,
    "python_function": Kind.PYTHON,
    "ac2g": Kind.OTHER,
    "": Kind.OTHER,
}


def test_kinds_of_rows() -> None:
    assert {category: kind_of(category) for category in KINDS} == KINDS


@pytest.mark.parametrize(
    ("runtime", "launch"),
    [
        ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_driver", "cuLaunchKernelEx"),
        ("cuda_runtime", "hipLaunchKernel"),
        ("hip_runtime", "hipExtModuleLaunchKernel"),
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("Runtime", "cudaLaunchKernel"),
        ("privateuse1_runtime", "musaLaunchKernel"),
    ],
)
def test_launches_of_every_vendor_are_counted_and_joined(runtime: str, launch: str) -> None:
    trace = TraceBuilder().step(0, at=0, dur=50).row(runtime, launch, 5, 2, correlation=3)
    measures = trace.kernel("k", at=10, dur=5, correlation=3).measures()
    assert measures.totals.launches == 1
    assert measures.totals.gpu_events_without_launch == 0
    assert measures.per_step[0].self_cuda_time_us == 5


@pytest.mark.parametrize("device", [0, "0", 3, "3", None, -1, 10**6, "npu", [1]])
def test_devices_of_any_kind_are_kept(device: object) -> None:
    measures = TraceBuilder(devices=4).kernel("k", at=10, dur=5, device=device).measures()
    assert measures.totals.gpu_busy_us == 5
    assert [d.gpu_events for d in measures.devices] == [1]
    if device in (0, "0", 3, "3"):
        assert measures.devices[0].device == int(str(device))


KERNELS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "matmul",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64>": "matmul",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32": "matmul",
    "triton_tem_fused_addmm_0": "matmul",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>": "convolution",
    "flash_fwd_kernel<Flash_fwd_kernel_traits>": "attention",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "communication",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
    "triton_poi_fused_relu_0": "elementwise",
    "triton_red_fused_sum_1": "reduction",
    "zorp": "unknown",
}


def test_kinds_of_kernels() -> None:
    assert {name: kind_of_kernel(name) for name in KERNELS} == KERNELS


def test_kinds_of_copies() -> None:
    names = ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy PtoP", "Memcpy DtoD"]
    assert [kind_of_copy(n) for n in names] == ["host-device copy", "host-device copy", "peer copy", "copy"]
    assert [limit_of_kind(kind_of_copy(n)) for n in names] == ["transfer", "transfer", "communication", "bandwidth"]


def test_a_name_of_a_megabyte_takes_no_time() -> None:
    name = "triton_" * 100_000 + "dataloader" * 50_000
    measures = TraceBuilder().op(name, at=0, dur=5).work(1, launch=1, at=10, dur=5, name=name).measures()
    assert measures.totals.gpu_busy_us == 5


def test_allocator_calls() -> None:
    assert all(is_allocator_call(n) for n in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "cuMemAlloc_v2"))
    more = ("cudaMallocHost", "cudaFreeHost", "cuMemHostAlloc", "cuMemMap", "cuMemUnmap", "cuMemCreate", "cuMemRelease")
    more += ("cuMemAddressReserve", "cuMemFree_v2", "hipFree", "hipHostMalloc", "hipExtMallocWithFlags", "hipHostFree")
    assert all(is_allocator_call(n) for n in more)
    assert not any(is_allocator_call(n) for n in ("cudaMemcpy", "cudaLaunchKernel", "cudaMemGetInfo"))
    # stream-ordered: the host goes on
    assert not any(is_allocator_call(n) for n in ("cudaMallocAsync", "cudaFreeAsync", "cuMemAllocFromPoolAsync"))


def test_copies() -> None:
    names = ("cudaMemcpyAsync", "hipMemcpyWithStream", "cuMemcpyHtoDAsync_v2", "cudaMemsetAsync", "cuMemsetD32_v2")
    assert all(is_copy(n) for n in (*names, "urEnqueueUSMMemcpy", "zeCommandListAppendMemoryCopy"))
    assert not any(is_copy(n) for n in ("cudaMalloc", "cuMemCreate", "cudaLaunchKernel", "cudaMemGetInfo"))
