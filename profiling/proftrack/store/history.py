"""An experiment's history: its comparable runs from the store, with the changes between them.

proftrack.history("matmul_add")                  a DataFrame, one row per run
proftrack.history("matmul_add").attrs["changes"] what changed, and where
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack import git
from proftrack.compare.changed import changed, commits_between
from proftrack.compare.history import Change, History, RunPoint, Series, detect
from proftrack.compare.results import Different
from proftrack.errors import NotFoundError, ProftrackError, UsageError
from proftrack.record.timing import metric_of
from proftrack.store import cache, keys
from proftrack.store.runs import Runs, StoredRun
from proftrack.text import meant

if TYPE_CHECKING:
    import pandas as pd


def history(
    experiment: str, metric: str = keys.STEP_TIME_US, *, branch: str | None = None, dirty: bool = False
) -> pd.DataFrame:
    """All FINISHED runs of an experiment in the store that MLflow would use here, as a DataFrame.

    One row per run, in the order of the commits (of time, if the current repository does not have all of them).
    Columns: series (number; only runs of one series can be compared), run_id, name, started (UTC), commit, branch,
    dirty, fingerprint, regime, gate, change (whether `metric` or a count changed there), and the metrics in their own
    units. `attrs["changes"]` lists the changes as dictionaries. `branch` keeps the runs of one branch; `dirty` adds
    those with uncommitted changes.

    Raises NotFoundError if there are no runs, UsageError for an unknown metric, StoreError.
    """
    import pandas as pd

    past = collect(Runs.connect(), experiment, metric, branch=branch, dirty=dirty)
    frame: pd.DataFrame = pd.DataFrame(list(rows(past)))
    frame["started"] = pd.to_datetime(frame["started"], unit="ms", utc=True)
    frame.attrs["changes"] = [msgspec.to_builtins(change) for series in past.series for change in series.changes]
    return frame


def rows(history: History) -> list[dict[str, Any]]:
    """One dictionary per run, all with the same keys; `started` in epoch milliseconds."""
    names = [
        name for name in keys.METRICS if any(name in run.metrics for series in history.series for run in series.runs)
    ]
    out = []
    for number, series in enumerate(history.series):
        changed_at = {change.after.run_id for change in series.changes}
        for run in series.runs:
            row: dict[str, Any] = {
                "series": number,
                "run_id": run.run_id,
                "name": run.name,
                "started": run.started_ms,
                "commit": run.commit,
                "branch": run.branch,
                "dirty": run.dirty,
                "fingerprint": series.fingerprint,
                "regime": run.regime,
                "gate": run.gate,
                "change": run.run_id in changed_at,
            }
            out.append({**row, **{name: run.metrics.get(name) for name in names}})
    return out


def collect(
    runs: Runs,
    experiment: str,
    metric: str = keys.STEP_TIME_US,
    *,
    branch: str | None = None,
    dirty: bool = False,
    environments: bool = False,
) -> History:
    """The series of an experiment with their changes, the one with the most runs first.

    `environments`: also fetch the records on both sides of each change, to show what else differs. Raises as `history`
    does.
    """
    if metric not in keys.METRICS:
        raise UsageError(
            f"--metric {metric}: no such metric", f"metrics: {', '.join(keys.METRICS)}{meant(metric, keys.METRICS)}"
        )
    past = [run for run in cache.runs_of(runs, experiment) if run.fingerprint]
    if branch is not None:
        past = [run for run in past if run.branch == branch]
    if not past:
        where = f" on branch {branch}" if branch is not None else ""
        raise NotFoundError(
            f"{runs.store.public}: no FINISHED run of {experiment}{where}",
            f"run `proftrack run {experiment}`, or set MLFLOW_TRACKING_URI to the store that holds its runs",
        )
    order = _commit_order(past) if not dirty else None
    series = [_series(experiment, group, order, metric, dirty=dirty) for group in _grouped(past)]
    series = [each for each in series if each.runs]
    if not series:
        raise NotFoundError(
            f"{runs.store.public}: no run of {experiment} was made without uncommitted changes (untracked files "
            "count), so their commits do not say what ran",
            "pass --dirty to include them, ordered by time",
        )
    series.sort(key=lambda each: (-len(each.runs), each.title))
    by_id = {run.run_id: run for run in past}
    series = [_explained(runs, each, by_id, environments=environments) for each in series]
    left_out = [run for run in past if run.dirty and not dirty]
    return History(
        experiment=experiment,
        metric=metric,
        series=series,
        ordered_by="commits" if order is not None else "time",
        left_out=len(left_out),
        untracked_only=sum(run.untracked_only for run in left_out),
    )


def _grouped(past: list[StoredRun]) -> list[tuple[dict[str, str], list[StoredRun]]]:
    """Groups of runs with the same fingerprint and parameters, each with the parameters that set it apart from the
    other groups of that fingerprint.
    """
    by_fingerprint: dict[str, list[StoredRun]] = defaultdict(list)
    for run in past:
        by_fingerprint[run.fingerprint].append(run)
    out: list[tuple[dict[str, str], list[StoredRun]]] = []
    for alike in by_fingerprint.values():
        names = sorted({name for run in alike for name in run.workload_params})
        varying = [name for name in names if len({run.workload_params.get(name) for run in alike}) > 1]
        groups: dict[tuple[str | None, ...], list[StoredRun]] = defaultdict(list)
        for run in alike:
            groups[tuple(run.workload_params.get(name) for name in varying)].append(run)
        for values, group in groups.items():
            out.append(({n: v for n, v in zip(varying, values, strict=True) if v is not None}, group))
    return out


def _commit_order(past: list[StoredRun]) -> dict[str, int] | None:
    """Positions of the runs' commits in the current repository; None if it does not have all of them."""
    commits = {run.commit for run in past if run.commit}
    order = git.commit_order(Path.cwd(), commits) if commits else {}
    return order if commits and len(order) == len(commits) and all(run.commit for run in past) else None


def _series(
    experiment: str,
    group: tuple[dict[str, str], list[StoredRun]],
    order: dict[str, int] | None,
    metric: str,
    *,
    dirty: bool,
) -> Series:
    variant, alike = group
    if metric == keys.STEP_TIME_US:  # T, measured the same way in all runs of one fingerprint
        metric = metric_of(alike[0].params.get("timing.mode"))
    kept = [run for run in alike if dirty or not run.dirty]
    if order is not None:
        kept.sort(key=lambda run: (order[run.commit or ""], run.started_ms))
    points = [_point(run) for run in kept]
    return Series(
        experiment=experiment,
        fingerprint=alike[0].fingerprint,
        variant=variant,
        metric=metric,
        runs=points,
        changes=detect(points, metric),
    )


def _point(run: StoredRun) -> RunPoint:
    return RunPoint(
        run_id=run.run_id,
        name=run.name,
        started_ms=run.started_ms,
        commit=run.commit,
        branch=run.branch,
        dirty=run.dirty,
        regime=run.tags.get(keys.REGIME_TAG, ""),
        gate=run.tags.get(keys.GATE_OUTCOME_TAG, ""),
        metrics={name: run.metrics[name] for name in keys.METRICS if name in run.metrics},
        params=run.workload_params,
    )


def _explained(runs: Runs, series: Series, by_id: dict[str, StoredRun], *, environments: bool) -> Series:
    """The series with the commits of each change and, if `environments`, what else differs."""
    changes = [
        msgspec.structs.replace(
            change,
            commits=commits_between(change.before.commit, change.after.commit),
            environment=_environment(runs, by_id, change) if environments else None,
        )
        for change in series.changes
    ]
    return msgspec.structs.replace(series, changes=changes)


def _environment(runs: Runs, by_id: dict[str, StoredRun], change: Change) -> list[Different] | None:
    """What differs in software and machine across a change; None if a record cannot be read."""
    try:
        before, after = (runs.record(by_id[run.run_id]) for run in (change.before, change.after))
    except ProftrackError:
        return None
    return [fact for fact in changed(before, after) if fact.name not in ("commit", "branch")]
