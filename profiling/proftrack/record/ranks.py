"""The comparison of several ranks, as `analyze --json` prints it."""

from __future__ import annotations

from msgspec import Struct

from proftrack.record.verdict import Regime


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank of several. Times in microseconds per step (for the whole trace if it has no steps)."""

    rank: int
    files: list[str]
    regime: Regime
    steps: int
    step_time_us: float | None
    gpu_busy_us: float | None
    communication_us: float | None
    """Time in collectives, including waiting."""
    exposed_communication_us: float | None
    """The part of the window that only collectives filled."""
    waiting_us: float | None
    """Time in collectives beyond that of the fastest rank in each."""
    partial: bool = False
    """The trace is broken and was read only in part: the rank is not compared with the others."""
    reasons: list[str] = []
    """Why the verdict is inconclusive."""


class Joint(Struct, frozen=True, kw_only=True):
    """The comparison of several ranks."""

    schema_version: int = 1
    ranks: list[RankFigures]
    slowest_rank: int | None
    """The rank with the longest step."""
    waited_for_rank: int | None
    """The rank that waits least: the others wait for it. None if no rank waits notably."""
    spread: float | None
    """Longest over shortest step time, minus 1."""
    findings: list[str]
    """What the figures mean, in sentences."""
