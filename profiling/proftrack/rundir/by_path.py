"""What a path names: a run folder, a record.json or a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.errors import UsageError

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis

RECORD, EVENTS, TRACES = "record.json", "events.parquet", "trace"
FORMS = "name an MLflow run id, a run folder, a record.json or a trace (.json, .json.gz)"
"""The remedy where something names none of them."""
_HEAD_BYTES = 4096
_RECORD_HEAD = re.compile(rb'^\s*\{\s*"schema_version"\s*:')


def exists(path: Path) -> bool:
    """Whether a path can name one of them: a file or a folder, and neither a pipe nor a device."""
    return path.is_dir() or path.is_file()


def is_record(path: Path) -> bool:
    """Whether a file is a record and not a trace, by its beginning."""
    with path.open("rb") as file:
        return _RECORD_HEAD.match(file.read(_HEAD_BYTES)) is not None


def load(path: Path, *, step_time_us: float | None = None, with_events: bool = True) -> Analysis:
    """The record that a path names; a trace is analyzed, with `step_time_us` (see `analyze_trace`).

    A record's events are those of the events.parquet beside it, where there is one and `with_events`.
    Raises UsageError for a folder without a record, and for a step time where the record has its own; and what reading
    it raises.
    """
    # Here: a command that only helps or refuses needs neither numpy nor pyarrow.
    from proftrack import record as records
    from proftrack.analysis.pipeline import Analysis, analyze_trace

    file = path
    if path.is_dir():
        file = path / RECORD
        if not file.is_file():
            raise UsageError(f"{path}: no run folder (no {RECORD} in it)", FORMS)
    if not is_record(file):
        return analyze_trace(path, step_time_us=step_time_us)
    if step_time_us is not None:
        raise UsageError(f"{path}: a record has its own step time", "--step-time-us is for traces")
    record, events = records.load(file), file.parent / EVENTS
    if not with_events or not events.is_file():
        return Analysis(record, [])
    from proftrack.trace.parquet import read_events

    return Analysis(record, read_events(events))


def traces(path: Path) -> list[Path]:
    """The trace files that a path names: itself, or those of the run folder, in order of their names."""
    if path.is_file() and not is_record(path):
        return [path]
    folder = (path if path.is_dir() else path.parent) / TRACES
    return sorted(each for each in folder.glob("*") if each.is_file())
