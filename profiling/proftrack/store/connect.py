"""Choose the MLflow store of a run, and make it usable before anything writes to it.

MLflow itself decides where the store is (MLFLOW_TRACKING_URI, or mlflow.db in the working directory). This module adds:
absolute paths, since a relative one means another file in another working directory; a new sqlite store is built beside
its place and linked into it under a lock, since processes that create one at the same time leave it broken; artifacts
of a local store go to mlruns/ beside its database.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from proftrack import files, names
from proftrack.errors import StoreError
from proftrack.store import compat
from proftrack.store.address import ARTIFACTS, TRACKING_VARIABLE, Store, location_of, public
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import Patient, quick_retries
from proftrack.text import show

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

_NAME_CHARS = 500
"""The longest experiment name in MLflow 3.17."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_DATABASE_PAUSES_S = (0.1, 0.3)


def resolve() -> Store:
    """The store that MLflow would use in this process and folder. Touches nothing.

    Raises StoreError for a store that would end with the process (sqlite in memory), or in a folder that a URI cannot
    name.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite"):
        return Store(uri=uri, public=public(uri), given=public(uri))
    # MLflow percent-quotes its own default; whether SQLAlchemy unquotes it depends on its version.
    database = _sqlite_path(uri) if mlflow.tracking.is_tracking_uri_set() else Path("mlflow.db").absolute()
    if database is None:
        raise StoreError(
            f"{uri}: a store in memory is lost when proftrack ends", "name a file: sqlite:////abs/mlflow.db"
        )
    if "?" in str(database):
        raise StoreError(
            f"{database}: a sqlite store cannot be in a folder with `?` in its name",
            f"work in another folder, or set {TRACKING_VARIABLE}",
        )
    absolute = _sqlite_uri(database)
    return Store(uri=absolute, public=absolute, given=uri, database=database)


def connect(store: Store, *, create: bool = True) -> MlflowClient:
    """A client of the store, which was found to be complete, reachable and readable; `create` makes a new sqlite store.

    Raises StoreError that names the store, what is wrong with it and the remedy.
    """
    with explained(store, "opened"), quick_retries(), quiet():
        if store.database is not None:
            if not create and not store.database.is_file():
                raise StoreError(f"{store.public}: no such store")
            _ensure_schema(store.uri, store.database)
        else:
            _probe_database(store.uri)
        client = client_of(store)
        client.search_experiments(max_results=1)
        return client


def client_of(store: Store) -> MlflowClient:
    """A client of this store, even if the working directory or the global tracking URI changes later."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store.uri)
    return client if store.is_server else cast("MlflowClient", Patient(client))


def experiment_for(store: Store, client: MlflowClient, name: str) -> str:
    """The id of the MLflow experiment for a run outside `mlflow run`, created if it does not exist yet.

    MLFLOW_EXPERIMENT_NAME, else MLFLOW_EXPERIMENT_ID, else `name`. Raises StoreError for an invalid name, a deleted
    experiment, an id that does not exist, and an experiment whose artifacts a local client cannot write.
    """
    chosen_name, chosen_id = chosen_experiment()
    name = chosen_name or name
    with explained(store, "searched for its experiment"), quiet():
        if chosen_id:
            experiment = client.get_experiment(chosen_id)
        elif (why := names.problem(name, _NAME_CHARS)) is not None:
            raise StoreError(
                f"the experiment's name {show(name)} cannot be stored, {why}",
                "choose another name, or set MLFLOW_EXPERIMENT_NAME",
            )
        else:
            experiment = client.get_experiment_by_name(name) or make_experiment(store, client, name)
    if experiment.lifecycle_stage != "active":
        restore = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        raise StoreError(
            f"{store.public}: the experiment {experiment.name!r} is deleted",
            f"restore it ({restore}), or choose another one with MLFLOW_EXPERIMENT_NAME",
        )
    check_artifact_location(store, experiment.artifact_location, f"experiment {experiment.name!r}")
    return str(experiment.experiment_id)


def chosen_experiment() -> tuple[str | None, str | None]:
    """The name or the id of the MLflow experiment that the user chose for all runs; at most one of them is set."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or None
    return name, None if name else os.environ.get("MLFLOW_EXPERIMENT_ID") or None


def check_artifact_location(store: Store, location: str, owner: str) -> None:
    """Raise StoreError if this client cannot write artifacts to `location`, before anything is measured."""
    if location.startswith("mlflow-artifacts:") and not store.is_server:
        raise StoreError(
            f"{store.public}: artifacts of the {owner} go through a server ({location}); a client of the database "
            "cannot write them",
            f"set {TRACKING_VARIABLE} to that server (such as http://127.0.0.1:5000), or choose a new "
            "experiment with MLFLOW_EXPERIMENT_NAME",
        )
    folder = compat.local_folder(location)
    if folder is not None and ".." in folder.parts:
        raise StoreError(
            f"{store.public}: artifacts of the {owner} belong in {location}, which is outside the artifact folder",
            "choose another experiment with MLFLOW_EXPERIMENT_NAME",
        )
    if folder is not None and not store.is_server:
        existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise StoreError(
                f"{store.public}: artifacts of the {owner} belong in {folder}, which is not writable",
                "make it writable for this user, or choose another experiment with MLFLOW_EXPERIMENT_NAME",
            )


# ---- a local store ---------------------------------------------------------------------------------------------------


def _sqlite_path(uri: str) -> Path | None:
    """The absolute path of a sqlite URI's file; None for one in memory."""
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    return Path(name).absolute() if name and name != ":memory:" else None


def _sqlite_uri(database: Path) -> str:
    """The URI of a sqlite file, unquoted where possible: for `a%20b` MLflow makes a stray folder beside `a b`."""
    if "%" not in str(database):
        return f"sqlite:///{database}"
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(database)).render_as_string()


def _ensure_schema(uri: str, database: Path) -> None:
    """Create the schema if it is missing, once, however many processes try at the same time.

    The new database is built beside its place and linked into it, so that an existing one is complete even after a
    crash.
    """
    root = location_of(database.parent / ARTIFACTS)
    database.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(database.with_name(database.name + ".lock")):
        if not database.exists():
            aside = database.with_name(f".{database.name}.{os.getpid()}.new")
            try:
                _probe_database(_sqlite_uri(aside))
                compat.make_schema(_sqlite_uri(aside), root)
                with contextlib.suppress(FileExistsError):
                    os.link(aside, database)
            finally:
                aside.unlink(missing_ok=True)
        _probe_database(uri)
        # Raises for a schema of another MLflow version and for a file that is not a complete store.
        compat.make_schema(uri, root)


def _probe_database(uri: str) -> None:
    """Connect to a database before MLflow does, trying up to three times within a second.

    MLflow tries ten times, for a hundred seconds, even if the driver is missing or the password is wrong (3.17).
    Raises SQLAlchemy's and the driver's exceptions.
    """
    if uri.partition(":")[0].partition("+")[0] not in _DATABASES:
        return
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import SQLAlchemyError

    engine = create_engine(uri, poolclass=NullPool)
    for pause in (*_DATABASE_PAUSES_S, None):
        try:
            engine.connect().close()
            return
        except SQLAlchemyError:
            if pause is None:
                raise
            time.sleep(pause)


def make_experiment(store: Store, client: MlflowClient, name: str) -> Experiment:
    """Create the MLflow experiment of that name, unless another process just did; call it inside `explained`."""
    from mlflow.exceptions import MlflowException

    location = location_of(store.artifact_root / names.file_name(name)) if store.artifact_root else None
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        # Another process may have created it between our check and our attempt.
        if error.error_code == "RESOURCE_ALREADY_EXISTS" and (existing := client.get_experiment_by_name(name)):
            return existing
        raise
