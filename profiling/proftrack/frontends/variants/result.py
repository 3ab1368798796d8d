"""variants.json: the figures of each variant, and the verdict. Times in microseconds per step."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from proftrack.frontends.batch.result import Figures
from proftrack.record.compilation import Compilation, OutputCheck

Status = Literal["measured", "refused", "failed"]
Word = Literal["faster", "slower", "no difference", "inconclusive"]


class Versus(Struct, frozen=True, kw_only=True):
    """The step time of one variant divided by that of another, round by round."""

    ratio: float
    """Median over the rounds; below 1 it is faster."""
    low: float
    """`low` to `high` is the 95 % interval."""
    high: float
    noise: float = 0.0
    """How far the ratio of a single round is from the median, in eight rounds of ten; 0.05 means a factor of 1.05."""
    word: Word


class Change(Struct, frozen=True, kw_only=True):
    """GPU work (on the CPU, an operator) that differs from the first variant."""

    what: Literal["gone", "added", "copy added", "renamed", "more", "less"]
    name: str
    old_name: str = ""
    """For `renamed`, the kernel that the same operator ran before."""
    operator: str
    calls_before: float
    """Per step, like all figures here."""
    calls_after: float
    before_us: float
    after_us: float


class Entry(Figures, kw_only=True):
    """The figures of one variant; its T is the median of `round_us`."""

    name: str
    changes: dict[str, Any]
    """Its values that differ from the experiment's."""
    status: Status = "measured"
    """`error` has the reason if it is not `measured`."""
    kernels_per_step: float | None = None
    launches_per_step: float | None = None
    first_step_us: float | None = None
    """Includes compilation, capture and initialisation."""
    build_us: float | None = None
    payoff_steps: int | None = None
    """Steps after which it has made up for a set-up that costs more than the first's; None if it never does."""
    versus_first: Versus | None = None
    outputs: OutputCheck | None = None
    """Its step's result compared with that of the first variant."""
    compiled: Compilation | None = None
    """None if nothing was compiled."""
    kernel_changes: list[Change] = []
    round_us: list[float] = []
    """Step time of each round: the samples behind T and the comparison."""

    @property
    def instead(self) -> str:
        """The word shown instead of the regime in a table; empty if there are figures."""
        return "" if self.status == "measured" else self.status

    @property
    def set_up_us(self) -> float | None:
        """Build plus first step."""
        return None if self.first_step_us is None else (self.build_us or 0.0) + self.first_step_us


class Variants(Struct, kw_only=True):
    """variants.json."""

    schema_version: int = 1
    experiment: str
    title: str
    device: str
    mode: str
    """throughput or latency: which step time is compared."""
    how: str
    """In one process, or each in fresh processes."""
    entries: list[Entry] = []
    winner: str | None = None
    """None if no difference can be claimed."""
    verdict: str = ""
    """The winner in one sentence, with its interval."""
    remarks: list[str] = []

    @property
    def measured(self) -> list[Entry]:
        """The variants that were measured, in order."""
        return [entry for entry in self.entries if entry.status == "measured"]
