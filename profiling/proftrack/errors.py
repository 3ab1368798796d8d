"""What can go wrong, as one tree. The library raises; only the command line exits.

ProftrackError               one sentence: the thing, its value, the remedy
├── UsageError               the command or the experiment asks for something that cannot be (exit 2)
├── WorkloadError            the user's own code raised, or is not what a workload must be
├── CaptureError             the profiler did not give what the schedule promised
│   └── BudgetError          not even the least measurement ends within the time budget
├── TraceError               a trace cannot be read: file, byte offset and line are named
│   └── NotATraceError       sound JSON that is no trace
├── StoreError               MLflow's store cannot be reached, read or written
├── NotFoundError            no run, baseline or commit of that name
└── IncomparableError        two results that must not be compared: the differing keys are named
"""

from __future__ import annotations

from pathlib import Path


class ProftrackError(Exception):
    """Base of every error that proftrack raises on purpose; `str()` is one sentence for a user: problem; remedy."""

    exit_code = 1

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        """`problem` names the thing and its value; `remedy` says what to do about it."""
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return self.problem if self.remedy is None else f"{self.problem}; {self.remedy}"


class UsageError(ProftrackError):
    """A parameter, a key or an experiment file that cannot be accepted."""

    exit_code = 2


class WorkloadError(ProftrackError):
    """The profiled code failed, or does not follow the contract of a workload."""


class CaptureError(ProftrackError):
    """The profiler recorded less than the schedule promised, or could not run."""


class BudgetError(CaptureError):
    """The measurement cannot end within timing.budget_seconds."""


class TraceError(ProftrackError):
    """A trace file that cannot be read whole."""


class NotATraceError(TraceError):
    """A file of JSON that is no trace of torch.profiler."""

    def __init__(self, problem: str, remedy: str | None = None, *, path: Path | None = None) -> None:
        super().__init__(problem, remedy)
        self.path = path


class StoreError(ProftrackError):
    """MLflow's tracking or artifact store refused or could not be reached."""


class NotFoundError(ProftrackError):
    """What a name refers to is not there: no run, no baseline, no commit."""


class IncomparableError(ProftrackError):
    """Two results differ in what must be equal to compare them."""
