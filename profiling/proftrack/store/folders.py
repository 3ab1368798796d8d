"""Log everything in a folder to the store: batches first, then the runs that belong to none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import rundir
from proftrack.errors import ProftrackError, UsageError
from proftrack.rundir import batch as batches
from proftrack.store import batch, sync
from proftrack.store.address import Store
from proftrack.store.sync import Outcome

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Found(Struct, frozen=True, kw_only=True):
    """The folders to log, in this order."""

    folders: Sequence[Path]
    batches: frozenset[Path]
    """The folders of sweeps or variants among them."""
    moved: Mapping[str, Path]
    """Run id -> run folder, for run folders inside a local store."""


class Failure(Struct, frozen=True, kw_only=True):
    """A folder that could not be logged; the others still are."""

    sentence: str
    exit_code: int


def find(root: Path) -> Found:
    """The batches and run folders at or below `root`. Raises UsageError if there are none."""
    groups = batches.find(root)
    try:
        runs = rundir.find(root)
    except UsageError:
        if not groups:
            raise
        runs = []
    alone = [run for run in runs if not any(run.is_relative_to(folder) for folder in groups)]
    moved = batches.of_runs(alone)
    parts = batches.in_order(groups, moved)
    rest = [run for run in alone if not any(run in below for below in parts.values())]
    return Found(folders=[*parts, *rest], batches=frozenset(groups), moved=moved)


def log(store: Store, client: MlflowClient, found: Found, *, discard: bool) -> Iterator[list[Outcome] | Failure]:
    """Log one folder after the other and yield each one's outcomes: of a batch its parts', then its own.

    `discard` removes the folders that the store has completely.
    """
    for folder in found.folders:
        try:
            if folder in found.batches:
                outcomes = batch.sync_group(store, client, folder, found.moved)
            else:
                outcomes = [sync.sync_folder(store, client, folder)]
        except ProftrackError as error:
            yield Failure(sentence=str(error), exit_code=error.exit_code)
            continue
        except (OSError, MemoryError) as error:
            why = "too large for this machine's memory" if isinstance(error, MemoryError) else error.strerror or error
            yield Failure(sentence=f"{folder}: cannot be logged ({why}); the others are logged", exit_code=1)
            continue
        yield outcomes
        if discard and outcomes[-1].whole:
            rundir.discard(folder)
