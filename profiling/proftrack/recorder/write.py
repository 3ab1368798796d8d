"""Writes a run folder: everything there is to log about a run, complete on disk before a store sees any of it.

The capture has put the traces there; all other files are written here, see `proftrack.rundir`.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from proftrack import files
from proftrack import record as records
from proftrack.analysis.pipeline import Analysis
from proftrack.errors import ProftrackError, UsageError
from proftrack.record import Record
from proftrack.record.columns import columns_of, values_of
from proftrack.record.figures import Kernel, Op
from proftrack.record.owners import ModuleTime, rows
from proftrack.report import artifacts, key_averages
from proftrack.rundir.layout import DIFF, EVENTS, KERNELS, KEY_AVERAGES, MADE_AGAIN, MODULES, OPS, RECORD, TRACES

MAX_BYTES_VARIABLE = "PROFTRACK_MAX_RUN_BYTES"
DEFAULT_MAX_BYTES = 8 << 30


def write(analysis: Analysis, folder: Path, *, diff: str | None = None, max_bytes: int | None = None) -> Record:
    """Write and sync the folder; record.json comes last, so that a folder that has one is complete.

    Returns the record as written. If the folder would be larger than `max_bytes` ($PROFTRACK_MAX_RUN_BYTES, else
    8 GiB), or the disk is full, traces are left out, the largest first, then what can be made again or is not needed
    (MADE_AGAIN); the record names them.
    Raises ProftrackError if the folder still cannot be written.
    """
    limit = _max_bytes() if max_bytes is None else max_bytes
    left_out: dict[str, int] = {}
    while True:
        try:
            return _write(analysis, folder, diff, limit, left_out)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _leave_out_largest(folder, left_out):
                raise ProftrackError(
                    f"{folder}: the run cannot be kept ({error.strerror})", "free some space, or name another --output"
                ) from error


def _write(analysis: Analysis, folder: Path, diff: str | None, limit: int, left_out: dict[str, int]) -> Record:
    from proftrack.trace.parquet import write_events

    record = analysis.record
    (folder / KEY_AVERAGES).parent.mkdir(parents=True, exist_ok=True)
    (folder / KEY_AVERAGES).write_text(key_averages.table(record), encoding="utf-8")
    _write_table(folder / OPS, record.ops, Op)
    _write_table(folder / KERNELS, record.kernels, Kernel)
    if record.modules:
        _write_table(folder / MODULES, rows(record.modules), ModuleTime)
    if EVENTS not in left_out:
        write_events(analysis.tables, folder / EVENTS)
    artifacts.write(record, analysis.tables, folder, without=left_out)
    if diff is not None and DIFF not in left_out:
        (folder / DIFF).write_text(diff, encoding="utf-8")
    while _size(folder) > limit and _leave_out_largest(folder, left_out):
        pass
    record = _with_left_out(record, left_out)
    with files.aside(folder / RECORD) as part:
        records.save(record, part)
        _to_disk(folder)
    files.to_disk(folder)
    return record


def _max_bytes() -> int:
    text = os.environ.get(MAX_BYTES_VARIABLE, "")
    if text and not text.isdecimal():
        raise UsageError(f"{MAX_BYTES_VARIABLE}={text}: not a number of bytes", "write it like 2000000000")
    return int(text) if text else DEFAULT_MAX_BYTES


def _leave_out_largest(folder: Path, left_out: dict[str, int]) -> bool:
    """Remove the largest trace, or if there is none the next of MADE_AGAIN; False if nothing is left to remove.

    A file of MADE_AGAIN that a full disk prevented from being written counts as left out, too.
    """
    traces = [path for path in (folder / TRACES).glob("*") if path.is_file()]
    if traces:
        largest = max(traces, key=lambda path: path.stat().st_size)
        left_out[largest.relative_to(folder).as_posix()] = largest.stat().st_size
        largest.unlink()
        return True
    name = next((name for name in MADE_AGAIN if name not in left_out), None)
    if name is None:
        return False
    left_out[name] = _size(folder / name)
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
    return True


def _size(path: Path) -> int:
    files_in = path.rglob("*") if path.is_dir() else [path] if path.is_file() else []
    return sum(each.stat().st_size for each in files_in if each.is_file())


def _with_left_out(record: Record, left_out: dict[str, int]) -> Record:
    """The record, naming what the folder lacks."""
    if not left_out:
        return record
    source = msgspec.structs.replace(record.source, left_out=sorted(left_out))
    named = ", ".join(f"{name} ({size} bytes)" for name, size in left_out.items())
    note = f"Left out to save space: {named}. All figures were computed before; set {MAX_BYTES_VARIABLE} to allow more."
    run = record.run and msgspec.structs.replace(record.run, notes=[*record.run.notes, note])
    return msgspec.structs.replace(record, source=source, run=run)


def _to_disk(folder: Path) -> None:
    """Sync all files and folders: after a power failure a record must not be found beside empty files."""
    for path in [*folder.rglob("*"), folder]:
        files.to_disk(path)


def _write_table(path: Path, rows: list[Any], kind: type[msgspec.Struct]) -> None:
    """Write a table in the format of mlflow.log_table: columns, and a list of values for each row."""
    table = {"columns": columns_of(kind), "data": [values_of(row) for row in rows]}
    path.write_bytes(msgspec.json.encode(table))
