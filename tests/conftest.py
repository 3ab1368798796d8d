"""What every test gets: no MLflow of the machine's, nothing left running afterwards. And run folders made by hand."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_folders import make_record, write_folder
from team import alice, direct, postgres, proxy, team_server

from proftrack.record import Record

__all__ = ["alice", "direct", "postgres", "proxy", "team_server"]


@pytest.fixture(scope="session", autouse=True)
def _no_mlflow_of_the_machine() -> None:
    """No variable of the machine's MLflow reaches a test, nor a fixture of a module, made before any test's own."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "_MLFLOW_", "PROFTRACK_")):
            del os.environ[name]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test's store and spool would be temporary folders, and the environment is afterwards what it was before."""
    before = dict(os.environ)
    store = tmp_path_factory.getbasetemp() / f"store-{os.urandom(6).hex()}"
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{store}/mlflow.db"
    os.environ["PROFTRACK_SPOOL"] = str(store / "spool")
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
    from proftrack.tracking import store

    database = tmp_path_factory.mktemp("empty-store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
        store.connect(store.resolve())
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
