"""Log kept run folders to the store: each exactly once, with the times and the environment of the original run.

A folder is identified by the hash of its record, which its run carries as a tag. So its run is found again after a
crash between any two steps, and from any machine that the folder was copied to.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack import rundir
from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.store import fields, keys, lifecycle, session, upload
from proftrack.store.address import Store
from proftrack.store.connect import experiment_for
from proftrack.store.quiet import quiet
from proftrack.store.runs import StoredRun, from_mlflow, search

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Outcome(Struct, frozen=True, kw_only=True):
    """What was done with one folder."""

    folder: Path
    run_id: str
    experiment_id: str
    artifact_uri: str
    did: Literal["logged", "finished", "known"]
    """logged: as a new run; finished: completed a partly logged run; known: the store already had it."""
    whole: bool = True
    """Whether the store has everything that the folder holds."""


class Within(Struct, frozen=True, kw_only=True):
    """Makes a run a child: the experiment of its parent, and the tags that link to the parent."""

    experiment_id: str
    tags: dict[str, str]


def sync_folder(store: Store, client: MlflowClient, folder: Path, within: Within | None = None) -> Outcome:
    """Log one run folder unless this store already has it; as a child run if `within` is given.

    Raises StoreError if the store refuses or another process is logging the folder now; ProftrackError if the folder is
    not complete.
    """
    record = rundir.load(folder)
    with rundir.locked(folder):
        earlier = _find(store, client, folder)
        if earlier is not None and earlier.status == "FINISHED":
            return _already_logged(store, client, folder, earlier)
        return _log(store, client, folder, record, earlier, within)


def _find(store: Store, client: MlflowClient, folder: Path) -> StoredRun | None:
    """The run of this folder in this store, preferably a FINISHED one.

    Raises StoreError if a live process is logging it.
    """
    runs = search(store, client, {keys.RECORD_TAG: rundir.identity(folder)})
    runs.sort(key=lambda run: (run.status != "FINISHED", run.run_id))
    if not runs:
        return _opened_for(store, client, folder)
    lifecycle.refuse_if_logging(runs[0], folder, "record")
    return runs[0]


def _opened_for(store: Store, client: MlflowClient, folder: Path) -> StoredRun | None:
    """The run opened for this folder's measurement, if its process died before it could log anything."""
    from mlflow.exceptions import MlflowException

    for entry in rundir.logged(folder):
        if entry.store == store.public and re.fullmatch(r"[0-9a-f]{32}", entry.run_id):
            with contextlib.suppress(MlflowException), quiet():
                run = from_mlflow(client.get_run(entry.run_id))
                over = run.status == "FAILED" or lifecycle.is_abandoned(run)
                if over and not run.deleted and keys.RECORD_TAG not in run.tags:
                    return run
    return None


def _already_logged(store: Store, client: MlflowClient, folder: Path, run: StoredRun) -> Outcome:
    with contextlib.suppress(StoreError):
        run = from_mlflow(client.get_run(lifecycle.settle(store, client, run.run_id)))
    rundir.note_logged(folder, rundir.Logged(store=store.public, run_id=run.run_id, complete=True))
    return Outcome(
        folder=folder,
        run_id=run.run_id,
        experiment_id=run.experiment_id,
        artifact_uri=run.artifact_uri,
        did="known",
    )


def _log(
    store: Store, client: MlflowClient, folder: Path, record: Record, earlier: StoredRun | None, within: Within | None
) -> Outcome:
    """Log into a new run, or resume `earlier`. Logging twice is harmless, so what `earlier` holds does not matter."""
    facts = record.run
    assert facts is not None  # rundir.load refuses a record without them
    tags = {**lifecycle.owner_tags(), keys.EXPERIMENT_TAG: facts.experiment, **(within.tags if within else {})}

    def obtain() -> StoredRun:
        if earlier is not None:
            return lifecycle.reopen(store, client, earlier, tags)
        experiment_id = within.experiment_id if within else experiment_for(store, client, facts.experiment)
        # Tagged from the start: after a crash at any moment the run can still be found.
        identified = {**tags, keys.RECORD_TAG: rundir.identity(folder)}
        start_ms = facts.started_ns // 1_000_000
        return lifecycle.create(store, client, experiment_id, fields.run_name(record), identified, start_ms=start_ms)

    opening = session.Opening(store, client, obtain)
    with session.keep(opening, end_ms=facts.ended_ns // 1_000_000) as run:
        upload.log_folder(run, folder)
    upload.mark_logged(run, folder)
    return Outcome(
        folder=folder,
        run_id=run.run_id,
        experiment_id=run.experiment_id,
        artifact_uri=run.artifact_uri,
        did="logged" if earlier is None else "finished",
    )
