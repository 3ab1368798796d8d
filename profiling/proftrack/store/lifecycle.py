"""The steps in the life of an MLflow run: create, reopen, end, settle duplicates, close runs of dead processes.

Each works through a client of the store and raises StoreError.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack import __version__, process
from proftrack.errors import ProftrackError, StoreError
from proftrack.process import Process
from proftrack.redact import scrub
from proftrack.store import keys
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
    """Create a run; it is RUNNING. Raises StoreError."""
    defaults = {
        keys.USER_TAG: process.user(),
        keys.SOURCE_NAME_TAG: "proftrack",
        keys.SOURCE_TYPE_TAG: "LOCAL",
        keys.REQUEST_TAG: uuid.uuid4().hex,
    }
    all_tags = bounded({**defaults, **tags})
    with explained(store, "given a new run"), quiet():
        return from_mlflow(client.create_run(experiment_id, start_time=start_ms, tags=all_tags, run_name=scrub(name)))


def reopen(store: Store, client: MlflowClient, run: StoredRun, tags: Mapping[str, str]) -> StoredRun:
    """Set an existing run to RUNNING again and remove the tags of its earlier end. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        if run.status != "RUNNING":
            client.update_run(run.run_id, status="RUNNING")
        for stale in {keys.ENDED_BY_TAG, keys.ERROR_TAG} & set(run.tags):
            client.delete_tag(run.run_id, stale)
        set_tags(client, run.run_id, tags)
    return run


def without_credentials(run: StoredRun) -> dict[str, str]:
    """Replacements for those of a run's tags in which MLflow has put a URL with a password or token.

    `mlflow run` records the address of Git's remote, and that of a project on a server, unchanged (3.17).
    """
    return {
        name: clean
        for name, value in run.tags.items()
        if name.startswith(keys.MLFLOW_URL_TAGS) and (clean := scrub(value)) != value
    }


def end_run(store: Store, client: MlflowClient, run_id: str, status: str, tags: Mapping[str, str]) -> None:
    """Write the tags, then the status, so that a run seen as ended also shows why. Raises StoreError."""
    with explained(store, "given the run's status"), quiet():
        set_tags(client, run_id, tags)
        client.set_terminated(run_id, status)


def settle(store: Store, client: MlflowClient, run_id: str) -> str:
    """Make sure that the run's record is in the store only once. Returns the run that keeps it: `run_id` or another.

    A second run arises in two ways: the server created a run but its answer was lost, so the request was repeated; or
    two copies of a folder were logged at the same time. Of the FINISHED runs the one with the lowest id stays, so that
    both sides of a race decide alike. The others are deleted or, if this user lacks the permission, marked as FAILED
    with proftrack.duplicate_of. Only this process's own requests count as repeated; a parent run holds no record, so it
    is never the duplicate of one. Raises StoreError.
    """
    with explained(store, "searched for duplicates"), quiet():
        run = from_mlflow(client.get_run(run_id))
        twins = {twin.run_id: twin for twin in [*_same_record(store, client, run), *_same_request(store, client, run)]}
        twins.pop(run_id, None)
        kept: str = min([run_id, *(twin_id for twin_id, twin in twins.items() if twin.status == "FINISHED")])
        here = process.this_process()
        for each_id in [run_id, *twins]:
            owner = owner_of(twins[each_id].tags) if each_id in twins else None
            # A run that another process is still writing is for that process to settle.
            if each_id != kept and not (owner and owner != here and twins[each_id].status == "RUNNING"):
                _drop(client, each_id, kept)
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
    return [each for each in same if owner_of(each.tags) == here]


def _drop(client: MlflowClient, run_id: str, kept: str) -> None:
    from mlflow.exceptions import MlflowException

    set_tags(client, run_id, {keys.DUPLICATE_TAG: kept})
    client.set_terminated(run_id, "FAILED")
    with contextlib.suppress(MlflowException):  # deleting requires the permission MANAGE
        client.delete_run(run_id)


def close_dead_runs(store: Store, client: MlflowClient) -> list[str]:
    """End as FAILED the runs that dead processes of this machine left RUNNING. Returns their ids.

    Never ends the run of a live process. Errors of the store are ignored: they are no reason not to profile.
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
    return [run for run in running if is_abandoned(run)]


def describe(error: BaseException) -> str:
    """An error as one line for a tag, with its type if the message was not written for users."""
    line = first_line(error)
    return line if isinstance(error, ProftrackError) else f"{type(error).__name__}: {line}"


# ---- the owner: the process of a run, kept in its tags, so that a later start can tell whether it is still alive -----


def owner_tags() -> dict[str, str]:
    """The tags of a run that this process owns."""
    return {**owner_tags_of(process.this_process()), keys.VERSION_TAG: __version__}


def owner_tags_of(owner: Process) -> dict[str, str]:
    """The tags that `owner_of` reads back."""
    rest = {name: getattr(owner, name) for name in ("started", "boot", "namespace", "machine")}
    return {
        keys.HOST_TAG: owner.host,
        keys.PID_TAG: str(owner.pid),
        keys.PROCESS_TAG: msgspec.json.encode(rest).decode(),
    }


def owner_of(tags: Mapping[str, str]) -> Process | None:
    """The process that a run's tags name; None if they are absent or unreadable."""
    try:
        fields = msgspec.json.decode(tags[keys.PROCESS_TAG], type=dict[str, str])
        return msgspec.convert({**fields, "host": tags[keys.HOST_TAG], "pid": int(tags[keys.PID_TAG])}, Process)
    except (KeyError, ValueError, msgspec.MsgspecError):
        return None


def is_abandoned(run: StoredRun) -> bool:
    """Whether the run's process is certainly dead; if in doubt, it counts as alive."""
    owner = owner_of(run.tags)
    return owner is not None and process.is_dead(owner, process.this_process())


def is_free(run: StoredRun) -> bool:
    """Whether no process is working on a run, as far as this machine can tell: it has ended, or was abandoned."""
    return run.status != "RUNNING" or is_abandoned(run)


def refuse_if_logging(run: StoredRun, folder: Path, what: str) -> None:
    """Raise StoreError if another process is certainly logging `what` of `folder` to this run."""
    owner, here = owner_of(run.tags), process.this_process()
    if run.status == "RUNNING" and owner and owner != here and process.is_alive(owner, here):
        raise StoreError(
            f"{folder}: process {owner.pid} is already logging the same {what}, as run {run.run_id}",
            "wait until it has finished",
        )
