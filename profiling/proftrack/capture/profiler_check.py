"""Whether profiling works on this machine: profile one small piece of work and see what was recorded."""

from __future__ import annotations

import os
import time

import msgspec
from msgspec import Struct

from proftrack.capture.ceilings import ceilings_of
from proftrack.capture.compat import recorded_events
from proftrack.capture.counters import Meter, Missing
from proftrack.capture.device import Device, open_device
from proftrack.capture.gpu_state import gpu_state
from proftrack.capture.profiling import quiet, throw_away_session
from proftrack.errors import ProftrackError
from proftrack.experiment.workload import first_line
from proftrack.record.ceilings import Ceilings

_LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "hipLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
)
# NVIDIA's tools set these in the processes that they start. CUPTI serves only one subscriber.
_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


class Probe(Struct, frozen=True, kw_only=True):
    """The result of profiling one small matrix product."""

    device: str
    name: str
    notes: list[str]
    """Why the GPU is not used, if there could be one."""
    operators: int = 0
    launches: int = 0
    kernels: int = 0
    seconds: float = 0.0
    """Duration of the whole probe; the first profiler of a process loads CUPTI."""
    error: str | None = None
    remedy: str | None = None
    has_clocks: bool = True
    """Whether NVML reports clocks and throttling; always True on a CPU, which NVML does not cover."""
    has_counters: bool = False
    """Whether this user may read the GPU's hardware counters."""
    has_energy: bool = False
    missing_counters: Missing | None = None
    """Why there are no counters."""
    injected: list[str] = []
    """Environment variables through which another profiler is loaded into this process."""


def probe() -> Probe:
    """Profile a small matrix product on the device that `run` would use. Errors are returned, not raised."""
    begin = time.monotonic()
    injected = [name for name in _INJECTED if os.environ.get(name)]
    try:
        device, notes = open_device("auto")
    except ProftrackError as error:
        return Probe(
            device="cuda", name="unknown", notes=[], error=error.problem, remedy=error.remedy, injected=injected
        )
    seen = Probe(device=device.type, name=device.name, notes=notes, injected=injected)
    try:
        throw_away_session(device)
        operators, launches, kernels = _recorded(device)
    except Exception as error:
        return msgspec.structs.replace(seen, error=first_line(error))
    clocks = device.type != "cuda" or gpu_state(device.torch_device.index) is not None
    seconds = time.monotonic() - begin
    with Meter(device) as meter:
        return msgspec.structs.replace(
            seen,
            operators=operators,
            launches=launches,
            kernels=kernels,
            seconds=seconds,
            has_clocks=clocks,
            has_counters=meter.has_gpm,
            has_energy=meter.has_energy,
            missing_counters=meter.missing,
        )


def ceilings(*, fresh: bool) -> Ceilings:
    """The ceilings of the device that `run` would use, from the user's cache unless `fresh`. Raises ProftrackError."""
    return ceilings_of(open_device("auto")[0], fresh=fresh)


def _recorded(device: Device) -> tuple[int, int, int]:
    """Numbers of operators, launch calls and GPU kernels in a profile of one matrix product."""
    import torch
    from torch.profiler import profile

    x = torch.ones(64, 64, device=device.torch_device)
    with quiet(), profile(activities=device.activities()) as profiler:
        torch.mm(x, x)
        device.synchronize()
    events = recorded_events(profiler)
    on_gpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    names = [event.name() for event in events if event.device_type() != torch.autograd.DeviceType.CUDA]
    launches = sum(name.startswith(_LAUNCHES) for name in names)
    return sum(name == "aten::mm" for name in names), launches, len(on_gpu)
