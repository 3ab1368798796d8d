"""Runs on this very CPU: what holds of their records on every machine, whatever else it does at the time.

Which regime they have depends on the machine and its load: tests/test_verdict_cpu.py judges recorded timings.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from proftrack import experiment
from proftrack.analysis.pipeline import analyze_capture
from proftrack.capture import capture, environment, measurement
from proftrack.capture.profiling import records_all_threads
from proftrack.experiment import ProfilerOptions
from proftrack.record import Record
from proftrack.record.ceilings import Ceilings
from proftrack.report.progress import Silent

CEILINGS = Ceilings(
    device="any", flops_per_s={"float32": 1e11}, bytes_per_s=1e10, dispatch_us=1.0, call_us={"aten::mm": 3.0}
)
"""Not this machine's: what is asserted here holds with any."""

WORKLOADS = """
from concurrent.futures import ThreadPoolExecutor

import torch


def product(device, n):
    x, w = torch.ones(n, n), torch.ones(n, n)
    return lambda: torch.mm(x, w)


def chain(device, n):
    x = torch.ones(n)

    def step():
        y = x
        for _ in range(6):
            y = torch.mul(y, 1.5)
        return y

    return step


def pool(device, n):
    x, threads = torch.ones(n, n), ThreadPoolExecutor(2)

    def step():
        waiting = [threads.submit(torch.mm, x, x) for _ in range(2)]
        return [each.result() for each in waiting]

    return step
"""


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "ceilings_of", lambda *_, **__: CEILINGS)


def run(workload: str, n: int, tmp_path: Path, **overrides: str) -> Record:
    (tmp_path / "workloads.py").write_text(WORKLOADS)
    (tmp_path / "case.yaml").write_text(f"workload: workloads.py:{workload}\nparams: {{n: {n}}}\n")
    options = {"min_seconds": "0.1", "max_seconds": "2", "device": "cpu", **overrides}
    asked = experiment.load(str(tmp_path / "case.yaml"), options)
    captured = capture(asked, output=tmp_path, progress=Silent())
    return analyze_capture(captured, asked, environment.collect("cpu", code=asked.path.parent)).record


@pytest.mark.parametrize(("workload", "n"), [("product", 8), ("product", 512), ("chain", 1_000_000)])
def test_the_figures_of_a_run_agree_with_each_other(workload: str, n: int, tmp_path: Path) -> None:
    record = run(workload, n, tmp_path)
    verdict, cpu, timing = record.verdict, record.cpu, record.timing
    assert verdict.basis == "unprofiled"
    assert verdict.reasons
    assert verdict.advice
    assert {"step_time_us", "cpu_working_us", "operators_us"} <= {item.name for item in verdict.evidence}
    assert cpu is not None
    assert cpu.threads == 1
    assert sum(cpu.least_working_us.values()) <= sum(cpu.working_us.values()) <= cpu.operators_us
    assert record.times.roofline_time_us is not None
    assert timing is not None
    assert timing.load is not None
    assert timing.load.process_us > 0


def test_work_on_the_users_threads_is_not_lost(tmp_path: Path) -> None:
    record = run("pool", 256, tmp_path)
    if records_all_threads(ProfilerOptions()):
        assert record.cpu is not None
        assert record.cpu.threads >= 2
        assert sum(op.calls for op in record.ops if op.name == "aten::mm") == 2 * record.window.steps
        assert record.times.roofline_time_us is None  # counted on the steps' thread alone
    else:
        assert not any(op.name == "aten::mm" for op in record.ops)


def test_memory_is_recorded_where_it_was_asked_for(tmp_path: Path) -> None:
    """With all threads on, torch drops the memory events: then the steps' thread alone."""
    assert not records_all_threads(ProfilerOptions(profile_memory=True))
    record = run("pool", 64, tmp_path, profile_memory="true")
    assert record.source.profiler["profile_memory"]
    assert not any(op.name == "aten::mm" for op in record.ops)


def test_a_torch_that_cannot_records_the_steps_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> None:
        raise TypeError("unexpected keyword argument 'profile_all_threads'")

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", refuse)
    assert not records_all_threads(ProfilerOptions())
    record = run("product", 64, tmp_path)
    assert any(op.name == "aten::mm" for op in record.ops)
