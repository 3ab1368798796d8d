"""Which MLflow store a run goes to, made whole before anything writes to it.

MLflow itself decides where the store is (MLFLOW_TRACKING_URI, or mlflow.db in the working directory). What is added
here: paths are absolute, since a relative one means another file in another working directory; a new sqlite store is
built aside and put into place under a lock, since processes that first touch one at once leave it broken; artifacts of
a local store lie in mlruns/ beside its database.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from proftrack import names
from proftrack.errors import StoreError
from proftrack.store.errors import TRACKING_VARIABLE, explained, public, quiet
from proftrack.store.retry import Patient, quick_retries
from proftrack.text import show

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

ARTIFACTS = "mlruns"
_NAME_CHARS = 500
"""Of an experiment's name, in MLflow 3.17."""


class Store(Struct, frozen=True, kw_only=True):
    """A tracking store, resolved and absolute. `uri` may hold a password: only `public` is ever shown or kept."""

    uri: str
    public: str
    given: str
    """What MLFLOW_TRACKING_URI or MLflow's default said, without credentials."""
    database: Path | None = None
    """The file of a sqlite store."""

    def __repr__(self) -> str:
        return f"Store({self.public})"

    @property
    def is_server(self) -> bool:
        """Whether the store is an MLflow server."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def artifact_root(self) -> Path | None:
        """Where artifacts of new experiments go; None where the store itself decides."""
        return self.database.parent / ARTIFACTS if self.database else None

    def client(self) -> MlflowClient:
        """A client of this very store, whatever the working directory or the global tracking URI becomes."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        return client if self.is_server else cast("MlflowClient", Patient(client))

    def open_command(self) -> str | None:
        """The command that opens MLflow's UI on this very store; None for a server, which has a UI already."""
        if self.is_server or self.public != self.uri:
            return None
        command = [*_mlflow_command(), "server", "--backend-store-uri", self.uri]
        if self.artifact_root:
            # Without it the server gives experiments that it makes a location which only its own clients can write.
            command += ["--default-artifact-root", _location(self.artifact_root)]
        return shlex.join(command)

    def run_url(self, experiment_id: str, run_id: str, base: str = "http://127.0.0.1:5000") -> str:
        """The address of a run in the UI, of all of them where `run_id` is empty; `base`: where `open_command` listens.

        MLflow 3.17 opens an address with its pages for prompts and their traces unless that says otherwise.
        """
        root = self.public.rstrip("/") if self.is_server else base
        page = f"/#/experiments/{experiment_id}/runs/{run_id}".rstrip("/")
        return f"{root}{page}?workflowType=machine_learning"


def resolve() -> Store:
    """The store that MLflow would use here and now. Touches nothing.

    Raises StoreError for a store that ends with the process (sqlite in memory), or in a folder that no URI can name.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite"):
        return Store(uri=uri, public=public(uri), given=public(uri))
    # MLflow quotes its own default; whether SQLAlchemy takes the quotes off again depends on its version.
    database = _sqlite_path(uri) if mlflow.tracking.is_tracking_uri_set() else Path("mlflow.db").absolute()
    if database is None:
        raise StoreError(f"{uri}: a store in memory is gone when proftrack ends; name a file: sqlite:////abs/mlflow.db")
    if "?" in str(database):
        raise StoreError(
            f"{database}: a sqlite store cannot lie in a folder with `?` in its name; work in another one, or set "
            f"{TRACKING_VARIABLE}"
        )
    absolute = _sqlite_uri(database)
    return Store(uri=absolute, public=absolute, given=uri, database=database)


def connect(store: Store, *, create: bool = True) -> MlflowClient:
    """A client of a store that is whole, reachable and readable; a new sqlite store is made for it.

    Raises StoreError naming the store, what is wrong with it and the remedy.
    """
    if not store.is_server:
        import mlflow.store.db.utils  # noqa: F401 - loaded now, so that `quick_retries` reaches it
    with explained(store, "opened"), quick_retries(), quiet():
        if store.database is not None:
            if not create and not store.database.is_file():
                raise StoreError(f"{store.public}: no such store")
            _make_whole(store.uri, store.database)
        client = store.client()
        client.search_experiments(max_results=1)
        return client


def experiment_for(store: Store, client: MlflowClient, name: str) -> str:
    """The id of the MLflow experiment for a run outside `mlflow run`, made where it does not exist yet.

    MLFLOW_EXPERIMENT_NAME, else MLFLOW_EXPERIMENT_ID, else `name`. Raises StoreError for a name that no experiment can
    have, a deleted experiment, one that does not exist, and one whose artifacts a local client cannot write.
    """
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
    wanted_id = os.environ.get("MLFLOW_EXPERIMENT_ID") if not os.environ.get("MLFLOW_EXPERIMENT_NAME") else None
    with explained(store, "searched for its experiment"), quiet():
        if wanted_id:
            experiment = client.get_experiment(wanted_id)
        elif (why := names.problem(name, _NAME_CHARS)) is not None:
            raise StoreError(
                f"the experiment's name {show(name)} cannot be stored, {why}; give another name, or set "
                "MLFLOW_EXPERIMENT_NAME"
            )
        else:
            experiment = client.get_experiment_by_name(name) or make_experiment(store, client, name)
    if experiment.lifecycle_stage != "active":
        restore = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        raise StoreError(
            f"{store.public}: the experiment {experiment.name!r} is deleted; restore it ({restore}), or name another "
            "one with MLFLOW_EXPERIMENT_NAME"
        )
    check_artifact_location(store, experiment.artifact_location, f"experiment {experiment.name!r}")
    return str(experiment.experiment_id)


def check_artifact_location(store: Store, location: str, owner: str) -> None:
    """Raise StoreError where this client could not write artifacts to `location`, before anything is measured."""
    if location.startswith("mlflow-artifacts:") and not store.is_server:
        raise StoreError(
            f"{store.public}: artifacts of the {owner} go through a server ({location}), a client of the database "
            f"cannot write them; set {TRACKING_VARIABLE} to that server (such as http://127.0.0.1:5000), or name a new "
            "experiment with MLFLOW_EXPERIMENT_NAME"
        )
    folder = local_folder(location)
    if folder is not None and ".." in folder.parts:
        raise StoreError(
            f"{store.public}: artifacts of the {owner} belong in {location}, which leads out of its folder; name "
            "another experiment with MLFLOW_EXPERIMENT_NAME"
        )
    if folder is not None and not store.is_server:
        standing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if not (standing.is_dir() and os.access(standing, os.W_OK | os.X_OK)):
            raise StoreError(
                f"{store.public}: artifacts of the {owner} belong in {folder}, which cannot be written; make it "
                "writable for this user, or name another experiment with MLFLOW_EXPERIMENT_NAME"
            )


# ---- a local store ---------------------------------------------------------------------------------------------------


def _sqlite_path(uri: str) -> Path | None:
    """The absolute path of a sqlite URI's file; None for one in memory."""
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    return Path(name).absolute() if name and name != ":memory:" else None


def _sqlite_uri(database: Path) -> str:
    """The URI of a sqlite file. Left as it is where it can be: MLflow makes a stray folder `a%20b` beside `a b`."""
    if "%" not in str(database):
        return f"sqlite:///{database}"
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(database)).render_as_string()


def _make_whole(uri: str, database: Path) -> None:
    """Make the schema where there is none, once, however many processes ask for it at once.

    The new database is built beside its place and linked into it: one that is there is whole, also after a crash.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    root = _location(database.parent / ARTIFACTS)
    with _file_lock(database):
        if not database.exists():
            aside = database.with_name(f".{database.name}.{os.getpid()}.new")
            try:
                fresh = SqlAlchemyStore(_sqlite_uri(aside), root)
                fresh.engine.dispose()
                with contextlib.suppress(FileExistsError):
                    os.link(aside, database)
            finally:
                aside.unlink(missing_ok=True)
        # Raises for a schema of another MLflow version and for a file that is no whole store.
        SqlAlchemyStore(uri, root)


@contextlib.contextmanager
def _file_lock(database: Path) -> Iterator[None]:
    """Hold `<database>.lock`. The file stays: removing a lock that others wait for would let two of them in."""
    database.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with database.with_name(database.name + ".lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_experiment(store: Store, client: MlflowClient, name: str) -> Experiment:
    """The MLflow experiment of that name, made now unless another process just did; call it inside `explained`."""
    from mlflow.exceptions import MlflowException

    location = _location(store.artifact_root / names.file_name(name)) if store.artifact_root else None
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        # Another process made it between our look and our try.
        if error.error_code == "RESOURCE_ALREADY_EXISTS" and (made := client.get_experiment_by_name(name)):
            return made
        raise


def _location(folder: Path) -> str:
    """A folder as an artifact location. MLflow percent-decodes plain paths as well (3.17), so `%` needs a URI."""
    return folder.as_uri() if "%" in str(folder) else str(folder)


def local_folder(location: str) -> Path | None:
    """The folder of this machine that MLflow writes to for an artifact location; None where it is none."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    return Path(local_file_uri_to_path(location)) if location.startswith(("file:", "/")) else None


def _mlflow_command() -> list[str]:
    """MLflow of this Python by its absolute path: the shell that it is pasted into may have another, or none."""
    script = Path(sys.executable).with_name("mlflow")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "mlflow"]
