"""The record: everything known about one profiled run or trace, frozen, with a schema version.

Format history
    1   first
    2   steps left out of T and B (`per_step[].outlier`, `per_step[].device_us`, `window.outlier_steps`,
        `times.step_time_all_steps_us`); `launches` may be null; `joint.findings` are objects with a code; hardware
        counters and energy (`counters`, `ceilings.reachable`), `timing.input_wait_us` and the waits of its samples,
        `run.tokens_per_step`; `kernels[].occupancy`; what R leaves out (`work.uncounted_share`,
        `work.launched_kernels`); replayed kernels (`replay`, `kernels[].counters`, `sites[].counters`);
        `modules` are exclusive GPU times by module, optimizer or region, with `sites[].modules` (in version 1 they were
        nn.Module calls in the form of regions); `graphs`
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.counters import PIPES, Counters, Replay, Unit
from proftrack.record.environment import Environment, GpuState
from proftrack.record.figures import (
    CpuWork,
    Device,
    Flag,
    Idle,
    Kernel,
    Launch,
    Op,
    Region,
    Site,
    Split,
    Step,
    Totals,
    Window,
)
from proftrack.record.modules import Graph, Module
from proftrack.record.timing import Timing
from proftrack.record.verdict import Verdict

SCHEMA_VERSION = 2


class SourceFile(Struct, frozen=True, kw_only=True):
    """One trace file that the record was made from."""

    name: str
    bytes: int
    events: int


class Source(Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    kind: Literal["run", "trace"]
    """run (captured by proftrack) or trace (an existing file)."""
    proftrack_version: str
    files: list[SourceFile]
    profiler: dict[str, bool] = {}
    """The profiler's options as the trace states them; they affect the cost of profiling."""
    left_out: list[str] = []
    """Files of the run folder that were not kept because space ran out."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """The run's settings and times; absent for a bare trace."""

    experiment: str
    params: dict[str, Any]
    """The workload's parameters, resolved."""
    variant_params: list[str]
    schedule: dict[str, int]
    profiler: dict[str, bool]
    fingerprint: str
    """Hash of everything that must be equal for two runs to be comparable."""
    fingerprint_keys: dict[str, Any]
    started_ns: int
    ended_ns: int
    peak_memory_bytes: int | None = None
    tokens_per_step: float | None = None
    """Tokens, or samples, that a step handles; None if the workload does not say."""
    notes: list[str] = []
    display_name: str = ""
    """Name and parameters on one line."""


class Times(Struct, frozen=True, kw_only=True):
    """The measured times of a step. Microseconds."""

    step_time_us: float | None = None
    """Back to back, without the profiler; if no steps were timed, the given step time or that of the device window."""
    step_latency_us: float | None = None
    """Synchronized after each step. `Record.step_time_us` tells which of the two is T."""
    step_time_profiled_us: float | None = None
    """Under the profiler: the part of the device window that each typical step takes."""
    step_time_all_steps_us: float | None = None
    """The same over all recorded steps, if outliers were left out."""
    gpu_busy_per_step_us: float | None = None
    """B: the union of the typical steps' GPU work, divided by their number."""
    roofline_time_us: float | None = None
    """R: the least time that this hardware could need."""


class Rates(Struct, frozen=True, kw_only=True):
    """The rates that a step attained: its counted work over T, and its share of the device's attainable rates."""

    tflops: float | None = None
    gbytes_per_s: float | None = None
    """The step's least bytes over T."""
    mfu: float | None = None
    """FLOPs over T times the attainable rate (measured, not the data sheet's)."""
    mbu: float | None = None
    """The same for bytes."""


class Record(Struct, frozen=True, kw_only=True):
    """record.json; also what `proftrack analyze --json -` prints."""

    schema_version: int = SCHEMA_VERSION
    source: Source
    environment: Environment
    run: RunFacts | None = None
    timing: Timing | None = None
    window: Window
    totals: Totals
    per_step: list[Step]
    ops: list[Op]
    kernels: list[Kernel]
    regions: list[Region]
    idle: Idle
    split: Split | None
    launch: Launch | None
    devices: list[Device]
    times: Times
    quality: list[Flag]
    verdict: Verdict
    rates: Rates | None = None
    ceilings: Ceilings | None = None
    work: StepWork | None = None
    gpu_state: GpuState | None = None
    counters: Counters | None = None
    """Of the steps timed without the profiler; None if the device counts nothing, or was not asked."""
    replay: Replay | None = None
    """None if no kernels were to be replayed."""
    cpu: CpuWork | None = None
    sites: list[Site] = []
    modules: list[Module] = []
    """Exclusive times by owner, largest first. Empty if the trace tells of no module, backward pass or optimizer."""
    graphs: list[Graph] = []
    """CUDA graphs that the steps replay, largest first."""

    @property
    def step_time_us(self) -> float | None:
        """T, the step time that the verdict is based on and that is shown and compared. Microseconds.

        If steps were timed, the one that timing.mode chooses; else the given one; else the trace's own (then
        `verdict.basis` is `profiled`). None if there is none.
        """
        return self.timing.chosen.us if self.timing is not None else self.times.step_time_us

    @property
    def cpu_work_us(self) -> float | None:
        """W, used instead of B on a CPU: a step's work within operators, at most T. Microseconds.

        None if there is a GPU, measured or not.
        """
        if self.cpu is None or self.totals.launches or not self.window.steps:
            return None
        return min(sum(self.cpu.working_us.values()) / self.window.steps, self.step_time_us or float("inf"))

    @property
    def typical_steps(self) -> list[Step]:
        """The recorded steps without outliers: what T, B and the causes are means over."""
        return [step for step in self.per_step if step.outlier is None]

    @property
    def steps_of_modules(self) -> int:
        """How many steps the times in `modules` are of: the typical ones; 1 if the trace has no steps."""
        return len(self.typical_steps) or 1

    @property
    def unprofiled_step_time_us(self) -> float | None:
        """T if it was measured without the profiler, else None."""
        return self.step_time_us if self.verdict.basis == "unprofiled" else None

    @property
    def counted_busy_fraction(self) -> float | None:
        """u of the steps that were counted: B over the step time back to back, at most 1; None if either is missing.

        `verdict.gpu_busy_fraction` may be that of steps which are each waited for.
        """
        busy = self.times.gpu_busy_per_step_us
        if busy is None or self.timing is None or not self.timing.step_time_us:
            return None
        return min(busy / self.timing.step_time_us, 1.0)

    def utilization(self, unit: Unit) -> float | None:
        """Use of a unit while the GPU is busy, as a share of what is reachable; None if it is unknown.

        See `Counters.utilization`.
        """
        busy = self.counted_busy_fraction
        return self.counters.utilization(unit, busy) if self.counters is not None and busy is not None else None

    @property
    def utilizations(self) -> dict[Unit, float]:
        """The same of memory and all pipes that were counted, largest first."""
        found = {unit: share for unit in ("dram", *PIPES) if (share := self.utilization(unit)) is not None}
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second, from T without the profiler; None if the workload does not say how many a step handles."""
        step, tokens = self.unprofiled_step_time_us, self.run.tokens_per_step if self.run is not None else None
        return tokens / step * 1e6 if tokens is not None and step else None

    @property
    def joules_per_token(self) -> float | None:
        """Energy of a step divided by its tokens."""
        energy = self.counters.energy_joules_per_step if self.counters is not None else None
        tokens = self.run.tokens_per_step if self.run is not None else None
        return energy / tokens if energy is not None and tokens else None
