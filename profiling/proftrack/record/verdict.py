"""What the verdict says."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from proftrack.record.figures import IdleCause, KernelKind, Limit

HostRegime = Literal["input-bound", "sync-bound", "host-bound", "overhead-bound", "mixed"]
GpuRegime = Literal["compute-bound", "memory-bound", "latency-bound", "transfer-bound", "communication-bound"]
Regime = Literal[HostRegime, GpuRegime, "inconclusive"]
"""What holds a step back."""
REGIMES: tuple[Regime, ...] = get_args(Regime)
GPU_REGIMES: tuple[GpuRegime, ...] = get_args(GpuRegime)

Cause = Literal[IdleCause, KernelKind, Limit, "python"]
"""Of T - B why the device was idle, of B the kind of its work; on a CPU also what limits the work, or Python."""
Confidence = Literal["high", "medium", "low"]
Basis = Literal["unprofiled", "profiled"]
"""Whether T was measured without the profiler, or comes from the trace itself."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One figure that speaks for the verdict (or against it), as a sentence with its unit."""

    name: str
    value: float | None
    unit: str
    text: str


class Verdict(Struct, frozen=True, kw_only=True):
    """The regime that holds a step back, and what to do about it."""

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
    """What to do next; then what would not help."""
    reasons: list[str]
    """Why it is inconclusive, or why its confidence is not high."""
    thresholds: dict[str, float]
    """The limits that were in force."""

    def figure(self, name: str) -> float | None:
        """The value of the evidence of that name; None where there is none."""
        return next((each.value for each in self.evidence if each.name == name), None)
