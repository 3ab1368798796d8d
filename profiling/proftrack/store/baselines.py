"""The default baseline of a run: the newest marked one, else the last run on the branch."""

from __future__ import annotations

import msgspec

from proftrack.compare.comparable import unequal
from proftrack.errors import NotFoundError, ProftrackError, UsageError
from proftrack.record import Record
from proftrack.store import cache, keys
from proftrack.store.references import Named, References, Repeats, repeats_of, subject_of
from proftrack.store.runs import Runs, StoredRun
from proftrack.text import counted


def marked(runs: Runs) -> list[StoredRun]:
    """All runs marked as baselines, oldest first."""
    return [run for run in runs.search(more=f"tags.`{keys.BASELINE_TAG}` LIKE '%'") if run.is_baseline]


def comparable(runs: Runs, run: StoredRun) -> list[StoredRun]:
    """FINISHED runs with the same fingerprint and parameters, oldest first."""
    if not run.fingerprint:
        return []
    return [
        other
        for other in cache.runs_of(runs, run.experiment)
        if other.fingerprint == run.fingerprint and other.workload_params == run.workload_params
    ]


def default_for(references: References, candidate: Named, *, branch: str) -> Named:
    """The baseline of a candidate if none is named: the newest comparable run marked as a baseline, else the last
    FINISHED run on `branch` before the candidate, of another commit and without uncommitted changes.

    If runs are marked as baselines but none could be used, the note says why. Raises NotFoundError that says how to
    get a baseline, UsageError for a bare trace.
    """
    like = candidate.like
    if like is None:
        label = candidate.subject.label
        raise UsageError(f"{label}: a bare trace has no baseline in the store", f"name one before it: BASELINE {label}")
    runs = references.runs
    try:
        repeats = _choose(runs, like, branch)
    except NotFoundError as error:
        why = _why_unused(runs, like, None, candidate.subject.record)
        raise NotFoundError(error.problem, f"{error.remedy}. {why}" if why else error.remedy) from error
    why = _why_unused(runs, like, repeats.chosen, candidate.subject.record)
    return msgspec.structs.replace(subject_of(runs, repeats, f"baseline on {branch}"), note=why)


def _choose(runs: Runs, candidate: StoredRun, branch: str) -> Repeats:
    others = [
        run
        for run in comparable(runs, candidate)
        if run.run_id != candidate.run_id and (candidate.code is None or run.code != candidate.code)
    ]
    baselines = [run for run in others if run.is_baseline]
    if baselines:
        return Repeats(chosen=baselines[-1], runs=[baselines[-1]])
    earlier = [run for run in others if run.started_ms <= candidate.started_ms and run.branch == branch]
    clean = [run for run in earlier if not run.dirty]
    if not clean:
        raise _no_baseline(candidate, branch, uncommitted=len(earlier))
    return repeats_of([run for run in clean if run.code == clean[-1].code])


def _no_baseline(candidate: StoredRun, branch: str, *, uncommitted: int) -> NotFoundError:
    dirty = f"; {counted(uncommitted, 'run')} there had uncommitted changes" if uncommitted else ""
    return NotFoundError(
        f"no baseline for {candidate.name or candidate.run_id}: branch {branch} has no earlier FINISHED run of another "
        f"commit with the same parameters (fingerprint {candidate.fingerprint}){dirty}",
        f"check out {branch} and run `proftrack run {candidate.experiment}` with these parameters, mark a run "
        "(`proftrack baseline RUN`), or name one with --baseline",
    )


# ---- why a marked baseline was not used -----------------------------------------------------------------------------


def _why_unused(runs: Runs, candidate: StoredRun, chosen: StoredRun | None, record: Record) -> str:
    """One sentence: why the newest marked run of the candidate's experiment is not its baseline.

    Empty if a marked run was chosen, or none is marked.
    """
    if chosen is not None and chosen.is_baseline:
        return ""
    baselines = [run for run in cache.runs_of(runs, candidate.experiment) if run.is_baseline]
    if not baselines:
        return ""
    newest = baselines[-1]
    more = f" (nor were the {len(baselines) - 1} marked before it)" if len(baselines) > 1 else ""
    why = _why_not(runs, newest, candidate, record)
    return f"Run {newest.run_id[:8]}, marked as a baseline, was not used{more}: {why}"


def _why_not(runs: Runs, baseline: StoredRun, candidate: StoredRun, record: Record) -> str:
    if baseline.run_id == candidate.run_id:
        return "it is the candidate itself."
    if baseline.fingerprint != candidate.fingerprint:
        return _other_fingerprint(runs, baseline, candidate, record)
    a, b = baseline.workload_params, candidate.workload_params
    names = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    if names:
        listed = "; ".join(f"{name}: {a.get(name, 'absent')}, candidate {b.get(name, 'absent')}" for name in names)
        return f"it was run with other parameters ({listed})."
    return f"it has the candidate's own commit; to compare anyway, pass --baseline {baseline.run_id[:8]}."


def _other_fingerprint(runs: Runs, baseline: StoredRun, candidate: StoredRun, record: Record) -> str:
    """The keys that must be equal but are not, with both values."""
    try:
        differing = unequal(runs.record(baseline), record)
    except ProftrackError:
        differing = []
    if not differing:
        return f"it has another fingerprint ({baseline.fingerprint}, candidate {candidate.fingerprint})."
    values = "; ".join(
        f"{key.name}: {key.before or 'unknown'}, candidate {key.after or 'unknown'}" for key in differing
    )
    return f"it is not comparable ({values})."
