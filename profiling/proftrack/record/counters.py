"""Hardware counters and energy of the steps that were timed without the profiler."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Unit = Literal["sm_active", "occupancy", "dram", "tensor", "hmma", "imma", "dmma", "fp64", "fp32", "fp16", "integer"]
"""A part of the GPU whose use is counted. `tensor` is any of the tensor pipes; hmma, imma and dmma are those for 16-bit
and narrower floats, for integers, and for float64."""
PIPES: tuple[Unit, ...] = ("tensor", "fp64", "fp32", "fp16", "integer")
"""The units that compute; `tensor` stands for its three parts."""
_PARTS: tuple[Unit, ...] = ("hmma", "imma", "dmma")
UNIT_NAMES: dict[Unit, str] = {
    "sm_active": "SM active",
    "occupancy": "occupancy",
    "dram": "DRAM",
    "tensor": "tensor cores",
    "hmma": "HMMA (floats of 16 bits and fewer)",
    "imma": "IMMA (integers)",
    "dmma": "DMMA (float64)",
    "fp64": "FP64",
    "fp32": "FP32",
    "fp16": "FP16",
    "integer": "integer",
}
"""What people call a unit."""
LEAST_USE = 0.03
"""A unit whose use is below this is not named where only the few that matter are."""


class Counters(Struct, frozen=True, kw_only=True):
    """What the device counted while steps ran back to back, without the profiler."""

    source: Literal["gpm", "nvml"]
    """gpm: NVML's GPU performance monitoring; nvml: energy alone, on a GPU that has no such counters."""
    window_s: float
    """Length of the counted windows, together. Seconds."""
    shares: dict[Unit, float] = {}
    """Use of each unit over the windows, as counted: 0 to 1 of the hardware's peak, idle time included."""
    reachable: dict[Unit, float] = {}
    """What the loads that measure the ceilings reach on this device, by unit; a unit that none of them loads is
    missing."""
    link_bytes_per_s: dict[str, float] = {}
    """Traffic over PCIe and NVLink: pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, as seen from the GPU."""
    energy_joules_per_step: float | None = None
    power_watts: float | None = None
    """Energy over time, in the same windows."""

    def of(self, unit: Unit) -> Literal["reachable", "peak"]:
        """What `utilization` is a share of."""
        return "reachable" if unit in self.reachable else "peak"

    def reach(self, unit: Unit) -> float | None:
        """What a load reaches of this unit on this device, 0 to 1 of the peak; None if none was measured.

        Of the tensor pipes: as far as each part that is in use reaches, for an int8 product may keep them less busy
        than a bfloat16 one does.
        """
        whole = self.reachable.get(unit)
        parts = {part: share for part in _PARTS if (share := self.shares.get(part))} if unit == "tensor" else {}
        if whole is None or not parts:
            return whole
        return sum(parts.values()) / sum(share / self.reachable.get(part, whole) for part, share in parts.items())

    def utilization(self, unit: Unit, busy_fraction: float) -> float | None:
        """Use of a unit while the GPU is busy, as a share of what is reachable on this device, at most 1.

        `busy_fraction` is u = B / T. A unit without a reachable value counts with its share of the peak, which makes
        the result a lower bound. None if the unit was not counted.
        """
        share = self.shares.get(unit)
        if share is None or not busy_fraction:
            return None
        return min(share / min(busy_fraction, 1.0) / (self.reach(unit) or 1.0), 1.0)


class KernelCounters(Struct, frozen=True, kw_only=True):
    """What Nsight Compute counted for one kernel: means over its replayed launches, weighted by their time.

    Each launch was replayed alone, with cold caches, and clocks were left as they were.
    """

    launches: int
    """Launches replayed, all in one step."""
    duration_us: float
    """Of a launch."""
    dram_bytes: int | None = None
    """Moved between DRAM and L2 by a launch: refetches count, hits in L2 do not."""
    shares: dict[Unit, float] = {}
    """Use of dram and of the pipes while the kernel ran, 0 to 1 of the hardware's peak."""
    sm_share: float | None = None
    """Use of the busiest part of the multiprocessors, 0 to 1 of its peak."""
    achieved_occupancy: float | None = None
    """Warps on a multiprocessor while any are there, 0 to 1 of what it can hold."""
    theoretical_occupancy: float | None = None
    """The most that registers, shared memory and block size allow."""
    waves: float | None = None
    """Blocks over what all multiprocessors hold at once."""
    registers: int | None = None
    """Per thread."""

    @property
    def dram_bytes_per_s(self) -> float | None:
        """Traffic over time."""
        return self.dram_bytes / self.duration_us * 1e6 if self.dram_bytes is not None and self.duration_us else None


class Replay(Struct, frozen=True, kw_only=True):
    """How the largest kernels of a step were replayed; their figures are with the kernels and sites."""

    tool: str
    """Name and version; the name alone if it could not be asked."""
    launches: int = 0
    seconds: float = 0.0
    """How long it took, with the workload's build and first steps."""
    problem: str | None = None
    """Why there are no figures, or not all; one sentence."""
