"""What can go wrong, as one tree. The library raises; only the command line exits.

ProftrackError               one sentence: the thing, its value, the remedy
├── UsageError               the command or the experiment asks for something impossible (exit 2)
├── WorkloadError            the user's own code raised, or does not follow the contract of a workload
├── CaptureError             the profiler recorded less than the schedule promised, or could not run
│   └── BudgetError          not even the shortest measurement fits into the time budget
├── TraceError               a trace cannot be read: names the file, byte offset and line
│   └── NotATraceError       valid JSON that is not a trace
├── StoreError               MLflow's store cannot be reached, read or written
├── NotFoundError            no run, baseline or commit with that name
└── IncomparableError        two results must not be compared: names the keys that differ
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
    """A parameter, a key or an experiment file is not accepted."""

    exit_code = 2


class WorkloadError(ProftrackError):
    """The profiled code failed, or does not follow the contract of a workload."""


class CaptureError(ProftrackError):
    """The profiler recorded less than the schedule promised, or could not run."""


class BudgetError(CaptureError):
    """The measurement does not fit into timing.budget_seconds."""


class TraceError(ProftrackError):
    """A trace file cannot be read completely."""


class NotATraceError(TraceError):
    """A JSON file is not a trace of torch.profiler."""

    def __init__(self, problem: str, remedy: str | None = None, *, path: Path | None = None) -> None:
        super().__init__(problem, remedy)
        self.path = path


class StoreError(ProftrackError):
    """MLflow's tracking or artifact store refused a request or could not be reached."""


class NotFoundError(ProftrackError):
    """A name refers to no run, baseline or commit."""


class IncomparableError(ProftrackError):
    """Two results differ in something that must be equal to compare them."""
