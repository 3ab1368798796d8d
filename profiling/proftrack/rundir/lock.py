"""One process at a time: whoever measures into a run folder, logs it or removes it locks it meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from proftrack import files
from proftrack.errors import StoreError
from proftrack.rundir.layout import LOCK


def locked(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder for the block. Raises StoreError if another process has locked it.

    If the file system has no locks, or the folder is read-only, nothing is locked: the record's identity in the store
    is the second guard.
    """
    return files.locked(
        folder / LOCK, held=StoreError(f"{folder}: another process is using it", "wait until that process has ended")
    )
