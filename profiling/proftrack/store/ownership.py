"""Whose a run is, and whether that process still is at work on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proftrack import process
from proftrack.errors import StoreError

if TYPE_CHECKING:
    from mlflow.entities import Run


def is_abandoned(run: Run) -> bool:
    """Whether the process that keeps a run, or kept it, surely is gone; in doubt it lives."""
    owner = process.from_tags(run.data.tags)
    return owner is not None and process.is_dead(owner, process.this_process())


def is_free(run: Run) -> bool:
    """Whether nobody is at work on a run, as far as can be seen from here: it is over, or was abandoned."""
    return run.info.status != "RUNNING" or is_abandoned(run)


def refuse_at_work(run: Run, folder: Path, what: str) -> None:
    """Raise StoreError where another process surely is logging `what` of `folder` as this run."""
    owner, here = process.from_tags(run.data.tags), process.this_process()
    if run.info.status == "RUNNING" and owner and owner != here and process.is_alive(owner, here):
        raise StoreError(
            f"{folder}: process {owner.pid} is logging the same {what} now, as run {run.info.run_id}",
            "wait until that has ended",
        )
