"""What a verdict may use besides the trace."""

from __future__ import annotations

from msgspec import Struct

from proftrack.measures import Measures
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.environment import GpuState
from proftrack.record.timing import Timing
from proftrack.verdict.thresholds import Thresholds


class Context(Struct, frozen=True, kw_only=True):
    """Everything measured outside the profiler. A bare trace may have none of it."""

    timing: Timing | None = None
    step_time_us: float | None = None
    """An unprofiled step time given by the user; `timing` takes precedence."""
    ceilings: Ceilings | None = None
    work: StepWork | None = None
    gpu: GpuState | None = None
    all_threads: bool = False
    """Whether threads that the program starts were recorded."""

    @property
    def unprofiled_us(self) -> float | None:
        """T if it was measured without the profiler, else None."""
        return self.timing.chosen.us if self.timing is not None else self.step_time_us

    @property
    def threads_are_known(self) -> bool:
        """Whether threads that the program starts were recorded, or at least their use of the processors was."""
        return self.all_threads or (self.timing is not None and self.timing.load is not None)

    def unrecorded_threads(self, limits: Thresholds) -> float | None:
        """The share of a core used by threads with unrecorded operators; None if negligible."""
        load = self.timing.load if self.timing is not None else None
        if self.all_threads or load is None:
            return None
        share = load.share(load.python_threads_us)
        return share if share > limits.other_threads else None

    def work_of(self, measures: Measures) -> StepWork | None:
        """A step's work: as counted, else from the operators' shapes in the trace.

        None if operators ran on several threads of a CPU: counting sees only one of them.
        """
        if measures.cpu is not None and measures.cpu.threads > 1:
            return None
        if self.work is not None:
            return self.work
        shapes, steps = measures.work, measures.window.typical_steps
        if shapes is None or not shapes.flops_by_dtype:
            return None
        flops = {dtype: total / steps for dtype, total in shapes.flops_by_dtype.items()}
        return StepWork(flops_by_dtype=flops, bytes=None, source="shapes", uncounted_ops=shapes.uncounted)

    def roofline_us(self, measures: Measures) -> float | None:
        """R, or None if the ceilings or the work are unknown."""
        work = self.work_of(measures)
        return None if work is None or self.ceilings is None else work.roofline_time_us(self.ceilings)
