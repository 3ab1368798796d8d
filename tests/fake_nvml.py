"""A GPU that keeps its own time, and NVML's answers about it: counters that move every 100 ms, as an H200's do."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from proftrack.capture import counters
from proftrack.capture.device import CpuDevice
from proftrack.capture.timing import Stopwatch

IDS = {
    "SM_UTIL": 2,
    "SM_OCCUPANCY": 3,
    "INTEGER_UTIL": 4,
    "ANY_TENSOR_UTIL": 5,
    "DFMA_TENSOR_UTIL": 6,
    "HMMA_TENSOR_UTIL": 7,
    "DMMA_TENSOR_UTIL": 8,
    "IMMA_TENSOR_UTIL": 9,
    "DRAM_BW_UTIL": 10,
    "FP64_UTIL": 11,
    "FP32_UTIL": 12,
    "FP16_UTIL": 13,
    "PCIE_TX_PER_SEC": 20,
    "PCIE_RX_PER_SEC": 21,
    "NVLINK_TOTAL_RX_PER_SEC": 60,
    "NVLINK_TOTAL_TX_PER_SEC": 61,
}


class NvmlError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class Work:
    """What a step does: how long it takes, how much of each unit it uses (percent), how many watts it draws."""

    def __init__(self, seconds: float, watts: float = 600.0, **use: float) -> None:
        self.seconds, self.watts, self.use = seconds, watts, use


class FakeNvml:
    """Stands for the module pynvml and for the one GPU that it knows. Set the attributes to what NVML should answer."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 4, 13
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self) -> None:
        self.now = 1000.0
        self.update_s, self.call_s = 0.1, 0.0
        self.others = 0
        self.divided = self.unknown = False
        self.gpm: bool | NvmlError = True
        self.has_energy = True
        self.unsupported: set[str] = set()
        self.opened = self.samples = 0
        self.sums: dict[str, float] = {}
        self.shown: dict[str, float] = {}
        self.shown_at = self.now
        self.on_step: Callable[[], Any] = lambda: None
        for name, number in IDS.items():
            setattr(self, f"NVML_GPM_METRIC_{name}", number)

    # ---- the GPU

    def run(self, work: Work) -> None:
        """Do this work; time passes in parts of 2 ms at most."""
        parts = max(1, math.ceil(work.seconds / 0.002))
        for _ in range(parts):
            self._pass(work.seconds / parts, work)
            self.on_step()

    def _pass(self, seconds: float, work: Work) -> None:
        """The counters go on, and NVML shows them as they are at each update."""
        while seconds > 0:
            until = min(seconds, max(self.shown_at + self.update_s - self.now, 0.0))
            for name, use in {**work.use, "watts": work.watts}.items():
                self.sums[name] = self.sums.get(name, 0.0) + use * until
            self.now += until
            seconds -= until
            if self.now >= self.shown_at + self.update_s - 1e-9:
                self.shown, self.shown_at = dict(self.sums), self.now

    def watch(self, work: Work) -> Stopwatch:
        """A stopwatch over steps that do this work."""
        return Stopwatch(lambda: self.run(work), Gpu(), clock=lambda: round(self.now * 1e9))

    # ---- what pynvml has

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> int:
        return int(self.divided)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [int(self.divided)] * 2

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=os.getpid()), *(SimpleNamespace(pid=-n) for n in range(1, 1 + self.others))]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.has_energy:
            raise NvmlError(3, "Not Supported")
        self._pass(self.call_s, Work(self.call_s, watts=100.0))
        return round(1e6 + 1000 * self.shown.get("watts", 0.0))

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=int(bool(self.gpm)))

    def nvmlGpmSampleAlloc(self) -> dict[str, float]:
        self.samples += 1
        return {}

    def nvmlGpmSampleFree(self, sample: dict[str, float]) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: dict[str, float]) -> dict[str, float]:
        if isinstance(self.gpm, NvmlError):
            raise self.gpm
        self._pass(self.call_s, Work(self.call_s, watts=100.0))
        sample.clear()
        sample.update(self.shown, elapsed=self.shown_at)
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(40)])

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        names = {number: name for name, number in IDS.items()}
        elapsed = request.sample2["elapsed"] - request.sample1["elapsed"]
        for metric in request.metrics[: request.numMetrics]:
            name = names[metric.metricId]
            metric.nvmlReturn = 3 if name in self.unsupported else 0
            used = request.sample2.get(name, 0.0) - request.sample1.get(name, 0.0)
            metric.value = used / elapsed if elapsed else math.nan
        return request


class Gpu(CpuDevice):
    """A GPU as far as counters need it."""

    type = "cuda"
    is_gpu = True
    used = 1

    @property
    def torch_device(self) -> Any:
        return SimpleNamespace(index=0)

    def gpus_in_use(self) -> int:
        return self.used


def install(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Let `import pynvml` give a fake, and the counters' clock be its GPU's. Energy is read with every step."""
    fake = FakeNvml()

    def handle_of(api: FakeNvml, index: int) -> str:
        if api.unknown:
            raise NvmlError(6, "Not Found")
        return "handle"

    def beside(read: Callable[[Any], None]) -> Any:
        return _Beside(fake, read)

    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(counters, "handle_of", handle_of)
    monkeypatch.setattr(counters, "beside", beside)
    monkeypatch.setattr(counters, "time", SimpleNamespace(perf_counter=lambda: fake.now))
    return fake


class _Beside:
    """`threads.beside` without a thread: one round of the loop with every part of a step."""

    def __init__(self, gpu: FakeNvml, read: Callable[[Any], None]) -> None:
        self._gpu, self._read = gpu, read

    def __enter__(self) -> None:
        self._gpu.on_step = self._once

    def __exit__(self, *_: object) -> None:
        self._gpu.on_step = lambda: None

    def _once(self) -> None:
        answers = iter([False, True])
        cost, self._gpu.call_s = self._gpu.call_s, 0.0  # beside the steps, it takes none of their time
        self._read(SimpleNamespace(wait=lambda _: next(answers)))
        self._gpu.call_s = cost
