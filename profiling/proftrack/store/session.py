"""One MLflow run, from its start to its final status.

    under `mlflow run` (MLFLOW_RUN_ID)     that run; `mlflow run` sets its final status from our exit code
    the caller has an active run           a child of it; the caller's run stays active
    otherwise                              a new run

    FINISHED   only after `complete()`: everything is in the store
    FAILED     an exception, or the block ended without `complete()`
    KILLED     SIGTERM, SIGINT, SIGHUP or the end of `mlflow run`; the tag proftrack.ended_by says which

Everything goes through a client of the store. MLflow's global state (tracking URI, active run, experiment) is read but
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
from proftrack.store import keys, lifecycle
from proftrack.store.address import TRACKING_VARIABLE, Store
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries
from proftrack.store.runs import StoredRun, from_mlflow, set_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_ID_VARIABLE = "MLFLOW_RUN_ID"


class Session:
    """An open run, made by `Opening.open`. `upload` writes into it."""

    def __init__(self, store: Store, client: MlflowClient, run: StoredRun) -> None:
        self.store = store
        self.client = client
        self.run_id = run.run_id
        self.experiment_id = run.experiment_id
        self.artifact_uri = run.artifact_uri
        self.is_project = run.tags.get(keys.SOURCE_TYPE_TAG) == "PROJECT"
        self.named: str | None = None
        """The provisional name that we gave the run before measuring."""
        self._complete = False
        self._why_not = "ended without a result"

    def fail(self, reason: str) -> None:
        """End the run as FAILED for this reason, although no exception is raised."""
        self._complete, self._why_not = False, reason

    def complete(self) -> None:
        """Confirm that everything is in the store; without this the run ends as FAILED."""
        self._complete = True

    def end(self, error: BaseException | None, end_ms: int | None = None) -> None:
        """Set the run's final status. A FINISHED run ends at `end_ms` (epoch milliseconds), or now.

        Raises StoreError if the status of a complete run cannot be written. After an error, a failed write is ignored:
        the error matters more.
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
    """A run about to be opened: the store is usable, and nothing in it has been created or changed yet."""

    store: Store
    client: MlflowClient
    obtain: Callable[[], StoredRun]
    """Creates the run, or sets an existing one to RUNNING. Raises StoreError."""
    named: str | None = None
    """The provisional name of a run that we create."""
    is_project: bool = False
    """Whether `mlflow run` created the run and is waiting for us."""

    def open(self) -> Session:
        """Open the run; the caller must end it with `Session.end`. Raises StoreError."""
        session = Session(self.store, self.client, self.obtain())
        session.named = self.named
        return session


def opening(experiment: str, name: str) -> Opening:
    """The MLflow run for this process's profile; the top of this file says which run that is.

    `experiment` names the MLflow experiment unless MLflow has chosen one; `name` is for a run that we create. Also
    closes runs that dead processes left RUNNING. Raises StoreError if the store cannot be used.
    """
    store = stores.resolve()
    run_id = os.environ.get(RUN_ID_VARIABLE)
    client = _connect_for(store, run_id)
    lifecycle.close_dead_runs(store, client)
    tags = {**lifecycle.owner_tags(), keys.EXPERIMENT_TAG: experiment}
    if run_id:
        run = _given_run(store, client, run_id)
        tags |= lifecycle.without_credentials(run)
        is_project = run.tags.get(keys.SOURCE_TYPE_TAG) == "PROJECT"
        return Opening(store, client, lambda: lifecycle.reopen(store, client, run, tags), is_project=is_project)
    experiment_id, tags = _place(store, client, experiment, tags)
    return Opening(store, client, lambda: lifecycle.create(store, client, experiment_id, name, tags), named=name)


def opening_beside(experiment: str, name: str, *, parent_run_id: str | None = None) -> Opening:
    """A new run for a part of the caller's program.

    It is a child of `parent_run_id`, else of the open run (in this process, or from `mlflow run`), else it stands
    alone. The caller's run is not changed. Raises StoreError.
    """
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    tags = {**lifecycle.owner_tags(), keys.EXPERIMENT_TAG: experiment}
    experiment_id, tags = _place(store, client, experiment, tags, parent_run_id)
    return Opening(store, client, lambda: lifecycle.create(store, client, experiment_id, name, tags))


@contextlib.contextmanager
def keep(opening: Opening, *, watched: process.Watched | None = None, end_ms: int | None = None) -> Iterator[Session]:
    """Keep a run open for the block, and end it whatever happens there.

    `watched`: what else the run depends on; see `guarded`. `end_ms`: end time of a FINISHED run if it is not now (epoch
    milliseconds).
    """
    session: Session | None = None

    def end(error: BaseException | None) -> None:
        if session is not None:
            session.end(error, end_ms)

    with guarded(end, watched) as interrupts:
        with interrupts.shield():
            session = opening.open()
        yield session


def end_for_another(run_id: str, reason: str) -> None:
    """End a dead process's run as FAILED. If the store refuses, the next start closes the run instead."""
    with contextlib.suppress(StoreError), quick_retries():
        store = stores.resolve()
        client = stores.connect(store, create=False)
        with explained(store, "read"), quiet():
            status = client.get_run(run_id).info.status
        if status == "RUNNING":
            lifecycle.end_run(store, client, run_id, "FAILED", {keys.ERROR_TAG: reason})


def note_refusal(error: ProftrackError) -> None:
    """Under `mlflow run`, tag the waiting run with the reason nothing was started; `mlflow run` then sets it to FAILED.

    Raises nothing: the user must see the refusal itself.
    """
    run_id = os.environ.get(RUN_ID_VARIABLE)
    if run_id:
        with contextlib.suppress(StoreError, ImportError), quick_retries():
            store = stores.resolve()
            client = _connect_for(store, run_id)
            with explained(store, "written to"), quiet():
                set_tags(client, run_id, {keys.ERROR_TAG: lifecycle.describe(error)})


def _connect_for(store: Store, run_id: str | None) -> MlflowClient:
    """Connect to the store. If it must hold `run_id`, a missing store is an error, not a reason to create one."""
    if run_id and store.database is not None and not store.database.is_file():
        raise _lost_run(store, run_id)
    return stores.connect(store)


def _given_run(store: Store, client: MlflowClient, run_id: str) -> StoredRun:
    """The run that MLFLOW_RUN_ID names, checked to be writable."""
    from mlflow.exceptions import MlflowException

    with explained(store, "read"), quiet():
        try:
            run = from_mlflow(client.get_run(run_id))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise _lost_run(store, run_id) from error
    if run.deleted:
        raise StoreError(f"{store.public}: run {run_id} is deleted", f"unset {RUN_ID_VARIABLE}, or restore the run")
    if keys.RECORD_TAG in run.tags:
        raise StoreError(
            f"{store.public}: run {run_id} already holds a profile", f"unset {RUN_ID_VARIABLE} to get a new run"
        )
    stores.check_artifact_location(store, run.artifact_uri, f"run {run_id}")
    return run


def _lost_run(store: Store, run_id: str) -> StoreError:
    problem = f"{store.given}: no run {run_id} ({RUN_ID_VARIABLE}) in this store"
    if store.database is not None and not store.given.startswith("sqlite:////"):
        return StoreError(
            f"{problem}: a relative URI means another file in another working directory (here {store.database})",
            f"set {TRACKING_VARIABLE}=sqlite:////absolute/path/mlflow.db",
        )
    return StoreError(problem, f"set {TRACKING_VARIABLE} to the store of `mlflow run`, or unset {RUN_ID_VARIABLE}")


def _place(
    store: Store, client: MlflowClient, experiment: str, tags: dict[str, str], parent_run_id: str | None = None
) -> tuple[str, dict[str, str]]:
    """Experiment id and tags of a new run. If the caller has an open run, it becomes a child in that experiment."""
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
