"""variants.json: what was found about each variant, and about all. Times in microseconds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from proftrack.frontends.batch.result import Figures
from proftrack.record.compilation import Compilation, OutputCheck

Status = Literal["measured", "refused", "failed"]
Word = Literal["faster", "slower", "no difference", "inconclusive"]


class Versus(Struct, frozen=True, kw_only=True):
    """The step time of one variant over that of another, round by round."""

    ratio: float
    """Median over the rounds; below 1 it is faster."""
    low: float
    """95 % interval."""
    high: float
    noise: float = 0.0
    """How far the ratio of a single round may be from the median, in eight rounds of ten; 0.05: a factor of 1.05."""
    word: Word


class Change(Struct, frozen=True, kw_only=True):
    """GPU work (on the CPU an operator) that is other than in the first variant."""

    what: Literal["gone", "added", "copy added", "renamed", "more", "less"]
    name: str
    old_name: str = ""
    """Of one that was renamed: the same operator runs another kernel."""
    operator: str
    calls_before: float
    """A step."""
    calls_after: float
    before_us: float
    after_us: float


class Entry(Figures, kw_only=True):
    """One variant; its T is the median of `round_us`."""

    name: str
    changes: dict[str, Any]
    """Its values, where they are other than the experiment's."""
    status: Status = "measured"
    """`error` says why it is another than `measured`."""
    kernels_per_step: float | None = None
    launches_per_step: float | None = None
    first_step_us: float | None = None
    """Compilation, capture and initialisation."""
    build_us: float | None = None
    payoff_steps: int | None = None
    """Steps after which it has won back what it cost to set up more than the first; None where it never does."""
    versus_first: Versus | None = None
    outputs: OutputCheck | None = None
    """Its step's result against that of the first variant."""
    compiled: Compilation | None = None
    """None where nothing was compiled."""
    kernel_changes: list[Change] = []
    round_us: list[float] = []
    """Step time of each round, the samples of all this."""

    @property
    def instead(self) -> str:
        """What stands in a table where the regime would; empty where there are figures."""
        return "" if self.status == "measured" else self.status

    @property
    def set_up_us(self) -> float | None:
        """Build and first step."""
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
    """In one process in turns, or each in processes of its own."""
    entries: list[Entry] = []
    winner: str | None = None
    """None where no difference can be claimed."""
    verdict: str = ""
    """The winner in one sentence, with its interval."""
    remarks: list[str] = []

    @property
    def measured(self) -> list[Entry]:
        """Those that were measured, in order."""
        return [entry for entry in self.entries if entry.status == "measured"]


def load(path: Path) -> Variants:
    """Read variants.json. Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Variants)
