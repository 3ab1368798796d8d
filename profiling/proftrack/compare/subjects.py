"""One side of a comparison: a record with a label, and the times of its repeats in fresh processes."""

from __future__ import annotations

from msgspec import Struct

from proftrack.compare.results import Side
from proftrack.record import Record


class Subject(Struct, frozen=True, kw_only=True):
    """One side of a comparison."""

    record: Record
    label: str
    """The reference that the user gave."""
    run_id: str | None = None
    """The run's id in the store; None for a file."""
    repeats: dict[str, list[float]] = {}
    """Metric name -> its values in all runs of the same code, including this one; microseconds per step."""

    @property
    def git_commit(self) -> str | None:
        """The commit of the profiled code."""
        return self.record.environment.git.commit if self.record.environment.git else None

    def runs(self, metric: str) -> int:
        """Number of fresh processes behind the value of a metric."""
        return max(len(self.repeats.get(metric, [])), 1)

    def side(self) -> Side:
        """The side as shown at the top of a comparison."""
        record, git, run = self.record, self.record.environment.git, self.record.run
        files = ", ".join(f.name for f in record.source.files)
        return Side(
            label=self.label,
            name=(run.display_name or run.experiment) if run else files or "trace",
            run_id=self.run_id,
            commit=git.commit if git else None,
            branch=git.branch if git else None,
            dirty=git.dirty if git else False,
            started_ns=run.started_ns if run else None,
            step_time_us=record.step_time_us,
            gpu_busy_per_step_us=record.times.gpu_busy_per_step_us,
            regime=record.verdict.regime,
            confidence=record.verdict.confidence,
            runs=self.runs("step_time_us"),
        )
