"""The record: everything known about one profiled run or trace, frozen, with a schema version.

Format history
    1   first
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.environment import Environment
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
from proftrack.record.gpu_state import GpuState
from proftrack.record.timing import Timing
from proftrack.record.verdict import Verdict

SCHEMA_VERSION = 1


class SourceFile(Struct, frozen=True, kw_only=True):
    """One trace file that the record was made from."""

    name: str
    bytes: int
    events: int


class Source(Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    kind: Literal["run", "trace"]
    """run (captured by proftrack) or trace (somebody's file)."""
    proftrack_version: str
    files: list[SourceFile]
    profiler: dict[str, bool] = {}
    """The profiler's options as the trace names them; they change what profiling costs."""
    left_out: list[str] = []
    """Files of the run folder that were not kept, for want of space."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What was asked for and when; absent for a bare trace."""

    experiment: str
    params: dict[str, Any]
    """The workload's parameters, resolved."""
    variant_params: list[str]
    schedule: dict[str, int]
    profiler: dict[str, bool]
    fingerprint: str
    """Hash of all that must be equal for two runs to be comparable."""
    fingerprint_keys: dict[str, Any]
    started_ns: int
    ended_ns: int
    peak_memory_bytes: int | None = None
    notes: list[str] = []
    display_name: str = ""
    """Name and parameters on one line."""


class Times(Struct, frozen=True, kw_only=True):
    """The times of a step as they were measured. Microseconds."""

    step_time_us: float | None = None
    """Back to back, without the profiler; given, or of the device window, where no steps were timed."""
    step_latency_us: float | None = None
    """Synchronised after each step. `Record.step_time_us` says which of the two is T."""
    step_time_profiled_us: float | None = None
    gpu_busy_per_step_us: float | None = None
    """B: union of GPU work in the device window over the steps."""
    roofline_time_us: float | None = None
    """R: the least that this hardware could need."""


class Rates(Struct, frozen=True, kw_only=True):
    """What a step attained: its counted work over T, and its share of what the device can do."""

    tflops: float | None = None
    gbytes_per_s: float | None = None
    """Least bytes of the step over T."""
    mfu: float | None = None
    """FLOPs over T times the attainable rate (measured, not the data sheet's)."""
    mbu: float | None = None
    """The same of bytes."""


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
    cpu: CpuWork | None = None
    sites: list[Site] = []
    modules: list[Region] = []
    """nn.Module calls, where stacks were recorded."""

    @property
    def step_time_us(self) -> float | None:
        """T, the step time that the verdict rests on, and that is shown and compared as the step time. Microseconds.

        The one that timing.mode chooses where steps were timed, else the one that was given, else the trace's own
        (`verdict.basis` is then `profiled`). None where there is none.
        """
        return self.timing.chosen.us if self.timing is not None else self.times.step_time_us

    @property
    def cpu_work_us(self) -> float | None:
        """W, which stands in for B on a CPU: a step's work within operators, as far as it fits into T. Microseconds.

        None where there is a GPU, measured or not.
        """
        if self.cpu is None or self.totals.launches or not self.window.steps:
            return None
        return min(sum(self.cpu.working_us.values()) / self.window.steps, self.step_time_us or float("inf"))

    @property
    def unprofiled_step_time_us(self) -> float | None:
        """T where it was measured without the profiler, else None."""
        return self.step_time_us if self.verdict.basis == "unprofiled" else None
