"""What a run folder holds: whether it is whole, and what of it belongs into a store."""

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
"""Of logged.json, and of a group's group.json."""
_SEARCH_DEPTH = 4


def holds_measurements(folder: Path) -> bool:
    """Whether a folder is worth keeping: a record, or traces that `analyze` can read."""
    return (folder / RECORD).is_file() or any((folder / TRACES).glob("*"))


def find(folder: Path) -> list[Path]:
    """The run folders at or below `folder`, in order of their names.

    Raises UsageError where there is none.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", "name one that `proftrack run --output` wrote")
    found = sorted(_walk(folder.absolute(), _SEARCH_DEPTH))
    if not found:
        raise UsageError(f"{folder}: no run folder (no {RECORD} in it)", "name one that `proftrack run --output` wrote")
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / RECORD).is_file():
        yield folder
    elif depth > 0:
        for below in folder.iterdir():
            if below.is_dir() and not below.is_symlink():
                yield from _walk(below, depth - 1)


def load(folder: Path) -> Record:
    """The record of a run folder that holds everything its record names.

    Raises ProftrackError where the record cannot be read, is that of a bare trace, or a file is missing.
    """
    record = records.load(folder / RECORD)
    if record.run is None:
        raise ProftrackError(f"{folder}: holds the record of a bare trace, not of a run", "only runs are synced")
    traces = [f"{TRACES}/{Path(file.name).name}" for file in record.source.files]
    wanted = [name for name in (*REQUIRED, *traces) if name not in record.source.left_out]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise ProftrackError(f"{folder}: not whole, {missing[0]} is missing", "copy the folder again or repeat the run")
    return record


def artifacts(folder: Path) -> list[Path]:
    """All files of a run folder that belong into the store, relative to it.

    Raises ProftrackError at a symbolic link, and at a name that a store could take for another place: a folder that
    others made must not upload what lies outside of it, nor anything to where another run is.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_symlink():
            raise ProftrackError(f"{path}: a symbolic link", "a run folder holds plain files only")
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored", "rename or remove it")
        if path.is_file() and relative.name != LOGGED and not any(part.startswith(".") for part in relative.parts):
            found.append(relative)
    return found


def identity(folder: Path) -> str:
    """What makes a run folder the same one wherever it was copied: the hash of its record."""
    return hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()[:32]


def read_bounded(path: Path) -> bytes:
    """A note that a folder holds about itself. Raises OSError, ProftrackError where it is larger than any of ours."""
    with path.open("rb") as file:
        data = file.read(MAX_NOTE_BYTES + 1)
    if len(data) > MAX_NOTE_BYTES:
        raise ProftrackError(f"{path}: more than {MAX_NOTE_BYTES} bytes, proftrack writes none so large", "remove it")
    return data
