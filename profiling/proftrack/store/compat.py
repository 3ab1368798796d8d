"""All uses of MLflow beyond its documented interface, in one place.

Checked by reading MLflow 3.10, 3.13 and 3.17, where all of it is the same; tests/test_store_compat.py checks each.
Other modules use only the client, its entities, its exceptions and the tracking URI.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from requests import Response

# ---- settings -------------------------------------------------------------------------------------------------------

RETRIES_VARIABLE = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
PROGRESS_VARIABLE = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
NO_URLS_VARIABLE = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"

_chosen: ContextVar[Mapping[str, Any]] = ContextVar("proftrack_mlflow_settings")
_installing = threading.Lock()


@contextlib.contextmanager
def settings(**values: Any) -> Iterator[None]:
    """Set MLflow settings (by the names of their environment variables) for this thread only, within the block.

    MLflow reads them in each call, and only from the environment, which all threads of the process share, including
    those of a training. So the objects that read the environment for it (`mlflow.environment_variables.NAME`) are made
    to look at a context variable first; if it sets nothing, they read the environment as before. Threads that MLflow
    itself starts (it fetches artifacts in some) see the environment.
    """
    for name in values:
        _look_at_context(name)
    token = _chosen.set({**_chosen.get({}), **values})
    try:
        yield
    finally:
        _chosen.reset(token)


def setting(name: str) -> Any:
    """The value MLflow would use now for one of its environment variables: this thread's, else set, else default."""
    return _variable(name).get()


def _variable(name: str) -> Any:
    from mlflow import environment_variables

    return getattr(environment_variables, name)


def _look_at_context(name: str) -> None:
    variable = _variable(name)
    with _installing:
        if "get" not in vars(variable):
            variable.get = _reader(name, variable.get)


def _reader(name: str, from_environment: Callable[[], Any]) -> Callable[[], Any]:
    def get() -> Any:
        chosen = _chosen.get({})
        return chosen[name] if name in chosen else from_environment()

    return get


# ---- stores ---------------------------------------------------------------------------------------------------------


def make_schema(database_uri: str, artifact_root: str) -> None:
    """Create missing tables of a local store.

    Raises SQLAlchemy's and MLflow's exceptions for a schema of another version and for a file that is not a complete
    store.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(database_uri, artifact_root).engine.dispose()


def get(server_uri: str, endpoint: str) -> Response:
    """A GET request to a server, with the credentials and certificates that MLflow's client would use."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    answer: Response = http_request(get_default_host_creds(server_uri), endpoint, "GET", raise_on_status=False)
    return answer


# ---- artifacts ------------------------------------------------------------------------------------------------------


def artifacts_at(location: str, tracking_uri: str) -> ArtifactRepository:
    """Artifacts at any location, whether a run's or not. MLflow's client only lists and writes those of runs."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(location, tracking_uri=tracking_uri)


def local_folder(location: str) -> Path | None:
    """The local folder that MLflow writes to for an artifact location; None if the location is not local."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    return Path(local_file_uri_to_path(location)) if location.startswith(("file:", "/")) else None


# ---- generated names ------------------------------------------------------------------------------------------------


def is_generated(name: str) -> bool:
    """Whether MLflow generated a run's name (`useful-hare-90`); a name that the user chose is kept."""
    try:
        from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES
    except ImportError:
        return False
    predicate, _, rest = name.partition("-")
    return predicate in _GENERATOR_PREDICATES and rest.rpartition("-")[0] in _GENERATOR_NOUNS
