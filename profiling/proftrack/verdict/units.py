"""How far a busy GPU uses its memory and its pipes, by the hardware's counters."""

from __future__ import annotations

from typing import NamedTuple

from proftrack.record.counters import PIPES, UNIT_NAMES, Counters, Unit
from proftrack.record.verdict import GpuRegime

_DIGITS = 6
"""Shares are rounded to a millionth, far below what counters tell, so that 0.51 of 0.85 is 0.6."""

_REACHED_BY: dict[Unit, str] = {"dram": "a copy", "tensor": "a large product", "fp32": "a float32 product"}


class Use(NamedTuple):
    """Shares of what is reachable while the GPU is busy, 0 to 1."""

    memory: float
    """s_mem: DRAM."""
    pipe: Unit
    """The pipe that is used most."""
    pipe_share: float
    """s_pipe: its share."""
    measured: frozenset[Unit]
    """The units with a reachable value measured on this device; the share of any other is of the hardware's peak."""

    @property
    def regime(self) -> GpuRegime:
        """What the unit that is used more stands for."""
        return "compute-bound" if self.pipe_share >= self.memory else "memory-bound"

    @property
    def unit(self) -> Unit:
        """The unit that is used most."""
        return self.pipe if self.regime == "compute-bound" else "dram"

    @property
    def largest(self) -> float:
        """The use of that unit."""
        return max(self.memory, self.pipe_share)

    @property
    def lead(self) -> float:
        """How far it is ahead of the other."""
        return round(abs(self.memory - self.pipe_share), _DIGITS)

    def share(self, unit: Unit) -> float:
        """The use of the memory or of the pipe."""
        return self.memory if unit == "dram" else self.pipe_share

    @property
    def other(self) -> Unit:
        """Of the memory and the pipe the one that is used less."""
        return "dram" if self.unit == self.pipe else self.pipe

    def at(self, unit: Unit) -> str:
        """`DRAM at 96% of what a copy reaches`."""
        return f"{name_of(unit)} at {self.share(unit):.0%} of {self._reach(unit)}"

    def _reach(self, unit: Unit) -> str:
        if unit not in self.measured:
            return "its peak" if unit != "tensor" else "their peak"
        return f"what {_REACHED_BY[unit]} reaches" if unit in _REACHED_BY else "what is reachable"


def name_of(unit: Unit) -> str:
    """What a unit is called in a sentence: `DRAM`, `tensor cores`, `integer pipe`."""
    return UNIT_NAMES[unit] if unit in ("dram", "tensor") else f"{UNIT_NAMES[unit]} pipe"


def use_of(counters: Counters, busy_fraction: float) -> Use | None:
    """The use of memory and pipes at this u; None if memory or every pipe was not counted, or nothing counted at all.

    A GPU that was busy and shows no use of any unit was not counted.
    """
    memory = counters.utilization("dram", busy_fraction)
    shares = {unit: counters.utilization(unit, busy_fraction) for unit in PIPES}
    pipes = {unit: share for unit, share in shares.items() if share is not None}
    if memory is None or not pipes or not any(counters.shares.values()):
        return None
    pipe = max(pipes, key=lambda unit: pipes[unit])  # of equals the first of PIPES
    measured = frozenset(unit for unit in (*PIPES, "dram") if unit in counters.reachable)
    return Use(round(memory, _DIGITS), pipe, round(pipes[pipe], _DIGITS), measured)
