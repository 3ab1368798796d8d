"""The figures measured from a trace: frozen results, with all times in microseconds unless a name says otherwise.

These are also the sections of record.json (`window`, `totals`, `per_step`, `ops`, `kernels`, ...).
A missing figure is None, never 0 and never NaN.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from proftrack.record.counters import KernelCounters

Limit = Literal["arithmetic", "bandwidth", "communication", "latency", "transfer", "unknown"]
"""What limits a piece of GPU work."""
LIMITS: tuple[Limit, ...] = get_args(Limit)

IdleCause = Literal[
    "dispatch", "host", "input", "synchronization", "allocator", "profiler", "startup", "queued", "unknown"
]
"""Why a device was idle."""
IDLE_CAUSES: tuple[IdleCause, ...] = get_args(IdleCause)

KernelKind = Literal[
    "matmul",
    "gemv",
    "split-k reduction",
    "convolution",
    "attention",
    "normalization",
    "reduction",
    "elementwise",
    "multi-tensor",
    "sort",
    "embedding",
    "random",
    "copy",
    "host-device copy",
    "peer copy",
    "memset",
    "communication",
    "unknown",
]
"""The kind of a piece of GPU work, judged by its name."""

OccupancyLimit = Literal["threads", "registers", "shared memory", "blocks", "grid"]
"""What lets no more warps of a kernel run at a time: what a multiprocessor has for threads, registers, shared memory or
blocks, or a grid with too few blocks."""

EXCLUDED_REGION = "proftrack: excluded"
"""The region that capture puts around what runs inside a loop but is no part of a step, as evaluation is."""
LOADING_REGION = "proftrack: loading"
"""The region around what a program marks as waiting for its data."""

FlagCode = Literal[
    "no_steps",
    "partial_window",
    "fewer_steps",
    "several_processes",
    "uneven_steps",
    "launches_without_gpu_work",
    "gpu_not_measured",
    "work_before_window",
    "gpu_before_launch",
    "overlapping_on_stream",
    "impossible_durations",
    "gpu_work_without_launch",
    "invalid_timestamps",
    "duplicate_rows",
    "repaired_json",
    "partial_file",
    "under_recorded_graphs",
    "recompiled_in_window",
    "slow_under_profiler",
    "roofline_above_busy",
    "gpu_throttled",
    "clocks_low",
    "gpu_shared",
    "work_not_counted",
    "other_threads",
    "batches_ready",
    "evaluation_in_steps",
    "no_region",
    "outlier_steps",
    "cold_start",
]
"""Properties of a trace that change what its figures mean; measures.quality has a sentence for each."""


class Window(Struct, frozen=True, kw_only=True):
    """The time window that the figures cover; sums over the cycles if there are several."""

    steps: int
    step_names: list[str]
    duration_us: float | None
    """From the first step's start to the later of the last step's end and the end of the steps' own GPU work."""
    device_duration_us: float | None
    """The device window: the same, with work left over from earlier steps cut off at its start."""
    cycles: int = 1
    outlier_steps: int = 0
    """Steps that the figures of a step leave out; see Step.outlier."""

    @property
    def typical_steps(self) -> int:
        """Steps that the figures of a step are means of; at least 1, as a trace without steps counts as one."""
        return max(self.steps - self.outlier_steps, 1)


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over the whole trace; GPU figures are None if the trace has no GPU work."""

    self_cpu_time_total_us: float | None
    """None if the trace has no rows of the host, or none whose category tells what they are."""
    self_cuda_time_total_us: float | None
    gpu_busy_us: float | None
    gpu_idle_us: float | None
    gpu_busy_fraction_profiled: float | None
    gpu_events: int
    kernels: int
    launches: int | None
    """None if a device worked, but no call has the name of a launch: then it is not known which calls are launches."""
    gpu_events_without_launch: int


class Step(Struct, frozen=True, kw_only=True):
    """One ProfilerStep and the GPU work that it launched."""

    step: int
    host_us: float
    self_cpu_time_us: float | None = None
    """Self CPU time of the host rows that start in the step, on all threads."""
    self_cuda_time_us: float | None
    gpu_events: int
    kernels: int
    launches: int | None
    """None if the totals' is."""
    device_us: float | None = None
    """From the end of the step before it to its own end or that of its GPU work, whichever is later."""
    outlier: str | None = None
    """What filled it, for a step that T, B and the causes leave out because it is long and does not recur."""


def launches_per_step(steps: list[Step]) -> float | None:
    """The mean over one or more steps; None if it is not known for all."""
    counts = [step.launches for step in steps if step.launches is not None]
    return sum(counts) / len(steps) if len(counts) == len(steps) else None


class Op(Struct, frozen=True, kw_only=True):
    """All host rows (operators, annotations, runtime calls) of one name."""

    name: str
    category: str
    calls: int
    self_cpu_time_us: float
    cpu_time_us: float
    self_cuda_time_us: float
    """GPU work that the rows themselves launched (joined by correlation and External id)."""
    cuda_time_us: float
    """The same, including the rows nested in them."""


class Occupancy(Struct, frozen=True, kw_only=True):
    """How far a kernel's launches can fill the GPU. Derived from the registers, shared memory, block and grid in its
    trace rows and the limits of the device; nothing here is measured.

    Launches differ: the first figures are means over them, weighed by their time.
    """

    theoretical: float
    """Warps that run on a multiprocessor at a time over the most that can, 0..1, with enough blocks for all."""
    at_most: float
    """The same over the whole device, where a grid may have too few blocks."""
    waves: float
    """Blocks over those that the device runs at a time; below 1 if the grid does not fill it."""
    last_wave_share: float
    """How far the last wave fills the device, 0..1; 1 if its blocks come out even."""
    tail: float
    """Share of all waves' places for blocks that stay empty, all of them in the last wave."""
    limited_by: list[OccupancyLimit]
    """What binds in most of the time: raising one of several alone wins nothing. `grid` if there is less than a wave,
    `threads` alone if every warp has a place."""
    covered_us: float
    """Time of the launches that these figures are of: those whose rows say everything."""
    blocks_per_sm: int
    """Of the shape with most of that time, like the rest: blocks that a multiprocessor runs at a time."""
    registers: int
    """Of each thread."""
    shared_bytes: int
    """Of each block, static and dynamic."""
    block_threads: int
    """Threads of each block."""
    shape_share: float
    """That shape's share of the time."""


class Kernel(Struct, frozen=True, kw_only=True):
    """All GPU work of one name: kernels, copies and memory sets."""

    name: str
    kind: KernelKind
    calls: int
    total_us: float
    mean_us: float
    min_us: float
    max_us: float
    share: float
    """Share of `self_cuda_time_total_us`, 0..1."""
    limit: Limit
    blocks: int | None = None
    """Thread blocks of the longest launch."""
    small_us: float = 0.0
    """Time of the launches with a grid that fills under half of the multiprocessors."""
    flops: int | None = None
    """From the operators' shapes; None if not every launch could be counted."""
    bytes: int | None = None
    """The least that the operators must move; for copies and sets, the bytes that they moved."""
    roofline_us: float | None = None
    """Least time for that work on this device; None without ceilings."""
    counters: KernelCounters | None = None
    """Only of kernels that were replayed (`timing.counters: ncu`)."""
    occupancy: Occupancy | None = None
    """None for copies and sets, and where the rows or the device's limits do not tell."""

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


class Site(Struct, frozen=True, kw_only=True):
    """GPU work of one name that one operator launched with one set of input shapes, within the device window."""

    operator: str
    """Empty if no launch was recorded."""
    shapes: str
    """The operator's input shapes as JSON; empty if they were not recorded."""
    kernel: str
    kind: KernelKind
    calls: int
    busy_us: float
    """Its share of B times the steps; all sites add up to that. Concurrent work shares its time equally."""
    counters: KernelCounters | None = None
    """Of those of its launches that were replayed."""
    modules: list[str] = []
    """Paths of the modules, compiled regions and optimizers that own its work (see `record.modules`), the one with most
    time first; at most ten. The outermost module, whose path is empty, is its class in parentheses."""


class Region(Struct, frozen=True, kw_only=True):
    """A record_function region (user_annotation) other than ProfilerStep."""

    name: str
    calls: int
    cpu_time_us: float
    gpu_busy_us: float | None
    launches: int | None
    """None if the totals' is."""


class IdleGap(Struct, frozen=True, kw_only=True):
    """One interval in which the device did nothing."""

    start_us: float
    """Relative to the device window's start."""
    duration_us: float
    cause: IdleCause
    during: str
    """What the host was doing for most of it."""


class Idle(Struct, frozen=True, kw_only=True):
    """The device window's idle time by cause."""

    by_cause_us_per_step: dict[IdleCause, float]
    largest: list[IdleGap]
    rows_by_cause_per_step: dict[IdleCause, float] = {}
    """Host rows recorded in those gaps: recording each of them took some time."""


class Split(Struct, frozen=True, kw_only=True):
    """The window as four exclusive parts that add up to `window.duration_us`."""

    compute_us: float
    exposed_communication_us: float
    exposed_copy_us: float
    idle_us: float


class Stream(Struct, frozen=True, kw_only=True):
    """Launch delay and queue of one stream, over the work with a recorded launch."""

    device: int
    stream: str
    gpu_events: int
    busy_us: float
    delay_median_us: float
    delay_p95_us: float
    queue_depth_max: int


class Launch(Struct, frozen=True, kw_only=True):
    """How long work waited between the end of its launch call and its start on the device."""

    delay_median_us: float | None
    delay_p95_us: float | None
    queue_depth_max: int | None
    launch_call_mean_us: float | None
    interval_median_us: float | None = None
    """From one launch call's start to the next on the same thread: the host's launch interval under the profiler."""
    streams: list[Stream] = []
    """The same figures for each stream, busiest first."""


class TraceWork(Struct, frozen=True, kw_only=True):
    """The work of all steps, as far as the operators' recorded shapes tell."""

    flops_by_dtype: dict[str, float]
    uncounted_us: float
    """GPU time of work from operators of unknown cost."""
    uncounted: list[str]
    """The operators (or kernels) with most of it."""


class CpuCalls(Struct, frozen=True, kw_only=True):
    """All calls of one operator with the same input shapes in a trace of the CPU."""

    name: str
    calls: int
    self_us: float
    """Median self time of a call; a call interrupted by the system says nothing about the operator."""
    flops: float | None = None
    """For one call, like `bytes` and `dtype`; None if the shapes do not tell."""
    bytes: float | None = None
    dtype: str | None = None


class CpuTrace(Struct, frozen=True, kw_only=True):
    """The operators of a CPU trace."""

    calls: list[CpuCalls]
    threads: int
    """Number of threads that called operators."""
    overlap: float = 1.0
    """Time in which any thread was in an operator, over the sum of the threads' times: 0.5 if two work all the time."""


class CpuWork(Struct, frozen=True, kw_only=True):
    """Where steps on a CPU spend their time, in microseconds over all steps. Concurrent threads count once."""

    operators: int
    """Calls of operators, including nested ones."""
    operators_us: float
    """Time within operators."""
    working_us: dict[Limit, float]
    """The part of it that is actual work, by limit (arithmetic, bandwidth, unknown): the operators' self times in
    excess of the measured price of a call."""
    least_working_us: dict[Limit, float] = {}
    """The same if every call cost as much as the most expensive one measured."""
    threads: int = 1
    """Number of threads that called operators."""


class Device(Struct, frozen=True, kw_only=True):
    """The figures of one device of several; `totals` are those of the busiest."""

    device: int
    name: str | None
    gpu_events: int
    kernels: int
    streams: int
    self_cuda_time_total_us: float
    gpu_busy_us: float


class Flag(Struct, frozen=True, kw_only=True):
    """A property of the trace that changes what its figures mean."""

    code: FlagCode
    count: int
    message: str
