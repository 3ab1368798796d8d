"""Steps timed without a profiler, as a record keeps them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Mode = Literal["throughput", "latency"]
"""Which of the two step times is T: steps back to back, or each followed by a synchronisation."""


def metric_of(mode: str | None) -> str:
    """The measured figure that is T, by timing.mode: its name in `times` and among MLflow's metrics."""
    return "step_latency_us" if mode == "latency" else "step_time_us"


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


class StepTime(NamedTuple):
    """One of the two step times, and the samples that it is the median of. Microseconds."""

    us: float
    samples_us: list[float]
    noun: Literal["block", "step"]
    """What one sample is: the mean over a block, or one synchronised step."""


class Timing(Struct, frozen=True, kw_only=True):
    """Steps timed without a profiler. Times in microseconds a step."""

    mode: Mode
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
    def back_to_back(self) -> StepTime:
        """Steps that run on without waiting for the device."""
        return StepTime(self.step_time_us, self.block_step_times_us, "block")

    @property
    def synchronised(self) -> StepTime | None:
        """Steps that the device was waited for after each; None where there were too few to time both."""
        if self.step_latency_us is None:
            return None
        return StepTime(self.step_latency_us, self.step_latencies_us, "step")

    @property
    def chosen(self) -> StepTime:
        """T, the step time that `mode` chooses."""
        return (self.synchronised if self.mode == "latency" else None) or self.back_to_back

    @property
    def other(self) -> StepTime | None:
        """The step time that is not T; None where only one was taken."""
        if self.synchronised is None:
            return None
        return self.back_to_back if self.mode == "latency" else self.synchronised
