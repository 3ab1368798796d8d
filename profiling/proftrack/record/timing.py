"""Steps timed without a profiler, as stored in a record."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Mode = Literal["throughput", "latency"]
"""Which of the two step times is T: that of steps back to back, or of steps each followed by a synchronization."""

NORMAL = 1.4826
"""The standard deviation of normal times, divided by the distance from their middle within which half of them are:
their median absolute deviation."""


def metric_of(mode: str | None) -> str:
    """The name of the measured figure that is T for this timing.mode, in `times` and among MLflow's metrics."""
    return "step_latency_us" if mode == "latency" else "step_time_us"


class Load(Struct, frozen=True, kw_only=True):
    """Use of the processors while the blocks were timed. CPU times in microseconds, over all of `wall_us`."""

    wall_us: float
    cores: int
    """Cores that this process may use."""
    thread_us: float
    """CPU time of the thread that runs the steps."""
    process_us: float
    """CPU time of all threads of this process."""
    python_threads_us: float
    """CPU time of the process's other threads started by Python code, including those that ended meanwhile."""
    thread_waited_us: float | None = None
    """How long the thread that runs the steps was ready but had no core; None if the system does not count it."""
    waited_us: float | None = None
    """The same for the thread of this process that waited longest."""
    others_us: float | None = None
    """CPU time of other processes on the same cores, and time taken by a hypervisor; None if unknown."""

    def share(self, time_us: float | None) -> float:
        """A time as a share of the wall clock: 1 is one core all the time."""
        return (time_us or 0.0) / self.wall_us if self.wall_us else 0.0


class StepTime(NamedTuple):
    """One of the two step times, and the samples whose median it is. Microseconds."""

    us: float
    samples_us: list[float]
    noun: Literal["block", "step"]
    """What one sample is: the mean over a block, or one synchronized step."""
    input_waits_us: list[float]
    """How long a step of each sample waited for its data; empty if no data loader was called."""

    def input_wait_us(self, step_us: float | None = None) -> float | None:
        """How long a step that takes this long (default: the median) waits for its data; None if that is unknown.

        It is the mean over the half of the samples that come closest to it: waiting makes steps longer, so another
        sample's wait is not this step's.
        """
        waits = self.input_waits_us
        if len(waits) != len(self.samples_us) or not waits:
            return None
        target = self.us if step_us is None else step_us
        nearest = sorted(zip(self.samples_us, waits, strict=True), key=lambda sample: abs(sample[0] - target))
        half = nearest[: (len(nearest) + 1) // 2]
        return sum(wait for _, wait in half) / len(half)

    def samples_waiting_us(self, wait_us: float) -> list[float]:
        """The samples as if each had waited this long for its data; as they are if their waits are unknown."""
        waits = self.input_waits_us
        if len(waits) != len(self.samples_us):
            return self.samples_us
        return [time - wait + wait_us for time, wait in zip(self.samples_us, waits, strict=True)]


class Timing(Struct, frozen=True, kw_only=True):
    """Steps timed without a profiler. Times in microseconds per step."""

    mode: Mode
    step_time_us: float
    """Median over blocks of back-to-back steps, with one synchronization at the end of each block."""
    step_latency_us: float | None
    """Median of steps that are each followed by a synchronization; None if a user's loop had too few steps to time
    both."""
    step_time_p95_us: float | None
    """95th percentile over the synchronized steps (`step_latencies_us`)."""
    steps_per_block: int
    block_step_times_us: list[float]
    """Mean step time of each block, in the order in which they ran."""
    step_latencies_us: list[float]
    build_time_us: float | None = None
    first_step_time_us: float | None = None
    """The very first step, including compilation, autotuning and lazy initialization."""
    warmup_steps: int = 0
    load: Load | None = None
    """What else ran while the blocks were timed."""
    input_wait_us: float | None = None
    """How long a step waits for its data: T's own steps, see `StepTime.input_wait_us`. None if no data loader was
    called."""
    block_input_waits_us: list[float] = []
    """The mean wait of each block's steps, in the order of `block_step_times_us`; empty if no loader was called."""
    latency_input_waits_us: list[float] = []
    """The same for `step_latencies_us`."""

    batches_ahead: int | None = None
    """How many batches the data loaders' workers may have had ready before the steps; None if no loader was called."""

    @property
    def steps(self) -> int:
        """How many steps ran until the timing was over: warm-up, blocks, and synchronised ones."""
        singles = len(self.step_latencies_us) if self.steps_per_block > 1 else 0
        return self.warmup_steps + len(self.block_step_times_us) * self.steps_per_block + singles

    @property
    def back_to_back(self) -> StepTime:
        """Step time of steps that run without waiting for the device."""
        return StepTime(self.step_time_us, self.block_step_times_us, "block", self.block_input_waits_us)

    @property
    def synchronised(self) -> StepTime | None:
        """Step time of steps that each wait for the device; None if there were too few to time both."""
        if self.step_latency_us is None:
            return None
        return StepTime(self.step_latency_us, self.step_latencies_us, "step", self.latency_input_waits_us)

    @property
    def chosen(self) -> StepTime:
        """T, the step time that `mode` chooses."""
        return (self.synchronised if self.mode == "latency" else None) or self.back_to_back

    @property
    def other(self) -> StepTime | None:
        """The step time that is not T; None if only one was measured."""
        if self.synchronised is None:
            return None
        return self.back_to_back if self.mode == "latency" else self.synchronised
