"""The two sides of a comparison, from what the user named them by: paths, run ids, git refs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from proftrack.cli.subject import is_record
from proftrack.compare.floors import given_floor, measured_floor
from proftrack.compare.results import CommitRange, Floor
from proftrack.compare.subjects import Subject
from proftrack.errors import NotFoundError, ProftrackError, UsageError
from proftrack.files import no_such_file
from proftrack.record import Record
from proftrack.record.timing import metric_of
from proftrack.rundir.layout import RECORD

if TYPE_CHECKING:
    from proftrack.store.query import Found, Runs
    from proftrack.store.references import Group

STEP_TIME, BUSY = "step_time_us", "gpu_busy_per_step_us"


class Side(Struct, frozen=True, kw_only=True):
    """A subject, and its run where it is one of the store."""

    subject: Subject
    run: Found | None = None
    note: str = ""
    """Why it is this one, where the user may have expected another."""

    @property
    def like(self) -> Found | None:
        """What the store's runs are like that it may be compared with; None for a bare trace."""
        return self.run or _as_found(self.subject.record)


class Store:
    """The store's runs, connected when first asked for: two files need no store."""

    def __init__(self) -> None:
        self._runs: Runs | None = None

    @property
    def runs(self) -> Runs:
        """Raises StoreError where there is no store."""
        if self._runs is None:
            from proftrack.store import query

            self._runs = query.connect()
        return self._runs


def is_file(reference: str) -> bool:
    """Whether a reference is a path: a run folder, a record or a trace."""
    return Path(reference).exists()


def is_run(store: Store, reference: str) -> bool:
    """Whether a reference is a run id of the store, or the beginning of one."""
    from proftrack.store.query import is_run_id, may_be_run_id

    return is_run_id(reference) or (may_be_run_id(reference) and store.runs.beginning(reference) is not None)


def from_path(reference: str, step_time_us: float | None = None) -> Side:
    """A run folder, a record.json or a trace. Raises UsageError, and what reading it raises."""
    from proftrack import record as records

    path = Path(reference)
    if path.is_dir():
        path = path / RECORD
        if not path.is_file():
            raise UsageError(f"{reference}: no run folder (no record.json in it)")
    if is_record(path):
        if step_time_us is not None:
            raise UsageError(f"{reference}: a record has its own step time; --step-time-us is for traces")
        return Side(subject=Subject(record=records.load(path), label=reference))
    from proftrack.analysis.pipeline import analyze_trace

    return Side(subject=Subject(record=analyze_trace(path, step_time_us=step_time_us).record, label=reference))


def from_group(runs: Runs, group: Group, label: str) -> Side:
    """A run of the store with the repeats of its code."""
    record = runs.record(group.chosen)
    mode = record.timing.mode if record.timing else "throughput"
    repeats = {name: group.values(metric) for name, metric in ((STEP_TIME, metric_of(mode)), (BUSY, BUSY))}
    subject = Subject(record=record, label=label, run_id=group.chosen.run_id, repeats=repeats)
    return Side(subject=subject, run=group.chosen)


def default_baseline(store: Store, candidate: Side, branch: str) -> Side:
    """The run that a candidate is held against where nobody names one.

    Where runs are marked as baselines and none of them could be taken, it says why. Raises NotFoundError that says how
    to make one, UsageError for a bare trace.
    """
    from proftrack.store import references

    if candidate.like is None:
        label = candidate.subject.label
        raise UsageError(f"{label}: a bare trace has no baseline in the store; name one before it: BASELINE {label}")
    like = candidate.like
    try:
        group = references.default_baseline(store.runs, like, branch=branch)
    except NotFoundError as error:
        why = _why_unused(store.runs, references.unused(store.runs, like, None), candidate)
        raise NotFoundError(f"{error}. {why}" if why else str(error)) from error
    side = from_group(store.runs, group, f"baseline on {branch}")
    why = _why_unused(store.runs, references.unused(store.runs, like, group.chosen), candidate)
    return msgspec.structs.replace(side, note=why)


def _why_unused(runs: Runs, marked: Sequence[Found], candidate: Side) -> str:
    """In one sentence, why the newest marked run is no baseline of the candidate; empty where none is marked."""
    like = candidate.like
    if not marked or like is None:
        return ""
    run = marked[0]
    more = f" (nor the {len(marked) - 1} marked before it)" if len(marked) > 1 else ""
    return f"Run {run.run_id[:8]}, marked as a baseline, was not used{more}: {_why_not(runs, run, like, candidate)}"


def _why_not(runs: Runs, marked: Found, like: Found, candidate: Side) -> str:
    if marked.run_id == like.run_id:
        return "it is the candidate itself."
    if marked.fingerprint != like.fingerprint:
        return _other_fingerprint(runs, marked, like, candidate)
    a, b = marked.workload_params, like.workload_params
    names = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    if names:
        other = "; ".join(f"{name}: {a.get(name, 'absent')} and {b.get(name, 'absent')}" for name in names)
        return f"it was run with other parameters ({other}; the candidate's last)."
    return f"it is of the candidate's own commit; to compare them all the same: --baseline {marked.run_id[:8]}."


def _other_fingerprint(runs: Runs, marked: Found, like: Found, candidate: Side) -> str:
    """The keys that must be equal and are not, with both values."""
    from proftrack.compare.comparable import unequal

    try:
        other = unequal(runs.record(marked), candidate.subject.record)
    except ProftrackError:
        other = []
    if not other:
        return f"it has another fingerprint ({marked.fingerprint}, the candidate {like.fingerprint})."
    said = "; ".join(f"{each.name}: {each.before or 'not known'} and {each.after or 'not known'}" for each in other)
    return f"it is not comparable ({said}; the candidate's last)."


def _as_found(record: Record) -> Found | None:
    """A record that is not in the store, as a run of it would look to a search."""
    from proftrack.store import fields
    from proftrack.store.query import Found

    if record.run is None:
        return None
    return Found(
        run_id="",
        experiment_id="",
        name=fields.run_name(record),
        status="FINISHED",
        started_ms=record.run.started_ns // 1_000_000,
        ended_ms=record.run.ended_ns // 1_000_000,
        artifact_uri="",
        tags=fields.tags(record),
        params=fields.params(record),
        metrics={point.key: point.value for point in fields.metrics(record)},
    )


def from_store(store: Store, reference: str, *, experiment: str | None, like: Found | None) -> Side:
    """The run of an id, or those of a commit."""
    from proftrack.store import references

    references.refuse_unknown(reference)  # at once: connecting to the store takes seconds
    group = references.by_name(store.runs, reference, experiment=experiment, like=like)
    return from_group(store.runs, group, reference)


def load(
    store: Store,
    reference: str,
    *,
    step_time_us: float | None = None,
    experiment: str | None = None,
    like: Found | None = None,
) -> Side:
    """Whatever a reference names.

    Raises NotFoundError where it names nothing, and what reading it raises.
    """
    if is_file(reference):
        return from_path(reference, step_time_us)
    if reference.endswith((".json", ".gz")) or ("/" in reference and reference.startswith((".", "/"))):
        raise NotFoundError(no_such_file(Path(reference)))
    return from_store(store, reference, experiment=experiment, like=like)


def noise(
    store: Store,
    baseline: Side,
    *,
    percent: float | None = None,
    repeats: Sequence[Side] = (),
    otherwise: float | None = None,
) -> dict[str, Floor]:
    """What is known of the noise between processes: what the caller gives, else his repeats, else what the store's runs
    show, else `otherwise` (percent).
    """
    if percent is not None:
        return {STEP_TIME: given_floor(percent)}
    if repeats:
        return _from_repeats([baseline, *repeats])
    assumed = {STEP_TIME: given_floor(otherwise)} if otherwise is not None else {}
    if baseline.run is None:
        return assumed  # of files alone, nothing more is known
    from proftrack.store import noise as stored
    from proftrack.store import references

    timing = baseline.subject.record.timing
    mode = timing.mode if timing else "throughput"
    return {**assumed, **stored.floors(references.comparable(store.runs, baseline.run), mode)}


def _from_repeats(sides: Sequence[Side]) -> dict[str, Floor]:
    """Noise of runs that the caller says are of the same code."""
    from proftrack.compare.comparable import check

    records = [side.subject.record for side in sides]
    for record in records[1:]:
        check(records[0], record)
    found: dict[str, Floor] = {}
    times = [record.unprofiled_step_time_us for record in records]
    busy = [record.times.gpu_busy_per_step_us for record in records]
    for name, values in ((STEP_TIME, times), (BUSY, busy)):
        floor = measured_floor([[value for value in values if value]])
        if floor is not None:
            found[name] = floor
    if STEP_TIME not in found:
        raise UsageError(
            f"--repeat-runs: {len(records)} runs of the baseline's code with a step time are too few to measure noise; "
            "give two or more beside the baseline"
        )
    return found


def repeat_sides(references: Collection[str], store: Store) -> list[Side]:
    """The runs that --repeat-runs names: ids, records, run folders, and folders that hold several of these."""
    found: list[Side] = []
    for reference in references:
        path = Path(reference)
        if path.is_dir() and not (path / RECORD).is_file():
            from proftrack import rundir

            found += [from_path(str(folder)) for folder in rundir.find(path)]
        else:
            found.append(load(store, reference))
    return found


def commits(baseline: Subject, candidate: Subject) -> CommitRange | None:
    """What lies between the two commits, as far as the repository of the working directory knows; None without two."""
    from proftrack.store.history import commits_between

    return commits_between(baseline.git_commit, candidate.git_commit)
