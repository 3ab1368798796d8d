"""References: the ways a user can name a run, and what each stands for.

a path               a run folder, a record.json or a trace         needs no store
8 to 32 hex digits   the run of the store whose id is, or begins with, these digits, if there is one
anything else        a git ref (branch, tag, commit): the runs of that commit, in fresh processes
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from proftrack import record as records
from proftrack.compare.subjects import Subject
from proftrack.errors import NotFoundError, TraceError, UsageError
from proftrack.files import no_such_file
from proftrack.git import resolve_commit
from proftrack.names import is_captured
from proftrack.record import Record
from proftrack.store import keys
from proftrack.store.fields import unfit_for_viewers
from proftrack.store.runs import Runs, StoredRun, from_record, is_run_id, may_be_run_id
from proftrack.text import counted
from proftrack.trace.table import EventTable

_HASH = re.compile(r"[0-9a-f]{7,40}")
_HEAD_BYTES = 4096
_RECORD_HEAD = re.compile(rb'^\s*\{\s*"schema_version"\s*:')
_SHOWN = 5
_FORMS = "name an MLflow run id, a run folder, a record.json or a trace (.json, .json.gz)"


class Readable(NamedTuple):
    """A record, and its events if they are available."""

    record: Record
    tables: list[EventTable]


class Opened(NamedTuple):
    """A trace file for a viewer."""

    path: Path
    remark: str = ""
    """Why it is not the file itself."""


class Repeats(Struct, frozen=True, kw_only=True):
    """Runs of the same code, and the one that represents them: the run with the middle step time."""

    chosen: StoredRun
    runs: list[StoredRun]

    def values(self, metric: str) -> list[float]:
        """The metric's value in each run that has it."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


class Named(Struct, frozen=True, kw_only=True):
    """One side of a comparison: a subject, and its run if it is in the store."""

    subject: Subject
    run: StoredRun | None = None
    note: str = ""
    """Why this run was chosen, if the user may have expected another."""

    @property
    def like(self) -> StoredRun | None:
        """The run description used to look up comparable runs; None for a bare trace."""
        return self.run or from_record(self.subject.record)


class References:
    """Finds what references name. Connects to the store only when a reference needs it: two files need none."""

    def __init__(self) -> None:
        self._runs: Runs | None = None

    @property
    def runs(self) -> Runs:
        """The runs of the store. Raises StoreError if there is no store."""
        if self._runs is None:
            self._runs = Runs.connect()
        return self._runs

    def read(self, reference: str) -> Readable:
        """The record that a reference names, with its events; a trace is analyzed.

        A record's events are the events.parquet beside it. For a run in the store the record and the events are
        fetched, never the trace. Raises UsageError if the reference names nothing, and what reading it raises.
        """
        path = Path(reference)
        kind = kind_of(reference)
        if kind == "trace":
            return _analyzed(path)
        if kind != "name":
            return _read_record(record_in(reference) if kind == "folder" else path)
        run = self._run_of(reference)
        with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
            record = self.runs.download(run, keys.RECORD, Path(folder))
            if keys.EVENTS in self.runs.names(run):
                self.runs.download(run, keys.EVENTS, Path(folder))
            return _read_record(record)

    def trace(self, reference: str, cycle: int | None, kept: ExitStack) -> Opened:
        """The trace file that a reference names, mended if it is not valid JSON.

        One from the store, or a mended copy, is removed when `kept` closes. The record of a run knows whether its
        traces are valid; any other file is read once to find out. `cycle` counts from 1; None means the first. Raises
        UsageError if there is no such trace, and what fetching it raises.
        """
        path = Path(reference)
        kind = kind_of(reference)
        if kind == "trace":
            return _valid(path, kept)
        if kind != "name":
            record = path / keys.RECORD if kind == "folder" else path
            files = sorted(file for file in (record.parent / keys.TRACES).glob("*") if file.is_file())
            return _of_record(_of_cycle(files, cycle, reference), _known_valid(record), kept)
        run = self._run_of(reference)
        name = _of_cycle(sorted(map(Path, self.runs.names(run, keys.TRACES))), cycle, reference)
        below = kept.enter_context(tempfile.TemporaryDirectory(prefix="proftrack-"))
        path = self.runs.download(run, name.as_posix(), Path(below))
        return _of_record(path, keys.TRACE_REPAIRED_TAG not in run.tags, kept)

    def subject(
        self,
        reference: str,
        *,
        step_time_us: float | None = None,
        experiment: str | None = None,
        like: StoredRun | None = None,
    ) -> Named:
        """The side of a comparison that a reference names, which may also be the runs of a commit.

        `step_time_us` is for a trace; `experiment` and `like` (the other side of the comparison) select among the runs
        of a commit. Raises NotFoundError if the reference names nothing, UsageError if a commit has runs of several
        kinds, and what reading it raises.
        """
        kind = kind_of(reference)
        if kind != "name":
            return _subject_at(reference, kind, step_time_us)
        if reference.endswith((".json", ".gz")) or ("/" in reference and reference.startswith((".", "/"))):
            raise NotFoundError(no_such_file(Path(reference)))
        if not may_be_run_id(reference):
            _commit(reference)  # fail at once if there is none: connecting to the store takes seconds
        return subject_of(self.runs, by_name(self.runs, reference, experiment=experiment, like=like), reference)

    def is_single(self, reference: str) -> bool:
        """Whether a reference names a single run (by path or id), not a commit that may have several."""
        if kind_of(reference) != "name" or is_run_id(reference):
            return True
        return may_be_run_id(reference) and self.runs.beginning(reference) is not None

    def repeats(self, references: Collection[str]) -> list[Named]:
        """What several references name; a folder of run folders stands for all of them."""
        out: list[Named] = []
        for reference in references:
            if kind_of(reference) == "folder" and not (Path(reference) / keys.RECORD).is_file():
                from proftrack import rundir

                out += [_subject_at(str(folder), "folder") for folder in rundir.find(Path(reference))]
            else:
                out.append(self.subject(reference))
        return out

    def _run_of(self, reference: str) -> StoredRun:
        if not may_be_run_id(reference):
            raise UsageError(f"{reference}: no such file, and not a run id", _FORMS)
        return self.runs.get(reference)


# ---- paths ----------------------------------------------------------------------------------------------------------

Kind = Literal["folder", "record", "trace", "name"]


def kind_of(reference: str) -> Kind:
    """The kind of file at a reference's path; "name" if there is none: then it is a run id, or a git ref."""
    path = Path(reference)
    if path.is_dir():
        return "folder"
    if not path.is_file():
        return "name"
    return "record" if is_record(path) else "trace"


def is_record(path: Path) -> bool:
    """Whether a file is a record and not a trace, by its beginning."""
    with path.open("rb") as file:
        return _RECORD_HEAD.match(file.read(_HEAD_BYTES)) is not None


def record_in(folder: str) -> Path:
    """The record of a run folder. Raises UsageError if it holds none."""
    path = Path(folder) / keys.RECORD
    if not path.is_file():
        raise UsageError(f"{folder}: not a run folder (no {keys.RECORD} in it)", _FORMS)
    return path


def _read_record(path: Path) -> Readable:
    from proftrack.trace.parquet import read_events

    record, events = records.load(path), path.parent / keys.EVENTS
    return Readable(record, read_events(events) if events.is_file() else [])


def _analyzed(path: Path, step_time_us: float | None = None) -> Readable:
    from proftrack.analysis.pipeline import analyze_trace

    analysis = analyze_trace(path, step_time_us=step_time_us)
    return Readable(analysis.record, analysis.tables)


def _of_record(path: Path, valid: bool, kept: ExitStack) -> Opened:
    return Opened(path) if valid else _valid(path, kept)


def _known_valid(record: Path) -> bool:
    """Whether the record says that its traces are valid JSON; False if there is none."""
    return record.is_file() and not unfit_for_viewers(records.load(record))


def _valid(path: Path, kept: ExitStack) -> Opened:
    """The file itself, or a mended copy. What is no JSON trace at all is left as it is: a viewer may know it."""
    from proftrack.trace.mend import is_valid, write_mended

    try:
        if is_valid(path):
            return Opened(path)
    except TraceError:
        pass
    copy = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="proftrack-"))) / path.name
    try:
        notes = write_mended(path, copy)
    except TraceError:
        return Opened(path)
    if notes.partial:
        return Opened(copy, f"{path.name} is broken: only the events that can be read are shown ({notes.partial})")
    return Opened(copy, f"{path.name} is not valid JSON: a copy mended in {counted(notes.repaired, 'place')} is shown")


def _subject_at(reference: str, kind: Kind, step_time_us: float | None = None) -> Named:
    if kind == "trace":
        record = _analyzed(Path(reference), step_time_us).record
    elif step_time_us is not None:
        raise UsageError(f"{reference}: a record has its own step time", "use --step-time-us for traces only")
    else:
        record = records.load(record_in(reference) if kind == "folder" else Path(reference))
    return Named(subject=Subject(record=record, label=reference))


def _of_cycle(files: list[Path], cycle: int | None, reference: str) -> Path:
    traces = [file for file in files if not is_captured(file.name)]
    if not traces:
        raise UsageError(f"{reference}: holds no trace", _FORMS)
    number = 1 if cycle is None else cycle
    if number > len(traces):
        raise UsageError(f"--cycle {number}: {reference} has {len(traces)}")
    return traces[number - 1]


# ---- runs of the store ----------------------------------------------------------------------------------------------


def by_name(runs: Runs, name: str, *, experiment: str | None = None, like: StoredRun | None = None) -> Repeats:
    """The run with an id (or its first digits), or the runs of a commit.

    `experiment` and `like` (the other side of the comparison) select among the runs of a commit. Raises NotFoundError
    if there is none, UsageError if a commit has runs of several kinds.
    """
    run = runs.get(name) if is_run_id(name) else runs.beginning(name)
    if run is not None:
        return Repeats(chosen=run, runs=[run])
    commit = _commit(name)
    of_commit = runs.search(more=f"tags.`{keys.COMMIT_TAG}` LIKE '{commit}%'")  # hex digits: nothing to escape
    profiled = [run for run in of_commit if run.fingerprint]
    clean = [run for run in profiled if not run.dirty]
    alike = _alike(clean or profiled[-1:], experiment, like)
    if not alike:
        raise NotFoundError(
            f"{name} (commit {commit[:12]}): no FINISHED run in {runs.store.public}", "profile it first"
        )
    return _one_kind(name, alike)


def subject_of(runs: Runs, repeats: Repeats, label: str) -> Named:
    """A run of the store with its repeats, as a side of a comparison. Raises what reading its record raises."""
    record = runs.record(repeats.chosen)
    metrics = keys.compared_metrics(record.timing.mode if record.timing else None)
    values = {name: repeats.values(metric) for name, metric in metrics.items()}
    subject = Subject(record=record, label=label, run_id=repeats.chosen.run_id, repeats=values)
    return Named(subject=subject, run=repeats.chosen)


def repeats_of(runs: Sequence[StoredRun]) -> Repeats:
    """Runs of the same code, and the one with the middle step time; of an even number the oldest is left out."""
    newest = sorted(runs, key=lambda run: run.started_ms)[1 - len(runs) % 2 :]
    ordered = sorted(newest, key=lambda run: run.step_time_us or 0.0)
    return Repeats(chosen=ordered[len(ordered) // 2], runs=newest)


def _commit(name: str) -> str:
    """The commit of a ref in the current repository; a hash that the repository does not have stands for itself."""
    commit = resolve_commit(Path.cwd(), name)
    if commit is None and _HASH.fullmatch(name):
        return name
    if commit is None:
        raise NotFoundError(f"{name}: not a file, not a run id, and not a git ref of the repository in {Path.cwd()}")
    return commit


def _alike(runs: Sequence[StoredRun], experiment: str | None, like: StoredRun | None) -> list[StoredRun]:
    if experiment is not None:
        runs = [run for run in runs if run.experiment == experiment]
    if like is not None:
        same = [run for run in runs if run.fingerprint == like.fingerprint]
        runs = [run for run in same if run.workload_params == like.workload_params] or same or list(runs)
    return list(runs)


def _one_kind(name: str, runs: list[StoredRun]) -> Repeats:
    kinds = {(run.fingerprint, *sorted(run.workload_params.items())): run for run in runs}
    if len(kinds) > 1:
        shown = "; ".join(f"{run.name} ({run.run_id})" for run in list(kinds.values())[:_SHOWN])
        raise UsageError(
            f"{name}: has runs of {len(kinds)} kinds ({shown})", "name one by its id, or pass --experiment"
        )
    return repeats_of(runs)
