"""Three runs on this very CPU whose regimes are known. No absolute times: only what holds the step back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from proftrack import environment, experiment
from proftrack.analysis import analyze_capture
from proftrack.capture import capture
from proftrack.record import Record
from proftrack.report.progress import Silent

CHAIN = """
import torch

def build(device, n):
    x = torch.ones(n, device=device)

    def step():
        y = x
        for _ in range(6):
            y = torch.mul(y, 1.5)
        return y

    return step
"""


ATTEMPTS = 3
"""Another program on the machine can slow one run's timing or another's trace. Such a run may say something else, but
must not be sure of it."""


def settled(regime: str, reference: str, tmp_path: Path, **overrides: str) -> Record:
    """The first of a few runs with that regime, else the last; what others say, they say at low confidence."""
    for attempt in range(ATTEMPTS):
        record = run(reference, tmp_path / str(attempt), **overrides)
        if record.verdict.regime == regime:
            break
        assert record.verdict.confidence == "low", record.verdict.summary
    return record


def run(reference: str, tmp_path: Path, **overrides: str) -> Record:
    asked = experiment.load(reference, {"min_seconds": "0.2", "max_seconds": "5", "device": "cpu", **overrides})
    captured = capture(asked, output=tmp_path, progress=Silent())
    return analyze_capture(captured, asked, environment.collect("cpu", code=asked.path.parent)).record


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other turn a busy machine's pauses into the operators' own time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def matmul_add() -> str:
    return str(Path(__file__).resolve().parents[1] / "experiments" / "matmul_add.yaml")


def test_a_small_product_is_overhead_bound(matmul_add: str, tmp_path: Path) -> None:
    record = settled("overhead-bound", matmul_add, tmp_path, n="64")
    assert record.verdict.regime == "overhead-bound"
    assert record.verdict.basis == "unprofiled"
    assert record.times.roofline_time_us is not None


def test_a_large_product_is_compute_bound(matmul_add: str, tmp_path: Path) -> None:
    record = settled("compute-bound", matmul_add, tmp_path, n="2048", dtype="float32")
    assert record.verdict.regime == "compute-bound"
    assert record.rates is not None and record.rates.mfu is not None


def test_a_chain_over_much_memory_is_memory_bound(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    (tmp_path / "chain.yaml").write_text("workload: chain.py:build\nparams: {n: 16000000}\n")
    record = settled("memory-bound", str(tmp_path / "chain.yaml"), tmp_path)
    assert record.verdict.regime == "memory-bound"
    # Six passes where one would do: the kernels' roofline is far below the step.
    assert record.work is not None and record.work.bytes == 4 * 2 * 16_000_000
