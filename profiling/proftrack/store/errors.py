"""Turns what MLflow, its databases and its artifact stores raise into one problem and one remedy each.

No message shows a user or a password: URIs are shown without them, and foreign error texts are scrubbed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from proftrack.errors import ProftrackError, StoreError
from proftrack.redact import scrub
from proftrack.store.address import TRACKING_VARIABLE, Store
from proftrack.store.fields import cut, one_line


@contextlib.contextmanager
def explained(store: Store, doing: str) -> Iterator[None]:
    """Turn any exception raised in this block into a StoreError that names the store and a remedy.

    `doing` completes "could not be ...".
    """
    try:
        yield
    except ProftrackError:
        raise
    except Exception as error:
        # MlflowException, and the exceptions of database and artifact-store libraries: sqlalchemy, botocore, ...
        raise _explain(store, doing, error) from error


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text, without credentials."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return scrub(cut(one_line(lines[0]), 300)) if lines else type(error).__name__


# A pattern of the error's text, the problem and the remedy; the first match is used. `_explain` fills in the braces.
_ANYWHERE = (
    (
        r"no space left|disk quota exceeded|disk is full",
        "{store}: no space is left where it keeps its data ({text})",
        "free some space, then run: proftrack sync",
    ),
)
_OF_SERVERS = (
    (
        r"code 401|401 client error|unauthori[sz]ed|not authenticated",
        "{store}: the server requires a user and a password, or does not accept these ({status})",
        "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    ),
    (
        r"code 403|403 client error|permission_denied|forbidden",
        "{store}: this user does not have permission ({status}): the store could not be {doing}",
        "ask whoever manages the MLflow experiment for EDIT, or set MLFLOW_EXPERIMENT_NAME to an experiment of "
        "your own",
    ),
    (
        r"code 413|413 client error|entity too large",
        "{store}: refuses an upload of this size ({text})",
        "raise the limit of the proxy in front of it",
    ),
    (
        r"code 429|429 client error|too many 429|resource_exhausted",
        "{store}: is overloaded ({text})",
        "try again later",
    ),
    (
        r"code 5\d\d|5\d\d server error|too many 5\d\d|internal_error",
        "{store}: the server failed (see its own log) and could not be {doing} ({text})",
        "try again later",
    ),
    (
        r"connection aborted|connection reset|reset by peer|broken pipe|remote end closed",
        "{store}: the server closed the connection and could not be {doing}: it is restarting, its disk is full, or a "
        "proxy in front of it limits uploads",
        "look at its log, and try again later",
    ),
    (
        r"max retries|connection|timed out|timeout|failed to establish|name resolution",
        "{store}: the server does not answer",
        "start it, or check {variable}",
    ),
)
_OF_DATABASES = (
    (
        r"out-of-date database schema|can't locate revision",
        "{store}: the database belongs to another MLflow version ({text})",
        "install that version, or back it up and run: mlflow db upgrade {quoted}",
    ),
    (
        r"authentication failed|no password supplied|access denied|permission denied for|role .* does not exist",
        "{store}: the database refuses this user or password",
        "check {variable}",
    ),
    (
        r"no module named '?(psycopg|mysql|pymysql|pymssql|pyodbc)",
        "{store}: the driver of this database is not installed ({text})",
        "pip install it (for PostgreSQL: psycopg[binary])",
    ),
    (
        r"malformed|not a database|already exists|no such table",
        "{store}: not a complete MLflow store ({text})",
        "move the file away; a new one is created in its place",
    ),
    (
        r"connection refused|could not connect|connection (failed|timed out|to server)|server closed|name resolution"
        r"|translate host|the database system is",
        "{store}: the database does not answer",
        "start it, or check {variable}",
    ),
    (
        r"database is locked",
        "{store}: other processes hold the file ({text})",
        "try again, or use a server if many processes share it",
    ),
)
_OTHERWISE = (r"", "{store}: could not be {doing}: {text}", None)


def _explain(store: Store, doing: str, error: Exception) -> StoreError:
    text = first_line(error)
    # The outer exception may hide the cause that a chained one names.
    lower = " ".join(str(each) for each in _chain(error)).lower()
    if "maintenance mode" in lower:
        return _explain_file_store(store)
    messages = (*_ANYWHERE, *(_OF_SERVERS if store.is_server else _OF_DATABASES), _OTHERWISE)
    _, problem, remedy = next(message for message in messages if re.search(message[0], lower))
    status = re.search(r"code ([45]\d\d)|([45]\d\d) (client|server) error", lower)
    values = {
        "store": store.public,
        "doing": doing,
        "text": text,
        "status": f"HTTP {status[1] or status[2]}" if status else text,
        "variable": TRACKING_VARIABLE,
        "quoted": shlex.quote(store.public),
    }
    return StoreError(problem.format(**values), remedy.format(**values) if remedy else None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(5):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _explain_file_store(store: Store) -> StoreError:
    folder = Path(urlsplit(store.uri).path or store.uri).absolute()
    database = f"sqlite:///{folder.parent / 'mlflow.db'}"
    migrate = f"mlflow migrate-filestore --source {shlex.quote(str(folder.parent))} --target {shlex.quote(database)}"
    return StoreError(
        f"{folder}: a store in MLflow's old file format, which this MLflow refuses",
        f"move its runs into a database ({migrate}), or set {TRACKING_VARIABLE}={database} to start a new one",
    )
