"""Steps in the life of an MLflow run, each through a client of its store; each raises StoreError.

The tag names here are what later starts, `sync` and people find runs by.
"""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Mapping
from typing import TYPE_CHECKING

from proftrack import __version__
from proftrack.errors import ProftrackError, StoreError
from proftrack.tracking import process
from proftrack.tracking.faults import explained, first_line, quiet
from proftrack.tracking.mapping import bounded
from proftrack.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT_TAG = "proftrack.experiment"
RECORD_TAG = "proftrack.record"
"""Identity of the record that a run holds: a folder is logged once, wherever it was copied."""
ENDED_BY_TAG = "proftrack.ended_by"
ERROR_TAG = "proftrack.error"
DEAD_PROCESS = "process gone"
_PAGE = 1000


def create(
    store: Store,
    client: MlflowClient,
    experiment_id: str,
    name: str,
    tags: Mapping[str, str],
    *,
    start_ms: int | None = None,
) -> Run:
    """A new run, RUNNING. Raises StoreError."""
    own = {"mlflow.user": _user(), "mlflow.source.name": "proftrack", "mlflow.source.type": "LOCAL"}
    with explained(store, "given a new run"), quiet():
        return client.create_run(experiment_id, start_time=start_ms, tags=bounded({**own, **tags}), run_name=name)


def reopen(store: Store, client: MlflowClient, run: Run, tags: Mapping[str, str]) -> Run:
    """A run that exists, RUNNING again, without the tags of its earlier end. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        if run.info.status != "RUNNING":
            client.update_run(run.info.run_id, status="RUNNING")
        for stale in {ENDED_BY_TAG, ERROR_TAG} & set(run.data.tags):
            client.delete_tag(run.info.run_id, stale)
        set_tags(client, run.info.run_id, tags)
    return run


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set several tags at once."""
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in bounded(dict(tags)).items()])


def end_run(store: Store, client: MlflowClient, run_id: str, status: str, tags: Mapping[str, str]) -> None:
    """Tags first, then the status: who sees that the run has ended sees why. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        set_tags(client, run_id, tags)
        client.set_terminated(run_id, status)


def owner_tags() -> dict[str, str]:
    """Tags that say which process keeps the run, so that a later start can tell whether it still does."""
    return {**process.this_process().tags(), "proftrack.version": __version__}


def close_dead_runs(store: Store, client: MlflowClient) -> list[str]:
    """End as FAILED what dead processes of this machine left RUNNING; a live process's run never. Returns the run ids.

    A store that refuses is no reason not to profile.
    """
    here = process.this_process()
    closed: list[str] = []
    with contextlib.suppress(StoreError), explained(store, "searched"), quiet():
        host = here.host.replace("'", "")
        left = f"attributes.status = 'RUNNING' and tags.`{process.HOST_TAG}` = '{host}'"
        for run in search(client, left):
            owner = process.from_tags(run.data.tags)
            if owner is not None and process.is_dead(owner, here):
                end_run(store, client, run.info.run_id, "FAILED", {ENDED_BY_TAG: DEAD_PROCESS})
                closed.append(run.info.run_id)
    return closed


def search(client: MlflowClient, filter_string: str) -> list[Run]:
    """Runs of all experiments that match, at most a thousand."""
    ids: list[str] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=_PAGE, page_token=token)
        ids += [experiment.experiment_id for experiment in page]
        token = page.token
        if not token:
            break
    return list(client.search_runs(ids, filter_string, max_results=_PAGE)) if ids else []


def describe(error: BaseException) -> str:
    """An error as one line for a tag, with its type where the message was not written for users."""
    line = first_line(error)
    return line if isinstance(error, ProftrackError) else f"{type(error).__name__}: {line}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container's user id that no passwd file knows.
        return "unknown"
