"""variants.json: what was found about each variant, and about all. Times in microseconds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

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


class Outputs(Struct, frozen=True, kw_only=True):
    """The step's result against that of the first variant; see proftrack.capture.output_check."""

    equal: bool | None
    error: float | None
    tolerance: float | None
    text: str


class Compiled(Struct, frozen=True, kw_only=True):
    """What torch.compile did for it; see proftrack.capture.compilation."""

    graphs: int
    graph_breaks: int
    break_reasons: list[str]
    recompiles: int
    cudagraph_skips: int
    cache_hits: int


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


class Entry(Struct, kw_only=True):
    """One variant."""

    name: str
    changes: dict[str, Any]
    """Its values, where they are other than the experiment's."""
    status: Literal["measured", "refused", "failed"] = "measured"
    reason: str = ""
    """Why it was refused, or failed."""
    step_time_us: float | None = None
    busy_us: float | None = None
    roofline_us: float | None = None
    regime: str = ""
    confidence: str = ""
    kernels_per_step: float | None = None
    launches_per_step: float | None = None
    first_step_us: float | None = None
    """Compilation, capture and initialisation."""
    build_us: float | None = None
    payoff_steps: int | None = None
    """Steps after which it has won back what it cost to set up more than the first; None where it never does."""
    versus_first: Versus | None = None
    outputs: Outputs | None = None
    compiled: Compiled | None = None
    kernel_changes: list[Change] = []
    round_us: list[float] = []
    """Step time of each round, the samples of all this."""
    run_id: str | None = None

    @property
    def busy_fraction(self) -> float | None:
        """u = B / T."""
        return self.busy_us / self.step_time_us if self.busy_us is not None and self.step_time_us else None


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


def save(found: Variants, path: Path) -> None:
    """Write variants.json."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def load(path: Path) -> Variants:
    """Read variants.json. Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Variants)
