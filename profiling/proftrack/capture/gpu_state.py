"""The GPU's clocks, throttling and other processes while steps are timed, as reported by NVML.

A GPU that is hot, power-limited or shared runs slower than it can: the figures are correct but mean less.
"""

from __future__ import annotations

from typing import Any

from proftrack.capture.nvml import ask, handle_of, nvml, other_processes
from proftrack.record.environment import GpuState

# Bits of nvmlClocksEventReasons (NVML API reference). Idle, application clocks and display settings are not faults.
_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def gpu_state(index: int) -> GpuState | None:
    """The current state of a CUDA device; None without NVML (package nvidia-ml-py) or for another vendor's GPU."""
    try:
        with nvml() as pynvml:
            return _state(pynvml, handle_of(pynvml, index))
    except Exception:  # also if NVML works but does not know this device (a container without permission)
        return None


def _state(pynvml: Any, handle: Any) -> GpuState:
    return GpuState(
        sm_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        power_watts=None if (mw := ask(pynvml.nvmlDeviceGetPowerUsage, handle)) is None else mw / 1000,
        temperature_c=ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        throttled_by=_throttled(pynvml, handle),
        other_processes=other_processes(pynvml, handle),
    )


def _throttled(pynvml: Any, handle: Any) -> list[str]:
    reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    bits = ask(reasons, handle)
    return [reason for bit, reason in _REASONS.items() if bits and bits & bit]
