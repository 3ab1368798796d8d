"""A team's work on its server: every command through it, many writers at once, backup, a history that moves in."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import PATIENCE_S, call
from run_folders import write_folder
from stores import mlflow_runs
from team import ALICE, BOB, ROOT, Postgres, Server, as_user, open_folder, script, whole_once

from proftrack.record import Record
from proftrack.store import cache, connect, keys, sync
from proftrack.store.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="a server's processes as POSIX has them")]

QUICK = ["--min-seconds", "0.01", "--min-steps", "5", "--max-seconds", "1", "--device", "cpu"]


def distinct(record: Record, number: int, experiment: str = "matmul_add", **changes: Any) -> Record:
    facts = msgspec.structs.replace(record.run, started_ns=time.time_ns() + number, experiment=experiment, **changes)
    return msgspec.structs.replace(record, run=facts)


# ---- every command ---------------------------------------------------------------------------------------------------


def test_every_command_through_the_server(
    alice: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real runs on the CPU: run, sweep, compare, gate, history; and bob, who may only read, sees the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(
        "import torch\ndef build(device, n):\n    x = torch.ones(n, n, device=device)\n    return lambda: x @ x\n"
    )
    (tmp_path / "tiny.yaml").write_text("workload: tiny.py:build\nparams: {n: 8}\n")
    assert call("run", "tiny.yaml", *QUICK) == 0
    assert call("run", "tiny.yaml", *QUICK) == 0
    assert "http://127.0.0.1" in capsys.readouterr().out
    first, second = Runs.connect().search({"proftrack.experiment": "tiny"})
    assert {first.status, second.status} == {"FINISHED"}
    assert call("sweep", "tiny.yaml", "-P", "n=8,16", *QUICK) == 0
    parents = {run.tags.get("mlflow.parentRunId") for run in Runs.connect().search({"proftrack.experiment": "tiny"})}
    (parent,) = parents - {None}
    assert parent is not None
    assert Runs.connect().get(parent).status == "FINISHED"

    as_user(monkeypatch, alice.url, BOB)
    capsys.readouterr()
    assert call("compare", first.run_id, second.run_id) == 0
    assert "step" in capsys.readouterr().out.lower()
    assert call("history", "tiny", "--format", "csv", "--dirty") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {first.run_id, second.run_id} <= {row["run_id"] for row in rows}
    as_user(monkeypatch, alice.url, ALICE)
    assert call("gate", second.run_id, "--baseline", first.run_id) in (0, 3, 4)
    assert "gate.outcome" in Runs.connect().get(second.run_id).tags


def test_a_sweep_of_two_machines_into_one_parent(
    alice: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """Two processes log children of the same parent at once."""
    found = connect.resolve()
    client = connect.connect(found)
    experiment = connect.experiment_for(found, client, "two machines")
    parent = client.create_run(experiment, run_name="the sweep").info.run_id
    for machine in range(2):
        for number in range(2):
            write_folder(tmp_path / str(machine) / str(number), distinct(record, 10 * machine + number, "two machines"))
    code = (
        "import sys; from pathlib import Path; from proftrack.store import connect as store, sync\n"
        "found = store.resolve(); client = store.connect(found)\n"
        "within = sync.Within(experiment_id=sys.argv[2], tags={'mlflow.parentRunId': sys.argv[3]})\n"
        "[sync.sync_folder(found, client, each, within) for each in sorted(Path(sys.argv[1]).iterdir())]\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    machines = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / str(machine)), experiment, parent], env=environment
        )
        for machine in range(2)
    ]
    assert [machine.wait(120) for machine in machines] == [0, 0]
    children = mlflow_runs("mlflow.parentRunId", parent)
    assert [child.info.status for child in children] == ["FINISHED"] * 4
    for machine in range(2):
        for number in range(2):
            whole_once(alice, tmp_path / str(machine) / str(number), monkeypatch)


# ---- many writers ----------------------------------------------------------------------------------------------------


def many_writers(*options: str, **variables: str) -> dict[str, Any]:
    """benchmarks/many_writers.py, which has the large numbers."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "many_writers.py"), *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_many_writers_on_postgresql(alice: Server) -> None:
    found = many_writers("--processes", "5", "--runs", "2", "--here")
    assert (found["whole"], found["not_whole"], found["failed_processes"]) == (10, 0, 0)


def test_writers_on_the_database_itself(direct: Postgres, tmp_path: Path) -> None:
    found = many_writers("--processes", "2", "--runs", "2", "--here")
    assert (found["whole"], found["not_whole"], found["failed_processes"]) == (4, 0, 0)
    assert (tmp_path / "mlruns").is_dir()


def test_two_copies_of_a_folder_logged_at_once(
    alice: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """Both look, find nothing, and log: one run is left, whichever comes first."""
    made = distinct(record, 0, "copies")
    folders = [write_folder(tmp_path / name, made) for name in ("one", "two")]
    code = (
        "import sys, time; from pathlib import Path; from proftrack.store import connect as store, sync\n"
        "found = store.resolve(); client = store.connect(found)\n"
        "look = sync._find\n"
        "def late(*arguments):\n"
        "    known = look(*arguments); print('looked', flush=True); sys.stdin.readline(); return known\n"
        "sync._find = late\n"
        "print(sync.sync_folder(found, client, Path(sys.argv[1])).run_id)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for folder in folders
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "looked\n"
    answers = []
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=PATIENCE_S)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    run = whole_once(alice, folders[0], monkeypatch)
    assert run.info.run_id in answers


# ---- moving, backing up ----------------------------------------------------------------------------------------------


def test_a_local_history_moves_to_the_server(
    alice: Server,
    store_uri: str,
    run_folder: Callable[..., Path],
    record: Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`proftrack sync mlruns`: a run's artifacts are a run folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)
    local = connect.resolve()
    client = connect.connect(local)
    folders = [run_folder(f"r{number}", distinct(record, number, "moves")) for number in range(2)]
    before = [client.get_run(sync.sync_folder(local, client, folder).run_id) for folder in folders]
    as_user(monkeypatch, alice.url, ALICE)
    mlruns = str(tmp_path / "store" / "mlruns")
    assert call("sync", mlruns) == 0
    assert call("sync", mlruns) == 0  # once is enough
    for folder, run in zip(folders, before, strict=True):
        moved = whole_once(alice, folder, monkeypatch)
        assert (moved.info.start_time, moved.info.end_time) == (run.info.start_time, run.info.end_time)
        assert moved.data.metrics == run.data.metrics


def test_backup_and_restore(
    alice: Server, postgres: Postgres, run_folder: Callable[..., Path], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder("kept", distinct(record, 0, "backed up"))
    assert call("sync", str(folder)) == 0
    with open_folder() as place:
        artifacts = str(alice.folder / "artifacts")
        saved = script("backup.sh", "save", str(place / "backups"), DATABASE_URL=postgres.url, ARTIFACTS=artifacts)
        other = Postgres(place / "db")
        try:
            restored = str(place / "server" / "artifacts")
            script("backup.sh", "restore", saved, DATABASE_URL=other.url, ARTIFACTS=restored)
            server = Server(other.url, place / "server")
            try:
                server.start().wait()
                whole_once(server, folder, monkeypatch)
                # Users came along, with their passwords and permissions.
                as_user(monkeypatch, server.url, ALICE)
                assert Runs.connect().search({"proftrack.experiment": "backed up"})
            finally:
                server.end()
        finally:
            other.stop()


# ---- the cache of runs -----------------------------------------------------------------------------------------------


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_only_what_is_new_is_fetched(
    alice: Server, cached: None, run_folder: Callable[..., Path], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = connect.resolve()
    client = connect.connect(found)

    def add(number: int) -> str:
        return sync.sync_folder(found, client, run_folder(f"r{number}", distinct(record, number, "cached"))).run_id

    def seen() -> list[str]:
        return [run.run_id for run in cache.runs_of(Runs.connect(), "cached")]

    known = [add(number) for number in range(3)]
    # They were logged long ago: none of the hours that are asked for from now on has them.
    for run_id in known:
        client.set_tag(run_id, keys.CHANGED_TAG, "2020-01-01T00:00:00Z")
    assert seen() == known
    assert fetched(monkeypatch, seen) == []
    known.append(add(3))
    assert fetched(monkeypatch, seen) == known[3:]
    assert seen() == known

    # A tag that proftrack sets later comes along; a deleted run goes, and comes back when it is restored.
    Runs.connect().tag(Runs.connect().get(known[0]), {"gate.outcome": "pass"})
    assert cache.runs_of(Runs.connect(), "cached")[0].tags["gate.outcome"] == "pass"
    client.delete_run(known[1])
    assert seen() == [known[0], *known[2:]]
    client.restore_run(known[1])
    assert seen() == known
    # A run in an MLflow experiment that is new.
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another place")
    known.append(add(5))
    client.set_tag(known[-1], keys.CHANGED_TAG, "2020-01-01T00:00:00Z")
    assert seen() == known
    assert [run.run_id for run in cache.runs_of(Runs.connect(), "cached", refresh=True)] == known


def fetched(monkeypatch: pytest.MonkeyPatch, look: Callable[[], list[str]]) -> list[str]:
    """Ids of the runs that MLflow handed out meanwhile."""
    from mlflow import MlflowClient

    ids: list[str] = []
    search = MlflowClient.search_runs

    def noted(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
        page = search(self, *arguments, **named)
        ids.extend(run.info.run_id for run in page)
        return page

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "search_runs", noted)
        look()
    return ids


def test_a_broken_cache_is_no_harm(
    store_uri: str, cached: None, run_folder: Callable[..., Path], tmp_path: Path
) -> None:
    found = connect.resolve()
    done = sync.sync_folder(found, connect.connect(found), run_folder())
    for content in (b"", b"\x00" * 100, b"not msgpack"):
        for file in (tmp_path / "cache").rglob("*.msgpack"):
            file.write_bytes(content)
        assert [run.run_id for run in cache.runs_of(Runs.connect(), "matmul_add")] == [done.run_id]


def test_a_store_made_anew_under_the_same_address(
    store_uri: str, _empty_store: Path, cached: None, run_folder: Callable[..., Path], tmp_path: Path, record: Record
) -> None:
    import shutil

    found = connect.resolve()
    sync.sync_folder(found, connect.connect(found), run_folder())
    assert len(cache.runs_of(Runs.connect(), "matmul_add")) == 1
    time.sleep(0.002)  # experiments are told apart by the millisecond
    shutil.copyfile(_empty_store, found.database or "")
    done = sync.sync_folder(found, connect.connect(found), run_folder("new", distinct(record, 1)))
    assert [run.run_id for run in cache.runs_of(Runs.connect(), "matmul_add")] == [done.run_id]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("2026-11-29T18:30", "2026-11-29T20:05", ["2026-11-29T18:", "2026-11-29T19:", "2026-11-29T20:"]),
        (
            "2026-11-29T22:00",
            "2026-12-02T01:00",
            ["2026-11-29T22:", "2026-11-29T23:", "2026-11-30T", "2026-12-01T", "2026-12-02T00:"],
        ),
        ("2026-01-31T23:10", "2026-03-01T00:00", ["2026-01-31T23:", "2026-02-"]),
        ("2023-12-31T23:00", "2026-01-01T00:30", ["2023-12-31T23:", "2024-", "2025-", "2026-01-01T00:"]),
    ],
)
def test_spans_of_time_as_prefixes(start: str, end: str, expected: list[str]) -> None:
    from datetime import datetime, timezone

    begins, ends = (datetime.fromisoformat(text).replace(tzinfo=timezone.utc) for text in (start, end))
    assert cache.prefixes(begins, ends) == expected
