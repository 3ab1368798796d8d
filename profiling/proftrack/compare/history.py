"""Comparable runs in order, and what changed between them. Plain data: where they come from is not known here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from proftrack.compare import changepoints
from proftrack.compare.changepoints import ChangePoint
from proftrack.compare.results import CommitRange, Different

EXACT = ("launches_per_step", "kernels_per_step")
"""Counts that are looked at in every history: each change of them is one of the code."""
NEWEST = 1000
"""Runs of a series that a picture shows: more than a screen has places for."""
MOST_EXACT = 4
"""A count that changes in more than one of so many runs is not the code's alone, and is treated as noisy."""


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
    """None where both are of one commit, or one has none."""
    environment: list[Different] | None = None
    """What else differs between the two runs; None where it was not looked at."""


class Series(Struct, frozen=True, kw_only=True):
    """Runs of one fingerprint with the same variant parameters, in the order of their commits."""

    experiment: str
    fingerprint: str
    variant: dict[str, str]
    """The parameters in which it differs from the other series of its fingerprint."""
    metric: str = "step_time_us"
    """That was looked at: the history's, and where that is step_time_us the one that is T by the runs' timing.mode."""
    runs: list[RunPoint]
    changes: list[Change] = []

    @property
    def title(self) -> str:
        """The newest run's name, which has its parameters."""
        return self.runs[-1].name if self.runs else self.experiment


class History(Struct, frozen=True, kw_only=True):
    """`proftrack history`."""

    experiment: str
    metric: str
    series: list[Series]
    ordered_by: str
    """commits, or time where the repository at hand does not know them all."""
    left_out: int = 0
    """Runs that are in no series, since their tree differed from their commit."""
    untracked_only: int = 0
    """Those of them whose tree had nothing but untracked files beside the commit."""


def detect(runs: Sequence[RunPoint], metric: str) -> list[Change]:
    """Changes of `metric` and of the counts, in the order of the runs."""
    found = _changes(runs, metric, exact=metric in EXACT)
    for count in EXACT:
        if count != metric:
            found += _changes(runs, count, exact=True)
    return sorted(found, key=lambda change: (_place(runs, change), change.metric))


def _changes(runs: Sequence[RunPoint], metric: str, *, exact: bool) -> list[Change]:
    known = [run for run in runs if metric in run.metrics]
    values = [run.metrics[metric] for run in known]
    points = changepoints.find_exact(values) if exact else []
    if exact and len(points) * MOST_EXACT > max(len(values), 2 * MOST_EXACT):
        exact = False
    if not exact:
        points = changepoints.find(values)
    return [
        Change(metric=metric, exact=exact, point=p, before=known[p.index - 1], after=known[p.index]) for p in points
    ]


def _place(runs: Sequence[RunPoint], change: Change) -> int:
    return next(index for index, run in enumerate(runs) if run.run_id == change.after.run_id)


def levels(series: Series) -> list[tuple[int, int, float]]:
    """(first, behind the last, level) of each stretch of its metric, as positions in `series.runs`."""
    metric = series.metric
    places = [index for index, run in enumerate(series.runs) if metric in run.metrics]
    if not places:
        return []
    values = [series.runs[index].metrics[metric] for index in places]
    changes = [change for change in series.changes if change.metric == metric]
    points = [change.point for change in changes]
    ids = [series.runs[place].run_id for place in places]
    bounds = [0, *(ids.index(change.after.run_id) for change in changes), len(places)]
    found = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        if points:
            level = points[number].before if number < len(points) else points[-1].after
        else:
            level = sorted(values)[len(values) // 2]
        found.append((places[low], places[high - 1] + 1, level))
    return found


def newest(series: Series) -> Series:
    """The newest runs, and the changes between them: what a picture shows."""
    runs = series.runs[-NEWEST:]
    ids = {run.run_id for run in runs}
    changes = [change for change in series.changes if {change.before.run_id, change.after.run_id} <= ids]
    return msgspec.structs.replace(series, runs=runs, changes=changes)
