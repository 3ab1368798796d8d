"""Steps in the life of an MLflow run, each through a client of its store; each raises StoreError.

The tag names here are what later starts, `sync` and people find runs by.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from proftrack import __version__, process
from proftrack.errors import ProftrackError, StoreError
from proftrack.redact import scrub
from proftrack.store.connect import Store
from proftrack.store.errors import explained, first_line, quiet
from proftrack.store.fields import bounded
from proftrack.store.ownership import is_abandoned

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

EXPERIMENT_TAG = "proftrack.experiment"
RECORD_TAG = "proftrack.record"
"""Identity of the record that a run holds: a folder is logged once, wherever it was copied."""
CHANGED_TAG = "proftrack.changed"
"""When proftrack last wrote to a run, UTC: `2026-11-29T20:05:06Z`. What is new is searched by it, see runs_cache."""
LEFT_OUT_TAG = "proftrack.left_out"
"""Files that the run has not, for want of space where it was measured."""
REQUEST_TAG = "proftrack.request"
"""Of the request that made the run: one that was repeated, since its answer got lost, made another run."""
DUPLICATE_TAG = "proftrack.duplicate_of"
KIND_TAG = "proftrack.kind"
"""On the parent run of a sweep or of variants: which of the two."""
GROUP_TAG = "proftrack.group"
"""On a parent run: the identity of its group, which is that of its folder."""
USER_TAG = "mlflow.user"
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
    own = {USER_TAG: process.user(), "mlflow.source.name": "proftrack", "mlflow.source.type": "LOCAL"}
    own[REQUEST_TAG] = uuid.uuid4().hex
    with explained(store, "given a new run"), quiet():
        return client.create_run(
            experiment_id, start_time=start_ms, tags=bounded({**own, **tags}), run_name=scrub(name)
        )


def reopen(store: Store, client: MlflowClient, run: Run, tags: Mapping[str, str]) -> Run:
    """A run that exists, RUNNING again, without the tags of its earlier end. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        if run.info.status != "RUNNING":
            client.update_run(run.info.run_id, status="RUNNING")
        for stale in {ENDED_BY_TAG, ERROR_TAG} & set(run.data.tags):
            client.delete_tag(run.info.run_id, stale)
        set_tags(client, run.info.run_id, tags)
    return run


def without_credentials(run: Run) -> dict[str, str]:
    """Tags to write over those of a run in which MLflow has put a URL with a password or token in it.

    `mlflow run` records the address of Git's remote, and that of a project on a server, as they are (3.17).
    """
    return {
        name: clean
        for name, value in run.data.tags.items()
        if name.startswith(("mlflow.source.", "mlflow.project.", "mlflow.git")) and (clean := scrub(value)) != value
    }


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


def now() -> str:
    """The value of CHANGED_TAG for a run that is written to now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def settle(store: Store, client: MlflowClient, run_id: str) -> str:
    """Make a record that is in the store be there once. Returns the run that holds it: `run_id`, or an earlier one.

    Two ways lead to a second run: a server that made one and could not say so, and was asked again; and two copies of a
    folder that were logged at once. Of whole runs the one with the lowest id stays, so that both sides of a race decide
    alike. Others are deleted, or where this user may not do that, marked as FAILED with proftrack.duplicate_of.
    A repeated request is one of this very process; a parent run holds no record and is never a duplicate by one.
    Raises StoreError.
    """
    with explained(store, "searched for duplicates"), quiet():
        run = client.get_run(run_id)
        others = {each.info.run_id: each for each in [*_same_record(client, run), *_same_request(client, run)]}
        others.pop(run_id, None)
        kept: str = min([run_id, *(each for each, found in others.items() if found.info.status == "FINISHED")])
        here = process.this_process()
        for each in [run_id, *others]:
            owner = process.from_tags(others[each].data.tags) if each in others else None
            # Another process's run that is not whole yet is that one's to settle.
            if each != kept and not (owner and owner.tags() != here.tags() and others[each].info.status == "RUNNING"):
                _drop(client, each, kept)
    return kept


def is_parent(run: Run) -> bool:
    """Whether a run is the parent of a sweep or of variants."""
    return KIND_TAG in run.data.tags or GROUP_TAG in run.data.tags


def _same_record(client: MlflowClient, run: Run) -> list[Run]:
    if is_parent(run):
        return []
    return [each for each in _with_tag(client, RECORD_TAG, run.data.tags) if not is_parent(each)]


def _same_request(client: MlflowClient, run: Run) -> list[Run]:
    here = process.this_process()
    found = _with_tag(client, REQUEST_TAG, run.data.tags, [run.info.experiment_id])
    return [each for each in found if process.from_tags(each.data.tags) == here]


def _with_tag(
    client: MlflowClient, tag: str, tags: Mapping[str, str], experiment_ids: list[str] | None = None
) -> list[Run]:
    value = tags.get(tag, "").replace("'", "")
    return search(client, f"tags.`{tag}` = '{value}'", experiment_ids) if value else []


def _drop(client: MlflowClient, run_id: str, kept: str) -> None:
    from mlflow.exceptions import MlflowException

    set_tags(client, run_id, {DUPLICATE_TAG: kept})
    client.set_terminated(run_id, "FAILED")
    with contextlib.suppress(MlflowException):  # deleting takes the permission MANAGE
        client.delete_run(run_id)


def close_dead_runs(store: Store, client: MlflowClient) -> list[str]:
    """End as FAILED what dead processes of this machine left RUNNING; a live process's run never. Returns the run ids.

    A store that refuses is no reason not to profile.
    """
    closed: list[str] = []
    with contextlib.suppress(StoreError), explained(store, "searched"), quiet():
        host = process.this_process().host.replace("'", "")
        left = f"attributes.status = 'RUNNING' and tags.`{process.HOST_TAG}` = '{host}'"
        for run in search(client, left):
            if is_abandoned(run):
                end_run(store, client, run.info.run_id, "FAILED", {ENDED_BY_TAG: DEAD_PROCESS})
                closed.append(run.info.run_id)
    return closed


def search(client: MlflowClient, filter_string: str, experiment_ids: list[str] | None = None) -> list[Run]:
    """Runs of these experiments (None: of all that this user may read) that match, at most a thousand."""
    ids = [each.experiment_id for each in experiments(client)] if experiment_ids is None else experiment_ids
    return list(client.search_runs(ids, filter_string, max_results=_PAGE)) if ids else []


def experiments(client: MlflowClient) -> list[Experiment]:
    """All MLflow experiments that this user may read."""
    found: list[Experiment] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=_PAGE, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def describe(error: BaseException) -> str:
    """An error as one line for a tag, with its type where the message was not written for users."""
    line = first_line(error)
    return line if isinstance(error, ProftrackError) else f"{type(error).__name__}: {line}"
