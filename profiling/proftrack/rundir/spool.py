"""Creates run folders, at the path given or else below the spool; locks and removes them.

A run without --output uses a folder below the spool, which is removed once everything in it is logged.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from proftrack import files, names
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.rundir.layout import GITIGNORE, LOCK
from proftrack.rundir.logged import logged
from proftrack.rundir.read import find, holds_measurements

SPOOL_VARIABLE = "PROFTRACK_SPOOL"
LEAST_FREE_BYTES = 64 << 20
_ABANDONED_AFTER_S = 86_400


def spool_root() -> Path:
    """Where runs without --output keep their folder: $PROFTRACK_SPOOL, else ./proftrack-runs."""
    return Path(os.environ.get(SPOOL_VARIABLE) or "proftrack-runs").absolute()


def new_folder(output: Path | None, experiment: str) -> Path:
    """Create an empty run folder: `output` itself, or a new one below the spool.

    Raises UsageError if `output` is not empty or cannot be created.
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
        _remove_abandoned(root)
        # A folder of measurements must not make the user's own repository look dirty.
        (root / GITIGNORE).write_text("*\n", encoding="utf-8")
        return folder
    except OSError as error:
        where = output or spool_root()
        raise UsageError(
            f"{where}: cannot hold the run ({error.strerror})",
            f"name another folder with --output or ${SPOOL_VARIABLE}",
        ) from error


def _remove_abandoned(root: Path) -> None:
    """Remove what killed processes have left: unlocked folders without measurements that are a day old."""
    for folder in root.iterdir():
        with contextlib.suppress(OSError, StoreError):
            old = time.time() - folder.stat().st_mtime > _ABANDONED_AFTER_S
            if old and re.search(r"-\d{8}T\d{6}-\d+-[0-9a-f]{4}$", folder.name) and not holds_measurements(folder):
                with locked(folder):
                    shutil.rmtree(folder)


def free_space(folder: Path) -> tuple[Path, int]:
    """The folder itself or its nearest parent that exists, and the free bytes there."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing, shutil.disk_usage(existing).free


def _refuse_full_disk(folder: Path) -> None:
    """Check before minutes are spent: a run needs a few MB at least, and its traces more."""
    existing, free = free_space(folder)
    if free < LEAST_FREE_BYTES:
        raise UsageError(
            f"{existing}: {free // 2**20} MB are free, but a run needs {LEAST_FREE_BYTES // 2**20} MB",
            f"free some space, or name another folder with --output or ${SPOOL_VARIABLE}",
        )


def _empty_folder(folder: Path) -> Path:
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise UsageError(f"--output {folder}: the folder is not empty", "name a new one: nothing is overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Spooled(Struct, frozen=True, kw_only=True):
    """The contents of the spool."""

    waiting: list[Path]
    """Complete run folders that, by their own account, are in no store yet."""
    waiting_bytes: int
    unfinished: list[Path]
    """Folders with traces but no record, from a run that failed or was killed."""


def spooled() -> Spooled:
    """What is in the spool now."""
    root = spool_root()
    folders = [path for path in root.glob("*/") if not path.is_symlink()] if root.is_dir() else []
    complete = []
    with contextlib.suppress(UsageError):
        complete = find(root)  # includes the points of a sweep, which are nested deeper
    waiting = [path for path in complete if not _is_logged(path)]
    unfinished = [path for path in folders if path not in complete and holds_measurements(path) and _is_free(path)]
    size = sum(file.stat().st_size for path in waiting for file in path.rglob("*") if file.is_file())
    return Spooled(waiting=waiting, waiting_bytes=size, unfinished=unfinished)


def _is_logged(folder: Path) -> bool:
    try:
        return any(entry.complete for entry in logged(folder))
    except ProftrackError:  # its logged.json cannot be read: `sync` will say so
        return False


def _is_free(folder: Path) -> bool:
    """Whether no run is working in it."""
    try:
        with locked(folder):
            return True
    except (StoreError, OSError):
        return False


def discard(folder: Path) -> None:
    """Remove a folder of the spool, and the spool itself if it is then empty."""
    shutil.rmtree(folder, ignore_errors=True)
    root = folder.parent
    with contextlib.suppress(OSError):
        if {path.name for path in root.iterdir()} <= {GITIGNORE}:
            (root / GITIGNORE).unlink(missing_ok=True)
            root.rmdir()


def locked(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder for the block. Raises StoreError if another process has locked it.

    Whoever measures into a run folder, logs it or removes it locks it meanwhile. If the file system has no locks, or
    the folder is read-only, nothing is locked: the record's identity in the store is the second guard.
    """
    return files.locked(
        folder / LOCK, held=StoreError(f"{folder}: another process is using it", "wait until that process has ended")
    )
