"""Silence MLflow for one thread; other threads, such as a training's, see and log what they always do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from urllib.parse import urlsplit

from proftrack.store import compat
from proftrack.store.address import public

_quiet: ContextVar[bool] = ContextVar("proftrack_quiet", default=False)
_NOISY = ("mlflow", "alembic")
_RETRIES = "urllib3.connectionpool"
_waited: list[bool] = []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow from showing progress bars, links and logged tracebacks for what this thread does in the block.

    Loggers and handlers keep their levels. Those of MLflow and alembic get a filter, once, that only holds records back
    within such a block.
    """
    _put_filters()
    silent = {compat.PROGRESS_VARIABLE: False, compat.NO_URLS_VARIABLE: True}
    token = _quiet.set(True)
    try:
        with compat.settings(**silent):
            yield
    finally:
        _quiet.reset(token)


def _put_filters() -> None:
    """Add the filter to each logger, since a logger's filters see only its own records, not those of its children."""
    for name in list(logging.Logger.manager.loggerDict):
        if _is_noisy(name):
            logging.getLogger(name).addFilter(_unless_quiet)
    for handler in logging.getLogger("mlflow").handlers:
        handler.addFilter(_unless_quiet)  # for loggers created later, in the block
    logging.getLogger(_RETRIES).addFilter(_retries_once)


def _unless_quiet(record: logging.LogRecord) -> bool:
    # A handler may be shared with loggers of other libraries.
    return record.levelno >= logging.CRITICAL or not _quiet.get() or not _is_noisy(record.name)


def _is_noisy(logger: str) -> bool:
    return logger.partition(".")[0] in _NOISY


def _retries_once(record: logging.LogRecord) -> bool:
    """Hold back urllib3's warnings, one for each retry; the first becomes a line of ours."""
    if record.levelno < logging.WARNING or not _quiet.get():
        return True
    if record.getMessage().startswith("Retrying") and not _waited:
        _waited.append(True)
        where = urlsplit(public(_tracking_uri())).netloc
        logging.getLogger("proftrack").warning("proftrack: the store does not answer (%s); trying again", where)
    return False


def _tracking_uri() -> str:
    import mlflow

    return str(mlflow.get_tracking_uri())
