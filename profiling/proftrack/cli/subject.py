"""What a command is about: RUN, RECORD or TRACE, whichever of them the user named."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from proftrack.errors import UsageError
from proftrack.record import Record
from proftrack.rundir.layout import EVENTS, RECORD, TRACES
from proftrack.trace.table import EventTable

_HEAD_BYTES = 4096
_RECORD_HEAD = re.compile(rb'^\s*\{\s*"schema_version"\s*:')
_FORMS = "name an MLflow run id, a run folder, a record.json or a trace (.json, .json.gz)"


class Subject(NamedTuple):
    """A record, and its events where they are at hand."""

    record: Record
    tables: list[EventTable]


def load(reference: str) -> Subject:
    """The record that `reference` names, with its events; a trace is analyzed.

    A record's events are the events.parquet beside it. Of a run in the store the record and the events are fetched,
    never the trace. Raises UsageError where it names nothing, and what reading it raises.
    """
    path = Path(reference)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_record(path) if is_record(path) else _from_trace(path)
    run_id = run_id_of(reference)
    from proftrack.store import query

    runs = query.connect()
    run = runs.get(run_id)
    with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
        record = runs.download(run, RECORD, Path(folder))
        if EVENTS in runs.names(run):
            runs.download(run, EVENTS, Path(folder))
        return _from_record(record)


def run_id_of(reference: str) -> str:
    """`reference` where it can be an MLflow run id or the beginning of one.

    Raises UsageError where it cannot, and is no path either.
    """
    from proftrack.store.query import may_be_run_id

    if not may_be_run_id(reference):
        raise UsageError(f"{reference}: no such file, and no run id; {_FORMS}")
    return reference


def is_record(path: Path) -> bool:
    """Whether a file is a record and not a trace, by its beginning."""
    with path.open("rb") as file:
        return _RECORD_HEAD.match(file.read(_HEAD_BYTES)) is not None


def find_trace(reference: str, cycle: int | None, kept: ExitStack) -> Path:
    """The trace file that `reference` names; one of the store is fetched and removed when `kept` closes.

    Of several cycles the one of that number, from 1 on; the first where none is asked for.
    """
    path = Path(reference)
    if path.is_file() and not is_record(path):
        return path
    if path.is_dir() or path.is_file():
        folder = (path if path.is_dir() else path.parent) / TRACES
        return _of_cycle(sorted(p for p in folder.glob("*") if p.is_file()), cycle, reference)
    run_id = run_id_of(reference)
    from proftrack.store import query

    runs = query.connect()
    run = runs.get(run_id)
    name = _of_cycle(sorted(map(Path, runs.names(run, TRACES))), cycle, reference)
    below = kept.enter_context(tempfile.TemporaryDirectory(prefix="proftrack-"))
    return runs.download(run, name.as_posix(), Path(below))


def _of_cycle(found: list[Path], cycle: int | None, reference: str) -> Path:
    if not found:
        raise UsageError(f"{reference}: holds no trace; {_FORMS}")
    number = 1 if cycle is None else cycle
    if number > len(found):
        raise UsageError(f"--cycle {number}: {reference} has {len(found)}")
    return found[number - 1]


def _from_folder(folder: Path) -> Subject:
    if (folder / RECORD).is_file():
        return _from_record(folder / RECORD)
    raise UsageError(f"{folder}: no run folder (no {RECORD} in it); {_FORMS}")


def _from_record(path: Path) -> Subject:
    from proftrack import record as records
    from proftrack.trace.parquet import read_events

    record, events = records.load(path), path.parent / EVENTS
    return Subject(record, read_events(events) if events.is_file() else [])


def _from_trace(path: Path) -> Subject:
    from proftrack.analysis.pipeline import analyze_trace

    found = analyze_trace(path)
    return Subject(found.record, found.tables)
