"""Ceilings: measured here, cached per device, driver and torch; never a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from proftrack.capture import call_costs, ceilings, loads
from proftrack.capture.device import CpuDevice
from proftrack.record.ceilings import PARALLEL, Ceilings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "proftrack" / "ceilings"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take milliseconds: what is measured here is the mechanism."""
    monkeypatch.setattr(ceilings, "_CPU_SIZES", (64, 128))
    monkeypatch.setattr(ceilings, "_CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "_REPEAT_SECONDS", 0.001)
    monkeypatch.setattr(ceilings, "call_costs", lambda: {"aten::add": 1.0})


def test_measured_once_then_read(cache: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ceilings.ceilings_of(CpuDevice(), ["float32"])
    assert set(first.flops_per_s) == {"float32"}
    assert first.flops_per_s["float32"] > 0 and first.bytes_per_s > 0
    assert first.dispatch_us is not None and first.call_us == {"aten::add": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda *_: pytest.fail("measured again"))
    assert ceilings.ceilings_of(CpuDevice(), ["float32", "int64"]) == first
    assert len(list(cache.glob("*.json"))) == 1


def test_a_further_type_is_measured_and_the_others_stay(cache: Path, small: None) -> None:
    first = ceilings.ceilings_of(CpuDevice(), ["float32"])
    both = ceilings.ceilings_of(CpuDevice(), ["float32", "float64"])
    assert set(both.flops_per_s) == {"float32", "float64"}
    assert both.flops_per_s["float32"] == first.flops_per_s["float32"]
    assert (both.bytes_per_s, both.dispatch_us) == (first.bytes_per_s, first.dispatch_us)
    assert ceilings.ceilings_of(CpuDevice(), ["float32"]) == both


class Clock:
    """Products that take `seconds_at(n)` on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, flops_per_s: float) -> None:
        self.now, self.rate, self.sizes = 0.0, flops_per_s, list[int]()
        monkeypatch.setattr(ceilings.time, "perf_counter", lambda: self.now)
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch, "randn", lambda n, _, device: torch.empty(n, 1))
        monkeypatch.setattr(torch, "mm", self.mm)

    def mm(self, x: object, _w: object, out: object) -> None:
        n = len(x)  # type: ignore[arg-type]
        self.sizes.append(n)
        self.now += 2 * n**3 / self.rate


@pytest.mark.parametrize(
    ("flops_per_s", "sizes"),
    [
        (150e9, {256, 512, 1024, 2048}),  # 2048: 0.11 s a product
        (0.7e9, {256, 512}),  # emulated: 48 ms at 256, 0.38 s at 512, 3.1 s at 1024
        (0.01e9, {256}),  # 3.4 s: one product, and no more
    ],
)
def test_a_slow_type_costs_no_more_than_its_seconds(
    monkeypatch: pytest.MonkeyPatch, flops_per_s: float, sizes: set[int]
) -> None:
    clock = Clock(monkeypatch, flops_per_s)
    assert ceilings._matmul_rate(CpuDevice(), "bfloat16", ceilings.CEILING_SECONDS) == pytest.approx(flops_per_s)
    assert set(clock.sizes) == sizes
    assert clock.now <= ceilings.CEILING_SECONDS or len(clock.sizes) == 1


def test_what_a_busy_machine_gave_is_kept_for_minutes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0, waited=0.5, measured_ns=1_000)]
    monkeypatch.setattr(ceilings, "measure", lambda *_: measured[-1])
    monkeypatch.setattr(ceilings.time, "time_ns", lambda: 2_000)
    assert ceilings.ceilings_of(CpuDevice(), []) == measured[0]
    measured.append(Ceilings(device="x", flops_per_s={}, bytes_per_s=2.0))
    assert ceilings.ceilings_of(CpuDevice(), []) == measured[0]
    monkeypatch.setattr(ceilings.time, "time_ns", lambda: 700 * 10**9)
    assert ceilings.ceilings_of(CpuDevice(), []) == measured[1]


def test_prices_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_costs, "_FLUSHED_BYTES", 1 << 10)
    monkeypatch.setattr(call_costs, "_CALLS", 3)
    threads = torch.get_num_threads()
    found = call_costs.call_costs()
    assert torch.get_num_threads() == threads
    assert {"aten::add", "aten::mm", "aten::linear", "AddmmBackward0", PARALLEL} <= set(found)
    assert all(price >= 0 for price in found.values())
    assert not any(name.startswith(("Optimizer", "ProfilerStep")) for name in found)


def test_another_torch_is_another_ceiling(cache: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda *_: known)
    ceilings.ceilings_of(CpuDevice())
    monkeypatch.setattr(torch, "__version__", "99.0")
    ceilings.ceilings_of(CpuDevice())
    assert len(list(cache.glob("*.json"))) == 2


def test_fresh_measures_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Ceilings(device="x", flops_per_s={}, bytes_per_s=float(n)) for n in (1, 2)])
    monkeypatch.setattr(ceilings, "measure", lambda *_: next(answers))
    assert ceilings.ceilings_of(CpuDevice(), []).bytes_per_s == 1
    assert ceilings.ceilings_of(CpuDevice(), [], fresh=True).bytes_per_s == 2
    assert ceilings.ceilings_of(CpuDevice(), []).bytes_per_s == 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"ceilings": {"device": 3}}'])
def test_a_damaged_cache_is_measured_over(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda *_: known)
    ceilings.ceilings_of(CpuDevice())
    [file] = cache.glob("*.json")
    file.write_bytes(damage)
    assert ceilings.ceilings_of(CpuDevice()) == known


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)
    monkeypatch.setattr(ceilings, "measure", lambda *_: known)
    assert ceilings.ceilings_of(CpuDevice()) == known


def test_int8_has_a_rate_where_there_is_such_a_product(cache: Path, small: None) -> None:
    found = ceilings.ceilings_of(CpuDevice(), ceilings.DTYPES)
    assert {"float32", "int8"} <= set(found.flops_per_s)
    assert not {"float8_e4m3fn", "tfloat32"} & set(found.flops_per_s)  # a CPU at best emulates them
    assert loads.product(CpuDevice(), "int8", 32)().dtype == torch.int32
    assert loads.product(CpuDevice(), "float8_e4m3fn", 32)().dtype == torch.bfloat16


def test_what_a_device_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_int_mm")
    assert ceilings._matmul_rate(CpuDevice(), "int8", 1.0) is None


def test_a_program_that_chooses_tf32_by_the_new_setting_is_another_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings.compat, "float32_products", lambda: "tf32")
    with ceilings.compat.products_in("tf32"):  # nothing to change, nothing to restore
        assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.gpu
def test_a_gpu_has_ceilings() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from proftrack.capture.device import CudaDevice

    found = ceilings.measure(CudaDevice(), ceilings.DTYPES)
    assert found.flops_per_s["bfloat16"] > found.flops_per_s["tfloat32"] > found.flops_per_s["float32"] > 0
    assert found.flops_per_s["float8_e4m3fn"] > found.flops_per_s["bfloat16"]  # on Hopper
    assert found.bytes_per_s > 1e10
