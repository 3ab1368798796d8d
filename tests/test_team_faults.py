"""Faults between a run and its store: afterwards the run is whole, exactly once, or still whole in its folder.

docs/faults.md has the table of these; a test checks that each line of it names a test that is here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import PATIENCE_S, call
from run_folders import TRACE, make_record, write_folder
from stores import mlflow_runs
from team import (
    ADMIN,
    ALICE,
    BOB,
    ROOT,
    Fault,
    FaultProxy,
    Postgres,
    Server,
    as_user,
    free_port,
    open_folder,
    small_disk,
    whole_once,
)
from traces import TraceBuilder

from proftrack import rundir
from proftrack.analysis.pipeline import Analysis
from proftrack.errors import UsageError
from proftrack.record import Record
from proftrack.recorder import write as run_folder
from proftrack.store import connect, keys, session, sync, upload

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


def sync_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a sync that fails; the folder stays."""
    before = rundir.artifacts(folder)
    assert call("sync", str(folder)) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("proftrack: http://127.0.0.1:")
    assert rundir.artifacts(folder) == before
    assert rundir.load(folder)
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
    found = connect.resolve()
    experiment = connect.experiment_for(found, connect.connect(found), "of alice")
    alice.permit(BOB, experiment, "EDIT")
    as_user(monkeypatch, proxy.url, BOB)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of alice")
    proxy.add(Fault("lost_answer", CREATE))
    assert call("sync", str(folder)) == 0
    first, second = sorted(
        mlflow_runs(keys.RECORD_TAG, rundir.identity(folder)),
        key=lambda run: run.info.status,
    )
    assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
    assert first.data.tags[keys.DUPLICATE_TAG] == second.info.run_id


# ---- faults that last ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "kind", "sentence"),
    [
        (UPLOAD, "status", "the server failed (see its own log)"),
        (BATCH, "status", "the server failed (see its own log)"),
        (END, "status", "the server failed (see its own log)"),
        (UPLOAD, "reset", "the server closed the connection"),
        (UPLOAD, "cut_upload", "the server closed the connection"),
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
    return {run.info.status for run in mlflow_runs(keys.RECORD_TAG, rundir.identity(folder))}


def test_one_line_says_that_it_is_tried_again(proxy: FaultProxy, folder: Path) -> None:
    """And not urllib3's own, one for each time."""
    proxy.add(Fault("reset", UPLOAD, 3))
    done = subprocess.run(
        [sys.executable, str(ROOT / "profiling"), "sync", str(folder)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    assert done.stderr == f"proftrack: the store does not answer ({proxy.url.removeprefix('http://')}); trying again\n"


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
    real_upload = upload._upload

    def half(run: session.Session, where: Path, files: list[Path]) -> None:
        real_upload(run, where, files)
        if files:
            target = alice.folder / "artifacts" / run.artifact_uri.removeprefix("mlflow-artifacts:/") / "trace" / TRACE
            target.write_bytes(b"half")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_upload", half)
        assert "arrived incomplete, twice" in sync_fails(folder, capsys)
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
    assert "the server requires a user and a password, or does not accept these (HTTP 401)" in shown
    assert "wrong" not in shown
    as_user(monkeypatch, alice.url, ALICE)
    assert call("sync", str(folder)) == 0
    whole_once(alice, folder, monkeypatch)


def test_a_missing_permission(
    alice: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bob may read what alice made, and not write to it."""
    found = connect.resolve()
    connect.experiment_for(found, connect.connect(found), "only alice writes")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "only alice writes")
    as_user(monkeypatch, alice.url, BOB)
    assert "this user does not have permission (HTTP 403)" in sync_fails(folder, capsys)
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
        # Through the proxy: it takes the connection, and there is nobody behind it.
        assert "the server closed the connection" in sync_fails(second, capsys)
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


def test_a_database_that_restarts_under_its_clients(
    direct: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server between them: every connection of the client is gone."""
    real_upload = upload._upload

    def restarted(*arguments: Any) -> None:
        real_upload(*arguments)
        direct.restart()

    monkeypatch.setattr(upload, "_upload", restarted)
    assert call("sync", str(folder)) == 0
    (run,) = mlflow_runs(keys.RECORD_TAG, rundir.identity(folder))
    assert run.info.status == "FINISHED"
    for relative in rundir.artifacts(folder):
        assert (Path(run.info.artifact_uri) / relative).read_bytes() == (folder / relative).read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((":8", ":9"), "the database does not answer"),
        (("mlflow:", "mlflow:wrong"), "the database refuses this user or password"),
    ],
)
def test_a_database_that_refuses(
    change: tuple[str, str],
    says: str,
    direct: Postgres,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    url = direct.url_of("direct")
    wrong = url.replace(f":{direct.port}/", f":{free_port()}/") if "answer" in says else url.replace(*change)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", wrong)
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    assert call("sync", str(folder)) == 1
    shown = capsys.readouterr().err
    assert says in shown
    assert (direct.folder / "password").read_text() not in shown
    assert "wrong" not in shown


# ---- full disks ------------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_servers_artifacts(
    alice: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = connect.resolve()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "on a full disk")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    experiment = connect.experiment_for(found, connect.connect(found), "x")
    with small_disk(alice.folder / "artifacts" / experiment, 1) as grow:
        # Which of the two is a race: the server answers 500 and closes while the client is still sending.
        assert re.search("the server (failed|closed the connection)", sync_fails(folder, capsys))
        assert statuses(folder) == {"FAILED"}
        grow(16)
        assert call("sync", str(folder)) == 0
        whole_once(alice, folder, monkeypatch)


def test_a_full_disk_under_a_local_store(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", 2) as grow:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/small/mlflow.db")
        assert call("sync", str(folder)) == 1
        shown = capsys.readouterr().err
        assert "no space is left where it keeps its data" in shown
        assert "proftrack sync" in shown
        grow(16)
        assert call("sync", str(folder)) == 0
        (run,) = mlflow_runs(keys.RECORD_TAG, rundir.identity(folder))
        assert run.info.status == "FINISHED"
        for relative in rundir.artifacts(folder):
            assert (Path(run.info.artifact_uri) / relative).read_bytes() == (folder / relative).read_bytes()


def analysis_of(trace: TraceBuilder) -> Analysis:
    return Analysis(make_record(), [trace.table()])


def test_a_full_disk_under_the_spool_costs_the_traces_and_not_the_figures(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = TraceBuilder().step(0, at=0, dur=100).kernel(at=10, dur=5)
    with small_disk(tmp_path / "small", 4):
        full = tmp_path / "small" / "run"
        (full / "trace").mkdir(parents=True)
        (full / "trace" / TRACE).write_bytes(os.urandom((4 << 20) - 20_000))
        record = run_folder.write(analysis_of(trace), full)
        assert record.source.left_out == [f"trace/{TRACE}"]
        assert record.run is not None
        assert "Left out to save space: trace/" in record.run.notes[-1]
        assert rundir.load(full) == record
        found = connect.resolve()
        client = connect.connect(found)
        done = sync.sync_folder(found, client, full)
    run = client.get_run(done.run_id)
    assert (run.info.status, run.data.tags[keys.LEFT_OUT_TAG]) == ("FINISHED", f"trace/{TRACE}")
    assert run.data.metrics["step_time_us"] == 100.0


def test_a_disk_with_room_for_little_more_than_the_record_keeps_the_figures(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, at=0, dur=100).kernel(at=10, dur=5)
    with small_disk(tmp_path / "small", 4):
        full = tmp_path / "small" / "run"
        (full / "trace").mkdir(parents=True)
        (full / "trace" / TRACE).write_bytes(b"a small one")
        (tmp_path / "small" / "else").write_bytes(os.urandom((4 << 20) - 60_000))
        record = run_folder.write(analysis_of(trace), full)
        assert "report.html" in record.source.left_out
        assert rundir.load(full) == record


def test_a_disk_too_full_for_anything_is_refused_before_it_costs_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.yaml").write_text("workload: x.py:build\n")
    with small_disk(tmp_path / "small", 8):
        monkeypatch.setenv("PROFTRACK_SPOOL", str(tmp_path / "small" / "spool"))
        assert call("run", str(tmp_path / "x.yaml"), "--no-mlflow") == 2
    assert "8 MB are free, but a run needs 64 MB" in capsys.readouterr().err


def test_a_run_folder_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest traces go first, then the events; what is left says so, and is whole."""
    trace = TraceBuilder().step(0, at=0, dur=100).kernel(at=10, dur=5)

    def written(name: str, limit: int) -> tuple[Record, set[str]]:
        made = tmp_path / name
        (made / "trace").mkdir(parents=True)
        for file, size in (("a.gz", 50_000), ("b.gz", 500_000), ("c.gz", 200_000)):
            (made / "trace" / file).write_bytes(bytes(size))
        monkeypatch.setenv("PROFTRACK_MAX_RUN_BYTES", str(limit))
        record = run_folder.write(analysis_of(trace), made)
        return record, {path.name for path in (made / "trace").iterdir()}

    assert written("all", 10_000_000)[1] == {"a.gz", "b.gz", "c.gz"}
    assert written("some", 1_000_000)[1] == {"a.gz", "b.gz", "c.gz"}
    record, left = written("fewer", 700_000)
    assert (record.source.left_out, left) == (["trace/b.gz"], {"a.gz", "c.gz"})
    record, left = written("nothing", 1000)
    pictures = ["events.parquet", "git.diff", "plots", "report.html"]  # made again from the record, or done without
    assert (record.source.left_out, left) == ([*pictures, "trace/a.gz", "trace/b.gz", "trace/c.gz"], set())
    assert {path.name for path in (tmp_path / "nothing").iterdir()} == {"record.json", "tables", "trace"}
    monkeypatch.setenv("PROFTRACK_MAX_RUN_BYTES", "1 GB")
    with pytest.raises(UsageError, match="not a number of bytes"):
        run_folder.write(analysis_of(trace), tmp_path / "odd")


# ---- processes that end ----------------------------------------------------------------------------------------------


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """One of the fifty of benchmarks/kill_runs.py, on a local store."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kill_runs.py"), "--kills", "1", "--seed", "3"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {name: found[name] for name in ("finished_not_whole", "corrupt", "still_running", "lost")} == {
        "finished_not_whole": 0,
        "corrupt": 0,
        "still_running": 0,
        "lost": 0,
    }
    assert sum(found["killed"].values()) == 1


def test_what_was_measured_before_the_process_died_becomes_the_same_run(
    alice: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last byte of the folder and the first request about it."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from proftrack.store import session, upload\n"
        "with session.keep(session.opening('faults', 'x')) as run:\n"
        "    upload.begin(run, Path(sys.argv[1]))\n"
        "    print(run.run_id, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert died.returncode == -9
    assert call("sync", str(folder)) == 0
    assert whole_once(alice, folder, monkeypatch).info.run_id == died.stdout.strip()
