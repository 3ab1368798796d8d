"""What a comparison says: frozen results, times in microseconds a step unless a name says otherwise.

These are the sections of `proftrack compare --format json`. A figure that does not exist is None.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SCHEMA_VERSION = 1

Word = Literal["improved", "regressed", "no difference", "inconclusive"]


class Interval(Struct, frozen=True, kw_only=True):
    """A 95 % interval."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether `value` lies in it."""
        return self.low <= value <= self.high


class Floor(Struct, frozen=True, kw_only=True):
    """How far the times of two fresh processes that run the same code can be apart."""

    fraction: float
    """0.05: the larger may be 1.05 times the other, in 95 of 100 pairs."""
    source: Literal["measured", "given", "assumed"]
    runs: int = 0
    """Runs that it was measured from."""
    text: str = ""
    """Where it comes from, in one sentence."""


class TimeChange(Struct, frozen=True, kw_only=True):
    """One time of both runs, and what may be said about the difference."""

    metric: str
    before_us: float
    after_us: float
    ratio: float
    """after / before."""
    interval: Interval | None
    """Of the ratio: as wide as the samples within the runs and the noise between processes make it."""
    within: Interval | None
    """Of the ratio, by the samples within the two runs alone."""
    floor: Floor
    word: Word
    reason: str
    """Why that word."""
    same_data: bool = False
    """Whether both sides are one and the same measurement."""

    @property
    def change_us(self) -> float:
        """after - before."""
        return self.after_us - self.before_us


class Row(Struct, frozen=True, kw_only=True):
    """One part of the step time in both runs."""

    part: Literal["gpu", "idle", "host", "profiler"]
    """gpu: busy time of one kernel; idle: by cause, scaled to T - B; host: self CPU time of one operator, scaled to T
    (only where there is no GPU work); profiler: what B is above T, since kernels ran slower under the profiler."""
    status: Literal["added", "gone", "slower", "faster", "more calls", "fewer calls", "renamed", "more", "less", "same"]
    name: str
    """Kernel, cause or operator; in a renamed row the new name."""
    old_name: str = ""
    """The kernel's name before, where it was renamed."""
    operator: str = ""
    """What launched the kernel."""
    shapes: str = ""
    old_shapes: str = ""
    before_us: float
    after_us: float
    calls_before: float = 0.0
    """A step."""
    calls_after: float = 0.0
    note: str = ""
    """What a new name means: another tile, another library."""

    @property
    def change_us(self) -> float:
        """The contribution to the change of T; for GPU rows also to that of B."""
        return self.after_us - self.before_us


class Count(Struct, frozen=True, kw_only=True):
    """How often something happens a step: exact, not subject to noise."""

    name: str
    before: float
    after: float
    varies: bool = False
    """Whether it differs between the steps of one run, so that it is not exact after all."""


class HostRow(Struct, frozen=True, kw_only=True):
    """An operator or call on the host, a step; under the profiler, which inflates it."""

    status: Literal["added", "gone", "slower", "faster", "more calls", "fewer calls", "same"]
    name: str
    calls_before: float
    calls_after: float
    self_before_us: float
    self_after_us: float


class Different(Struct, frozen=True, kw_only=True):
    """A fact about the two runs that is not equal."""

    name: str
    before: str | None
    after: str | None


class Commit(Struct, frozen=True, kw_only=True):
    """One commit as a list shows it."""

    hash: str
    subject: str


class CommitRange(Struct, frozen=True, kw_only=True):
    """What lies between the two runs' commits, as far as the repository at hand knows it."""

    before: str
    after: str
    commits: list[Commit] = []
    """Newest first; empty where the repository does not know both."""
    more: int = 0
    """Commits beyond those listed."""
    known: bool = False
    """Whether the repository at hand has both commits."""
    summary: str = ""
    """`3 files changed, 10 insertions(+)`."""


class Side(Struct, frozen=True, kw_only=True):
    """One of the two, as a head line shows it."""

    label: str
    name: str
    run_id: str | None = None
    commit: str | None = None
    branch: str | None = None
    dirty: bool = False
    started_ns: int | None = None
    step_time_us: float | None = None
    gpu_busy_per_step_us: float | None = None
    regime: str = ""
    confidence: str = ""
    runs: int = 1
    """Fresh processes that its step time rests on."""


class Comparison(Struct, frozen=True, kw_only=True):
    """`proftrack compare`."""

    schema_version: int = SCHEMA_VERSION
    headline: str
    word: Word
    """What is said about the step time."""
    basis: Literal["unprofiled", "profiled"]
    """Whether the step times were measured without the profiler or come from the traces."""
    baseline: Side
    candidate: Side
    step_time: TimeChange
    busy: TimeChange | None
    """GPU busy time B."""
    counts: list[Count]
    rows: list[Row]
    """Contributions: they add up to the change of the step time; GPU rows alone to the change of B."""
    host: list[HostRow]
    """Operators and calls that were added, went, or are called more or less often."""
    changed: list[Different]
    """What else is different."""
    commits: CommitRange | None
    across: list[Different]
    """Keys that should be equal and are not, allowed by --across."""
    notes: list[str]
