"""A run folder into an open MLflow run.

Everything here may be done twice: artifacts are written over, a metric's point is the same point, a param that is there
stays. So what was logged half is finished by logging it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack import rundir
from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.report.pages.note import note
from proftrack.store import columns, compat, fields, keys
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries, time_for
from proftrack.store.runs import now, set_tags
from proftrack.store.session import Session

if TYPE_CHECKING:
    from mlflow.entities import Run


def begin(session: Session, folder: Path) -> None:
    """Note in the folder which run it is for, so that `sync` goes on with that run whatever happens next.

    Raises StoreError where the run's artifacts cannot be reached: a bucket's driver or key is missing, the server
    serves none. That is better known before minutes are spent.
    """
    entry = rundir.Logged(store=session.store.public, run_id=session.run_id, complete=False)
    rundir.note_logged(folder, entry)
    with explained(session.store, "asked for the run's artifacts"), quiet(), quick_retries():
        session.client.list_artifacts(session.run_id)


def log_folder(session: Session, folder: Path) -> Record:
    """Log a whole run folder, look that it has arrived, and mark the session complete.

    Raises StoreError where the store refuses, ProftrackError where the folder is not whole.
    """
    record = rundir.load(folder)
    files = rundir.artifacts(folder)
    begin(session, folder)
    with explained(session.store, "written to"), quiet():
        # First of all, so that a crash half-way leaves a run that `sync` finds again.
        set_tags(session.client, session.run_id, {keys.RECORD_TAG: rundir.identity(folder)})
        _upload(session, folder, files)
        # A server that ends in mid-upload, or a proxy before it, can keep a part of a file and call it a whole one.
        _upload(session, folder, _not_whole(session, folder, files))
        if missing := _not_whole(session, folder, files):
            raise StoreError(
                f"{session.store.public}: {missing[0]} of run {session.run_id} did not arrive whole, twice",
                "look at the server's log and the space where it keeps artifacts, then: proftrack sync",
            )
        _log_figures(session, record)
    columns.prepare(session.store, session.client, session.experiment_id, record)
    session.complete()
    return record


def mark_logged(session: Session, folder: Path) -> None:
    """Note in the folder that the run has ended with everything in it."""
    rundir.note_logged(folder, rundir.Logged(store=session.store.public, run_id=session.run_id, complete=True))


def _upload(session: Session, folder: Path, files: list[Path]) -> None:
    for relative in files:
        with time_for((folder / relative).stat().st_size):
            session.client.log_artifact(session.run_id, str(folder / relative), _artifact_folder(relative))


def _not_whole(session: Session, folder: Path, files: list[Path]) -> list[Path]:
    """The files that the store has not, or not all of; its own list tells."""
    there: dict[str, int | None] = {}
    for below in {_artifact_folder(relative) for relative in files}:
        there |= {item.path: item.file_size for item in session.client.list_artifacts(session.run_id, below)}
    # Some artifact stores tell no sizes.
    sizes = {path: (folder / path).stat().st_size for path in files}
    return [path for path in files if there.get(path.as_posix(), -1) not in (sizes[path], None)]


def _artifact_folder(relative: Path) -> str | None:
    return None if relative.parent == Path() else relative.parent.as_posix()


def _log_figures(session: Session, record: Record) -> None:
    from mlflow.entities import Metric, Param

    client, run_id = session.client, session.run_id
    run = client.get_run(run_id)
    # Params are immutable, and `mlflow run` has logged those that MLproject declares, as they were given.
    params = [Param(name, value) for name, value in fields.params(record).items() if name not in run.data.params]
    # The run's own time, not now: the same point again is no second point.
    timestamp = record.run.ended_ns // 1_000_000 if record.run else 0
    metrics = [Metric(point.key, point.value, timestamp, point.step) for point in fields.metrics(record)]
    client.log_batch(run_id, metrics=metrics, params=params, synchronous=True)
    own = {keys.CHANGED_TAG: now()}
    if record.source.left_out:
        own[keys.LEFT_OUT_TAG] = ", ".join(record.source.left_out)
    set_tags(client, run_id, {**_source_tags(session, run, record), **fields.tags(record), **own})
    client.set_tag(run_id, keys.TABLES_TAG, _tables(run))
    client.set_tag(run_id, keys.NOTE_TAG, note(record))
    ours = session.named is not None and run.info.run_name == session.named
    if ours or (session.is_project and compat.is_generated(run.info.run_name)):
        client.update_run(run_id, name=fields.run_name(record))


def _source_tags(session: Session, run: Run, record: Record) -> dict[str, str]:
    """MLflow's source tags; those that `mlflow run` has set stay, with `dirty` beside a commit that is the same."""
    tags = fields.source_tags(record)
    if not session.is_project:
        return tags
    same = run.data.tags.get(keys.SOURCE_COMMIT_TAG) == tags.get(keys.SOURCE_COMMIT_TAG)
    return {name: value for name, value in tags.items() if same and name == keys.SOURCE_DIRTY_TAG}


def _tables(run: Run) -> str:
    """What MLflow's log_table keeps: which artifacts are tables. Those of the caller's own stay."""
    try:
        known = list(json.loads(run.data.tags.get(keys.TABLES_TAG, "[]")))
    except (ValueError, TypeError):
        known = []
    ours = [{"path": path, "type": "table"} for path in rundir.TABLES]
    return json.dumps([*known, *(table for table in ours if table not in known)])
