"""The ranks of one run: what each recorded of its collectives, and their comparison, as `analyze --json` prints it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from proftrack.record.verdict import Regime


class Collective(Struct, frozen=True, array_like=True):
    """One collective of one rank. Its duration includes waiting for the other ranks."""

    name: str
    start_us: float
    """On the trace's own clock."""
    duration_us: float
    step: int | None = None
    """Number of the step that it belongs to."""
    group: str = ""
    """Name of its process group, if the trace states it."""
    members: tuple[int, ...] | None = None
    """The ranks that meet in it. None if the trace does not say; empty if it could be one of several groups."""
    size: int | None = None
    """How many ranks meet in it, where the trace states only that."""
    sequence: int | None = None
    """Its number within the group, the same on every rank."""
    between_two: bool = False
    """A send or a receive: it concerns one other rank, not the whole group."""
    exposed_us: float | None = None
    """The part of it that neither a kernel nor an earlier collective hides; None without GPU work."""


FindingCode = Literal[
    "step_times",
    "waited_for",
    "one_step",
    "started_late",
    "waited_once",
    "wait_in_turns",
    "no_waiting",
    "groups_unknown",
    "different_counts",
    "different_steps",
    "point_to_point",
    "missing_ranks",
    "partial_ranks",
    "assumed_ranks",
    "coordinator",
    "stages",
]
"""What a comparison of ranks can say."""


class Finding(Struct, frozen=True):
    """One thing that the ranks say together."""

    code: FindingCode
    text: str
    """A sentence or two."""


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank of several. Times in microseconds per typical step (for the whole trace if it has no steps)."""

    rank: int
    stage: str | None = None
    """The stage whose traces these are (EXTEND, DECODE), if the file names tell several stages apart."""
    files: list[str]
    regime: Regime
    steps: int
    outlier_steps: int = 0
    """Steps that the times leave out; see Step.outlier."""
    step_time_us: float | None
    gpu_busy_us: float | None
    communication_us: float | None
    """Time in the steps' collectives, including waiting."""
    exposed_communication_us: float | None
    """The part of it that no kernel hides."""
    waiting_us: float | None
    """Time in collectives beyond that of the fastest rank of the process group in each, per step that all ranks have
    recorded."""
    waits_for: int | None = None
    """The rank that this one waits for notably."""
    partial: bool = False
    """The trace is broken and was read only in part: the rank is not compared with the others."""
    reasons: list[str] = []
    """Why the verdict is inconclusive."""


class Joint(Struct, frozen=True, kw_only=True):
    """The comparison of several ranks."""

    schema_version: int = 1
    ranks: list[RankFigures]
    slowest_rank: int | None
    """The rank with the most time of its own in a step: without its waiting for others."""
    waited_for_rank: int | None
    """The rank that all waiting goes back to. None if no rank waits notably, or if that cannot be said."""
    spread: float | None
    """Longest over shortest step time, minus 1."""
    findings: list[Finding]
    """What the figures mean."""
