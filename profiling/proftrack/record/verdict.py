"""The verdict: the regime, its cause and its evidence."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from proftrack.record.figures import IdleCause, KernelKind, Limit

HostRegime = Literal["input-bound", "sync-bound", "host-bound", "overhead-bound", "mixed"]
GpuRegime = Literal["compute-bound", "memory-bound", "latency-bound", "transfer-bound", "communication-bound"]
Regime = Literal[HostRegime, GpuRegime, "inconclusive"]
"""What limits a step."""
GPU_REGIMES: tuple[GpuRegime, ...] = get_args(GpuRegime)

Cause = Literal[IdleCause, KernelKind, Limit, "python"]
"""The cause of T - B is why the device was idle, that of B is the kind of its work; on a CPU it may also be what limits
the work, or Python."""
Confidence = Literal["high", "medium", "low"]
Basis = Literal["unprofiled", "profiled"]
"""Whether T was measured without the profiler, or comes from the trace itself."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One figure that supports or contradicts the verdict, and a sentence with its value and unit."""

    name: str
    value: float | None
    unit: str
    text: str


class Verdict(Struct, frozen=True, kw_only=True):
    """The regime that limits a step, and what to do about it."""

    regime: Regime
    cause: Cause | None
    """The largest cause of T - B, or the kernel kind that takes most of B."""
    confidence: Confidence
    basis: Basis
    gpu_busy_fraction: float | None
    """u = B / T."""
    summary: str
    """One plain sentence."""
    evidence: list[Evidence]
    advice: list[str]
    """What to do next, then what would not help."""
    reasons: list[str]
    """Why the verdict is inconclusive, or why its confidence is not high."""
    thresholds: dict[str, float]
    """The thresholds that were used."""

    def figure(self, name: str) -> float | None:
        """The value of the evidence with this name; None if there is none."""
        return next((evidence.value for evidence in self.evidence if evidence.name == name), None)
