"""`proftrack report`: a run, a folder, a record or a trace, in four forms; one sentence for what is none of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import calls
import pytest

from proftrack.analysis.pipeline import Analysis, analyze_trace
from proftrack.cli import browser
from proftrack.record import Record
from proftrack.recorder import write as rundir_write
from proftrack.store import connect, sync

DATA = Path(__file__).parent / "data"
TRACE = DATA / "matmul_add_64.json.gz"


call = partial(calls.call, "report")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    rundir_write.write(analyze_trace(TRACE), tmp_path / "kept")
    (tmp_path / "kept" / "report.html").unlink()
    return tmp_path / "kept"


def test_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(str(TRACE)) == 0
    assert capsys.readouterr().out == f"Report  {tmp_path / 'report.html'}\n"
    assert 'id="lanes-data"' in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["", "record.json"])
def test_of_a_folder_and_of_its_record(kept: Path, name: str, tmp_path: Path) -> None:
    assert call(str(kept / name), "-o", str(tmp_path / "page.html")) == 0
    assert 'id="lanes-data"' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_of_a_record_alone(kept: Path, tmp_path: Path) -> None:
    (kept / "events.parquet").unlink()
    assert call(str(kept / "record.json"), "-o", str(tmp_path / "page.html")) == 0
    assert "Only the record is available" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_of_a_run_in_the_store_without_its_trace(
    store_uri: str, tmp_path: Path, run_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder()
    found = analyze_trace(TRACE)
    rundir_write.write(Analysis(_with_run(found.record, folder), found.tables), folder)
    here = connect.resolve()
    logged = sync.sync_folder(here, connect.connect(here), folder)
    traces = Path(logged.artifact_uri.removeprefix("file://")) / "trace"
    for trace in traces.iterdir():
        trace.unlink()
    assert call(logged.run_id, "-o", str(tmp_path / "page.html")) == 0
    assert 'id="lanes-data"' in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert call(logged.run_id, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["verdict"]["regime"] == found.record.verdict.regime


def _with_run(record: Record, folder: Path) -> Record:
    import msgspec
    from run_folders import TRACE as NAME
    from run_folders import make_record

    source = msgspec.structs.replace(record.source, files=[msgspec.structs.replace(record.source.files[0], name=NAME)])
    return msgspec.structs.replace(record, run=make_record().run, source=source)


@pytest.mark.parametrize(
    ("form", "begins"),
    [("text", "Overhead-bound"), ("markdown", "# matmul&#95;add"), ("json", '{\n "schema_version"')],
)
def test_other_forms_go_to_stdout(form: str, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(TRACE), "--format", form) == 0
    out = capsys.readouterr().out
    assert out.lstrip("\n").startswith(begins.replace("&#95;", "_"))
    assert "\x1b[" not in out


@pytest.mark.parametrize(("name", "begins"), [("r.md", "# "), ("r.txt", "Over"), ("r.json", "{"), ("r.html", "<!doc")])
def test_the_form_follows_the_files_name(name: str, begins: str, tmp_path: Path) -> None:
    assert call(str(TRACE), "-o", str(tmp_path / name)) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_html_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(TRACE), "-o", "-") == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_open_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(browser, "show", lambda address: bool(asked.append(address)))
    assert call(str(TRACE), "--open") == 0
    [address] = asked
    assert address.startswith("file:///")
    assert Path(address.removeprefix("file://")).is_file()
    assert "There is no browser here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nowhere"], 2, "nowhere: no such file, and not a run id; name an MLflow run id, a run folder"),
        ([str(DATA)], 2, "not a run folder (no record.json in it)"),
        ([str(TRACE), "--format", "text", "--open"], 2, "--open shows html in the browser, not text"),
        ([str(TRACE), "-o", "/nowhere/at/all.html"], 2, "/nowhere/at/all.html: cannot be written"),
        ([str(DATA / "README.md")], 1, "README.md"),
    ],
)
def test_what_cannot_be_gets_one_sentence(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == code
    error = capsys.readouterr().err
    assert error.startswith("proftrack: ")
    assert says in error
    assert error.count("\n") == 1


def test_an_unknown_run_is_named_with_its_store(store_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("0" * 32) == 1
    assert f"{store_uri}: no run {'0' * 32} that can be read here; " in capsys.readouterr().err
