"""One MLflow run from its start to its last status, in this process: which run, which status, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from run_folders import ENDED_NS, STARTED_NS
from stores import mlflow_runs

from proftrack import process, rundir
from proftrack.errors import ProftrackError, StoreError, WorkloadError
from proftrack.record import Record
from proftrack.signals import Interrupted
from proftrack.store import connect, lifecycle, session, sync, upload

if TYPE_CHECKING:
    from mlflow import MlflowClient

Writer = Callable[..., Path]


@pytest.fixture
def client(store_uri: str) -> MlflowClient:
    return connect.connect(connect.resolve())


def project_run(client: MlflowClient, monkeypatch: pytest.MonkeyPatch, **params: str) -> str:
    """A run as `mlflow run` makes it before its child starts."""
    run_id = client.create_run("0", tags={"mlflow.source.type": "PROJECT", "mlflow.source.git.commit": "c0ffee"})
    run_id = run_id.info.run_id
    for name, value in {"experiment": "matmul_add", **params}.items():
        client.log_param(run_id, name, value)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    return str(run_id)


def only_run(client: MlflowClient) -> Any:
    (found,) = mlflow_runs()
    return found


def test_alone(client: MlflowClient, run_folder: Writer) -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with session.keep(session.opening("matmul_add", "a name")) as run:
        assert client.get_run(run.run_id).info.status == "RUNNING"
        assert signal.getsignal(signal.SIGTERM) != handlers[0]
        upload.log_folder(run, run_folder())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    found = only_run(client)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "matmul_add n=64 bfloat16 eager"  # by then it is known what `auto` became
    assert client.get_experiment(found.info.experiment_id).name == "matmul_add"
    assert found.data.tags["proftrack.experiment"] == "matmul_add"
    assert found.data.tags["proftrack.pid"] == str(os.getpid())


def test_what_the_run_holds(client: MlflowClient, run_folder: Writer) -> None:
    with session.keep(session.opening("matmul_add", "x")) as run:
        upload.log_folder(run, run_folder())
    artifacts = Path(run.artifact_uri)
    assert {path.relative_to(artifacts).as_posix() for path in artifacts.rglob("*") if path.is_file()} == {
        "record.json",
        "events.parquet",
        "git.diff",
        "trace/matmul_add.pt.trace.json.gz",
        "tables/key_averages.txt",
        "tables/ops.json",
        "tables/kernels.json",
    }
    history = client.get_metric_history(run.run_id, "self_cuda_time_per_step_us")
    assert [(point.step, point.value) for point in history] == [(2, 40.0), (3, 41.0), (4, 42.0)]
    data = client.get_run(run.run_id).data
    assert data.params["schedule.active"] == "3"
    assert data.tags["regime"] == "overhead-bound"
    assert data.tags["mlflow.note.content"].startswith("**overhead-bound**")
    # What the UI and load_table find tables by.
    table = client.load_table(run.experiment_id, "tables/kernels.json", [run.run_id])
    assert table.to_dict("list") == {"name": ["aten::mm"], "calls": [3]}
    assert [each["path"] for each in json.loads(data.tags["mlflow.loggedArtifacts"])] == [
        "tables/ops.json",
        "tables/kernels.json",
    ]


def test_the_table_of_modules_is_a_table_if_there_is_one(client: MlflowClient, run_folder: Writer) -> None:
    folder = run_folder()
    (folder / "tables" / "modules.json").write_text(json.dumps({"columns": ["path"], "data": [["layers.0"]]}))
    with session.keep(session.opening("matmul_add", "x")) as run:
        upload.log_folder(run, folder)
    table = client.load_table(run.experiment_id, "tables/modules.json", [run.run_id])
    assert table.to_dict("list") == {"path": ["layers.0"]}


@pytest.mark.parametrize(
    ("error", "status", "tag", "value"),
    [
        (WorkloadError("the workload\nraised"), "FAILED", "proftrack.error", "the workload"),
        (ValueError("odd"), "FAILED", "proftrack.error", "ValueError: odd"),
        (ValueError(), "FAILED", "proftrack.error", "ValueError: ValueError"),
        (SystemExit(0), "FAILED", "proftrack.error", "SystemExit: 0"),
        (KeyboardInterrupt(), "KILLED", "proftrack.ended_by", "SIGINT"),
        (Interrupted("SIGTERM", 143), "KILLED", "proftrack.ended_by", "SIGTERM"),
    ],
)
def test_status_after_an_exception(
    client: MlflowClient, error: BaseException, status: str, tag: str, value: str
) -> None:
    with pytest.raises(type(error)), session.keep(session.opening("x", "x")):
        raise error
    found = only_run(client)
    assert found.info.status == status
    assert found.data.tags[tag] == value


def test_finished_only_with_everything_in_the_store(client: MlflowClient) -> None:
    with session.keep(session.opening("x", "x")):
        pass
    assert only_run(client).info.status == "FAILED"


def test_an_artifact_that_cannot_be_logged(client: MlflowClient, run_folder: Writer) -> None:
    folder = run_folder()
    with pytest.raises(StoreError, match="could not be written to"), session.keep(session.opening("x", "x")) as run:
        target = Path(run.artifact_uri)
        target.mkdir(parents=True)
        (target / "trace").write_text("a file where a folder must be")
        upload.log_folder(run, folder)
    assert only_run(client).info.status == "FAILED"
    assert [entry.complete for entry in rundir.logged(folder)] == [False]


def test_under_mlflow_run(client: MlflowClient, monkeypatch: pytest.MonkeyPatch, run_folder: Writer) -> None:
    """Params that are there stay as they were given; the run is the one that MLflow made."""
    run_id = project_run(client, monkeypatch, n="64.0")
    with session.keep(session.opening("matmul_add", "ours"), watched=process.Parent()) as run:
        assert run.run_id == run_id
        upload.log_folder(run, run_folder())
    found = client.get_run(run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["n"] == "64.0"
    assert found.data.params["dtype"] == "bfloat16"
    assert found.data.tags["mlflow.source.type"] == "PROJECT"
    assert found.data.tags["mlflow.source.git.dirty"] == "true"
    assert found.info.run_name == "matmul_add n=64 bfloat16 eager"  # in place of a name that MLflow made up
    assert found.data.tags["proftrack.experiment"] == "matmul_add"


def test_under_mlflow_run_a_name_that_the_user_chose_stays(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, run_folder: Writer
) -> None:
    run_id = project_run(client, monkeypatch)
    client.update_run(run_id, name="try-fast-2")
    with session.keep(session.opening("x", "x")) as run:
        upload.log_folder(run, run_folder())
    assert client.get_run(run_id).info.run_name == "try-fast-2"


def test_a_run_that_holds_a_profile_gets_no_second_one(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, run_folder: Writer
) -> None:
    run_id = project_run(client, monkeypatch)
    with session.keep(session.opening("x", "x")) as run:
        upload.log_folder(run, run_folder())
    with (
        pytest.raises(StoreError, match="already holds a profile; unset MLFLOW_RUN_ID"),
        session.keep(session.opening("x", "x")),
    ):
        pass
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_id_of_another_store(client: MlflowClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with (
        pytest.raises(StoreError, match=r"no run 0{32}.*set MLFLOW_TRACKING_URI to the store"),
        session.keep(session.opening("", "")),
    ):
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    with pytest.raises(StoreError, match="relative URI means another file"), session.keep(session.opening("", "")):
        pass
    assert not (tmp_path / "other.db").exists()


def test_under_a_run_of_the_callers(client: MlflowClient, run_folder: Writer) -> None:
    import mlflow

    experiment = client.create_experiment("training", artifact_location=str(run_folder("t").parent / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as outer:
        with session.keep(session.opening("matmul_add", "x")) as run:
            upload.log_folder(run, run_folder())
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == outer.info.run_id
        mlflow.log_metric("loss", 1.0)
    child = client.get_run(run.run_id)
    assert child.info.experiment_id == experiment
    assert child.data.tags["mlflow.parentRunId"] == outer.info.run_id
    assert client.get_run(outer.info.run_id).data.metrics == {"loss": 1.0}


def test_a_refusal_is_told_to_the_waiting_run(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    session.note_refusal(ProftrackError("n=abc is not allowed"))
    assert mlflow_runs() == []
    run_id = project_run(client, monkeypatch)
    session.note_refusal(ProftrackError("n=abc is not allowed"))
    assert client.get_run(run_id).data.tags["proftrack.error"] == "n=abc is not allowed"


def test_what_a_dead_process_left_running_is_closed(client: MlflowClient) -> None:
    here = process.this_process()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    dead = msgspec.structs.replace(here, pid=child.pid, started="1")
    elsewhere = msgspec.structs.replace(dead, host="another-host")
    left = client.create_run("0", tags=lifecycle.owner_tags_of(dead)).info.run_id
    alive = client.create_run("0", tags=lifecycle.owner_tags_of(here)).info.run_id
    remote = client.create_run("0", tags=lifecycle.owner_tags_of(elsewhere)).info.run_id
    foreign = client.create_run("0").info.run_id
    assert lifecycle.close_dead_runs(connect.resolve(), client) == [left]
    found = client.get_run(left)
    assert (found.info.status, found.data.tags["proftrack.ended_by"]) == ("FAILED", "process gone")
    assert {client.get_run(run_id).info.status for run_id in (alive, remote, foreign)} == {"RUNNING"}


# ---- sync ------------------------------------------------------------------------------------------------------------


def test_sync_logs_once_with_the_times_of_the_run(client: MlflowClient, run_folder: Writer) -> None:
    found, folder = connect.resolve(), run_folder()
    first = sync.sync_folder(found, client, folder)
    assert first.did == "logged"
    info = client.get_run(first.run_id).info
    assert (info.start_time, info.end_time) == (STARTED_NS // 10**6, ENDED_NS // 10**6)
    assert info.status == "FINISHED"
    assert info.run_name == "matmul_add n=64 bfloat16 eager"
    assert rundir.logged(folder) == [rundir.Logged(store=found.public, run_id=first.run_id, complete=True)]
    again, copied = sync.sync_folder(found, client, folder), sync.sync_folder(found, client, run_folder("copy"))
    assert (again.did, again.run_id) == ("known", first.run_id)
    assert (copied.did, copied.run_id) == ("known", first.run_id)
    assert len(mlflow_runs()) == 1


def test_sync_finishes_what_was_logged_half(
    client: MlflowClient, run_folder: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_log_figures", fail)
        with pytest.raises(StoreError, match="the disk is full"):
            sync.sync_folder(connect.resolve(), client, folder)
    half = only_run(client)
    assert half.info.status == "FAILED"
    assert "disk is full" in half.data.tags["proftrack.error"]
    whole = sync.sync_folder(connect.resolve(), client, folder)
    assert (whole.did, whole.run_id) == ("finished", half.info.run_id)
    found = only_run(client)
    assert found.info.status == "FINISHED"
    assert "proftrack.error" not in found.data.tags
    # Nothing is there twice.
    assert len(client.get_metric_history(whole.run_id, "self_cuda_time_per_step_us")) == 3


def test_sync_finishes_the_run_whose_logging_failed(client: MlflowClient, run_folder: Writer) -> None:
    """The run of `proftrack run` itself becomes whole: there is no second one."""
    folder = run_folder()
    with pytest.raises(StoreError), session.keep(session.opening("matmul_add", "x")) as run:
        (Path(run.artifact_uri) / "trace").parent.mkdir(parents=True)
        (Path(run.artifact_uri) / "trace").write_text("in the way")
        upload.log_folder(run, folder)
    (Path(run.artifact_uri) / "trace").unlink()
    assert sync.sync_folder(connect.resolve(), client, folder).run_id == run.run_id
    assert only_run(client).info.status == "FINISHED"


def test_a_folder_goes_to_two_stores(
    client: MlflowClient, run_folder: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder()
    sync.sync_folder(connect.resolve(), client, folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/second.db")
    other = connect.resolve()
    assert sync.sync_folder(other, connect.connect(other), folder).did == "logged"
    assert len(rundir.logged(folder)) == 2


def test_untrusted_names_reach_the_store_as_text(client: MlflowClient, run_folder: Writer, record: Record) -> None:
    kernel = msgspec.structs.replace(record.kernels[0], name="<script>alert(1)</script>\n" + "x" * 3000)
    outcome = sync.sync_folder(
        connect.resolve(), client, run_folder("odd", msgspec.structs.replace(record, kernels=[kernel]))
    )
    text = client.get_run(outcome.run_id).data.tags["mlflow.note.content"]
    assert "<script>" not in text
    assert "&#60;script&#62;" in text
