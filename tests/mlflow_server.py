"""A real `mlflow server` on loopback, for tests: started in a folder beside a store that we made.

All tests of a worker share one (`shared_server`): each logs into an MLflow experiment of its own and, where it searches
the whole store, with a fingerprint of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from calls import PATIENCE_S

# MLflow (3.17) starts ten processes for jobs, which nothing here has; each imports all of MLflow.
LEAN = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server on the mlflow.db in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, **LEAN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        # Asked nicely it waits for connections that a browser keeps open; the store is a copy and nobody else's.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


class SharedServer(NamedTuple):
    """Where it answers, and the folder with its mlflow.db."""

    url: str
    folder: Path


@pytest.fixture(scope="session")
def shared_server(_empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """A bare server, started when a test first asks for it."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(_empty_store, folder / "mlflow.db")
    with serving(folder) as url:
        yield SharedServer(url, folder)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.2)
