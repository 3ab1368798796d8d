"""logged.json: the stores that a run folder was logged to, completely or in part."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack import files, untrusted
from proftrack.rundir.layout import LOGGED
from proftrack.rundir.read import read_bounded


class Logged(Struct, frozen=True, kw_only=True):
    """One store that a folder was logged to, completely or in part."""

    store: str
    """The store's URI without credentials."""
    run_id: str
    complete: bool


class _LoggedFile(Struct, frozen=True):
    logged: list[Logged] = []


def logged(folder: Path) -> list[Logged]:
    """The stores that this folder was logged to; empty if unknown.

    Raises ProftrackError if the file is larger than any that proftrack writes.
    """
    if not (folder / LOGGED).is_file():  # reading a pipe would block
        return []
    try:
        file: _LoggedFile = untrusted.decode(read_bounded(folder / LOGGED), _LoggedFile)
    except (OSError, msgspec.MsgspecError):
        return []
    return file.logged


def note_logged(folder: Path, entry: Logged) -> None:
    """Add `entry` to logged.json, replacing an earlier entry for the same store.

    A read-only folder is not an error: the store knows the record's identity as well.
    """
    entries = [each for each in logged(folder) if each.store != entry.store]
    data = msgspec.json.format(msgspec.json.encode(_LoggedFile([*entries, entry])), indent=1)
    with contextlib.suppress(OSError):
        files.replace(folder / LOGGED, data + b"\n")
