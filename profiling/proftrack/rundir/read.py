"""Reads a run folder: whether it is complete, and which of its files belong in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from proftrack import names
from proftrack import record as records
from proftrack.errors import ProftrackError, UsageError
from proftrack.record import Record
from proftrack.rundir.layout import LOGGED, RECORD, REQUIRED, TRACES

MAX_NOTE_BYTES = 16 << 20
"""Maximum size of logged.json and group.json."""
_SEARCH_DEPTH = 4


def holds_measurements(folder: Path) -> bool:
    """Whether a folder is worth keeping: a record, or traces that `analyze` can read."""
    return (folder / RECORD).is_file() or any((folder / TRACES).glob("*"))


def find(folder: Path) -> list[Path]:
    """The run folders at or below `folder`, sorted by name.

    Raises UsageError if there is none.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", "name a folder that `proftrack run --output` wrote")
    run_folders = sorted(_walk(folder.absolute(), _SEARCH_DEPTH))
    if not run_folders:
        raise UsageError(
            f"{folder}: no run folder (no {RECORD} in it)", "name a folder that `proftrack run --output` wrote"
        )
    return run_folders


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / RECORD).is_file():
        yield folder
    elif depth > 0:
        for below in folder.iterdir():
            if below.is_dir() and not below.is_symlink():
                yield from _walk(below, depth - 1)


def load(folder: Path) -> Record:
    """The record of a run folder that has all files that the record names.

    Raises ProftrackError if the record cannot be read or is that of a bare trace, or if a file is missing.
    """
    record = records.load(folder / RECORD)
    if record.run is None:
        raise ProftrackError(f"{folder}: its record is that of a bare trace, not of a run", "name the folder of a run")
    traces = [f"{TRACES}/{Path(file.name).name}" for file in record.source.files]
    required = [name for name in (*REQUIRED, *traces) if name not in record.source.left_out]
    missing = [name for name in required if not (folder / name).is_file()]
    if missing:
        raise ProftrackError(
            f"{folder}: incomplete, {missing[0]} is missing", "copy the folder again or repeat the run"
        )
    return record


def artifacts(folder: Path) -> list[Path]:
    """All files of a run folder that belong in the store, relative to it.

    Raises ProftrackError for a symbolic link, and for a name that a store could read as another path: a folder from
    someone else must not upload files from outside of it, nor write to another run.
    """
    artifact_paths = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_symlink():
            raise ProftrackError(f"{path}: is a symbolic link", "remove it: only plain files are allowed here")
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored", "rename or remove it")
        if path.is_file() and relative.name != LOGGED and not any(part.startswith(".") for part in relative.parts):
            artifact_paths.append(relative)
    return artifact_paths


def identity(folder: Path) -> str:
    """The identity of a run folder wherever it is copied: the hash of its record."""
    return hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()[:32]


def read_bounded(path: Path) -> bytes:
    """Read logged.json or group.json. Raises OSError; ProftrackError if it is larger than any that proftrack writes."""
    with path.open("rb") as file:
        data = file.read(MAX_NOTE_BYTES + 1)
    if len(data) > MAX_NOTE_BYTES:
        raise ProftrackError(f"{path}: more than {MAX_NOTE_BYTES} bytes, which proftrack never writes", "remove it")
    return data
