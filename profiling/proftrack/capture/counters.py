"""Hardware counters (NVML's GPM) and energy of steps that run back to back, without the profiler.

Both counters move every 100 ms or so and show the state of the last update. So a window must be long, nothing but these
steps may have run shortly before it, and it must be read as soon as the last step is done:

    steps    |s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s|s| sync
             |- lead-in -|----------- window -----------------|
    GPM                  ^ sample                             ^ sample: the use of each unit in between
    energy   .    .    . . |    .    .    .    .    .    .  | .     read every 2 ms in a thread: from the first of its
                           |------- whole updates ----------|       updates in the window to the last

The steps are repeated after those that are timed (`count`). Slow ones are counted while they are timed, which takes no
further time (`Meter.window`); short ones are not, since even the milliseconds of a reading are a rest for a GPU at its
power limit. Nothing is read between two readings of the clock.

The counters are the device's: with other processes on it, or on an instance of a divided GPU, there are none.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from proftrack.capture.device import Device
from proftrack.capture.nvml import NoNvml, ask, handle_of, is_divided, nvml, other_processes
from proftrack.capture.timing import Stopwatch
from proftrack.experiment.workload import first_line
from proftrack.record.counters import Counters, Unit
from proftrack.text import counted
from proftrack.threads import beside

LEAD_IN_SECONDS = 0.25
"""Before a window, so that the first sample holds nothing but these steps: on an H200 it is 80 to 180 ms old."""
WINDOW_SECONDS = 1.0
"""Over 0.3 s and more the shares repeated within half a point on an H200. Energy needs longer: at its power limit that
GPU swings by some percent within a second, and with it a product's joules by 4 % over windows of 0.5 s."""
LONG_SECONDS = 5.0
"""From here on the timed steps are counted themselves: an energy reading that is up to one update old on either side is
then wrong by 2 % at most."""
COUNTED_SECONDS = LEAD_IN_SECONDS + WINDOW_SECONDS
"""Duration of `count`, if steps are short."""
_SHORTEST_SECONDS = 0.3
"""Over shorter windows GPM gives 0 or NaN, or one update more or less of what it counts."""
_UPDATE_SECONDS = 0.1
_BLOCK_SECONDS = 0.05
_POLL_SECONDS = 0.002
_ENERGY_ERROR = 0.03
"""Energy is left out if its window is uncertain by more than this share."""

_UNITS: dict[Unit, tuple[str, ...]] = {
    "sm_active": ("SM_UTIL",),
    "occupancy": ("SM_OCCUPANCY",),
    "dram": ("DRAM_BW_UTIL",),
    "tensor": ("ANY_TENSOR_UTIL",),
    "hmma": ("HMMA_TENSOR_UTIL",),
    "imma": ("IMMA_TENSOR_UTIL",),
    # A float64 product counts as DFMA on an H200, and DMMA stays 0.
    "dmma": ("DMMA_TENSOR_UTIL", "DFMA_TENSOR_UTIL"),
    "fp64": ("FP64_UTIL",),
    "fp32": ("FP32_UTIL",),
    "fp16": ("FP16_UTIL",),
    "integer": ("INTEGER_UTIL",),
}
"""NVML's names, without their prefix, of what is added up. Percent."""
_LINKS = {
    "pcie_tx": "PCIE_TX_PER_SEC",
    "pcie_rx": "PCIE_RX_PER_SEC",
    "nvlink_tx": "NVLINK_TOTAL_TX_PER_SEC",
    "nvlink_rx": "NVLINK_TOTAL_RX_PER_SEC",
}
"""The same for traffic. MiB per second."""
_PREFIX = "NVML_GPM_METRIC_"


class Missing(Struct, frozen=True):
    """Why something is not counted, as a clause, and what to do about it."""

    why: str
    remedy: str | None = None
    by_nature: bool = False
    """This hardware has no such counters: nothing that a run should complain of."""
    what: str = "Hardware counters and energy"

    def sentence(self) -> str:
        """A note for the user."""
        return f"{self.what} were not measured: {self.why}{f'; {self.remedy}' if self.remedy else ''}."


class EnergyReading(NamedTuple):
    """The energy counter at some moment."""

    seconds: float
    """Of a monotonic clock."""
    millijoules: int


class Meter:
    """The counters of one GPU. A context manager; use it in one thread.

    `has_gpm` and `has_energy` say what it can read, `missing` why it cannot read all. With neither it does nothing.
    """

    def __init__(self, device: Device, *, companions: int = 0, wanted: bool = True) -> None:
        """`companions`: other processes that are known to be idle on this GPU. Without `wanted` it reads nothing."""
        self.has_gpm = self.has_energy = False
        self.missing: Missing | None = None
        self._samples: list[Any] = []
        self._energy: list[EnergyReading] = []
        self._began = self._ended = 0.0
        self._device, self._companions = device, companions
        with contextlib.ExitStack() as stack:
            self.missing = self._open(stack) if wanted else None
            self._open_until_closed = stack.pop_all()

    @property
    def works(self) -> bool:
        """Whether there is anything to read."""
        return self.has_gpm or self.has_energy

    def notes(self) -> list[str]:
        """What a run should say of counters that are missing, if it is not in the hardware's nature."""
        return [self.missing.sentence()] if self.missing is not None and not self.missing.by_nature else []

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release NVML. Nothing can be read afterwards."""
        self.has_gpm = self.has_energy = False
        self._open_until_closed.close()

    def start(self) -> None:
        """A window begins: the device has done all its work, and for a while nothing but the counted steps."""
        self._energy = []
        self._read_sample(0)
        self._read_energy()
        self._began = time.perf_counter()

    def stop(self) -> None:
        """The window ends: the device has just done all its work."""
        self._ended = time.perf_counter()
        self._read_sample(1)
        self._read_energy()

    @property
    def window_seconds(self) -> float:
        """Length of the last window; 0 if there was none."""
        return self._ended - self._began

    @contextlib.contextmanager
    def window(self) -> Iterator[None]:
        """The block is a window: see `start` and `stop`."""
        self.start()
        yield
        self.stop()

    @contextlib.contextmanager
    def reading_energy(self) -> Iterator[None]:
        """Read the energy counter often inside the block, in another thread."""

        def read(over: threading.Event) -> None:
            while not over.wait(_POLL_SECONDS):
                self._read_energy()

        with beside(read) if self.has_energy else contextlib.nullcontext():
            yield

    def count(self, steps: int, seconds: float) -> Counters | None:
        """What was counted between `start` and `stop`, while so many steps took so many seconds without pauses.

        None if the window was too short, or nothing could be read.
        """
        if not self.works or self.window_seconds < _SHORTEST_SECONDS or not steps:
            return None
        if (not_ours := self._not_ours()) is not None:  # a process may have come since
            self.missing = not_ours
            return None
        values = self._values() if self.has_gpm else {}
        watts = power([reading for reading in self._energy if reading.seconds <= self._ended + _POLL_SECONDS])
        if not values and watts is None:
            return None
        return Counters(
            source="gpm" if values else "nvml",
            window_s=self.window_seconds,
            shares=_shares(values),
            link_bytes_per_s={link: values[name] * 2**20 for link, name in _LINKS.items() if name in values},
            energy_joules_per_step=None if watts is None else watts * seconds / steps,
            power_watts=watts,
        )

    # ---- opening

    def _open(self, stack: contextlib.ExitStack) -> Missing | None:
        if self._device.type != "cuda":
            return Missing("a CPU has none that are read", by_nature=True)
        if _is_amd():
            return Missing("they are read from NVIDIA's GPUs only", by_nature=True)
        try:
            self._api = stack.enter_context(nvml())
        except NoNvml as error:
            return Missing(str(error), error.remedy)
        try:
            self._handle = handle_of(self._api, self._device.torch_device.index)
        except Exception as error:
            return Missing(f"NVML does not know this GPU ({first_line(error)})", "check nvidia-smi")
        if (not_ours := self._not_ours()) is not None:
            return not_ours
        missing = self._open_gpm(stack)
        self.has_energy = ask(self._api.nvmlDeviceGetTotalEnergyConsumption, self._handle) is not None
        return missing

    def _open_gpm(self, stack: contextlib.ExitStack) -> Missing | None:
        """Try what will be needed: a driver may have GPM and this user may not be allowed to use it."""
        api = self._api
        try:
            if not api.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return Missing("this GPU has no counters that NVML reads (Hopper and later have)", by_nature=True)
            for _ in range(2):
                sample = api.nvmlGpmSampleAlloc()
                self._samples.append(sample)
                stack.callback(ask, api.nvmlGpmSampleFree, sample)
            api.nvmlGpmSampleGet(self._handle, self._samples[0])
        except Exception as error:
            return _why_no_gpm(api, error)
        self.has_gpm = True
        return None

    def _not_ours(self) -> Missing | None:
        """Why the device's counters are not those of this process's steps."""
        if is_divided(self._api, self._handle):
            return Missing("the GPU is divided into instances (MIG), and its counters are not those of one")
        others = (other_processes(self._api, self._handle) or 0) - self._companions
        if others > 0:
            there = counted(others, "other process", "other processes")
            return Missing(f"{there} on this GPU, whose counters are not one process's", "end them to measure this one")
        if (used := self._device.gpus_in_use()) > 1:
            return Missing(f"the steps use {used} GPUs, and the counters are one's")
        return None

    # ---- reading

    def _read_sample(self, which: int) -> None:
        if self.has_gpm and ask(self._api.nvmlGpmSampleGet, self._handle, self._samples[which]) is None:
            self.has_gpm = False  # never a window between an old and a new sample
            self.missing = Missing("the GPU's counters stopped answering", "check nvidia-smi", what="Hardware counters")

    def _read_energy(self) -> None:
        if not self.has_energy:
            return
        # The time before, not after: a thread waits up to 5 ms for the interpreter until it is told the answer.
        now = time.perf_counter()
        millijoules = ask(self._api.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        if millijoules is not None:
            self._energy.append(EnergyReading(now, millijoules))

    def _values(self) -> dict[str, float]:
        """What GPM gives between the two samples; without what this GPU does not count."""
        api = self._api
        known = [
            (name, getattr(api, _PREFIX + name, None))
            for name in (*itertools.chain(*_UNITS.values()), *_LINKS.values())
        ]
        asked = [(name, number) for name, number in known if number is not None]
        request = api.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = api.NVML_GPM_METRICS_GET_VERSION, len(asked)
        request.sample1, request.sample2 = self._samples
        for metric, (_, number) in zip(request.metrics, asked, strict=False):
            metric.metricId = number
        if ask(api.nvmlGpmMetricsGet, request) is None:
            return {}
        return {
            name: metric.value
            for (name, _), metric in zip(asked, request.metrics, strict=False)
            if metric.nvmlReturn == 0 and math.isfinite(metric.value) and metric.value >= 0
        }


def count(
    watch: Stopwatch, meter: Meter, step_seconds: float, window_seconds: float = WINDOW_SECONDS
) -> Counters | None:
    """Repeat steps until a window is long enough, and return what was counted. `step_seconds` is an estimate.

    With ranks every one must call it: the number of steps follows from the watch alone.
    """
    size = max(1, round(_BLOCK_SECONDS / max(step_seconds, 1e-9)))
    with meter.reading_energy():
        _run(watch, size, LEAD_IN_SECONDS)
        with meter.window():
            steps, seconds = _run(watch, size, window_seconds)
    return meter.count(steps, seconds)


def power(readings: Sequence[EnergyReading]) -> float | None:
    """Mean power in watts between two readings or two updates of the energy counter; None if it is not certain enough.

    A reading may be one update old. The time of an update is known to lie between two readings.
    """
    updates = [
        (EnergyReading((a.seconds + b.seconds) / 2, b.millijoules), (b.seconds - a.seconds) / 2)
        for a, b in itertools.pairwise(readings)
        if a.millijoules != b.millijoules
    ]
    spans = [(readings[0], readings[-1], _UPDATE_SECONDS)] if readings else []
    spans += [(updates[0][0], updates[-1][0], updates[0][1] + updates[-1][1])] if updates else []
    spans = [span for span in spans if span[1].seconds - span[0].seconds >= 2 * _UPDATE_SECONDS]
    certain = [(uncertain / (end.seconds - begin.seconds), begin, end) for begin, end, uncertain in spans]
    error, begin, end = min(certain, default=(math.inf, None, None))
    if begin is None or end is None or error > _ENERGY_ERROR or begin.millijoules == end.millijoules:
        return None
    return (end.millijoules - begin.millijoules) / 1000 / (end.seconds - begin.seconds)


def _shares(values: dict[str, float]) -> dict[Unit, float]:
    shares: dict[Unit, float] = {}
    for unit, names in _UNITS.items():
        known = [values[name] for name in names if name in values]
        if known:
            shares[unit] = min(sum(known) / 100, 1.0)
    return shares


def _run(watch: Stopwatch, size: int, at_least: float) -> tuple[int, float]:
    """Blocks of steps until they have taken `at_least` so many seconds: the numbers of steps and of seconds."""
    steps, seconds = 0, 0.0
    while seconds < at_least:
        seconds += watch.block(size)
        steps += size
    return steps, seconds


def _is_amd() -> bool:
    import torch

    return torch.version.hip is not None


def _why_no_gpm(api: Any, error: Exception) -> Missing:
    what, number = "Hardware counters", getattr(error, "value", None)
    if number == api.NVML_ERROR_NO_PERMISSION:
        remedy = "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        return Missing("this user may not read the GPU's counters", remedy, what=what)
    if number in (api.NVML_ERROR_NOT_SUPPORTED, getattr(api, "NVML_ERROR_FUNCTION_NOT_FOUND", None)):
        return Missing("this GPU or its driver has no counters that NVML reads", by_nature=True)
    return Missing(f"the GPU's counters do not answer ({first_line(error)})", what=what)
