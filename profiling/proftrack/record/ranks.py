"""What several ranks say together, as `analyze --json` prints it."""

from __future__ import annotations

from msgspec import Struct

from proftrack.record.verdict import Regime


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank of several. Times in microseconds a step (over the whole trace where it has no steps)."""

    rank: int
    files: list[str]
    regime: Regime
    steps: int
    step_time_us: float | None
    gpu_busy_us: float | None
    communication_us: float | None
    """Time in collectives, waiting included."""
    exposed_communication_us: float | None
    """What of the window only collectives filled."""
    waiting_us: float | None
    """Time in collectives beyond the rank that was quickest through each."""
    partial: bool = False
    """Its trace is broken and was read in part: it is not compared with the others."""
    reasons: list[str] = []
    """Why its verdict is inconclusive."""


class Joint(Struct, frozen=True, kw_only=True):
    """What several ranks say together."""

    schema_version: int = 1
    ranks: list[RankFigures]
    slowest_rank: int | None
    """The rank with the longest step."""
    waited_for_rank: int | None
    """The rank that waits least: the others wait for it. None where nobody waits notably."""
    spread: float | None
    """Longest over shortest step time, less 1."""
    findings: list[str]
    """What this means, in sentences."""
