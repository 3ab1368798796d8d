"""Traces without categories, and accelerators whose launches have unknown names: what is not known is absent."""

from __future__ import annotations

from typing import Any

import pytest
from traces import TraceBuilder, clean, flags

from proftrack.measures import combine
from proftrack.record.figures import Step, launches_per_step
from proftrack.verdict.judge import judge


class Legacy(TraceBuilder):
    """As torch.autograd.profiler wrote it before Kineto."""

    def on_cpu(self, name: str, at: float, dur: float, thread: Any = 1, pid: str = "CPU functions") -> Legacy:
        self.event(name=name, ph="X", ts=at, dur=dur, tid=thread, pid=pid, args={})
        return self

    def on_gpu(self, name: str, at: float, dur: float, device: int = 0) -> Legacy:
        self.event(name=name, ph="X", ts=at, dur=dur, tid=device, pid="CUDA functions", args={})
        return self

    def flow(self, name: str, at: float) -> Legacy:
        self.event(name=name, ph="s", ts=at, tid=1, pid="CPU functions", id=0, cat="cpu_to_cuda", args={})
        return self


def operators() -> Legacy:
    """linear holds addmm on the CPU; a second thread runs mul."""
    trace = Legacy().on_cpu("aten::linear", 10.5, 100).on_cpu("aten::addmm", 20.5, 60)
    return trace.on_cpu("aten::mul", 15, 30, thread=2)


def test_operators_are_read_by_their_process() -> None:
    measures = operators().measures()
    assert {o.name: o.self_cpu_time_us for o in measures.ops} == {
        "aten::linear": 40,
        "aten::addmm": 60,
        "aten::mul": 30,
    }
    assert measures.totals.self_cpu_time_total_us == 130
    assert measures.totals.launches is None  # this profiler records none


def test_cpp_spells_the_process_with_a_capital() -> None:
    assert Legacy().on_cpu("forward", 0, 10, pid="CPU Functions").measures().totals.self_cpu_time_total_us == 10


@pytest.mark.parametrize("by", ["rows", "flows", "both"])
def test_operators_timed_on_the_gpu_are_no_gpu_work(by: str) -> None:
    trace = operators()
    if by != "flows":  # nested like the operators, up to 150 us
        trace.on_gpu("aten::linear", 12, 150).on_gpu("aten::addmm", 22, 130)
    if by != "rows":
        trace.flow("aten::linear", 10.5).flow("aten::addmm", 20.5)
    measures = trace.measures()
    totals = measures.totals
    assert (totals.gpu_busy_us, totals.self_cuda_time_total_us, totals.launches) == (None, None, None)
    assert totals.self_cpu_time_total_us == 130
    assert flags(measures)["gpu_not_measured"] == 2
    verdict = judge(measures).verdict
    assert verdict.regime == "inconclusive"
    assert "records no kernels: use torch.profiler" in verdict.reasons[0]


def test_kernels_imported_from_nvprof_are_gpu_work() -> None:
    trace = operators().on_gpu("volta_sgemm_128x64_tn", 30, 50).on_gpu("volta_sgemm_128x64_tn", 90, 10, device=1)
    measures = trace.measures()
    assert measures.totals.self_cuda_time_total_us == 60
    assert {d.device: d.gpu_busy_us for d in measures.devices} == {0: 50, 1: 10}
    assert measures.totals.launches is None
    assert "gpu_not_measured" not in flags(measures)


def test_rows_that_nothing_tells_apart_are_no_zeros() -> None:
    trace = TraceBuilder().event(name="a", ph="X", ts=0, dur=10, pid=1, tid=1, args={})
    measures = trace.event(name="b", ph="X", ts=2, dur=5, pid=1, tid=1, args={}).measures()
    assert (measures.totals.self_cpu_time_total_us, measures.totals.launches) == (None, None)
    verdict = judge(measures).verdict
    assert verdict.regime == "inconclusive"
    assert "without a category" in verdict.reasons[0]


# -- launches of unknown names


def accelerator(calls: str, launch: str, *, gpu: bool = True) -> TraceBuilder:
    trace = TraceBuilder().step(1, at=0, dur=100).region("forward", at=0, dur=90)
    trace.op("Optimizer.step#SGD.step", at=1, dur=80).row(calls, launch, 5, 2, correlation=1)
    return trace.kernel(at=10, dur=50, correlation=1) if gpu else trace


UNKNOWN = {
    "MTIA": ("mtia_runtime", "runFunction - job_prep_and_submit_for_execution"),
    "Cambricon": ("privateuse1_runtime", "cnInvokeKernel"),
    "Ascend": ("privateuse1_driver", "aclrtLaunchKernelWithConfig"),
    "Gaudi": ("hpu_op", "synLaunch"),
    "CUDA's names that are no launch": ("cuda_runtime", "cudaMalloc"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_launches_of_unknown_names_are_absent(what: str) -> None:
    measures = accelerator(*UNKNOWN[what]).measures()
    assert (measures.totals.launches, measures.per_step[0].launches, measures.launches_per_step) == (None, None, None)
    assert [region.launches for region in measures.regions] == [None]
    assert measures.totals.self_cuda_time_total_us == 50
    assert measures.per_step[0].self_cuda_time_us == 50  # the work still belongs to its step, by the correlation id
    judged = judge(measures).verdict
    assert not any("0 launches" in text for text in [*judged.advice, *(e.text for e in judged.evidence)])


@pytest.mark.parametrize("what", ["MTIA", "Cambricon", "Ascend", "Gaudi"])
def test_without_gpu_work_they_are_absent_too(what: str) -> None:
    measures = accelerator(*UNKNOWN[what], gpu=False).measures()
    assert measures.totals.launches is None


def test_work_on_a_device_of_unknown_category_is_no_cpu_run() -> None:
    measures = TraceBuilder().step(1, at=0, dur=9).row("mtia_ccp_events", "pe_exe", 2, 5, pid=17).measures()
    assert measures.totals.launches is None


@pytest.mark.parametrize(
    ("trace", "launches"),
    [
        (TraceBuilder().step(1, at=0, dur=9).op("a", at=1, dur=5), 0),
        (TraceBuilder().step(1, at=0, dur=9).call("cudaGetDeviceCount", at=1, dur=1), 0),
        (clean(), 2),
        (accelerator("privateuse1_runtime", "musaLaunchKernel"), 1),
        (TraceBuilder().kernel(at=0, dur=5), None),
    ],
)
def test_known_names_are_counted(trace: TraceBuilder, launches: int | None) -> None:
    assert trace.measures().totals.launches == launches


def test_cycles_without_launches_add_up_to_none() -> None:
    both = combine([accelerator(*UNKNOWN["Ascend"]).measures(), accelerator(*UNKNOWN["Ascend"]).measures()])
    assert (both.totals.launches, both.launches_per_step) == (None, None)


def test_the_mean_of_steps_is_known_if_every_step_is() -> None:
    def step(launches: int | None) -> Step:
        return Step(step=1, host_us=1, self_cuda_time_us=1, gpu_events=1, kernels=1, launches=launches)

    assert launches_per_step([step(2), step(5)]) == 3.5
    assert launches_per_step([step(2), step(None)]) is None
