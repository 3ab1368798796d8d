"""The results of a comparison, frozen; times are in microseconds per step unless a name says otherwise.

These are the sections of `proftrack compare --format json`. A figure that does not exist is None.
"""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct, field

from proftrack.record.counters import UNIT_NAMES, Unit
from proftrack.record.modules import OwnerKind, Pass

SCHEMA_VERSION = 1

_ENERGY = {"energy_per_step_joules": "energy per step", "power_watts": "power"}

Word = Literal["improved", "regressed", "no difference", "inconclusive"]


class Interval(Struct, frozen=True, kw_only=True):
    """A 95 % interval."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether `value` is within it."""
        return self.low <= value <= self.high


class Floor(Struct, frozen=True, kw_only=True):
    """How far apart the times of two fresh processes with the same code can be."""

    fraction: float
    """0.05: the larger may be 1.05 times the other, in 95 of 100 pairs."""
    source: Literal["measured", "given", "assumed"]
    runs: int = 0
    """Number of runs that it was measured from."""
    text: str = ""
    """One sentence: the floor and where it comes from."""


class TimeChange(Struct, frozen=True, kw_only=True):
    """One time of both runs, and what can be said about the difference."""

    metric: str
    before_us: float
    after_us: float
    ratio: float
    """after / before."""
    interval: Interval | None
    """Interval of the ratio, from the samples within the runs and the noise between processes."""
    within: Interval | None
    """Interval of the ratio, from the samples within the two runs alone."""
    floor: Floor
    word: Word
    reason: str
    """Why this word was chosen."""
    same_data: bool = False
    """Whether both sides are the same measurement."""

    @property
    def change_us(self) -> float:
        """after - before."""
        return self.after_us - self.before_us


class Row(Struct, frozen=True, kw_only=True):
    """One part of the step time in both runs."""

    part: Literal["gpu", "idle", "host", "profiler"]
    """gpu: busy time of one kernel; idle: by cause, scaled to T - B; host: self CPU time of one operator, scaled to T
    (only without GPU work); profiler: how far B is above T, since kernels ran slower under the profiler."""
    status: Literal["added", "gone", "slower", "faster", "more calls", "fewer calls", "renamed", "more", "less", "same"]
    name: str
    """Kernel, cause or operator; in a renamed row the new name."""
    old_name: str = ""
    """The kernel's name before, if it was renamed."""
    operator: str = ""
    """The operator that launched the kernel."""
    shapes: str = ""
    old_shapes: str = ""
    before_us: float
    after_us: float
    calls_before: float = 0.0
    """Calls per step."""
    calls_after: float = 0.0
    note: str = ""
    """What a new name means, such as another tile or another library."""

    @property
    def change_us(self) -> float:
        """The contribution to the change of T; for GPU rows also to that of B."""
        return self.after_us - self.before_us


class Count(Struct, frozen=True, kw_only=True):
    """How often something happens per step: exact, without noise."""

    name: str
    before: float
    after: float
    varies: bool = False
    """Whether it differs between the steps of one run, and so is not exact after all."""


class HostRow(Struct, frozen=True, kw_only=True):
    """An operator or call on the host, per step; measured under the profiler, which inflates it."""

    status: Literal["added", "gone", "slower", "faster", "more calls", "fewer calls", "same"]
    name: str
    calls_before: float
    calls_after: float
    self_before_us: float
    self_after_us: float


class Counted(Struct, frozen=True, kw_only=True):
    """A figure of the hardware counters, in both runs. None if a run lacks it."""

    metric: Unit | Literal["energy_per_step_joules", "power_watts"]
    before: float | None
    after: float | None
    of: Literal["", "reachable", "peak"] = ""
    """What the use of a unit is a share of, while the GPU is busy (`Record.utilization`); else empty."""

    @property
    def name(self) -> str:
        """What people call it."""
        return _ENERGY.get(self.metric) or UNIT_NAMES[cast(Unit, self.metric)]

    @property
    def largest(self) -> float:
        """The larger of the two."""
        return max(self.before or 0.0, self.after or 0.0)

    @property
    def change(self) -> float | None:
        """after - before; None if a run lacks it."""
        return None if self.before is None or self.after is None else self.after - self.before


class ModuleWork(Struct, frozen=True, kw_only=True):
    """GPU work of one name that one operator launches in a module, in both runs; per step."""

    operator: str
    kernel: str
    part: Pass
    before_us: float
    after_us: float
    calls_before: float
    calls_after: float

    @property
    def change_us(self) -> float:
        """after - before."""
        return self.after_us - self.before_us


class ModuleChange(Struct, frozen=True, kw_only=True):
    """A module, optimizer or region whose time changed by more than noise, named as deep as the change is."""

    path: str
    """With `*` for the numbers of siblings that share the change: `layers.*.mlp`. Empty for the outermost module, and
    for what nothing owns."""
    kind: OwnerKind
    class_name: str = field(default="", name="class")
    status: Literal["slower", "faster", "added", "gone", "rebuilt"]
    """rebuilt: some modules in it are gone and others came."""
    before_us: float
    """In a typical step, with the modules in it unless `itself`; of the GPU, or self CPU time in a run without GPU
    work."""
    after_us: float
    parts: dict[Pass, float] = {}
    """The change by pass."""
    itself: bool = False
    """Whether the figures leave out the modules in it, which changed by themselves or not at all."""
    members: int = 1
    """How many modules `path` stands for."""
    old_path: str = ""
    """Its path before, if that was another one."""
    old_class: str = ""
    """Its class before, if that was another one."""
    work: list[ModuleWork] = []
    """The operators and kernels that changed most, largest first."""

    @property
    def change_us(self) -> float:
        """after - before."""
        return self.after_us - self.before_us


class ModuleRow(Struct, frozen=True, kw_only=True):
    """One path of the joined trees, in a typical step. None on a side that lacks it."""

    path: str
    kind: OwnerKind
    class_name: str = field(default="", name="class")
    old_path: str = ""
    before_us: float | None
    """With the modules in it."""
    after_us: float | None
    own_before_us: float | None
    """Without the modules in it."""
    own_after_us: float | None
    parts_before_us: dict[Pass, float] = {}
    """By pass, with the modules in it."""
    parts_after_us: dict[Pass, float] = {}
    noise_us: float = 0.0
    """What the difference may be by noise alone, in 95 of 100 pairs of recordings."""


class Modules(Struct, frozen=True, kw_only=True):
    """The modules of both runs, compared."""

    changes: list[ModuleChange] = []
    """Largest first; empty if none changed by more than noise."""
    rows: list[ModuleRow] = []
    """All paths, in the order of the trees. Empty if a run has no modules."""
    notes: list[str] = []
    """How they were joined, and why some or all are not compared."""


class Different(Struct, frozen=True, kw_only=True):
    """A fact that differs between the two runs."""

    name: str
    before: str | None
    after: str | None


class Commit(Struct, frozen=True, kw_only=True):
    """One commit of a list."""

    hash: str
    subject: str


class CommitRange(Struct, frozen=True, kw_only=True):
    """The commits between the two runs', as far as the current repository has them."""

    before: str
    after: str
    commits: list[Commit] = []
    """Newest first; empty if the repository does not have both."""
    more: int = 0
    """Number of commits beyond those listed."""
    known: bool = False
    """Whether the current repository has both commits."""
    summary: str = ""
    """`3 files changed, 10 insertions(+)`."""


class Side(Struct, frozen=True, kw_only=True):
    """One side, as shown at the top of a comparison."""

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
    """Number of fresh processes behind its step time."""


class Comparison(Struct, frozen=True, kw_only=True):
    """The result of `proftrack compare`."""

    schema_version: int = SCHEMA_VERSION
    headline: str
    word: Word
    """The conclusion about the step time."""
    basis: Literal["unprofiled", "profiled"]
    """Whether the step times were measured without the profiler or come from the traces."""
    baseline: Side
    candidate: Side
    step_time: TimeChange
    busy: TimeChange | None
    """GPU busy time B."""
    counts: list[Count]
    rows: list[Row]
    """Contributions: they add up to the change of the step time, GPU rows alone to the change of B."""
    counters: list[Counted] = []
    """Units of the GPU that are used in either run, energy and power; empty if neither run has counters."""
    modules: list[ModuleChange] = []
    """Modules, optimizers and regions that changed by more than noise, largest first."""
    module_rows: list[ModuleRow] = []
    """All of them, in the order of the tree; empty if a run has none."""
    module_notes: list[str] = []
    """How they were joined, and why some or all are not compared."""
    host: list[HostRow]
    """Operators and calls that were added, are gone, or are called more or less often."""
    changed: list[Different]
    """What else is different."""
    commits: CommitRange | None
    across: list[Different]
    """Keys that should be equal but are not, allowed by --across."""
    notes: list[str]
