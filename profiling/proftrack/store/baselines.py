"""What a run is held against where nobody names anything: marked runs, else the branch's last one."""

from __future__ import annotations

import msgspec

from proftrack.compare.comparable import unequal
from proftrack.errors import NotFoundError, ProftrackError, UsageError
from proftrack.record import Record
from proftrack.store import cache, keys
from proftrack.store.references import Named, References, Repeats, repeats_of, subject_of
from proftrack.store.runs import Runs, StoredRun


def marked(runs: Runs) -> list[StoredRun]:
    """All runs that are marked as baselines, oldest first."""
    return [run for run in runs.search(more=f"tags.`{keys.BASELINE_TAG}` LIKE '%'") if run.is_baseline]


def comparable(runs: Runs, run: StoredRun) -> list[StoredRun]:
    """FINISHED runs of the same fingerprint and parameters, oldest first."""
    if not run.fingerprint:
        return []
    return [
        each
        for each in cache.runs_of(runs, run.experiment)
        if each.fingerprint == run.fingerprint and each.workload_params == run.workload_params
    ]


def default_for(references: References, candidate: Named, *, branch: str) -> Named:
    """The baseline of a candidate where nobody names one: the newest comparable run that is marked as a baseline, else
    the last FINISHED one on `branch` before it, of another commit and without uncommitted changes.

    Where runs are marked as baselines and none of them could be taken, its note says why. Raises NotFoundError that
    says how to make one, UsageError for a bare trace.
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
        raise NotFoundError(f"{error}. {why}" if why else str(error)) from error
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
        raise NotFoundError(_how_to_make_one(candidate, branch, uncommitted=len(earlier)))
    return repeats_of([run for run in clean if run.code == clean[-1].code])


def _how_to_make_one(candidate: StoredRun, branch: str, *, uncommitted: int) -> str:
    dirty = f"; {uncommitted} there had uncommitted changes" if uncommitted else ""
    return (
        f"no baseline for {candidate.name or candidate.run_id}: before it, branch {branch} has no FINISHED run of "
        f"another commit with the same parameters (fingerprint {candidate.fingerprint}){dirty}; check out {branch} and "
        f"run `proftrack run {candidate.experiment}` with these parameters, mark a run (`proftrack baseline RUN`), or "
        "name one with --baseline"
    )


# ---- marked, and not used -------------------------------------------------------------------------------------------


def _why_unused(runs: Runs, candidate: StoredRun, chosen: StoredRun | None, record: Record) -> str:
    """In one sentence, why the newest marked run of the candidate's experiment is not its baseline.

    Empty where a marked one was chosen, or none is marked.
    """
    if chosen is not None and chosen.is_baseline:
        return ""
    baselines = [run for run in cache.runs_of(runs, candidate.experiment) if run.is_baseline]
    if not baselines:
        return ""
    newest = baselines[-1]
    more = f" (nor the {len(baselines) - 1} marked before it)" if len(baselines) > 1 else ""
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
        other = "; ".join(f"{name}: {a.get(name, 'absent')} and {b.get(name, 'absent')}" for name in names)
        return f"it was run with other parameters ({other}; the candidate's last)."
    return f"it is of the candidate's own commit; to compare them all the same: --baseline {baseline.run_id[:8]}."


def _other_fingerprint(runs: Runs, baseline: StoredRun, candidate: StoredRun, record: Record) -> str:
    """The keys that must be equal and are not, with both values."""
    try:
        other = unequal(runs.record(baseline), record)
    except ProftrackError:
        other = []
    if not other:
        return f"it has another fingerprint ({baseline.fingerprint}, the candidate {candidate.fingerprint})."
    values = "; ".join(f"{each.name}: {each.before or 'not known'} and {each.after or 'not known'}" for each in other)
    return f"it is not comparable ({values}; the candidate's last)."
