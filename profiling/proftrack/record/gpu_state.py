"""Clocks, throttling and neighbours of a GPU, as a record keeps them."""

from __future__ import annotations

from msgspec import Struct


class GpuState(Struct, frozen=True, kw_only=True):
    """The GPU right behind timed steps. None where NVML does not say."""

    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_c: int | None = None
    throttled_by: list[str] = []
    other_processes: int | None = None
    """Compute processes on this GPU beside this one."""
