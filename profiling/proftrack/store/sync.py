"""Folders that were kept, into the store: each exactly once, with the times and the environment of its run.

A folder is known by the hash of its record, which its run carries as a tag: so a folder is found again in the store
after a crash between any two steps, on any machine that it was copied to.
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
from proftrack.store import fields, keys, lifecycle, ownership, session, upload
from proftrack.store.address import Store
from proftrack.store.connect import experiment_for
from proftrack.store.quiet import quiet
from proftrack.store.runs import StoredRun, from_mlflow, search

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one folder."""

    folder: Path
    run_id: str
    experiment_id: str
    artifact_uri: str
    did: Literal["logged", "finished", "known"]
    """logged anew; finished a run that was logged half; or the store had it already."""
    whole: bool = True
    """Whether the store has everything that the folder holds."""


class Within(Struct, frozen=True, kw_only=True):
    """What a run becomes a part of: the experiment of its parent, and the tags that say so."""

    experiment_id: str
    tags: dict[str, str]


def sync_folder(store: Store, client: MlflowClient, folder: Path, within: Within | None = None) -> Outcome:
    """Log one run folder, unless this store has it already; as a child of a run where `within` says so.

    Raises StoreError where the store refuses or another process is logging the folder now; ProftrackError where the
    folder is not whole.
    """
    record = rundir.load(folder)
    with rundir.locked(folder):
        known = _find(store, client, folder)
        if known is not None and known.status == "FINISHED":
            return _known(store, client, folder, known)
        return _log(store, client, folder, record, known, within)


def _find(store: Store, client: MlflowClient, folder: Path) -> StoredRun | None:
    """The run of this folder in this store; one that is whole before one that is not.

    Raises StoreError where a process that lives is logging it.
    """
    found = search(store, client, {keys.RECORD_TAG: rundir.identity(folder)})
    found.sort(key=lambda run: (run.status != "FINISHED", run.run_id))
    if not found:
        return _begun(store, client, folder)
    ownership.refuse_at_work(found[0], folder, "record")
    return found[0]


def _begun(store: Store, client: MlflowClient, folder: Path) -> StoredRun | None:
    """The run that this folder was measured for, where the process died before it could log anything of it."""
    from mlflow.exceptions import MlflowException

    for entry in rundir.logged(folder):
        if entry.store == store.public and re.fullmatch(r"[0-9a-f]{32}", entry.run_id):
            with contextlib.suppress(MlflowException), quiet():
                run = from_mlflow(client.get_run(entry.run_id))
                gone = run.status == "FAILED" or ownership.is_abandoned(run)
                if gone and not run.deleted and keys.RECORD_TAG not in run.tags:
                    return run
    return None


def _known(store: Store, client: MlflowClient, folder: Path, known: StoredRun) -> Outcome:
    with contextlib.suppress(StoreError):
        known = from_mlflow(client.get_run(lifecycle.settle(store, client, known.run_id)))
    rundir.note_logged(folder, rundir.Logged(store=store.public, run_id=known.run_id, complete=True))
    return Outcome(
        folder=folder,
        run_id=known.run_id,
        experiment_id=known.experiment_id,
        artifact_uri=known.artifact_uri,
        did="known",
    )


def _log(
    store: Store, client: MlflowClient, folder: Path, record: Record, known: StoredRun | None, within: Within | None
) -> Outcome:
    """Log into a new run, or go on with `known`. Logging twice is harmless, so it matters not what `known` holds."""
    facts = record.run
    assert facts is not None  # rundir.load refuses a record without them
    tags = {**ownership.tags(), keys.EXPERIMENT_TAG: facts.experiment, **(within.tags if within else {})}

    def obtain() -> StoredRun:
        if known is not None:
            return lifecycle.reopen(store, client, known, tags)
        experiment_id = within.experiment_id if within else experiment_for(store, client, facts.experiment)
        # With its tag from the start: a crash at any moment leaves a run that is found again.
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
        did="logged" if known is None else "finished",
    )
