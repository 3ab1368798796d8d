"""How long a store is waited for, who is alive, and what killed processes have left: without any server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proftrack import process, rundir
from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.store import compat, connect, keys, lifecycle, retry, sync
from proftrack.store.retry import RETRIES_VARIABLE, TIMEOUT_VARIABLE, Patient, quick_retries, time_for


class Failing:
    """A client whose call fails so often with this error."""

    def __init__(self, times: int, message: str, code: int = 0) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

        self.calls, self.times = 0, times
        self.error = MlflowException(message, error_code=code or TEMPORARILY_UNAVAILABLE)
        self.uri = "an attribute"

    def work(self, value: int) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return value


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", found.append)
    return found


@pytest.mark.parametrize(
    "message",
    ["(sqlite3.OperationalError) database is locked", "server closed the connection unexpectedly", "deadlock detected"],
)
def test_what_passes_is_tried_again_with_growing_pauses(message: str, pauses: list[float]) -> None:
    client = Failing(3, message)
    assert Patient(client).work(7) == 7
    assert Patient(client).uri == "an attribute"
    assert (client.calls, len(pauses)) == (4, 3)
    # Each about twice the one before, spread by half of itself.
    assert [0.5 <= pauses[0] <= 0.75, 1.0 <= pauses[1] <= 1.5, 2.0 <= pauses[2] <= 3.0] == [True] * 3


def test_it_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException

    for given, calls in ((None, 8), ("2", 3), ("0", 1)):
        if given is not None:
            monkeypatch.setenv(RETRIES_VARIABLE, given)
        client = Failing(99, "database is locked")
        with pytest.raises(MlflowException):
            Patient(client).work(7)
        assert client.calls == calls


@pytest.mark.parametrize(
    "message", ["no such table: runs", "database or disk is full", "attempt to write a readonly database"]
)
def test_what_does_not_pass_is_not_tried_again(message: str) -> None:
    from mlflow.exceptions import MlflowException

    client = Failing(1, message)
    with pytest.raises(MlflowException):
        Patient(client).work(7)
    assert client.calls == 1


def test_a_refusal_is_not_tried_again() -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    client = Failing(1, "the connection of this name is not allowed", INVALID_PARAMETER_VALUE)
    with pytest.raises(MlflowException):
        Patient(client).work(7)
    assert client.calls == 1


def test_the_wait_for_an_answer_grows_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with time_for(5_000_000_000):
        assert compat.setting(TIMEOUT_VARIABLE) == 120 + 5000
    assert compat.setting(TIMEOUT_VARIABLE) == 120
    monkeypatch.setenv(TIMEOUT_VARIABLE, "30")
    with time_for(5_000_000_000), quick_retries():
        assert compat.setting(TIMEOUT_VARIABLE) == 30  # the user's word
        assert compat.setting(RETRIES_VARIABLE) == 1
    assert compat.setting(RETRIES_VARIABLE) == 7
    assert RETRIES_VARIABLE not in os.environ


# ---- who is alive ----------------------------------------------------------------------------------------------------


def test_alive_and_dead_are_not_all_there_is() -> None:
    here = process.this_process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = msgspec.structs.replace(here, pid=child.pid, started=process._start_mark(child.pid) or "")
        assert process.is_alive(living, here)
        assert not process.is_dead(living, here)
        child.communicate(b"\n")
    assert not process.is_alive(living, here)
    assert process.is_dead(living, here)
    elsewhere = msgspec.structs.replace(here, boot="another", machine="another", host="another")
    assert not process.is_alive(elsewhere, here)
    assert not process.is_dead(elsewhere, here)


def test_a_record_that_a_living_process_logs_now_is_left_to_it(
    store_uri: str, run_folder: Callable[..., Path], record: Record
) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    folder = run_folder()
    here = process.this_process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = msgspec.structs.replace(here, pid=child.pid, started=process._start_mark(child.pid) or "")
        tags = {**lifecycle.owner_tags_of(living), keys.RECORD_TAG: rundir.identity(folder)}
        run_id = client.create_run("0", tags=tags).info.run_id
        message = f"process {child.pid} is already logging the same record, as run {run_id}"
        with pytest.raises(StoreError, match=message):
            sync.sync_folder(found, client, folder)
        child.communicate(b"\n")
    done = sync.sync_folder(found, client, folder)
    assert (done.did, done.run_id) == ("finished", run_id)


# ---- what killed processes have left ---------------------------------------------------------------------------------


def test_empty_folders_of_killed_runs_go_after_a_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "spool"
    monkeypatch.setenv("PROFTRACK_SPOOL", str(root))
    old, recent, traces, held, foreign = (
        root / name
        for name in (
            "x-20260101T000000-1-aaaa",
            "x-20260101T000000-2-bbbb",
            "x-20260101T000000-3-cccc",
            "x-20260101T000000-4-dddd",
            "something of the user's",
        )
    )
    for folder in (old, recent, traces, held, foreign):
        (folder / "trace").mkdir(parents=True)
    (traces / "trace" / "x.pt.trace.json.gz").write_bytes(b"x")
    day_ago = time.time() - 90_000
    for folder in (old, traces, held, foreign):
        os.utime(folder, (day_ago, day_ago))
    with rundir.locked(held):
        new = rundir.new_folder(None, "x")
    assert {path.name for path in root.iterdir()} == {
        path.name for path in (recent, traces, held, foreign, new, root / ".gitignore")
    }


def test_a_spool_on_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from proftrack.errors import UsageError

    usage: Any = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("proftrack.rundir.spool.shutil.disk_usage", lambda _: usage)
    for output in (None, tmp_path / "deep" / "er"):
        with pytest.raises(UsageError, match="1 MB are free, but a run needs 64 MB"):
            rundir.new_folder(output, "x")
    assert not (tmp_path / "deep").exists()
