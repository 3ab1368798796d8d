"""Clocks, throttling and other users of a GPU, as stored in a record."""

from __future__ import annotations

from msgspec import Struct


class GpuState(Struct, frozen=True, kw_only=True):
    """The GPU's state right after timed steps. Values are None if NVML does not report them."""

    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_c: int | None = None
    throttled_by: list[str] = []
    other_processes: int | None = None
    """Other compute processes on this GPU."""
