"""One MLflow run, from its start to its last status.

    under `mlflow run` (MLFLOW_RUN_ID)     that run; its parent has the last word, from our exit code
    a run of the caller's is active        a child of it; the caller's stays active
    alone                                  a run of its own

    FINISHED   only after `complete()`: everything is in the store
    FAILED     an exception, or the block ended without `complete()`
    KILLED     SIGTERM, SIGINT, SIGHUP or the end of `mlflow run`; tag proftrack.ended_by says which

Everything goes through a client of the store: MLflow's global state (tracking URI, active run, experiment) is read and
never changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from proftrack import process
from proftrack.errors import ProftrackError, StoreError
from proftrack.signals import Interrupted, guarded
from proftrack.store import connect as stores
from proftrack.store import keys, lifecycle, ownership
from proftrack.store.address import TRACKING_VARIABLE, Store
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries
from proftrack.store.runs import StoredRun, from_mlflow, set_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_ID_VARIABLE = "MLFLOW_RUN_ID"


class Session:
    """An open run. Made by `Opening.open`; `upload` writes into it."""

    def __init__(self, store: Store, client: MlflowClient, run: StoredRun) -> None:
        self.store = store
        self.client = client
        self.run_id = run.run_id
        self.experiment_id = run.experiment_id
        self.artifact_uri = run.artifact_uri
        self.is_project = run.tags.get(keys.SOURCE_TYPE_TAG) == "PROJECT"
        self.named: str | None = None
        """The name that we gave the run before it was measured."""
        self._complete = False
        self._why_not = "ended without a result"

    def fail(self, reason: str) -> None:
        """Say why the run will end as FAILED, where nothing is raised that would."""
        self._complete, self._why_not = False, reason

    def complete(self) -> None:
        """Say that everything is in the store: only then does the run end as FINISHED."""
        self._complete = True

    def end(self, error: BaseException | None, end_ms: int | None = None) -> None:
        """Give the run its last status; where it finishes, its end is `end_ms` (epoch milliseconds), or now.

        Raises StoreError where that of a complete run cannot be written; after an error, the error is what matters.
        """
        if error is None and self._complete:
            with explained(self.store, "given the run's status"), quiet():
                self.client.set_terminated(self.run_id, "FINISHED", end_ms)
            with contextlib.suppress(StoreError), quick_retries():
                self.run_id = lifecycle.settle(self.store, self.client, self.run_id)
            return
        status, tags = "FAILED", {keys.ERROR_TAG: lifecycle.describe(error) if error else self._why_not}
        if isinstance(error, KeyboardInterrupt):
            status, tags = (
                "KILLED",
                {keys.ENDED_BY_TAG: error.reason if isinstance(error, Interrupted) else "SIGINT"},
            )
        with contextlib.suppress(StoreError), quick_retries():
            lifecycle.end_run(self.store, self.client, self.run_id, status, tags)


class Opening(NamedTuple):
    """A run that is about to be opened: the store can be used, and nothing is made or changed in it yet."""

    store: Store
    client: MlflowClient
    obtain: Callable[[], StoredRun]
    """Makes the run, or makes a given one RUNNING. Raises StoreError."""
    named: str | None = None
    """The name of a run of ours, before it is measured."""
    is_project: bool = False
    """Whether `mlflow run` waits for us and has made the run."""

    def open(self) -> Session:
        """Open the run; the caller ends it with `Session.end`. Raises StoreError."""
        session = Session(self.store, self.client, self.obtain())
        session.named = self.named
        return session


def opening(experiment: str, name: str) -> Opening:
    """The MLflow run of what this process profiles now; the head of this file says which run that is.

    `experiment` names the MLflow experiment where MLflow has not chosen one, `name` a run of our own. What dead
    processes left RUNNING is closed. Raises StoreError where the store cannot be used.
    """
    store = stores.resolve()
    run_id = os.environ.get(RUN_ID_VARIABLE)
    client = _connect_for(store, run_id)
    lifecycle.close_dead_runs(store, client)
    tags = {**ownership.tags(), keys.EXPERIMENT_TAG: experiment}
    if run_id:
        run = _given_run(store, client, run_id)
        tags |= lifecycle.without_credentials(run)
        is_project = run.tags.get(keys.SOURCE_TYPE_TAG) == "PROJECT"
        return Opening(store, client, lambda: lifecycle.reopen(store, client, run, tags), is_project=is_project)
    experiment_id, tags = _place(store, client, experiment, tags)
    return Opening(store, client, lambda: lifecycle.create(store, client, experiment_id, name, tags), named=name)


def opening_beside(experiment: str, name: str, *, parent_run_id: str | None = None) -> Opening:
    """A run for a part of the caller's program.

    It is a child of `parent_run_id`, else of the run that is open (in this process, or by `mlflow run`), else one of
    its own. Nothing of the caller's changes. Raises StoreError.
    """
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    tags = {**ownership.tags(), keys.EXPERIMENT_TAG: experiment}
    experiment_id, tags = _place(store, client, experiment, tags, parent_run_id)
    return Opening(store, client, lambda: lifecycle.create(store, client, experiment_id, name, tags))


@contextlib.contextmanager
def keep(found: Opening, *, watched: process.Watched | None = None, end_ms: int | None = None) -> Iterator[Session]:
    """Open a run, keep it for the block, and end it whatever happens in the block.

    `watched`: what else the run depends on; see `guarded`. `end_ms`: end time of a run that finishes, where that is not
    now (epoch milliseconds).
    """
    session: Session | None = None

    def end(error: BaseException | None) -> None:
        if session is not None:
            session.end(error, end_ms)

    with guarded(end, watched) as interrupts:
        with interrupts.shield():
            session = found.open()
        yield session


def end_for_another(run_id: str, reason: str) -> None:
    """End as FAILED the run of another process that is dead. A store that refuses has a next start that closes it."""
    with contextlib.suppress(StoreError), quick_retries():
        store = stores.resolve()
        client = stores.connect(store, create=False)
        with explained(store, "read"), quiet():
            status = client.get_run(run_id).info.status
        if status == "RUNNING":
            lifecycle.end_run(store, client, run_id, "FAILED", {keys.ERROR_TAG: reason})


def note_refusal(error: ProftrackError) -> None:
    """Under `mlflow run`, tag the waiting run with why nothing was started; its parent makes it FAILED.

    Nothing is raised: the refusal itself is what the user must see.
    """
    run_id = os.environ.get(RUN_ID_VARIABLE)
    if run_id:
        with contextlib.suppress(StoreError, ImportError), quick_retries():
            store = stores.resolve()
            client = _connect_for(store, run_id)
            with explained(store, "written to"), quiet():
                set_tags(client, run_id, {keys.ERROR_TAG: lifecycle.describe(error)})


def _connect_for(store: Store, run_id: str | None) -> MlflowClient:
    """Connect; a store that must hold `run_id` is not made anew where it is missing."""
    if run_id and store.database is not None and not store.database.is_file():
        raise StoreError(_lost_run(store, run_id))
    return stores.connect(store)


def _given_run(store: Store, client: MlflowClient, run_id: str) -> StoredRun:
    """The run that MLFLOW_RUN_ID names, fit to be written to."""
    from mlflow.exceptions import MlflowException

    with explained(store, "read"), quiet():
        try:
            run = from_mlflow(client.get_run(run_id))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise StoreError(_lost_run(store, run_id)) from error
    if run.deleted:
        raise StoreError(f"{store.public}: run {run_id} is deleted", f"unset {RUN_ID_VARIABLE}, or restore the run")
    if keys.RECORD_TAG in run.tags:
        raise StoreError(
            f"{store.public}: run {run_id} holds a profile already", f"unset {RUN_ID_VARIABLE} for a new run"
        )
    stores.check_artifact_location(store, run.artifact_uri, f"run {run_id}")
    return run


def _lost_run(store: Store, run_id: str) -> str:
    text = f"{store.given}: no run {run_id} ({RUN_ID_VARIABLE}) in this store"
    if store.database is not None and not store.given.startswith("sqlite:////"):
        return (
            f"{text}; a relative URI means another file in another working directory (here {store.database}): set "
            f"{TRACKING_VARIABLE}=sqlite:////absolute/path/mlflow.db"
        )
    return f"{text}; set {TRACKING_VARIABLE} to the store of `mlflow run`, or unset {RUN_ID_VARIABLE}"


def _place(
    store: Store, client: MlflowClient, experiment: str, tags: dict[str, str], parent_run_id: str | None = None
) -> tuple[str, dict[str, str]]:
    """Experiment id and tags of a new run: a child where the caller has a run open, in that run's experiment."""
    import mlflow

    active = mlflow.active_run()
    open_run_id = parent_run_id or (active.info.run_id if active else os.environ.get(RUN_ID_VARIABLE))
    if not open_run_id:
        return stores.experiment_for(store, client, experiment), tags
    if active is None or active.info.run_id != open_run_id:
        with explained(store, "read"), quiet():
            active = client.get_run(open_run_id)
    stores.check_artifact_location(store, active.info.artifact_uri, f"run {active.info.run_id}")
    return str(active.info.experiment_id), {**tags, keys.PARENT_TAG: active.info.run_id}
