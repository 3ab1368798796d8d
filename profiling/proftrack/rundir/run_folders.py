"""Run folders: what `run` measured, kept whole on disk before anything of it goes to a store.

    FOLDER/record.json
           trace/*.pt.trace.json.gz
           tables/key_averages.txt, ops.json, kernels.json
           events.parquet
           git.diff                    only where the tree was dirty
           logged.json                 to which stores this folder was logged; ours, not an artifact

A run without --output uses a folder below the spool, which is removed once everything in it is logged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack import names, untrusted
from proftrack import record as records
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.record import Record

SPOOL_VARIABLE = "PROFTRACK_SPOOL"
RECORD = "record.json"
LOGGED = "logged.json"
TABLES = ("tables/ops.json", "tables/kernels.json")
REQUIRED = (RECORD, "tables/key_averages.txt", *TABLES, "events.parquet")
LEAST_FREE_BYTES = 64 << 20
MAX_NOTE_BYTES = 16 << 20
"""Of logged.json, and of a group's group.json."""
_SEARCH_DEPTH = 4
_LEFT_AFTER_S = 86_400


class Logged(Struct, frozen=True, kw_only=True):
    """One store that a folder was logged to, or began to be."""

    store: str
    """The store's URI without credentials."""
    run_id: str
    complete: bool


class _LoggedFile(Struct, frozen=True):
    logged: list[Logged] = []


def spool_root() -> Path:
    """Where runs without --output keep their folder: $PROFTRACK_SPOOL, else ./proftrack-runs."""
    return Path(os.environ.get(SPOOL_VARIABLE) or "proftrack-runs").absolute()


def new_folder(output: Path | None, experiment: str) -> Path:
    """An empty run folder: `output` itself, or a fresh one below the spool.

    Raises UsageError where `output` holds something already or cannot be made.
    """
    try:
        if output is not None:
            _refuse_full_disk(output.absolute())
            return _empty_folder(output.absolute())
        root = spool_root()
        _refuse_full_disk(root)
        name = names.file_name(experiment)
        folder = root / f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}-{os.urandom(2).hex()}"
        folder.mkdir(parents=True)
        _sweep(root)
        # A folder of measurements must not make the user's own repository look dirty.
        (root / ".gitignore").write_text("*\n", encoding="utf-8")
        return folder
    except OSError as error:
        where = output or spool_root()
        raise UsageError(
            f"{where}: cannot hold the run ({error.strerror}); name another folder with --output or ${SPOOL_VARIABLE}"
        ) from error


def _sweep(root: Path) -> None:
    """Remove what processes that were killed have left: folders without measurements, a day old, held by nobody."""
    for folder in root.iterdir():
        with contextlib.suppress(OSError, StoreError):
            old = time.time() - folder.stat().st_mtime > _LEFT_AFTER_S
            if old and re.search(r"-\d{8}T\d{6}-\d+-[0-9a-f]{4}$", folder.name) and not holds_measurements(folder):
                with locked(folder):
                    shutil.rmtree(folder)


def _refuse_full_disk(folder: Path) -> None:
    """Find out before minutes are spent: a run wants a few MB at least, and its traces more."""
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(standing).free
    if free < LEAST_FREE_BYTES:
        raise UsageError(
            f"{standing}: {free // 2**20} MB are free, and a run wants {LEAST_FREE_BYTES // 2**20}; free some, or name "
            f"another folder with --output or ${SPOOL_VARIABLE}"
        )


def _empty_folder(folder: Path) -> Path:
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--output {folder}: the folder is not empty; name a new one, nothing is overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def discard(folder: Path) -> None:
    """Remove a folder of the spool, and the spool itself once it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    root = folder.parent
    with contextlib.suppress(OSError):
        if {path.name for path in root.iterdir()} <= {".gitignore"}:
            (root / ".gitignore").unlink(missing_ok=True)
            root.rmdir()


def holds_measurements(folder: Path) -> bool:
    """Whether a folder is worth keeping: a record, or traces that `analyze` can read."""
    return (folder / RECORD).is_file() or any((folder / "trace").glob("*"))


def find(folder: Path) -> list[Path]:
    """The run folders at or below `folder`, in order of their names.

    Raises UsageError where there is none.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name one that `proftrack run --output` wrote")
    found = sorted(_walk(folder.absolute(), _SEARCH_DEPTH))
    if not found:
        raise UsageError(f"{folder}: no run folder (no {RECORD} in it); name one that `proftrack run --output` wrote")
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
        raise ProftrackError(f"{folder}: holds the record of a bare trace, not of a run; only runs are synced")
    traces = [f"trace/{Path(file.name).name}" for file in record.source.files]
    wanted = [name for name in (*REQUIRED, *traces) if name not in record.source.left_out]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise ProftrackError(f"{folder}: not whole, {missing[0]} is missing; copy the folder again or repeat the run")
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
            raise ProftrackError(f"{path}: a symbolic link; a run folder holds plain files only")
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored; rename or remove it")
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
        raise ProftrackError(f"{path}: more than {MAX_NOTE_BYTES} bytes, proftrack writes none so large; remove it")
    return data


def logged(folder: Path) -> list[Logged]:
    """The stores that this folder was logged to; empty where that is not known.

    Raises ProftrackError where the file is larger than proftrack writes any.
    """
    if not (folder / LOGGED).is_file():  # a pipe would be waited for
        return []
    try:
        found: _LoggedFile = untrusted.decode(read_bounded(folder / LOGGED), _LoggedFile)
    except (OSError, msgspec.MsgspecError):
        return []
    return found.logged


def note_logged(folder: Path, entry: Logged) -> None:
    """Put `entry` into logged.json in place of what it said about the same store.

    A folder that cannot be written to is no error: the store knows the record's identity as well.
    """
    entries = [known for known in logged(folder) if known.store != entry.store]
    data = msgspec.json.format(msgspec.json.encode(_LoggedFile([*entries, entry])), indent=1)
    aside = folder / f".{LOGGED}.{os.getpid()}"
    with contextlib.suppress(OSError):
        aside.write_bytes(data + b"\n")
        aside.replace(folder / LOGGED)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, so that two processes do not log it at once.

    Raises StoreError where another process holds it. Without fcntl (Windows) nothing is held.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder}: another process is logging it now; wait until that has ended") from None
        except OSError:
            # Some network file systems have no locks; the record's identity in the store is the second guard.
            pass
        yield
    finally:
        os.close(handle)
