"""GPU work joined with the calls that launched it."""

from __future__ import annotations

from typing import Any

import pytest
from traces import TraceBuilder, flags

from proftrack.measures.links import Links, link
from proftrack.measures.nesting import nest
from proftrack.trace.categories import is_graph_launch, is_launch, is_wait
from proftrack.trace.table import NONE


def linked(trace: TraceBuilder) -> tuple[dict[str, str | None], Links]:
    """Name of the launch call of each piece of GPU work (by its name), and the links."""
    table = trace.table()
    links = link(table, nest(table, table.host))
    name = [table.names[n] for n in table.name]
    at = {
        g: None if c == NONE else f"{name[c]}@{table.ts[c] // 1000}"
        for g, c in zip(links.gpu, links.launch, strict=True)
    }
    return {name[g]: c for g, c in at.items()}, links


def test_a_kernel_joins_its_launch_by_correlation() -> None:
    trace = TraceBuilder().launch(at=0, correlation=5).launch(at=10, correlation=6)
    trace.kernel("k6", at=11, dur=1, correlation=6).kernel("k5", at=12, dur=1, correlation=5)
    assert linked(trace)[0] == {"k5": "cudaLaunchKernel@0", "k6": "cudaLaunchKernel@10"}


def test_a_graph_launch_joins_all_its_kernels_and_is_one_launch() -> None:
    trace = TraceBuilder().launch(at=0, correlation=5, name="cudaGraphLaunch")
    for i in range(20):
        trace.kernel(f"k{i}", at=10 + i, dur=1, correlation=5)
    names, links = linked(trace)
    assert set(names.values()) == {"cudaGraphLaunch@0"}
    assert links.caused.tolist() == [20]
    assert links.graph_calls.tolist() == [True]
    assert trace.measures().totals.launches == 1


@pytest.mark.parametrize(("inner", "kernel"), [(5, 5), (6, 6), (6, 5)])
def test_a_runtime_call_that_goes_through_a_driver_call_is_one_launch(inner: int, kernel: int) -> None:
    trace = TraceBuilder().launch(at=0, dur=10, correlation=5)
    trace.launch(at=2, dur=5, correlation=inner, name="cuLaunchKernel", cat="cuda_driver")
    trace.kernel("k", at=20, dur=1, correlation=kernel)
    names, links = linked(trace)
    assert names == {"k": "cudaLaunchKernel@0"}
    assert links.caused.tolist() == [1]
    measures = trace.measures()
    assert measures.totals.launches == 1
    assert "launches_without_gpu_work" not in flags(measures)


def test_driver_launches_alone_count() -> None:
    trace = TraceBuilder().launch(at=0, correlation=5, name="cuLaunchKernelEx", cat="cuda_driver")
    assert linked(trace.kernel("k", at=2, dur=1, correlation=5))[0] == {"k": "cuLaunchKernelEx@0"}


@pytest.mark.parametrize("correlation", [0, None, -1])
def test_no_correlation_joins_nothing(correlation: Any) -> None:
    trace = TraceBuilder().launch(at=0, correlation=correlation).launch(at=5, correlation=correlation)
    trace.kernel("k", at=2, dur=1, correlation=correlation)
    names, links = linked(trace)
    assert names == {"k": None}
    assert trace.measures().totals.gpu_events_without_launch == 1
    assert links.caused.tolist() == [0, 0]


def test_an_id_used_twice_means_the_last_call_before_the_work() -> None:
    trace = TraceBuilder().launch(at=0, correlation=5).kernel("first", at=3, dur=1, correlation=5)
    trace.launch(at=100, correlation=5).kernel("second", at=103, dur=1, correlation=5)
    assert linked(trace)[0] == {"first": "cudaLaunchKernel@0", "second": "cudaLaunchKernel@100"}


def test_an_unknown_runtime_call_joins_too_but_a_wait_does_not() -> None:
    trace = TraceBuilder().call("someVendorEnqueue", at=0, dur=1, correlation=5, cat="xyz_runtime")
    trace.kernel("k", at=2, dur=1, correlation=5)
    trace.sync(at=5, dur=1, correlation=6).kernel("l", at=7, dur=1, correlation=6)
    assert linked(trace)[0] == {"k": "someVendorEnqueue@0", "l": None}


def test_a_launch_call_wins_over_another_call_of_its_id() -> None:
    trace = TraceBuilder().call("cudaFuncGetAttributes", at=0, dur=1, correlation=5).launch(at=3, correlation=5)
    assert linked(trace.kernel("k", at=5, dur=1, correlation=5))[0] == {"k": "cudaLaunchKernel@3"}


def test_work_with_times_that_cannot_be_is_counted_and_joined() -> None:
    trace = TraceBuilder().op("a", at=5e9, dur=10).launch(at=5e9 + 1, correlation=5)
    trace.kernel("lost", at=0, dur=4, correlation=5).kernel("k", at=5e9 + 3, dur=2, correlation=5)
    names, links = linked(trace)
    assert names == {"lost": "cudaLaunchKernel@1", "k": "cudaLaunchKernel@1"}
    assert links.caused.tolist() == [2]


LAUNCHES = [
    "cudaLaunchKernel",
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC_v11060",
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch_v10000",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cudaMemcpy2DAsync_v3020",
    "cudaMemsetAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGraphLaunch",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD32Async",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtLaunchKernel",
    "hipGraphLaunch",
    "hipMemcpyWithStream",
    "hipMemsetAsync",
    "urEnqueueKernelLaunch",
    "urEnqueueUSMMemcpy",
    "zeCommandListAppendLaunchKernel",
    "musaLaunchKernel",
]
OTHERS = [
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
    "cudaEventRecord",
    "cudaMalloc",
    "cudaFuncGetAttributes",
    "cudaGraphInstantiate",
    "cudaGraphAddMemcpyNode",
    "cudaMemcpy3DGetParams_Params",
    "cudaLaunchHostFunc",
    "cudaMemGetInfo",
    "cudaMemPoolCreate",
    "aten::mm",
    "",
]


def test_which_calls_enqueue_gpu_work() -> None:
    assert [n for n in LAUNCHES if not is_launch(n)] == []
    assert [n for n in OTHERS if is_launch(n)] == []
    assert [n for n in LAUNCHES + OTHERS if is_graph_launch(n)] == [
        "cudaGraphLaunch_v10000",
        "cuGraphLaunch",
        "hipGraphLaunch",
    ]
    waits = [n for n in [*LAUNCHES, *OTHERS, "hipStreamSynchronize", "cuCtxSynchronize"] if is_wait(n)]
    assert waits == [
        "cudaMemcpy",
        "hipMemcpyWithStream",
        "cudaDeviceSynchronize",
        "cudaMemcpy3DGetParams_Params",
        "hipStreamSynchronize",
        "cuCtxSynchronize",
    ]
