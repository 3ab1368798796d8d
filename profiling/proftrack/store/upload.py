"""Log a run folder into an open MLflow run.

Everything here is safe to repeat: artifacts are overwritten, a metric's point is the same point, an existing param
stays. So a partly logged run is completed by logging it again.
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
    """Note in the folder which run it belongs to, so that `sync` resumes that run whatever happens next.

    Raises StoreError if the run's artifacts cannot be reached, for example because a bucket's driver or key is missing
    or the server serves no artifacts. It is better to know that before spending minutes on measuring.
    """
    entry = rundir.Logged(store=session.store.public, run_id=session.run_id, complete=False)
    rundir.note_logged(folder, entry)
    with explained(session.store, "asked for the run's artifacts"), quiet(), quick_retries():
        session.client.list_artifacts(session.run_id)


def log_folder(session: Session, folder: Path) -> Record:
    """Log a complete run folder, check that everything has arrived, and mark the session complete.

    Raises StoreError if the store refuses, ProftrackError if the folder is not complete.
    """
    record = rundir.load(folder)
    files = rundir.artifacts(folder)
    begin(session, folder)
    with explained(session.store, "written to"), quiet():
        # This comes first, so that after a crash half-way `sync` finds the run again.
        set_tags(session.client, session.run_id, {keys.RECORD_TAG: rundir.identity(folder)})
        _upload(session, folder, files)
        # A server that stops in mid-upload, or a proxy in front of it, can keep part of a file as if it were whole.
        _upload(session, folder, _incomplete(session, folder, files))
        if missing := _incomplete(session, folder, files):
            raise StoreError(
                f"{session.store.public}: {missing[0]} of run {session.run_id} arrived incomplete, twice",
                "check the server's log and the free space where it keeps artifacts, then run: proftrack sync",
            )
        _log_figures(session, record, files)
    columns.prepare(session.store, session.client, session.experiment_id, record)
    session.complete()
    return record


def mark_logged(session: Session, folder: Path) -> None:
    """Note in the folder that its run is complete."""
    rundir.note_logged(folder, rundir.Logged(store=session.store.public, run_id=session.run_id, complete=True))


def _upload(session: Session, folder: Path, files: list[Path]) -> None:
    for relative in files:
        with time_for((folder / relative).stat().st_size):
            session.client.log_artifact(session.run_id, str(folder / relative), _artifact_folder(relative))


def _incomplete(session: Session, folder: Path, files: list[Path]) -> list[Path]:
    """The files that the store lacks, or has with another size, by its own listing."""
    stored: dict[str, int | None] = {}
    for below in {_artifact_folder(relative) for relative in files}:
        stored |= {item.path: item.file_size for item in session.client.list_artifacts(session.run_id, below)}
    sizes = {path: (folder / path).stat().st_size for path in files}
    # Some artifact stores do not report sizes.
    return [path for path in files if stored.get(path.as_posix(), -1) not in (sizes[path], None)]


def _artifact_folder(relative: Path) -> str | None:
    return None if relative.parent == Path() else relative.parent.as_posix()


def _log_figures(session: Session, record: Record, files: list[Path]) -> None:
    from mlflow.entities import Metric, Param

    client, run_id = session.client, session.run_id
    run = client.get_run(run_id)
    # Params are immutable, and `mlflow run` has already logged those that MLproject declares, as given.
    params = [Param(name, value) for name, value in fields.params(record).items() if name not in run.data.params]
    # The run's own time, not now: logging the point again does not add a second one.
    timestamp = record.run.ended_ns // 1_000_000 if record.run else 0
    metrics = [Metric(point.key, point.value, timestamp, point.step) for point in fields.metrics(record)]
    client.log_batch(run_id, metrics=metrics, params=params, synchronous=True)
    tags = {**_source_tags(session, run, record), **fields.tags(record), keys.CHANGED_TAG: now()}
    if record.source.left_out:
        tags[keys.LEFT_OUT_TAG] = ", ".join(record.source.left_out)
    set_tags(client, run_id, tags)
    client.set_tag(run_id, keys.TABLES_TAG, _tables(run, files))
    client.set_tag(run_id, keys.NOTE_TAG, note(record))
    provisional = session.named is not None and run.info.run_name == session.named
    if provisional or (session.is_project and compat.is_generated(run.info.run_name)):
        client.update_run(run_id, name=fields.run_name(record))


def _source_tags(session: Session, run: Run, record: Record) -> dict[str, str]:
    """MLflow's source tags. Those set by `mlflow run` stay; `dirty` is added if the commit is the same."""
    tags = fields.source_tags(record)
    if not session.is_project:
        return tags
    same = run.data.tags.get(keys.SOURCE_COMMIT_TAG) == tags.get(keys.SOURCE_COMMIT_TAG)
    return {name: value for name, value in tags.items() if same and name == keys.SOURCE_DIRTY_TAG}


def _tables(run: Run, files: list[Path]) -> str:
    """The tag in which MLflow's log_table lists which artifacts are tables; the caller's own tables stay listed."""
    try:
        listed = list(json.loads(run.data.tags.get(keys.TABLES_TAG, "[]")))
    except (ValueError, TypeError):
        listed = []
    ours = [{"path": path, "type": "table"} for path in (*rundir.TABLES, rundir.MODULES) if Path(path) in files]
    return json.dumps([*listed, *(table for table in ours if table not in listed)])
