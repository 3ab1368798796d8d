"""A run folder into an open MLflow run.

Everything here may be done twice: artifacts are written over, a metric's point is the same point, a param that is there
stays. So what was logged half is finished by logging it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.record import Record
from proftrack.tracking import mapping, spool
from proftrack.tracking.faults import explained, quiet
from proftrack.tracking.note import note
from proftrack.tracking.runs import RECORD_TAG, set_tags
from proftrack.tracking.session import Session

if TYPE_CHECKING:
    from mlflow.entities import Run

# MLflow's own tags: what the UI's comparison of tables and the description are found by.
TABLES_TAG = "mlflow.loggedArtifacts"
NOTE_TAG = "mlflow.note.content"


def log_folder(session: Session, folder: Path) -> Record:
    """Log a whole run folder and mark the session complete.

    Raises StoreError where the store refuses, ProftrackError where the folder is not whole.
    """
    record = spool.load(folder)
    files = spool.artifacts(folder)
    entry = spool.Logged(store=session.store.public, run_id=session.run_id, complete=False)
    spool.note_logged(folder, entry)
    with explained(session.store, "written to"), quiet():
        # First of all, so that a crash half-way leaves a run that `sync` finds again.
        set_tags(session.client, session.run_id, {RECORD_TAG: spool.identity(folder)})
        for relative in files:
            below = relative.parent.as_posix()
            session.client.log_artifact(session.run_id, str(folder / relative), None if below == "." else below)
        _log_figures(session, record)
    session.complete()
    return record


def mark_logged(session: Session, folder: Path) -> None:
    """Note in the folder that the run has ended with everything in it."""
    spool.note_logged(folder, spool.Logged(store=session.store.public, run_id=session.run_id, complete=True))


def _log_figures(session: Session, record: Record) -> None:
    from mlflow.entities import Metric, Param

    client, run_id = session.client, session.run_id
    run = client.get_run(run_id)
    # Params are immutable, and `mlflow run` has logged those that MLproject declares, as they were given.
    params = [Param(name, value) for name, value in mapping.params(record).items() if name not in run.data.params]
    # The run's own time, not now: the same point again is no second point.
    timestamp = record.run.ended_ns // 1_000_000 if record.run else 0
    metrics = [Metric(point.key, point.value, timestamp, point.step) for point in mapping.metrics(record)]
    client.log_batch(run_id, metrics=metrics, params=params, synchronous=True)
    set_tags(client, run_id, {**_source_tags(session, run, record), **mapping.tags(record)})
    client.set_tag(run_id, TABLES_TAG, _tables(run))
    client.set_tag(run_id, NOTE_TAG, note(record))
    if session.is_project and _is_generated(run.info.run_name):
        client.update_run(run_id, name=mapping.run_name(record))


def _is_generated(name: str) -> bool:
    """Whether MLflow made a run's name up (`useful-hare-90`); one that the user chose stays."""
    try:
        from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES
    except ImportError:
        return False
    predicate, _, rest = name.partition("-")
    return predicate in _GENERATOR_PREDICATES and rest.rpartition("-")[0] in _GENERATOR_NOUNS


def _source_tags(session: Session, run: Run, record: Record) -> dict[str, str]:
    """MLflow's source tags; those that `mlflow run` has set stay, with `dirty` beside a commit that is the same."""
    tags = mapping.source_tags(record)
    if not session.is_project:
        return tags
    same = run.data.tags.get("mlflow.source.git.commit") == tags.get("mlflow.source.git.commit")
    return {name: value for name, value in tags.items() if same and name == "mlflow.source.git.dirty"}


def _tables(run: Run) -> str:
    """What MLflow's log_table keeps: which artifacts are tables. Those of the caller's own stay."""
    try:
        known = list(json.loads(run.data.tags.get(TABLES_TAG, "[]")))
    except (ValueError, TypeError):
        known = []
    ours = [{"path": path, "type": "table"} for path in spool.TABLES]
    return json.dumps([*known, *(table for table in ours if table not in known)])
