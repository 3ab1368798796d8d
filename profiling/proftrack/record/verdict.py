"""What the verdict says."""

from __future__ import annotations

from msgspec import Struct


class Evidence(Struct, frozen=True, kw_only=True):
    """One figure that speaks for the verdict (or against it), as a sentence with its unit."""

    name: str
    value: float | None
    unit: str
    text: str


class Verdict(Struct, frozen=True, kw_only=True):
    """The regime that holds a step back, and what to do about it."""

    regime: str
    """One of verdict.REGIMES, `inconclusive` among them."""
    cause: str | None
    """The largest cause of T - B, or the kernel kind that takes most of B."""
    confidence: str
    """high, medium or low."""
    basis: str
    """unprofiled: T was measured without the profiler; profiled: T comes from the trace itself."""
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
