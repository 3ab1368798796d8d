"""One process at a time: who measures into a run folder, logs it or removes it holds it meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from proftrack import files
from proftrack.errors import StoreError
from proftrack.rundir.layout import LOCK


def locked(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder for the block. Raises StoreError where another process holds it.

    Where the file system has no locks, or the folder cannot be written to, nothing is held: the record's identity in
    the store is the second guard.
    """
    return files.locked(
        folder / LOCK, held=StoreError(f"{folder}: another process is logging it now", "wait until that has ended")
    )
