"""Names that try to leave the store's folder: after each way in, what is on the disk. And what a name becomes there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from calls import call
from run_folders import make_record, replace_capture, write_folder
from stores import mlflow_runs

import proftrack
from proftrack import rundir
from proftrack.capture.trace_file import file_name as trace_name
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.experiment import Experiment
from proftrack.names import file_name, leads_elsewhere
from proftrack.record import Record
from proftrack.rundir import batch as groups
from proftrack.rundir.batch import Group, Part
from proftrack.store import compat, connect, links, sync
from proftrack.store.runs import Runs

STORED = [
    "../../x",
    "../../../../../../../../tmp/led-out-of-the-store",
    "..%2F..%2Fx",
    "%2e%2e/x",
    "%252e%252e/x",
    "/proftrack-absolute/x",
    "//host/share",
    "file:///tmp/led-out-of-the-store",
    "a/../../b",
    "..\\..\\x",
    "C:\\x",
    ".",
    "..",
    "...",
    "~root/x",
    "modèle 7",
    "模型",
    "#frag",
    "a#b/../../c",
    "?query=1",
    "a:b",
    "'; drop table runs; --",
    "x" * 100,
    "é" * 100,
]
REFUSED = ["\0", "a\0/../b", "a\nb", "\r", "\t", "\x1b[2J", "\u202e", " ", "a\udc80"]
TOO_LONG = "x" * 3000
ONE = {"wait": 0, "warmup": 0, "active": 1}
FEW = ["../../x", "%2e%2e/x", "modèle 7", "a#b/../../c"]
"""For ways in that cost seconds a name and end in the same call as the others."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_uri: str) -> Iterator[Path]:
    """A working directory with the store, deep below `tmp_path`: whatever lies beside them afterwards has escaped."""
    work = tmp_path / "a" / "b" / "c" / "work"
    work.mkdir(parents=True)
    (tmp_path / "store").rename(work / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{work}/store/mlflow.db")
    monkeypatch.setenv("PROFTRACK_SPOOL", str(work / "spool"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    monkeypatch.chdir(work)
    yield work
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(work)]
    assert outside == []
    assert not list(Path("/tmp").glob("led-out-of-the-store*"))
    assert not Path("/proftrack-absolute").exists()


def named(name: str) -> Record:
    record = make_record()
    assert record.run is not None
    return msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, experiment=name))


def stored(root: Path) -> dict[str, list[Path]]:
    """What every run of the store has below mlruns/, by the name of its MLflow experiment."""
    client = connect.connect(connect.resolve())
    mlruns = root / "store" / "mlruns"
    return {
        client.get_experiment(run.info.experiment_id).name: [
            path for path in mlruns.glob(f"*/{run.info.run_id}/artifacts/**/*") if path.is_file()
        ]
        for run in mlflow_runs()
    }


def printed_paths(text: str) -> list[Path]:
    """The paths of the lines `Traces` and `Kept`."""
    return [Path(path) for path in re.findall(r"^(?:Traces|Kept) +(/.*)$", text, flags=re.MULTILINE)]


# ---- what a name becomes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul_add", "n=64", "n=64,dtype=float32", "cuda-graph", "v1.2", "_x", "x" * 80])
def test_a_harmless_name_stays(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("../../x", "x"),
        ("modèle 7", "modele_7"),
        ("/etc/passwd", "etc_passwd"),
        ("模型", "x"),
        ("x.", "x"),
        ("-rf", "rf"),
        ("NUL", "NUL"),
        ("com1.txt", "com1.txt"),
        ("y" * 81, "y" * 71),
    ],
)
def test_another_is_a_slug_with_a_hash(name: str, slug: str) -> None:
    assert re.fullmatch(re.escape(slug) + r"-[0-9a-f]{8}", file_name(name))


@pytest.mark.parametrize("name", [*STORED, *REFUSED, TOO_LONG, ""])
def test_a_file_name_is_one_part_of_a_path_however_it_is_decoded(name: str) -> None:
    for found in (file_name(name), trace_name(name, 1, 0)):
        assert unquote(found) == found == Path(found).name
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]{0,150}", found)
        assert not leads_elsewhere(found)


def test_different_names_are_different_folders() -> None:
    names = [*STORED, *REFUSED, "modele 7", "modele_7", "x"]
    assert len({file_name(name) for name in names}) == len(names)


# ---- on the disk -----------------------------------------------------------------------------------------------------


def test_a_foreign_folder_is_synced_inside(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(STORED):
        write_folder(root / "foreign" / str(number), named(name))
    assert call("sync", str(root / "foreign")) == 0
    found = stored(root)
    assert set(found) == set(STORED)  # the name that is shown is the one that was given
    assert {len(files) for files in found.values()} == {len(list(rundir.artifacts(root / "foreign" / "0")))}


@pytest.mark.parametrize("name", [*REFUSED[:-1], TOO_LONG])
def test_a_name_that_cannot_be_stored_is_refused_in_one_sentence(root: Path, name: str) -> None:
    folder = write_folder(root / "foreign", named(name))
    with pytest.raises(StoreError, match=r"the experiment's name .* cannot be stored") as caught:
        sync.sync_folder(found := connect.resolve(), connect.connect(found), folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert not list((root / "store").rglob("record.json"))


def test_a_foreign_group_is_synced_inside(root: Path) -> None:
    for number, name in enumerate(STORED):
        folder = root / "foreign" / str(number)
        record = named(name)
        assert record.run is not None
        facts = msgspec.structs.replace(record.run, started_ns=record.run.started_ns + number)
        write_folder(folder / "points" / "p", msgspec.structs.replace(record, run=facts))
        part = Part(key="0" * 16, name=name, folder="points/p")
        groups.save(folder, Group(kind="sweep", key="f00d", experiment=name, name=name, ended_ns=1, parts=[part]))
    assert call("sync", str(root / "foreign")) == 0
    found = stored(root)
    assert set(found) == set(STORED)
    assert all(found.values())


@pytest.mark.parametrize("part", ["..", "../x", "points/../../../x", "/tmp/led-out-of-the-store", "\0", "a\0b", "."])
def test_a_group_that_names_a_part_elsewhere_is_refused_wherever_it_is_read(root: Path, part: str) -> None:
    """Also where a sweep goes on in it: what is interrupted there is removed."""
    group = Group(kind="sweep", key="f00d", experiment="x", name="x", parts=[Part(key="0", name="p", folder=part)])
    (root / "foreign").mkdir()
    groups.save(root / "foreign", group)
    with pytest.raises(UsageError, match="is outside of the folder") as caught:
        groups.load(root / "foreign")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name", ["%2e%2e", "%252e%252e", "..%2fx", "%2fx", "a\\b", "..\\..\\x", "a\nb", "\x1b[2J", " ", "%20", "a\udc80"]
)
def test_a_run_folders_file_that_could_go_elsewhere_is_refused(root: Path, name: str) -> None:
    folder = write_folder(root / "foreign", make_record())
    (folder / "trace" / name).write_text("x")
    with pytest.raises(ProftrackError, match="cannot be stored; rename or remove it") as caught:
        rundir.artifacts(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a%20b", "50%", "a:b", "a#b", "modèle", "tr..ace", "(1)"])
def test_other_names_of_files_are_taken(root: Path, name: str) -> None:
    folder = write_folder(root / "foreign", make_record())
    (folder / "trace" / name).write_text("x")
    done = sync.sync_folder(found := connect.resolve(), connect.connect(found), folder)
    assert (compat.local_folder(done.artifact_uri) or Path()).joinpath("trace", name).read_text() == "x"


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` leaves a run folder made by hand, under the name that was asked for."""

    def measure(asked: Experiment, folder: Path) -> Record:
        record = named(asked.name)
        write_folder(folder, record)
        (folder / "trace" / trace_name(asked.name, 1)).write_text("x")
        return record

    replace_capture(monkeypatch, measure)


def _experiment(root: Path, name: str) -> str:
    path = root / "e.yaml"
    path.write_bytes(b"workload: e.py:build\nname: " + msgspec.json.encode(name) + b"\n")
    return str(path)


@pytest.mark.parametrize(("names", "more"), [(STORED, ["--no-mlflow"]), (FEW, [])])
def test_run_stays_inside_and_prints_paths_that_are_there(
    root: Path, by_hand: None, capsys: pytest.CaptureFixture[str], names: list[str], more: list[str]
) -> None:
    for name in names:
        assert call("run", _experiment(root, name), *more) == 0, name
        shown = printed_paths(capsys.readouterr().out)
        assert len(shown) == 1
        assert shown[0].is_dir()
        assert shown[0].is_relative_to(root)
    assert set(stored(root)) == (set() if more else set(names))


@pytest.mark.parametrize("name", [*REFUSED[:-1], TOO_LONG, " x", "x "])
def test_run_refuses_before_it_measures(
    root: Path, by_hand: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert call("run", _experiment(root, name)) == 2
    shown = capsys.readouterr().err
    assert "name=" in shown
    assert "printable line" in shown
    assert shown.count("\n") == 1
    with pytest.raises(UsageError, match="printable line"):
        proftrack.profile(name)


def test_the_environments_name_stays_inside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = connect.resolve()
    client = connect.connect(here)
    for number, name in enumerate(FEW):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
        record = make_record()
        assert record.run is not None
        facts = msgspec.structs.replace(record.run, started_ns=number)
        sync.sync_folder(
            here, client, write_folder(root / "foreign" / str(number), msgspec.structs.replace(record, run=facts))
        )
    assert set(stored(root)) == set(FEW)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "a\tb")
    with pytest.raises(StoreError, match="cannot be stored"):
        connect.experiment_for(here, client, "x")


def test_profile_stays_inside_and_prints_paths_that_are_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    for name in STORED:
        asked = proftrack.profile(name, schedule=ONE, device="cpu", calibrate=False, mlflow=name in FEW)
        with asked as profile:
            torch.ones(8).sum()
            profile.step()
        (shown,) = printed_paths(capsys.readouterr().out)
        traces = shown if name in FEW else shown / "trace"
        assert [path.name for path in traces.iterdir()] == [trace_name(name, 1)]
    assert set(stored(root)) == set(FEW)


# ---- where the store itself is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "a%20b", "a%2520b", "50%", "a#b", "modèle", "%2e%2e"])
def test_a_store_in_an_odd_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, run_folder: Callable[..., Path], name: str
) -> None:
    """MLflow decodes plain artifact locations too (3.17): artifacts went to another folder."""
    here = root / name
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    folder = write_folder(root / "foreign", make_record())
    done = sync.sync_folder(found := connect.resolve(), connect.connect(found), folder)
    lines = links.lines(found, done.experiment_id, done.run_id, done.artifact_uri)
    (traces,) = printed_paths("\n".join(lines))
    assert traces == here / "mlruns" / "matmul_add" / done.run_id / "artifacts" / "trace"
    assert traces.is_dir()
    run = Runs.connect().get(done.run_id)
    assert Runs.connect().record(run).run is not None


def test_a_store_below_a_question_mark(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a?b").mkdir()
    monkeypatch.chdir(root / "a?b")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(StoreError, match=r"cannot be in a folder with `\?`"):
        connect.resolve()
    assert list((root / "a?b").iterdir()) == []


@pytest.mark.parametrize("location", ["..%2F..%2Fx", "%2e%2e/x", "a/../../x"])
def test_an_experiment_whose_location_leads_out_is_not_written_to(root: Path, location: str) -> None:
    found = connect.resolve()
    client = connect.connect(found)
    client.create_experiment("odd", artifact_location=f"{root}/store/mlruns/{location}")
    with pytest.raises(StoreError, match="is outside the artifact folder"):
        connect.experiment_for(found, client, "odd")
