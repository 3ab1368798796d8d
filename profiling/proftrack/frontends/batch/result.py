"""The figures of a part, the same for a point of a sweep and for a variant. Times in microseconds per step."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from proftrack.record import Record

INCONCLUSIVE = "inconclusive"


class Figures(Struct, kw_only=True):
    """The figures of one part; None if the part failed or the figure does not exist."""

    step_time_us: float | None = None
    """T."""
    busy_us: float | None = None
    """B; on the CPU, the time that operators work."""
    on_cpu: bool = False
    """Whether `busy_us` is the time that operators work."""
    roofline_us: float | None = None
    """R."""
    energy_joules: float | None = None
    """Of a step."""
    regime: str = ""
    confidence: str = ""
    doubts: list[str] = []
    """Why the verdict is inconclusive; empty if it is not."""
    run_id: str | None = None
    """The run in the store."""
    error: str | None = None
    """Why there are no figures."""

    @property
    def is_inconclusive(self) -> bool:
        """Whether the figures give no verdict."""
        return self.regime == INCONCLUSIVE

    @property
    def busy_fraction(self) -> float | None:
        """u = B / T."""
        return self.busy_us / self.step_time_us if self.busy_us is not None and self.step_time_us else None

    @property
    def instead(self) -> str:
        """The word shown instead of the regime in a table; empty if there are figures."""
        return "failed" if self.error is not None else ""


def fill(figures: Figures, record: Record) -> None:
    """Copy the figures of a record into a part."""
    verdict = record.verdict
    figures.step_time_us = record.step_time_us
    figures.busy_us = _busy_us(record)
    figures.on_cpu = record.times.gpu_busy_per_step_us is None and figures.busy_us is not None
    figures.roofline_us = record.times.roofline_time_us
    figures.energy_joules = record.counters.energy_joules_per_step if record.counters is not None else None
    figures.regime, figures.confidence = verdict.regime, verdict.confidence
    figures.doubts = list(verdict.reasons) if figures.is_inconclusive else []


def _busy_us(record: Record) -> float | None:
    """B; on the CPU, which has no GPU lane, the part of the step that the verdict counts as work."""
    busy = record.times.gpu_busy_per_step_us
    return busy if busy is not None else record.cpu_work_us


def regimes(parts: Iterable[Figures]) -> list[str]:
    """The distinct regimes, in the order of the parts."""
    return list(dict.fromkeys(part.regime for part in parts if part.regime))
