"""Everything that lies in a folder, into the store: batches first, then the runs that belong to none."""

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
    """What is to be logged, in this order."""

    folders: Sequence[Path]
    batches: frozenset[Path]
    """Those of `folders` that are a sweep's or variants'."""
    moved: Mapping[str, Path]
    """Run id -> run folder, of those that lie in the tree of a local store."""


class Failure(Struct, frozen=True, kw_only=True):
    """A folder that could not be logged; the others are."""

    sentence: str
    exit_code: int


def find(root: Path) -> Found:
    """The batches and run folders at or below `root`. Raises UsageError where there is none."""
    groups = batches.find(root)
    try:
        runs = rundir.find(root)
    except UsageError:
        if not groups:
            raise
        runs = []
    alone = [each for each in runs if not any(each.is_relative_to(folder) for folder in groups)]
    moved = batches.of_runs(alone)
    parts = batches.in_order(groups, moved)
    rest = [each for each in alone if not any(each in below for below in parts.values())]
    return Found(folders=[*parts, *rest], batches=frozenset(groups), moved=moved)


def log(store: Store, client: MlflowClient, found: Found, *, discard: bool) -> Iterator[list[Outcome] | Failure]:
    """Log one folder after the other; what became of each. A batch has its parts' outcomes, its own comes last.

    `discard` removes what the store has whole.
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
            yield Failure(sentence=f"{folder}: cannot be logged ({why}); the others are", exit_code=1)
            continue
        yield outcomes
        if discard and outcomes[-1].whole:
            rundir.discard(folder)
