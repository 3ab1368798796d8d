"""What a user may name a run by, and which run that is.

a path               a run folder, a record.json, a trace           needs no store
32 hex digits        the run of that id; of eight or more, the run whose id begins with them, if there is one
anything else        a git ref (branch, tag, commit): the runs of that commit, in fresh processes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from proftrack.errors import NotFoundError, UsageError
from proftrack.git import resolve_commit
from proftrack.store import cache
from proftrack.store.query import BASELINE_TAG, COMMIT_TAG, Found, Runs, is_run_id, may_be_run_id

_HASH = re.compile(r"[0-9a-f]{7,40}")
_SHOWN = 5


class Group(Struct, frozen=True, kw_only=True):
    """Runs of the same code, and the one of them that stands for all: its step time is the middle one."""

    chosen: Found
    runs: list[Found]

    def values(self, metric: str) -> list[float]:
        """A metric of all of them."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


def by_name(runs: Runs, name: str, *, experiment: str | None = None, like: Found | None = None) -> Group:
    """The run of an id (or of its first digits), or those of a commit.

    `experiment` and `like` (the other side of the comparison) narrow what a commit stands for. Raises NotFoundError
    where there is none, UsageError where a commit has runs of several kinds.
    """
    run = runs.get(name) if is_run_id(name) else runs.beginning(name)
    if run is not None:
        return Group(chosen=run, runs=[run])
    commit = _commit(name)
    of_commit = runs.search(more=f"tags.`{COMMIT_TAG}` LIKE '{commit}%'")  # hexadecimal digits: nothing to escape
    found = [run for run in of_commit if run.fingerprint]
    clean = [run for run in found if not run.dirty]
    found = _alike(clean or found[-1:], experiment, like)
    if not found:
        raise NotFoundError(f"{name} (commit {commit[:12]}): no FINISHED run in {runs.store.public}; profile it first")
    return _one_kind(name, found)


def refuse_unknown(name: str) -> None:
    """Raise NotFoundError for a name that can be neither a run id nor a commit. Touches no store."""
    if not may_be_run_id(name):
        _commit(name)


def _commit(name: str) -> str:
    """The commit of a ref in the repository at hand; a hash stands for itself where there is none."""
    commit = resolve_commit(Path.cwd(), name)
    if commit is None and _HASH.fullmatch(name):
        return name
    if commit is None:
        raise NotFoundError(f"{name}: no file, no run id, and no git ref of the repository in {Path.cwd()}")
    return commit


def _alike(found: Sequence[Found], experiment: str | None, like: Found | None) -> list[Found]:
    if experiment is not None:
        found = [run for run in found if run.experiment == experiment]
    if like is not None:
        same = [run for run in found if run.fingerprint == like.fingerprint]
        found = [run for run in same if run.workload_params == like.workload_params] or same or list(found)
    return list(found)


def _one_kind(name: str, found: list[Found]) -> Group:
    kinds = {(run.fingerprint, *sorted(run.workload_params.items())): run for run in found}
    if len(kinds) > 1:
        shown = "; ".join(f"{run.name} ({run.run_id})" for run in list(kinds.values())[:_SHOWN])
        raise UsageError(f"{name}: has runs of {len(kinds)} kinds, name one by its id or --experiment: {shown}")
    return group_of(found)


def group_of(found: list[Found]) -> Group:
    """Runs of the same code, and the one whose step time is the middle one: of the newest ones, an odd number."""
    newest = sorted(found, key=lambda run: run.started_ms)[1 - len(found) % 2 :]
    ordered = sorted(newest, key=lambda run: run.step_time_us or 0.0)
    return Group(chosen=ordered[len(ordered) // 2], runs=newest)


def comparable(runs: Runs, run: Found) -> list[Found]:
    """FINISHED runs of the same fingerprint and parameters, oldest first."""
    if not run.fingerprint:
        return []
    found = cache.search(runs, run.experiment)
    return [
        each for each in found if each.fingerprint == run.fingerprint and each.workload_params == run.workload_params
    ]


def default_baseline(runs: Runs, candidate: Found, *, branch: str) -> Group:
    """What a candidate is held against where nobody says: the newest comparable run that is marked as a baseline, else
    the last FINISHED one on `branch` before it, of another commit and without uncommitted changes.

    Raises NotFoundError that says how to make one.
    """
    others = [
        run
        for run in comparable(runs, candidate)
        if run.run_id != candidate.run_id and (candidate.code is None or run.code != candidate.code)
    ]
    marked = [run for run in others if run.is_baseline]
    if marked:
        return Group(chosen=marked[-1], runs=[marked[-1]])
    earlier = [run for run in others if run.started_ms <= candidate.started_ms and run.branch == branch]
    clean = [run for run in earlier if not run.dirty]
    if not clean:
        raise NotFoundError(_how_to_make_one(candidate, branch, uncommitted=len(earlier)))
    last = clean[-1]
    return group_of([run for run in clean if run.code == last.code])


def unused(runs: Runs, candidate: Found, chosen: Found | None) -> list[Found]:
    """Runs of the candidate's experiment that are marked as baselines, the newest first.

    Empty where one of them was chosen.
    """
    if chosen is not None and chosen.is_baseline:
        return []
    return [run for run in reversed(cache.search(runs, candidate.experiment)) if run.is_baseline]


def _how_to_make_one(candidate: Found, branch: str, *, uncommitted: int) -> str:
    dirty = f"; {uncommitted} there had uncommitted changes" if uncommitted else ""
    return (
        f"no baseline for {candidate.name or candidate.run_id}: before it, branch {branch} has no FINISHED run of "
        f"another commit with the same parameters (fingerprint {candidate.fingerprint}){dirty}; check out {branch} and "
        f"run `proftrack run {candidate.experiment}` with these parameters, mark a run (`proftrack baseline RUN`), or "
        "name one with --baseline"
    )


def baselines(runs: Runs) -> list[Found]:
    """All runs that are marked as baselines, oldest first."""
    return [run for run in runs.search(more=f"tags.`{BASELINE_TAG}` LIKE '%'") if run.is_baseline]
