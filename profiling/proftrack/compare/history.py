"""Comparable runs in order, and what changed between them. Plain data, independent of any store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from proftrack.compare import changepoints
from proftrack.compare.changepoints import ChangePoint
from proftrack.compare.results import CommitRange, Different

EXACT = ("launches_per_step", "kernels_per_step")
"""Counts that every history checks: if one changes, the code has changed."""
NEWEST = 1000
"""Runs of a series that a chart shows: more than a screen has room for."""
MOST_EXACT = 4
"""A count that changes more often than once in this many runs depends on more than the code: it is treated as noisy."""


class RunPoint(Struct, frozen=True, kw_only=True):
    """One run of a series."""

    run_id: str
    name: str
    started_ms: int
    commit: str | None
    branch: str | None
    dirty: bool
    regime: str
    gate: str
    """Outcome of its last gate, empty without one."""
    metrics: dict[str, float]
    params: dict[str, str] = {}
    """The workload's."""


class Change(Struct, frozen=True, kw_only=True):
    """A change of one metric between two runs of a series."""

    metric: str
    exact: bool
    """Whether the metric is a count."""
    point: ChangePoint
    before: RunPoint
    """The last run before it."""
    after: RunPoint
    """The first run after it."""
    commits: CommitRange | None = None
    """None if both runs have the same commit, or one has none."""
    environment: list[Different] | None = None
    """What else differs between the two runs; None if it was not checked."""


class Series(Struct, frozen=True, kw_only=True):
    """Runs of one fingerprint with the same variant parameters, in the order of their commits."""

    experiment: str
    fingerprint: str
    variant: dict[str, str]
    """The parameters that set it apart from the other series of its fingerprint."""
    metric: str = "step_time_us"
    """The history's metric; if that is step_time_us, the metric that is T in the runs' timing.mode."""
    runs: list[RunPoint]
    changes: list[Change] = []

    @property
    def title(self) -> str:
        """The newest run's name, which includes its parameters."""
        return self.runs[-1].name if self.runs else self.experiment


class History(Struct, frozen=True, kw_only=True):
    """The result of `proftrack history`."""

    experiment: str
    metric: str
    series: list[Series]
    ordered_by: str
    """commits, or time if the current repository does not have all commits."""
    left_out: int = 0
    """Number of runs in no series because their tree differed from their commit."""
    untracked_only: int = 0
    """How many of them differed only in untracked files."""


def detect(runs: Sequence[RunPoint], metric: str) -> list[Change]:
    """Changes of `metric` and of the counts, in the order of the runs."""
    found = _changes(runs, metric, exact=metric in EXACT)
    for count in EXACT:
        if count != metric:
            found += _changes(runs, count, exact=True)
    return sorted(found, key=lambda change: (_place(runs, change), change.metric))


def _changes(runs: Sequence[RunPoint], metric: str, *, exact: bool) -> list[Change]:
    measured = [run for run in runs if metric in run.metrics]
    values = [run.metrics[metric] for run in measured]
    points = changepoints.find_exact(values) if exact else []
    if exact and len(points) * MOST_EXACT > max(len(values), 2 * MOST_EXACT):
        exact = False
    if not exact:
        points = changepoints.find(values)
    return [
        Change(metric=metric, exact=exact, point=p, before=measured[p.index - 1], after=measured[p.index])
        for p in points
    ]


def _place(runs: Sequence[RunPoint], change: Change) -> int:
    return next(index for index, run in enumerate(runs) if run.run_id == change.after.run_id)


def levels(series: Series) -> list[tuple[int, int, float]]:
    """(first position, position after the last, level) of each stretch of the metric, in `series.runs`."""
    metric = series.metric
    places = [index for index, run in enumerate(series.runs) if metric in run.metrics]
    if not places:
        return []
    values = [series.runs[index].metrics[metric] for index in places]
    changes = [change for change in series.changes if change.metric == metric]
    points = [change.point for change in changes]
    ids = [series.runs[place].run_id for place in places]
    bounds = [0, *(ids.index(change.after.run_id) for change in changes), len(places)]
    out = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        if points:
            level = points[number].before if number < len(points) else points[-1].after
        else:
            level = sorted(values)[len(values) // 2]
        out.append((places[low], places[high - 1] + 1, level))
    return out


def newest(series: Series) -> Series:
    """The newest runs, and the changes between them: the part that a chart shows."""
    runs = series.runs[-NEWEST:]
    ids = {run.run_id for run in runs}
    changes = [change for change in series.changes if {change.before.run_id, change.after.run_id} <= ids]
    return msgspec.structs.replace(series, runs=runs, changes=changes)
