"""Which store, whole before anything writes to it, and one sentence for each of its faults."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from calls import PATIENCE_S

from proftrack.errors import StoreError
from proftrack.store import connect, errors


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and nothing that says where the store is."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    return folder


def connected(uri: str, monkeypatch: pytest.MonkeyPatch) -> connect.Store:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    found = connect.resolve()
    connect.connect(found)
    return found


def refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with pytest.raises(StoreError) as caught:
        connected(uri, monkeypatch)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_default_is_mlflows_own_and_absolute(here: Path) -> None:
    found = connect.resolve()
    assert found.uri == f"sqlite:///{here}/mlflow.db"
    assert found.artifact_root == here / "mlruns"
    assert list(here.iterdir()) == []


def test_a_new_store_is_whole_and_its_artifacts_lie_beside_it(here: Path) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    default = client.get_experiment("0")
    assert default.artifact_location == f"{here}/mlruns/0"
    experiment = client.get_experiment(connect.experiment_for(found, client, "a/b <c>"))
    assert experiment.name == "a/b <c>"
    assert Path(experiment.artifact_location).parent == here / "mlruns"
    assert not {path.name for path in here.iterdir()} - {"mlflow.db", "mlflow.db.lock", "mlruns"}


@pytest.mark.parametrize("name", ["a b", "50%25"])
def test_a_folder_with_a_blank_or_a_percent_sign(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """MLflow quotes its default, so that which file is meant depends on SQLAlchemy's version."""
    (here / name).mkdir()
    monkeypatch.chdir(here / name)
    connect.connect(connect.resolve())
    assert (here / name / "mlflow.db").stat().st_size > 0


def test_a_relative_uri_is_made_absolute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = connected("sqlite:///sub/x.db", monkeypatch)
    assert found.uri == f"sqlite:///{here}/sub/x.db"
    assert found.artifact_root == here / "sub" / "mlruns"


def test_a_store_in_memory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri in ("sqlite://", "sqlite:///:memory:"):
        assert "in memory is lost when proftrack ends" in refused(uri, monkeypatch)


def test_four_processes_on_a_fresh_store_at_once(tmp_path: Path) -> None:
    """MLflow alone (3.17) lets most of them fail, and can leave the file broken."""
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = (
        "from proftrack.store import connect as store\n"
        "found = store.resolve(); client = store.connect(found)\n"
        "print(client.create_run(store.experiment_for(found, client, 'one')).info.experiment_id)"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    results = [child.communicate(timeout=PATIENCE_S) for child in children]
    assert [child.returncode for child in children] == [0] * 4, results
    assert [shown for shown, _ in results] == ["1\n"] * 4
    assert [error for _, error in results] == [""] * 4
    assert not list(tmp_path.glob(".*.new"))


def test_an_old_file_store_in_the_working_directory(here: Path) -> None:
    """MLflow takes it for the default and then refuses it (3.17)."""
    import mlflow.environment_variables

    if not hasattr(mlflow.environment_variables, "MLFLOW_ALLOW_FILE_STORE"):
        pytest.skip(f"MLflow {mlflow.__version__} still opens its old file format")
    (here / "mlruns" / "0").mkdir(parents=True)
    (here / "mlruns" / "0" / "meta.yaml").write_text("name: Default\n")
    with pytest.raises(StoreError) as caught:
        connect.connect(connect.resolve())
    message = str(caught.value)
    assert message.startswith(f"{here}/mlruns: a store in MLflow's old file format")
    assert f"mlflow migrate-filestore --source {here} --target sqlite:///{here}/mlflow.db" in message
    assert f"MLFLOW_TRACKING_URI=sqlite:///{here}/mlflow.db" in message


def test_a_file_that_is_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.db").write_text("not a database, but long enough to be read as the header of one" * 10)
    assert "not a complete MLflow store" in refused(f"sqlite:///{tmp_path}/x.db", monkeypatch)


def test_a_database_of_another_mlflow(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    with sqlite3.connect(store_uri.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    connection.close()
    message = refused(store_uri, monkeypatch)
    assert "another MLflow version" in message
    assert f"mlflow db upgrade {store_uri}" in message


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refused(f"http://user:secret@127.0.0.1:{port}", monkeypatch)
    assert message.startswith(f"http://127.0.0.1:{port}: the server does not answer; start it, or check")
    assert "secret" not in message


def test_experiment_is_mlflows_choice_or_the_experiments_name(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    own = connect.experiment_for(found, client, "own")
    assert client.get_experiment(own).name == "own"
    assert connect.experiment_for(found, client, "own") == own
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", own)
    assert connect.experiment_for(found, client, "other") == own
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "named")
    assert client.get_experiment(connect.experiment_for(found, client, "other")).name == "named"
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "77")
    with pytest.raises(StoreError, match="77"):
        connect.experiment_for(found, client, "other")


def test_a_deleted_experiment(store_uri: str) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    experiment = connect.experiment_for(found, client, "gone")
    client.delete_experiment(experiment)
    with pytest.raises(StoreError, match=f"'gone' is deleted; restore it .*--experiment-id {experiment}"):
        connect.experiment_for(found, client, "gone")


def test_artifacts_behind_a_server_cannot_be_written_from_the_database(store_uri: str) -> None:
    """What a server that was started first leaves: experiments whose artifacts only its own clients can write."""
    found = connect.resolve()
    client = connect.connect(found)
    client.create_experiment("theirs", artifact_location="mlflow-artifacts:/7")
    with pytest.raises(StoreError, match=r"go through a server \(mlflow-artifacts:/7\).*set MLFLOW_TRACKING_URI to"):
        connect.experiment_for(found, client, "theirs")


def test_an_artifact_folder_that_cannot_be_made(store_uri: str, tmp_path: Path) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    (tmp_path / "file").write_text("")
    client.create_experiment("elsewhere", artifact_location=f"file://{tmp_path}/file/below")
    with pytest.raises(StoreError, match="is not writable"):
        connect.experiment_for(found, client, "elsewhere")


def test_the_command_that_opens_the_ui_on_this_very_store(store_uri: str, tmp_path: Path) -> None:
    command = connect.resolve().open_command()
    assert command is not None
    assert re.fullmatch(
        rf"\S+( -m mlflow)? server --backend-store-uri {store_uri} --default-artifact-root {tmp_path}/store/mlruns",
        command,
    )


def test_a_servers_ui_is_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example.org/base/")
    found = connect.resolve()
    assert found.open_command() is None
    training = "?workflowType=machine_learning"
    assert found.run_url("3", "abc") == f"https://mlflow.example.org/base/#/experiments/3/runs/abc{training}"
    assert found.run_url("3", "") == f"https://mlflow.example.org/base/#/experiments/3/runs{training}"
    assert "secret" not in repr(found)


def test_no_password_of_a_database_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:p%40ss@db.example.org:5432/mlflow?sslkey=x")
    found = connect.resolve()
    assert found.public == "postgresql://db.example.org:5432/mlflow"
    assert found.open_command() is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach postgresql://user:pass@host/db now", "cannot reach postgresql://host/db now"),
        ("https://token@host and http://a:b@c", "https://host and http://c"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_messages_of_others_are_scrubbed(text: str, shown: str) -> None:
    assert errors.scrub(text) == shown
