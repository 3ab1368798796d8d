"""Faults between a run and its store: afterwards the run is whole, exactly once, or still whole in its folder.

docs/faults.md has the table of these; a test checks that each line of it names a test that is here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from run_folders import TRACE, make_record, write_folder
from team import (
    ADMIN,
    ALICE,
    BOB,
    Fault,
    FaultProxy,
    Postgres,
    Server,
    as_user,
    free_port,
    missing,
    open_folder,
    whole_once,
)

from proftrack.cli import main
from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.tracking import log, process, runs, session, spool, store, sync

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="a server's processes as POSIX has them")]

FOR_EVER = 10**6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of its own with a trace of 2 MB."""
    record = make_record()
    facts = msgspec.structs.replace(record.run, started_ns=time.time_ns(), experiment="faults")
    made = write_folder(tmp_path / "run", msgspec.structs.replace(record, run=facts))
    (made / "trace" / TRACE).write_bytes(os.urandom(2_000_000))
    return made


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def sync_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a sync that fails; the folder stays."""
    before = spool.artifacts(folder)
    assert call("sync", str(folder)) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("proftrack: http://127.0.0.1:")
    assert spool.artifacts(folder) == before
    assert spool.load(folder)
    return shown.err


# ---- faults that pass ------------------------------------------------------------------------------------------------

UPLOAD = r"PUT .*pt\.trace\.json\.gz"
CREATE = r"POST .*runs/create"
BATCH = r"POST .*runs/log-batch"
END = r"POST .*runs/update"
PASSING = {
    "500 when the run is made": Fault("status", CREATE, 2, 500),
    "503 on an upload": Fault("status", UPLOAD, 2, 503),
    "429 on the figures": Fault("status", BATCH, 2, 429),
    "502 at the end": Fault("status", END, 2, 502),
    "reset when the run is made": Fault("reset", CREATE, 2),
    "reset on an upload": Fault("reset", UPLOAD, 2),
    "reset on the figures": Fault("reset", BATCH, 2),
    "reset at the end": Fault("reset", END, 2),
    "cut in mid-upload": Fault("cut_upload", UPLOAD, 2),
    "answer lost when the run is made": Fault("lost_answer", CREATE, 2),
    "answer lost on an upload": Fault("lost_answer", UPLOAD, 2),
    "answer lost on the figures": Fault("lost_answer", BATCH, 2),
    "answer lost at the end": Fault("lost_answer", END, 2),
    "a slow answer": Fault("delay", BATCH, 2, seconds=1.0),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_that_passes(
    name: str, proxy: FaultProxy, alice: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = dataclasses.replace(PASSING[name], seen=[])
    if fault.kind == "delay":
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        fault.seconds = 1.6
    proxy.add(fault)
    assert call("sync", str(folder)) == 0
    assert len(fault.seen) == fault.times
    whole_once(alice, folder, monkeypatch)


def test_a_repeated_request_whose_run_may_not_be_deleted(
    proxy: FaultProxy, alice: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bob may EDIT alice's experiment, which is not enough to delete: the second run is marked instead."""
    found = store.resolve()
    experiment = store.experiment_for(found, store.connect(found), "of alice")
    alice.permit(BOB, experiment, "EDIT")
    as_user(monkeypatch, proxy.url, BOB)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of alice")
    proxy.add(Fault("lost_answer", CREATE))
    assert call("sync", str(folder)) == 0
    client = store.connect(store.resolve())
    first, second = sorted(
        runs.search(client, f"tags.`{runs.RECORD_TAG}` = '{spool.identity(folder)}'"), key=lambda run: run.info.status
    )
    assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
    assert first.data.tags[runs.DUPLICATE_TAG] == second.info.run_id


# ---- faults that last ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "kind", "sentence"),
    [
        (UPLOAD, "status", "the server fails, as its own log will say"),
        (BATCH, "status", "the server fails, as its own log will say"),
        (END, "status", "the server fails, as its own log will say"),
        (UPLOAD, "reset", "the server does not answer"),
        (UPLOAD, "cut_upload", "the server does not answer"),
    ],
)
def test_a_fault_that_lasts(
    match: str,
    kind: str,
    sentence: str,
    proxy: FaultProxy,
    alice: Server,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    proxy.add(Fault(kind, match, FOR_EVER))
    assert sentence in sync_fails(folder, capsys)
    assert statuses(folder) <= {"FAILED", "RUNNING"}
    proxy.faults.clear()
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)


def statuses(folder: Path) -> set[str]:
    found = store.resolve()
    filter_string = f"tags.`{runs.RECORD_TAG}` = '{spool.identity(folder)}'"
    return {run.info.status for run in runs.search(store.connect(found), filter_string)}


@pytest.mark.parametrize("code", [400, 401, 403, 404])
def test_a_refusal_is_not_tried_again(
    code: int, proxy: FaultProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.add(Fault("status", r"PUT .*events\.parquet", FOR_EVER, code))
    sync_fails(folder, capsys)
    assert sum("events.parquet" in request for request in proxy.requests) == 1


def test_what_arrives_cut_is_found_out(
    alice: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server, or a proxy before it, that keeps half a file and answers 200."""
    upload = log._upload

    def half(run: session.Session, where: Path, files: list[Path]) -> None:
        upload(run, where, files)
        if files:
            target = alice.folder / "artifacts" / run.artifact_uri.removeprefix("mlflow-artifacts:/") / "trace" / TRACE
            target.write_bytes(b"half")

    with monkeypatch.context() as patch:
        patch.setattr(log, "_upload", half)
        assert "did not arrive whole, twice" in sync_fails(folder, capsys)
    assert statuses(folder) == {"FAILED"}
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)


# ---- who may what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [None, ("alice", "wrong"), ("nobody", "no-password-at-all")])
def test_a_wrong_password(
    user: tuple[str, str] | None,
    alice: Server,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if user:
        as_user(monkeypatch, alice.url, user)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    shown = sync_fails(folder, capsys)
    assert "the server wants a user and a password, or does not know these (HTTP 401)" in shown
    assert "wrong" not in shown
    as_user(monkeypatch, alice.url, ALICE)
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)


def test_a_missing_permission(
    alice: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bob may read what alice made, and not write to it."""
    found = store.resolve()
    store.experiment_for(found, store.connect(found), "only alice writes")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "only alice writes")
    as_user(monkeypatch, alice.url, BOB)
    assert "this user may not do that (HTTP 403)" in sync_fails(folder, capsys)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    as_user(monkeypatch, alice.url, ADMIN)
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)


def test_a_server_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str], alice: Server) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{free_port()}"
    assert "the server does not answer; start it, or check MLFLOW_TRACKING_URI" in sync_fails(folder, capsys)


# ---- servers that end ------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(postgres: Postgres, alice: Server) -> Iterator[Server]:
    """A second server on the team's database, which may be killed; its own artifacts."""
    with open_folder() as folder:
        server = Server(postgres.url, folder).start().wait()
        try:
            yield server
        finally:
            server.end()


def test_a_server_killed_in_mid_upload(
    mortal: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it comes back while the upload is tried again; then it stays away, and `sync` finishes later."""
    import signal

    proxy = FaultProxy(mortal.port)
    try:
        as_user(monkeypatch, proxy.url, ALICE)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "killed servers")

        def restart() -> None:
            mortal.end(signal.SIGKILL)
            mortal.start()

        proxy.add(Fault("cut_upload", UPLOAD, then=restart))
        assert call("sync", str(folder)) == 0
        whole_once(mortal, folder, monkeypatch)

        as_user(monkeypatch, proxy.url, ALICE)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        second = write_folder(folder.parent / "second", another(2))
        (second / "trace" / TRACE).write_bytes(os.urandom(2_000_000))
        proxy.add(Fault("cut_upload", UPLOAD, then=lambda: mortal.end(signal.SIGKILL)))
        capsys.readouterr()
        assert "the server does not answer" in sync_fails(second, capsys)
        mortal.start().wait()
        assert statuses(second) == {"RUNNING"}  # nobody could say that it has ended
        assert call("sync", str(second)) == 0
        whole_once(mortal, second, monkeypatch)
    finally:
        proxy.close()


def another(number: int) -> Record:
    record = make_record()
    return msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, started_ns=time.time_ns() + number))


def test_a_database_that_restarts(
    postgres: Postgres, proxy: FaultProxy, alice: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the upload and the figures, under the server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    proxy.add(Fault("call", UPLOAD, then=postgres.restart))
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)
