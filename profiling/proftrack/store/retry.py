"""How long to wait for a store that does not answer.

MLflow's own setting decides: MLFLOW_HTTP_REQUEST_MAX_RETRIES (7 unless set: about four minutes). MLflow's client of a
server retries when that can help: no connection, a broken one, no answer in time, HTTP 408, 429 and 5xx; never after a
refusal (any other 4xx). `Patient` does the same for a database without a server. The user's own settings are respected.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from proftrack.store import compat
from proftrack.store.compat import RETRIES_VARIABLE, TIMEOUT_VARIABLE

_PROBE_RETRIES = 1
_PROBE_TIMEOUT_S = 15
_TIMEOUT_S = 120
_SLOWEST_BYTES_PER_S = 1_000_000
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
# Database errors after which a retry may help; a missing table or a full disk is not among them.
_TRANSIENT = re.compile(
    r"locked|connection|closed|terminat|timeout|timed out|deadlock|serializ|starting up|shutting down|recovery mode",
    re.I,
)


@contextlib.contextmanager
def quick_retries() -> Iterator[None]:
    """Give up on a store that does not answer within seconds, not minutes."""
    with _unless_chosen(**{RETRIES_VARIABLE: _PROBE_RETRIES, TIMEOUT_VARIABLE: _PROBE_TIMEOUT_S}):
        yield


@contextlib.contextmanager
def time_for(size: int) -> Iterator[None]:
    """Wait for the answer to an upload of `size` bytes as long as a slow server may need.

    The server answers only after passing the file on to its artifact store; MLflow's 120 s are short for a large file.
    """
    with _unless_chosen(**{TIMEOUT_VARIABLE: _TIMEOUT_S + size // _SLOWEST_BYTES_PER_S}):
        yield


class Patient:
    """An MlflowClient on a database: calls that fail for a transient reason are retried after a pause.

    Transient are a lost connection, a restarting server and a lock held too long. MLflow reports
    TEMPORARILY_UNAVAILABLE for these, but for other database errors too.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return _again(attribute) if callable(attribute) else attribute


def _again(call: Callable[..., Any]) -> Callable[..., Any]:
    def patient(*arguments: Any, **named: Any) -> Any:
        from mlflow.exceptions import MlflowException

        left = compat.setting(RETRIES_VARIABLE)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return call(*arguments, **named)
            except MlflowException as error:
                if left <= 0 or error.error_code != "TEMPORARILY_UNAVAILABLE" or not _TRANSIENT.search(str(error)):
                    raise
            left -= 1
            # Jitter: writers that failed together must not retry together.
            time.sleep(pause * random.uniform(1.0, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    return patient


@contextlib.contextmanager
def _unless_chosen(**values: int) -> Iterator[None]:
    with compat.settings(**{name: value for name, value in values.items() if name not in os.environ}):
        yield
