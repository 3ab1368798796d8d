"""Steps in the life of an MLflow run, each through a client of its store; each raises StoreError."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from proftrack import process
from proftrack.errors import ProftrackError, StoreError
from proftrack.redact import scrub
from proftrack.store import keys, ownership
from proftrack.store.address import Store
from proftrack.store.errors import explained, first_line
from proftrack.store.fields import bounded
from proftrack.store.quiet import quiet
from proftrack.store.runs import StoredRun, from_mlflow, search, set_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEAD_PROCESS = "process gone"


def create(
    store: Store,
    client: MlflowClient,
    experiment_id: str,
    name: str,
    tags: Mapping[str, str],
    *,
    start_ms: int | None = None,
) -> StoredRun:
    """A new run, RUNNING. Raises StoreError."""
    own = {keys.USER_TAG: process.user(), keys.SOURCE_NAME_TAG: "proftrack", keys.SOURCE_TYPE_TAG: "LOCAL"}
    own[keys.REQUEST_TAG] = uuid.uuid4().hex
    with explained(store, "given a new run"), quiet():
        return from_mlflow(
            client.create_run(experiment_id, start_time=start_ms, tags=bounded({**own, **tags}), run_name=scrub(name))
        )


def reopen(store: Store, client: MlflowClient, run: StoredRun, tags: Mapping[str, str]) -> StoredRun:
    """A run that exists, RUNNING again, without the tags of its earlier end. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        if run.status != "RUNNING":
            client.update_run(run.run_id, status="RUNNING")
        for stale in {keys.ENDED_BY_TAG, keys.ERROR_TAG} & set(run.tags):
            client.delete_tag(run.run_id, stale)
        set_tags(client, run.run_id, tags)
    return run


def without_credentials(run: StoredRun) -> dict[str, str]:
    """Tags to write over those of a run in which MLflow has put a URL with a password or token in it.

    `mlflow run` records the address of Git's remote, and that of a project on a server, as they are (3.17).
    """
    return {
        name: clean
        for name, value in run.tags.items()
        if name.startswith(keys.MLFLOW_URL_TAGS) and (clean := scrub(value)) != value
    }


def end_run(store: Store, client: MlflowClient, run_id: str, status: str, tags: Mapping[str, str]) -> None:
    """Tags first, then the status: who sees that the run has ended sees why. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        set_tags(client, run_id, tags)
        client.set_terminated(run_id, status)


def settle(store: Store, client: MlflowClient, run_id: str) -> str:
    """Make a record that is in the store be there once. Returns the run that holds it: `run_id`, or an earlier one.

    Two ways lead to a second run: a server that made one and could not say so, and was asked again; and two copies of a
    folder that were logged at once. Of whole runs the one with the lowest id stays, so that both sides of a race decide
    alike. Others are deleted, or where this user may not do that, marked as FAILED with proftrack.duplicate_of.
    A repeated request is one of this very process; a parent run holds no record and is never a duplicate by one.
    Raises StoreError.
    """
    with explained(store, "searched for duplicates"), quiet():
        run = from_mlflow(client.get_run(run_id))
        others = {each.run_id: each for each in [*_same_record(store, client, run), *_same_request(store, client, run)]}
        others.pop(run_id, None)
        kept: str = min([run_id, *(each for each, found in others.items() if found.status == "FINISHED")])
        here = process.this_process()
        for each in [run_id, *others]:
            owner = ownership.of(others[each].tags) if each in others else None
            # Another process's run that is not whole yet is that one's to settle.
            if each != kept and not (owner and owner != here and others[each].status == "RUNNING"):
                _drop(client, each, kept)
    return kept


def _same_record(store: Store, client: MlflowClient, run: StoredRun) -> list[StoredRun]:
    record = run.tags.get(keys.RECORD_TAG)
    if record is None or run.is_parent:
        return []
    return [each for each in search(store, client, {keys.RECORD_TAG: record}) if not each.is_parent]


def _same_request(store: Store, client: MlflowClient, run: StoredRun) -> list[StoredRun]:
    request = run.tags.get(keys.REQUEST_TAG)
    if request is None:
        return []
    same = search(store, client, {keys.REQUEST_TAG: request}, experiment_ids=[run.experiment_id])
    here = process.this_process()
    return [each for each in same if ownership.of(each.tags) == here]


def _drop(client: MlflowClient, run_id: str, kept: str) -> None:
    from mlflow.exceptions import MlflowException

    set_tags(client, run_id, {keys.DUPLICATE_TAG: kept})
    client.set_terminated(run_id, "FAILED")
    with contextlib.suppress(MlflowException):  # deleting takes the permission MANAGE
        client.delete_run(run_id)


def close_dead_runs(store: Store, client: MlflowClient) -> list[str]:
    """End as FAILED what dead processes of this machine left RUNNING; a live process's run never. Returns the run ids.

    A store that refuses is no reason not to profile.
    """
    closed: list[str] = []
    with contextlib.suppress(StoreError):
        for run in dead_runs(store, client):
            end_run(store, client, run.run_id, "FAILED", {keys.ENDED_BY_TAG: DEAD_PROCESS})
            closed.append(run.run_id)
    return closed


def dead_runs(store: Store, client: MlflowClient) -> list[StoredRun]:
    """Runs that dead processes of this machine left RUNNING. Raises StoreError."""
    host = process.this_process().host
    running = search(store, client, {keys.HOST_TAG: host}, "attributes.status = 'RUNNING'")
    return [run for run in running if ownership.is_abandoned(run)]


def describe(error: BaseException) -> str:
    """An error as one line for a tag, with its type where the message was not written for users."""
    line = first_line(error)
    return line if isinstance(error, ProftrackError) else f"{type(error).__name__}: {line}"
