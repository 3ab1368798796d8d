"""The GPU's clocks, throttling and other processes while steps are timed, as reported by NVML.

A GPU that is hot, power-limited or shared runs slower than it can: the figures are correct but mean less.
"""

from __future__ import annotations

import os
from typing import Any

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
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    try:
        handle = _handle(pynvml, index)
        return GpuState(
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            power_watts=None if (mw := _ask(pynvml.nvmlDeviceGetPowerUsage, handle)) is None else mw / 1000,
            temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            throttled_by=_throttled(pynvml, handle),
            other_processes=_others(pynvml, handle),
        )
    except Exception:  # NVML works but does not know this device (MIG, a container without permission)
        return None
    finally:
        pynvml.nvmlShutdown()


def _handle(pynvml: Any, index: int) -> Any:
    """NVML also counts devices that CUDA_VISIBLE_DEVICES hides, so look the device up by its UUID."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        text = str(uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def _ask(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except Exception:
        return None


def _throttled(pynvml: Any, handle: Any) -> list[str]:
    ask = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    bits = _ask(ask, handle) if ask else None
    return [reason for bit, reason in _REASONS.items() if bits and bits & bit]


def _others(pynvml: Any, handle: Any) -> int | None:
    """The number of other compute processes. In a container NVML lists host pids: then one of them is this process."""
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None
    pids = {p.pid for p in processes}
    return len(pids - {os.getpid()}) if os.getpid() in pids else max(len(pids) - 1, 0)
