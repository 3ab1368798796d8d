"""Run folders on disk: where they are made, what counts as one, what is taken from them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from proftrack import rundir
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.record import Record
from proftrack.rundir import Logged

Writer = Callable[..., Path]


def test_a_run_without_output_gets_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PROFTRACK_SPOOL")
    monkeypatch.chdir(tmp_path)
    first, second = rundir.new_folder(None, "a/b c"), rundir.new_folder(None, "a/b c")
    assert first != second
    assert first.parent == tmp_path / "proftrack-runs"
    assert first.name.startswith("a_b_c-")
    assert (tmp_path / "proftrack-runs" / ".gitignore").read_text() == "*\n"
    rundir.discard(first)
    assert second.is_dir()
    rundir.discard(second)
    assert list(tmp_path.iterdir()) == []


def test_output_is_never_written_over(tmp_path: Path) -> None:
    new = rundir.new_folder(tmp_path / "deep" / "new", "x")
    assert rundir.new_folder(new, "x") == new  # an empty folder will do
    (new / "something").write_text("")
    with pytest.raises(UsageError, match="not empty; name a new one"):
        rundir.new_folder(new, "x")


def test_a_lock_is_no_content_and_no_artifact(tmp_path: Path, run_folder: Writer) -> None:
    """Its file stays: removing it would let two of those in that wait for it."""
    folder = rundir.new_folder(tmp_path / "new", "x")
    with rundir.locked(folder):
        pass
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert rundir.new_folder(folder, "x") == folder
    whole = run_folder()
    before = rundir.artifacts(whole)
    with rundir.locked(whole):
        assert rundir.artifacts(whole) == before


def test_output_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot hold the run"):
        rundir.new_folder(tmp_path / "file" / "below", "x")


def test_find(tmp_path: Path, run_folder: Writer) -> None:
    first, second = run_folder("all/a"), run_folder("all/deeper/b")
    assert rundir.find(first) == [first]
    assert rundir.find(tmp_path / "all") == [first, second]
    with pytest.raises(UsageError, match=r"no run folder \(no record.json in it\)"):
        rundir.find(first / "trace")
    with pytest.raises(UsageError, match="no such folder"):
        rundir.find(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["trace/matmul_add.pt.trace.json.gz", "events.parquet", "tables/ops.json"])
def test_a_folder_that_is_not_whole(run_folder: Writer, name: str) -> None:
    folder = run_folder()
    (folder / name).unlink()
    with pytest.raises(ProftrackError, match=f"incomplete, {name} is missing"):
        rundir.load(folder)


def test_the_record_of_a_bare_trace_is_no_run(run_folder: Writer, record: Record) -> None:
    folder = run_folder("bare", msgspec.structs.replace(record, run=None))
    with pytest.raises(ProftrackError, match="bare trace"):
        rundir.load(folder)


def test_artifacts_are_all_files_but_our_own(run_folder: Writer) -> None:
    folder = run_folder()
    rundir.note_logged(folder, Logged(store="s", run_id="r", complete=True))
    (folder / ".hidden").write_text("")
    (folder / "plots").mkdir()
    (folder / "plots" / "timeline.png").write_bytes(b"")
    assert {path.as_posix() for path in rundir.artifacts(folder)} == {
        "record.json",
        "events.parquet",
        "git.diff",
        "trace/matmul_add.pt.trace.json.gz",
        "tables/key_averages.txt",
        "tables/ops.json",
        "tables/kernels.json",
        "plots/timeline.png",
    }


def test_a_link_out_of_the_folder_is_refused(run_folder: Writer, tmp_path: Path) -> None:
    folder = run_folder()
    (tmp_path / "secret").write_text("password")
    (folder / "trace" / "x.gz").symlink_to(tmp_path / "secret")
    with pytest.raises(ProftrackError, match="symbolic link"):
        rundir.artifacts(folder)


def test_identity_follows_the_record_and_not_the_place(run_folder: Writer, record: Record) -> None:
    other = msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, started_ns=1))
    first, copy, another = run_folder("a"), run_folder("b"), run_folder("c", other)
    assert rundir.identity(first) == rundir.identity(copy) != rundir.identity(another)


def test_logged_keeps_one_entry_a_store(run_folder: Writer) -> None:
    folder = run_folder()
    assert rundir.logged(folder) == []
    rundir.note_logged(folder, Logged(store="one", run_id="r1", complete=False))
    rundir.note_logged(folder, Logged(store="two", run_id="r2", complete=True))
    rundir.note_logged(folder, Logged(store="one", run_id="r1", complete=True))
    assert rundir.logged(folder) == [
        Logged(store="two", run_id="r2", complete=True),
        Logged(store="one", run_id="r1", complete=True),
    ]
    (folder / "logged.json").write_text("{broken")
    assert rundir.logged(folder) == []


def test_two_processes_do_not_log_one_folder_at_once(run_folder: Writer) -> None:
    folder = run_folder()
    code = (
        "import sys; from pathlib import Path; from proftrack import rundir\n"
        "with rundir.locked(Path(sys.argv[1])): print('held', flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match="another process is using it"), rundir.locked(folder):
            pass
        other.communicate(b"\n")
    with rundir.locked(folder):
        pass
