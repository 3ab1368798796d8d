"""What MLflow, its databases and its artifact stores raise, as one sentence each.

No sentence shows a user or a password: URIs are shown without them, and texts of others are scrubbed.
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
    """Raise StoreError, one sentence with the store and a remedy, for whatever the store raises in this block."""
    try:
        yield
    except ProftrackError:
        raise
    except Exception as error:
        # MlflowException, and what the libraries of databases and artifact stores raise: sqlalchemy, botocore, ...
        raise StoreError(_explain(store, doing, error)) from error


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, without credentials."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return scrub(cut(one_line(lines[0]), 300)) if lines else type(error).__name__


# What an error's text says, and the sentence for it; the first that fits. {store}, {text} and {file} are filled in.
_ANYWHERE = (
    (
        r"no space left|disk quota exceeded|disk is full",
        "{store}: no space is left where it keeps its data ({text}); free some, then: proftrack sync",
    ),
)
_OF_SERVERS = (
    (
        r"code 401|401 client error|unauthori[sz]ed|not authenticated",
        "{store}: the server wants a user and a password, or does not know these ({status}); set "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    ),
    (
        r"code 403|403 client error|permission_denied|forbidden",
        "{store}: this user may not do that ({status}): the store could not be {doing}; whoever manages the MLflow "
        "experiment can give EDIT, or name an experiment of your own with MLFLOW_EXPERIMENT_NAME",
    ),
    (
        r"code 413|413 client error|entity too large",
        "{store}: refuses an upload of this size ({text}); raise the limit of the proxy before it",
    ),
    (r"code 429|429 client error|too many 429|resource_exhausted", "{store}: is overloaded ({text}); try again later"),
    (
        r"code 5\d\d|5\d\d server error|too many 5\d\d|internal_error",
        "{store}: the server fails, as its own log will say, and could not be {doing} ({text}); try again later",
    ),
    (
        r"connection aborted|connection reset|reset by peer|broken pipe|remote end closed",
        "{store}: the server broke off the connection and could not be {doing}; it restarts, its disk is full, or a "
        "proxy before it limits uploads: its log will say; try again later",
    ),
    (
        r"max retries|connection|timed out|timeout|failed to establish|name resolution",
        "{store}: the server does not answer; start it, or check {variable}",
    ),
)
_OF_DATABASES = (
    (
        r"out-of-date database schema|can't locate revision",
        "{store}: the database is of another MLflow version ({text}); install that version, or back it up and run: "
        "mlflow db upgrade {quoted}",
    ),
    (
        r"authentication failed|no password supplied|access denied|permission denied for|role .* does not exist",
        "{store}: the database refuses this user or password; check {variable}",
    ),
    (
        r"no module named '?(psycopg|mysql|pymysql|pymssql|pyodbc)",
        "{store}: the driver of this database is not installed ({text}); pip install it, for PostgreSQL "
        "psycopg[binary]",
    ),
    (
        r"malformed|not a database|already exists|no such table",
        "{store}: not a whole MLflow store ({text}); move the file away, and a new one takes its place",
    ),
    (
        r"connection refused|could not connect|connection (failed|timed out|to server)|server closed|name resolution"
        r"|translate host|the database system is",
        "{store}: the database does not answer; start it, or check {variable}",
    ),
    (r"database is locked", "{store}: other processes hold the file ({text}); try again, or use a server for many"),
)
_ELSE = "{store}: could not be {doing}: {text}"


def _explain(store: Store, doing: str, error: Exception) -> str:
    text = first_line(error)
    # What a chained exception says may be the cause that the outer one hides behind its own words.
    lower = " ".join(str(each) for each in _chain(error)).lower()
    if "maintenance mode" in lower:
        return _explain_file_store(store)
    known = (*_ANYWHERE, *(_OF_SERVERS if store.is_server else _OF_DATABASES))
    sentence = next((sentence for pattern, sentence in known if re.search(pattern, lower)), _ELSE)
    status = re.search(r"code ([45]\d\d)|([45]\d\d) (client|server) error", lower)
    return sentence.format(
        store=store.public,
        doing=doing,
        text=text,
        status=f"HTTP {status[1] or status[2]}" if status else text,
        variable=TRACKING_VARIABLE,
        quoted=shlex.quote(store.public),
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(5):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _explain_file_store(store: Store) -> str:
    folder = Path(urlsplit(store.uri).path or store.uri).absolute()
    database = f"sqlite:///{folder.parent / 'mlflow.db'}"
    migrate = f"mlflow migrate-filestore --source {shlex.quote(str(folder.parent))} --target {shlex.quote(database)}"
    return (
        f"{folder}: a store in MLflow's old file format, which this MLflow refuses; move its runs into a database "
        f"({migrate}), or set {TRACKING_VARIABLE}={database} to start a new one"
    )
