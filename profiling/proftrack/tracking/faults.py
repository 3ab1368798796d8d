"""What MLflow, its databases and its artifact stores raise, as one sentence each; and MLflow without its noise.

No sentence shows a user or a password: URIs are shown without them, and texts of others are scrubbed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proftrack.errors import ProftrackError, StoreError
from proftrack.tracking.mapping import cut, one_line

if TYPE_CHECKING:
    from proftrack.tracking.store import Store

TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
_PROBE_RETRIES = 1
_PROBE_TIMEOUT_S = 15


@contextlib.contextmanager
def explained(store: Store, doing: str) -> Iterator[None]:
    """Raise StoreError, one sentence with the store and a remedy, for whatever the store raises in this block."""
    try:
        yield
    except ProftrackError:
        raise
    except Exception as error:
        # MlflowException, and what the libraries of databases and artifact stores raise: sqlalchemy, botocore, ...
        raise StoreError(_explain(store, doing, error)) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """MLflow without progress bars, links, logged tracebacks and its libraries' deprecation warnings.

    A caller's own settings come back.
    """
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "mlflow.store.db.utils")]
    before = [logger.level for logger in loggers]
    silent = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
    with warnings.catch_warnings(), _environment(**silent):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def quick_retries() -> Iterator[None]:
    """Give up on a server that does not answer after seconds, not minutes, unless the user chose otherwise."""
    chosen = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(_PROBE_RETRIES),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_PROBE_TIMEOUT_S),
    }
    with _environment(**{name: value for name, value in chosen.items() if name not in os.environ}):
        yield


def public(uri: str) -> str:
    """A URI without user, password and query."""
    parts = urlsplit(uri)
    if not parts.netloc and not parts.query:
        return uri
    text = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return text + (f"#{parts.fragment}" if parts.fragment else "")


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, without credentials."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return scrub(cut(one_line(lines[0]), 300)) if lines else type(error).__name__


def scrub(text: str) -> str:
    """Text in which no URI shows its user or password."""
    return re.sub(r"(\w[\w+.-]*://)[^/\s'\"]*@", r"\1", text)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _explain(store: Store, doing: str, error: Exception) -> str:
    text = first_line(error)
    lower = text.lower()
    if "maintenance mode" in lower:
        return _explain_file_store(store)
    if store.is_server:
        return _explain_server(store, doing, text)
    if re.search(r"out-of-date database schema|can't locate revision", lower):
        return (
            f"{store.public}: the database is of another MLflow version ({text}); install that version, or back the "
            f"file up and run: mlflow db upgrade {shlex.quote(store.public)}"
        )
    if re.search(r"malformed|not a database|already exists|no such table", lower):
        return f"{store.public}: not a whole MLflow store ({text}); move the file away, and a new one takes its place"
    return f"{store.public}: could not be {doing}: {text}"


def _explain_server(store: Store, doing: str, text: str) -> str:
    lower = text.lower()
    if re.search(r"\b401\b|\b403\b|unauthori[sz]ed|permission_denied|forbidden", lower):
        return (
            f"{store.public}: the server refuses these credentials ({text}); set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    if re.search(r"max retries|connection|timed out|failed to establish|name resolution", lower):
        return f"{store.public}: the server does not answer; start it, or check {TRACKING_VARIABLE}"
    return f"{store.public}: could not be {doing}: {text}"


def _explain_file_store(store: Store) -> str:
    folder = Path(urlsplit(store.uri).path or store.uri).absolute()
    database = f"sqlite:///{folder.parent / 'mlflow.db'}"
    migrate = f"mlflow migrate-filestore --source {shlex.quote(str(folder.parent))} --target {shlex.quote(database)}"
    return (
        f"{folder}: a store in MLflow's old file format, which this MLflow refuses; move its runs into a database "
        f"({migrate}), or set {TRACKING_VARIABLE}={database} to start a new one"
    )
