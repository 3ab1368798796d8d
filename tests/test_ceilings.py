"""Ceilings: measured here, cached per device, driver and torch; never a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from proftrack.capture import ceilings, prices
from proftrack.capture.device import CpuDevice
from proftrack.hardware import PARALLEL, Ceilings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "proftrack" / "ceilings"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take milliseconds: what is measured here is the mechanism."""
    monkeypatch.setattr(ceilings, "_CPU_SIZES", {"float32": (64, 128)})
    monkeypatch.setattr(ceilings, "_CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "_REPEAT_SECONDS", 0.001)
    monkeypatch.setattr(ceilings, "call_prices", lambda: {"aten::add": 1.0})


def test_measured_once_then_read(cache: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ceilings.ceilings_of(CpuDevice())
    assert set(first.flops_per_s) == {"float32"}
    assert first.flops_per_s["float32"] > 0 and first.bytes_per_s > 0
    assert first.dispatch_us is not None and first.call_us == {"aten::add": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda device: pytest.fail("measured again"))
    assert ceilings.ceilings_of(CpuDevice()) == first
    assert len(list(cache.glob("*.json"))) == 1


def test_what_a_busy_machine_gave_is_kept_for_minutes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0, waited=0.5, measured_ns=1_000)]
    monkeypatch.setattr(ceilings, "measure", lambda device: measured[-1])
    monkeypatch.setattr(ceilings.time, "time_ns", lambda: 2_000)
    assert ceilings.ceilings_of(CpuDevice()) == measured[0]
    measured.append(Ceilings(device="x", flops_per_s={}, bytes_per_s=2.0))
    assert ceilings.ceilings_of(CpuDevice()) == measured[0]
    monkeypatch.setattr(ceilings.time, "time_ns", lambda: 700 * 10**9)
    assert ceilings.ceilings_of(CpuDevice()) == measured[1]


def test_prices_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_FLUSHED_BYTES", 1 << 10)
    monkeypatch.setattr(prices, "_CALLS", 3)
    threads = torch.get_num_threads()
    found = prices.call_prices()
    assert torch.get_num_threads() == threads
    assert {"aten::add", "aten::mm", "aten::linear", "AddmmBackward0", PARALLEL} <= set(found)
    assert all(price >= 0 for price in found.values())
    assert not any(name.startswith(("Optimizer", "ProfilerStep")) for name in found)


def test_another_torch_is_another_ceiling(cache: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda device: known)
    ceilings.ceilings_of(CpuDevice())
    monkeypatch.setattr(torch, "__version__", "99.0")
    ceilings.ceilings_of(CpuDevice())
    assert len(list(cache.glob("*.json"))) == 2


def test_fresh_measures_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Ceilings(device="x", flops_per_s={}, bytes_per_s=float(n)) for n in (1, 2)])
    monkeypatch.setattr(ceilings, "measure", lambda device: next(answers))
    assert ceilings.ceilings_of(CpuDevice()).bytes_per_s == 1
    assert ceilings.ceilings_of(CpuDevice(), fresh=True).bytes_per_s == 2
    assert ceilings.ceilings_of(CpuDevice()).bytes_per_s == 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"ceilings": {"device": 3}}'])
def test_a_damaged_cache_is_measured_over(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda device: known)
    ceilings.ceilings_of(CpuDevice())
    [file] = cache.glob("*.json")
    file.write_bytes(damage)
    assert ceilings.ceilings_of(CpuDevice()) == known


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda device: known)
    assert ceilings.ceilings_of(CpuDevice()) == known


@pytest.mark.gpu
def test_a_gpu_has_ceilings() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from proftrack.capture.device import CudaDevice

    found = ceilings.measure(CudaDevice())
    assert found.flops_per_s["bfloat16"] > found.flops_per_s["float32"] > 0
    assert found.bytes_per_s > 1e10
