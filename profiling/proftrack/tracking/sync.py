"""Folders that were kept, into the store: each exactly once, with the times and the environment of its run.

A folder is known by the hash of its record, which its run carries as a tag: so a folder is found again in the store
after a crash between any two steps, on any machine that it was copied to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack.record import Record
from proftrack.tracking import log, mapping, runs, session, spool
from proftrack.tracking.faults import explained, quiet
from proftrack.tracking.store import Store, experiment_for

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one folder."""

    folder: Path
    run_id: str
    experiment_id: str
    artifact_uri: str
    did: Literal["logged", "finished", "known"]
    """logged anew; finished a run that was logged half; or the store had it already."""


def sync_folder(store: Store, client: MlflowClient, folder: Path) -> Outcome:
    """Log one run folder, unless this store has it already.

    Raises StoreError where the store refuses or another process is logging the folder now; ProftrackError where the
    folder is not whole.
    """
    record = spool.load(folder)
    with spool.locked(folder):
        known = _find(store, client, folder)
        if known is not None and known.info.status == "FINISHED":
            entry = spool.Logged(store=store.public, run_id=known.info.run_id, complete=True)
            spool.note_logged(folder, entry)
            return Outcome(
                folder=folder,
                run_id=known.info.run_id,
                experiment_id=known.info.experiment_id,
                artifact_uri=known.info.artifact_uri,
                did="known",
            )
        return _log(store, client, folder, record, known)


def _find(store: Store, client: MlflowClient, folder: Path) -> Run | None:
    """The run of this folder in this store; one that is whole before one that is not."""
    with explained(store, "searched"), quiet():
        found = runs.search(client, f"tags.`{runs.RECORD_TAG}` = '{spool.identity(folder)}'")
    found.sort(key=lambda run: bool(run.info.status != "FINISHED"))
    return found[0] if found else None


def _log(store: Store, client: MlflowClient, folder: Path, record: Record, known: Run | None) -> Outcome:
    """Log into a new run, or go on with `known`. Logging twice is harmless, so it matters not what `known` holds."""
    facts = record.run
    assert facts is not None  # spool.load refuses a record without them
    tags = {**runs.owner_tags(), runs.EXPERIMENT_TAG: facts.experiment}

    def obtain() -> Run:
        if known is not None:
            return runs.reopen(store, client, known, tags)
        experiment_id = experiment_for(store, client, facts.experiment)
        # With its tag from the start: a crash at any moment leaves a run that is found again.
        identified = {**tags, runs.RECORD_TAG: spool.identity(folder)}
        start_ms = facts.started_ns // 1_000_000
        return runs.create(store, client, experiment_id, mapping.run_name(record), identified, start_ms=start_ms)

    with session.keep(store, client, obtain, end_ms=facts.ended_ns // 1_000_000) as run:
        log.log_folder(run, folder)
    log.mark_logged(run, folder)
    return Outcome(
        folder=folder,
        run_id=run.run_id,
        experiment_id=run.experiment_id,
        artifact_uri=run.artifact_uri,
        did="logged" if known is None else "finished",
    )
