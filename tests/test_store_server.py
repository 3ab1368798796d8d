"""A real `mlflow server` on loopback: it shows what was logged without it, and takes what is logged through it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from calls import PATIENCE_S
from mlflow_server import SharedServer

from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.store import connect, lifecycle, session, sync

pytestmark = pytest.mark.slow


def test_it_shows_what_was_logged_without_it(
    shared_server: SharedServer, run_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = shared_server
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    local = connect.resolve()
    logged = sync.sync_folder(local, connect.connect(local), run_folder())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    seen = connect.connect(connect.resolve()).get_run(logged.run_id)
    assert seen.info.status == "FINISHED"
    assert seen.data.tags["regime"] == "overhead-bound"
    address = f"{server}/get-artifact?run_uuid={logged.run_id}&path=tables/key_averages.txt"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        assert answer.read() == b"Self CPU time total: 450us\n"


def test_what_is_logged_through_it(
    shared_server: SharedServer, run_folder: Callable[..., Path], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = shared_server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "through the server")
    remote = connect.resolve()
    client = connect.connect(remote)
    other = msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, fingerprint="other"))
    logged = sync.sync_folder(remote, client, run_folder("first", other))
    assert logged.artifact_uri.startswith("mlflow-artifacts:")
    assert {item.path for item in client.list_artifacts(logged.run_id)} == {
        "record.json",
        "events.parquet",
        "git.diff",
        "tables",
        "trace",
    }
    assert remote.run_url(logged.experiment_id, logged.run_id).startswith(f"{server}/#/experiments/")
    assert sync.sync_folder(remote, client, run_folder("again", other)).did == "known"

    # The experiment is the server's now: a client of the database cannot write its artifacts, and says so in time.
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(StoreError, match="go through a server"), session.keep(session.opening("x", "x")):
        pass
    local = connect.resolve()
    assert lifecycle.search(connect.connect(local), "attributes.status = 'RUNNING'") == []
