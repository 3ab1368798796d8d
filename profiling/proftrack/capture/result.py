"""What a capture leaves behind: the unprofiled timing, the traces, and the facts around them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from proftrack.capture.gpu_state import GpuState
from proftrack.experiment import Experiment
from proftrack.hardware import Ceilings, StepWork


class Load(Struct, frozen=True, kw_only=True):
    """What used the processors while the blocks were timed. CPU times in microseconds, over all of `wall_us`."""

    wall_us: float
    cores: int
    """That this process may use."""
    thread_us: float
    """Of the thread that runs the steps."""
    process_us: float
    """Of all threads of this process."""
    python_threads_us: float
    """Of its other threads that Python code started, and of those that ended meanwhile."""
    thread_waited_us: float | None = None
    """How long the thread that runs the steps was ready and had no core; None where the system does not count."""
    waited_us: float | None = None
    """The same of the thread of this process that waited longest."""
    others_us: float | None = None
    """Of other processes on the same cores, and what a hypervisor took; None where it is not known."""

    def share(self, time_us: float | None) -> float:
        """A time as a share of the wall clock: 1 is one core all the time."""
        return (time_us or 0.0) / self.wall_us if self.wall_us else 0.0


class Timing(Struct, frozen=True, kw_only=True):
    """Steps timed without a profiler. Times in microseconds a step."""

    mode: Literal["throughput", "latency"]
    """Which of the two step times is the verdict's T."""
    step_time_us: float
    """Median over blocks of back-to-back steps with one synchronisation at each block's end."""
    step_latency_us: float | None
    """Median of steps that are each followed by a synchronisation; None where too few steps of a user's loop were there
    to time both."""
    step_time_p95_us: float | None
    """95th percentile over the synchronised steps (`step_latencies_us`)."""
    steps_per_block: int
    block_step_times_us: list[float]
    """Mean step time of each block, in the order they ran."""
    step_latencies_us: list[float]
    build_time_us: float | None = None
    first_step_time_us: float | None = None
    """The very first step: holds compilation, autotuning and lazy initialisation."""
    warmup_steps: int = 0
    load: Load | None = None
    """What else ran while the blocks were timed."""

    @property
    def verdict_step_time_us(self) -> float:
        """T, the step time that `mode` chooses."""
        latency = self.step_latency_us if self.mode == "latency" else None
        return self.step_time_us if latency is None else latency


class Cycle(Struct, frozen=True, kw_only=True):
    """One active window of the schedule, exported to its own trace."""

    trace: Path
    expected_steps: int


class Capture(Struct, frozen=True, kw_only=True):
    """Everything `capture` measured; the analysis takes it from here."""

    experiment: Experiment
    """What was measured: the experiment that was asked for, with what `auto` became."""
    timing: Timing | None
    """None where a user's loop has too few steps before the recorded ones."""
    cycles: list[Cycle]
    peak_memory_bytes: int | None
    """Largest memory that torch's allocator held during the steps (CUDA only)."""
    started_ns: int
    """Epoch nanoseconds when the capture began; `ended_ns` when it was over."""
    ended_ns: int
    device: str
    """torch device type that the workload ran on: cuda or cpu."""
    ceilings: Ceilings | None = None
    """Attainable rates of the device; None where they were not asked for."""
    work: StepWork | None = None
    """What one step must at least do; None where it could not be counted."""
    gpu: GpuState | None = None
    """Clocks and neighbours of the GPU right behind the timed steps."""
    all_threads: bool = False
    """Whether operators of threads that the user started were recorded."""
    notes: list[str] = []
    """Sentences about what could not be had (GPU asked for and absent, one cycle short, ...)."""
