"""What every test gets: no MLflow of the machine's, nothing left running afterwards. And run folders made by hand.

In parallel (pytest-xdist, `make test`) a file's tests run in one worker, one behind the other, so that what is made
once for a module is made once; the files that use the team's server share a worker, and with it server and database.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow_server import shared_server
from run_folders import make_record, write_folder
from team import alice, direct, postgres, proxy, team_server

from proftrack.record import Record
from proftrack.threads import usable_cpus

__all__ = ["alice", "direct", "postgres", "proxy", "shared_server", "team_server"]

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
GIB_A_WORKER = 2
"""Of memory: torch and MLflow are imported in each, and in processes that its tests start."""
MOST_WORKERS = 8
# What takes longest comes first, or the others would wait for it at the end; by processor time on two cores.
LONG = (
    "team",
    "test_capture",
    "test_variants",
    "test_sweep",
    "test_experiments",
    "test_ranks",
    "test_signals",
    "test_goldens",
)


# A shell has its background jobs ignore Ctrl-C, and what they start inherits that; tests send it to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if WORKERS > 1:
    # Before torch, numpy and what they start: threads of several workers on the same cores wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(usable_cpus()) // WORKERS)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means here."""
    return max(1, min(len(usable_cpus()), MOST_WORKERS, psutil.virtual_memory().total // (GIB_A_WORKER << 30)))


def group(nodeid: str) -> str:
    """Tests of one group run in one worker: those of a file, or all that use the team's server."""
    file = nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
    return "team" if file.startswith("test_team") else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In parallel the longest groups come first."""
    if WORKERS > 1:
        items.sort(key=lambda item: LONG.index(group(item.nodeid)) if group(item.nodeid) in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` with our groups. Not `loadgroup`: its marks have no effect in xdist 3.8 with pytest 9.2."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No variable of the machine's MLflow reaches a test, nor a fixture of a module, made before any test's own.

    Nor the width of the terminal that they are started from. Ceilings are measured once for all workers, and what a
    busy machine gives for them stays out of the user's cache.
    """
    here = tmp_path_factory.getbasetemp()
    os.environ["XDG_CACHE_HOME"] = str((here.parent if WORKERS > 1 else here) / "cache")
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "_MLFLOW_", "PROFTRACK_")) or name == "COLUMNS":
            del os.environ[name]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test's store and spool would be temporary folders, and the environment is afterwards what it was before."""
    before = dict(os.environ)
    connect = tmp_path_factory.getbasetemp() / f"store-{os.urandom(6).hex()}"
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{connect}/mlflow.db"
    os.environ["PROFTRACK_SPOOL"] = str(connect / "spool")
    yield
    # Not by monkeypatch, which undoes only its own changes: `mlflow.set_experiment` writes MLFLOW_EXPERIMENT_ID.
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _nothing_left(_isolated: None) -> Iterator[None]:
    """No MLflow run and no profiler is active after a test."""
    yield
    # Neither is imported for this: a test that did not use them left nothing.
    if "mlflow.tracking.fluent" in sys.modules:
        import mlflow

        active = mlflow.active_run()
        while mlflow.active_run() is not None:
            mlflow.end_run()
        _forget_what_was_set()
        assert active is None, f"the test left the MLflow run {active.info.run_id} active"
    if "torch" in sys.modules:
        import torch

        assert not torch.autograd.profiler._is_profiler_enabled, "the test left a profiler running"


def _forget_what_was_set() -> None:
    """What `mlflow.set_tracking_uri` and `mlflow.set_experiment` set would win over the next test's variables."""
    from mlflow.tracking import fluent
    from mlflow.tracking._tracking_service import utils

    utils._tracking_uri = None
    fluent._active_experiment_id = None


@pytest.fixture(scope="session")
def _empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite store with its schema: made once, copied for each test."""
    from proftrack.store import connect

    database = tmp_path_factory.mktemp("empty-store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
        connect.connect(connect.resolve())
    return database


@pytest.fixture
def store_uri(_empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """MLFLOW_TRACKING_URI: a store of this test's own, with nothing in it."""
    database = tmp_path / "store" / "mlflow.db"
    database.parent.mkdir()
    shutil.copyfile(_empty_store, database)
    uri = f"sqlite:///{database}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture
def record() -> Record:
    """A whole record of a GPU run with known figures."""
    return make_record()


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes run folders: `run_folder("name", record)`."""

    def write(name: str = "run", record: Record | None = None) -> Path:
        return write_folder(tmp_path / name, record or make_record())

    return write
