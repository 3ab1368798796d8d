"""`proftrack run` and `proftrack sync` as a user calls them; the capture is replaced by a run folder made by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from calls import call
from run_folders import make_record, replace_capture, write_folder
from stores import mlflow_runs

from proftrack import rundir
from proftrack.cli.options import parameters
from proftrack.errors import NotFoundError, UsageError, WorkloadError
from proftrack.record import Record
from proftrack.store import connect, upload
from proftrack.store.runs import Runs, StoredRun

if TYPE_CHECKING:
    from proftrack.experiment import Experiment

Asked = list["Experiment"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What `run` would have profiled; an experiment `small` is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "small.yaml").write_text("workload: small.py:build\nparams: {n: 64, kind: a}\n")
    seen: Asked = []

    def measure(experiment: Experiment, folder: Path) -> Record:
        seen.append(experiment)
        record = make_record()
        write_folder(folder, record)
        return record

    replace_capture(monkeypatch, measure)
    return seen


def all_runs() -> list[Any]:
    return mlflow_runs()


@pytest.mark.parametrize(
    "arguments",
    [
        ["small", "-P", "n=4096", "-P", "kind=b"],
        ["small", "--n", "4096", "--kind", "b"],
        ["small", "--n=4096", "--kind=b"],
        ["--n", "4096", "small", "--kind=b"],  # as `mlflow run` and people write it
        ["small", "--param", "n=4096", "-Pkind=b"],
        ["small", "--n", "4096", "-P", "n=4096", "--kind", "b"],
    ],
)
def test_parameters(asked: Asked, arguments: list[str]) -> None:
    assert call("run", "--no-mlflow", *arguments) == 0
    assert asked[0].name == "small"
    assert asked[0].params == {"n": 4096, "kind": "b"}


def test_settings_and_the_device(asked: Asked) -> None:
    assert call("run", "--no-mlflow", "small", "--active", "5", "--min-steps", "7", "--device", "cpu") == 0
    assert (asked[0].schedule.active, asked[0].timing.min_steps, asked[0].device) == (5, 7, "cpu")


def test_a_negative_value_is_a_value(asked: Asked) -> None:
    assert call("run", "--no-mlflow", "small", "--n", "-3") == 0
    assert asked[0].params["n"] == -3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--n"], "--n has no value; write --n VALUE"),
        (["--n", "--kind", "b"], "--n has no value"),
        (["--output"], "--output has no value"),
        (["-P", "n"], "-P n: not a parameter; write it as -P name=value"),
        (["-P", "=4"], "-P =4: not a parameter"),
        (["-P", "n=1", "--n", "2"], "n is given twice, as 1 and as 2; give it once"),
        (["--n", "abc"], "n=abc is not allowed"),
        (["--nn", "1"], "unknown parameter nn=1"),
        (["--device", "tpu"], "device=tpu is not allowed"),
    ],
)
def test_a_refusal_is_one_sentence_and_starts_nothing(
    asked: Asked, capsys: pytest.CaptureFixture[str], store_uri: str, arguments: list[str], sentence: str
) -> None:
    assert call("run", "small", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("proftrack: ")
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert asked == []
    assert all_runs() == []
    assert not rundir.spool_root().exists()


def test_a_parameter_without_an_equals_sign_in_its_value() -> None:
    assert parameters(["a=b=c", "empty="]) == {"a": "b=c", "empty": ""}
    with pytest.raises(UsageError, match="twice"):
        parameters(["a=1", "a=2"])


def test_without_mlflow_everything_stays_in_the_folder(
    asked: Asked, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    assert call("run", "small", "--no-mlflow", "--output", str(folder)) == 0
    assert rundir.load(folder).run is not None
    assert rundir.logged(folder) == []
    shown = capsys.readouterr().out
    assert f"Kept    {folder}" in shown
    assert f"proftrack sync {folder}" in shown


def test_with_mlflow_the_temporary_folder_is_gone_and_the_result_says_where_all_is(
    asked: Asked, capsys: pytest.CaptureFixture[str], store_uri: str, tmp_path: Path
) -> None:
    assert call("run", "small") == 0
    (found,) = all_runs()
    assert found.info.status == "FINISHED"
    assert not rundir.spool_root().exists()
    shown = capsys.readouterr().out
    assert f"Store   {store_uri}\n" in shown
    assert f"Run     {found.info.run_id}\n" in shown
    (traces,) = re.findall(r"Traces  (.*)\n", shown)
    assert [path.name for path in Path(traces).iterdir()] == ["matmul_add.pt.trace.json.gz"]
    assert f"--backend-store-uri {store_uri} \\\n" in shown
    assert shown.index("GPU work") < shown.index("Report  ") < shown.index("Store   ")  # the verdict comes first


def test_the_last_lines_name_the_report_and_commands_that_work(
    asked: Asked, capsys: pytest.CaptureFixture[str], store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And everything fits 80 columns, but for lines that are a path or an address."""

    def with_report(_: Experiment, folder: Path) -> Record:
        record = make_record()
        write_folder(folder, record)
        (folder / "report.html").write_text("<html></html>")
        return record

    replace_capture(monkeypatch, with_report)
    monkeypatch.setenv("COLUMNS", "80")
    assert call("run", "small") == 0
    shown = capsys.readouterr().out
    (found,) = all_runs()
    (report,) = re.findall(r"Report  (.*)\n", shown)
    assert Path(report).read_text() == "<html></html>"
    short = found.info.run_id[:8]
    assert f"\n        proftrack report {short}  # writes it here, or -o FILE\n" in shown
    assert f"\n        proftrack open {short}  # its trace in Perfetto's UI\n" in shown
    long = [line for line in shown.splitlines() if len(line) > 80]
    assert [line for line in long if len(line.split()) > 3] == []
    # Commands take the short id.
    assert call("baseline", short) == 0
    assert f"is a baseline for {found.info.run_name}" in capsys.readouterr().out
    assert call("report", "0" * 8) == 1
    assert capsys.readouterr().err == f"proftrack: {store_uri}: no run whose id begins with 00000000\n"


def test_a_short_id_that_two_runs_begin_with_is_refused(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.store import references

    found = Runs.connect()
    facts = {"name": "a", "status": "FINISHED", "started_ms": 0, "ended_ms": None, "artifact_uri": ""}
    one = StoredRun(run_id="0123456789", experiment_id="1", **facts)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "search", lambda **_: [one, one])
    message = r"01234567: 2 run ids begin with these digits \(0123456789, 0123456789\); give more digits"
    with pytest.raises(UsageError, match=message):
        found.get("01234567")
    monkeypatch.setattr(found, "search", lambda **_: [])
    with pytest.raises(NotFoundError, match=r"01234567 \(commit 01234567\): no FINISHED run"):
        references.by_name(found, "01234567")  # then it is a commit, if it is anything


def test_without_a_local_report_the_command_fetches_it() -> None:
    from proftrack.store import links

    server = connect.Store(uri="http://host:5000", public="http://host:5000", given="http://host:5000")
    assert links.lines(server, "1", "0123456789abcdef" * 2, "mlflow-artifacts:/1/x/artifacts")[:2] == [
        "Report  proftrack report 01234567  # fetches it",
        "        proftrack open 01234567  # its trace in Perfetto's UI",
    ]


def test_with_output_the_folder_stays_and_knows_where_it_was_logged(
    asked: Asked, store_uri: str, tmp_path: Path
) -> None:
    assert call("run", "small", "--output", str(tmp_path / "kept")) == 0
    (found,) = all_runs()
    entry = rundir.Logged(store=store_uri, run_id=found.info.run_id, complete=True)
    assert rundir.logged(tmp_path / "kept") == [entry]


def test_nothing_measured_is_lost_when_logging_fails(
    asked: Asked, capsys: pytest.CaptureFixture[str], store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("an odd fault")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_log_figures", fail)
        assert call("run", "small") == 1
    (folder,) = rundir.find(rundir.spool_root())
    lines = capsys.readouterr().err.splitlines()
    expected = (
        f"proftrack: nothing is lost: all measurements are in {folder}; log it later with: proftrack sync {folder}"
    )
    assert lines[0] == expected
    assert re.fullmatch(r"proftrack: sqlite:.*: could not be written to: an odd fault", lines[1])
    (failed,) = all_runs()
    assert failed.info.status == "FAILED"

    # Without a folder: what is in the spool, which is empty afterwards.
    assert call("sync") == 0
    (whole,) = all_runs()
    assert (whole.info.run_id, whole.info.status) == (failed.info.run_id, "FINISHED")
    assert not rundir.spool_root().exists()


def test_a_workload_that_raises(
    asked: Asked, capsys: pytest.CaptureFixture[str], store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Record:
        raise WorkloadError("small.py:build raised ValueError: odd")

    replace_capture(monkeypatch, fail)
    assert call("run", "small") == 1
    assert capsys.readouterr().err == "proftrack: small.py:build raised ValueError: odd\n"
    (found,) = all_runs()
    assert (found.info.status, found.data.tags["proftrack.error"]) == (
        "FAILED",
        "small.py:build raised ValueError: odd",
    )
    assert not rundir.spool_root().exists()


def test_traces_are_kept_when_what_follows_fails(
    asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, folder: Path) -> Record:
        (folder / "trace").mkdir()
        (folder / "trace" / "x.pt.trace.json.gz").write_bytes(b"")
        raise ValueError("a bug in the analysis")

    replace_capture(monkeypatch, fail)
    assert call("run", "small", "--no-mlflow") == 1
    (kept,) = rundir.spool_root().glob("small-*")
    assert f"the traces recorded so far are in {kept / 'trace'}" in capsys.readouterr().err


def test_a_store_that_cannot_be_used_is_found_out_first(
    asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite://")
    assert call("run", "small") == 1
    assert "in memory is lost" in capsys.readouterr().err
    assert asked == []


# ---- sync ------------------------------------------------------------------------------------------------------------


def test_sync_of_several_folders(
    run_folder: Callable[..., Path], store_uri: str, capsys: pytest.CaptureFixture[str], record: Record
) -> None:
    folders = []
    for index in range(3):
        facts = msgspec.structs.replace(record.run, started_ns=index)
        folders.append(run_folder(f"all/{index}", msgspec.structs.replace(record, run=facts)))
    (folders[1] / "events.parquet").unlink()
    everything = folders[0].parent
    assert call("sync", str(everything)) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        f"proftrack: {folders[1]}: incomplete, events.parquet is missing; copy the folder again or repeat the run\n"
    )
    assert re.findall(r"^logged: (\S+) as run", shown.out, re.MULTILINE) == [str(folders[0]), str(folders[2])]
    assert len(all_runs()) == 2
    assert call("sync", str(folders[0])) == 0
    assert f"already in this store: {folders[0]} as run" in capsys.readouterr().out
    assert len(all_runs()) == 2


def test_with_nothing_to_log_sync_says_so_and_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sync") == 0
    assert capsys.readouterr().out.startswith("There is nothing to log in ")


def test_sync_of_what_is_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sync", str(tmp_path)) == 2
    assert "no run folder (no record.json in it)" in capsys.readouterr().err


def test_sync_of_a_record_that_is_none(tmp_path: Path, store_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record.json").write_text("{}")
    assert call("sync", str(tmp_path)) == 1
    shown = capsys.readouterr().err
    assert "not a proftrack record" in shown
    assert shown.count("\n") == 1


def test_without_mlflow_mlflow_is_not_imported(tmp_path: Path) -> None:
    """GPU machines often have none."""
    (tmp_path / "small.yaml").write_text("workload: small.py:build\n")
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; sys.modules['mlflow'] = None\n"
        "import pytest\n"
        "from run_folders import make_record, replace_capture, write_folder\n"
        "from proftrack.cli import main\n"
        "def measure(asked, folder):\n"
        "    write_folder(folder, make_record())\n"
        "    return make_record()\n"
        "replace_capture(pytest.MonkeyPatch(), measure)\n"
        "main(['run', 'small.yaml', '--no-mlflow', '--output', 'kept'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "kept" / "record.json").is_file()


@pytest.mark.parametrize("command", [[], ["run"], ["sync"], ["doctor"]])
def test_help_is_quick_and_imports_little(command: list[str]) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from proftrack.cli import main\n"
        "try: main([*sys.argv[1:], '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'mlflow', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == "[]\n"
    assert done.stdout.startswith("Usage: proftrack")
