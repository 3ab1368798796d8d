"""`proftrack compare` as a user calls it: sides, forms, refusals, noise; out of a real store where there is one."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import ADD, MM, TINY, Work, record_of
from run_folders import write_folder
from stores import Repository, call, flat, log

from proftrack import record as records
from proftrack.record import Record
from proftrack.store.runs import Runs

HOSTILE = "<script>alert(1)</script>|`=cmd()`\n\x1b[31m**bold** [x](http://evil) " + "k" * 3000


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Saves a record as a file."""

    def save(record: Record, name: str) -> str:
        path = tmp_path / name / "record.json"
        path.parent.mkdir()
        records.save(record, path)
        return str(path)

    return save


@pytest.fixture
def logged(store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Record], str]:
    monkeypatch.chdir(tmp_path)
    return lambda record: log(tmp_path / "kept", record)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_two_records_in_every_form(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, after = saved(record_of([MM, ADD], 222), "a"), saved(record_of([MM._replace(us=260), ADD], 282), "b")
    code, shown = call(capsys, "compare", before, after)
    assert code == 0
    assert shown.lstrip().startswith("Regressed: step time 222 us -> 282 us (+27.0 %")
    assert re.search(r"GPU slower +gemm_256x128 .* 200 us +260 us +\+60.0 us", shown)
    assert max(len(line) for line in shown.splitlines()) <= 100

    code, shown = call(capsys, "compare", before, after, "--format", "markdown")
    assert shown.startswith("### proftrack compare: regressed\n\n**Regressed: step time 222 us -&#62; 282 us")
    assert shown.count("<details>") == shown.count("</details>") > 0

    for name in ("c.json", "c.html", "c.md", "c.txt"):
        assert call(capsys, "compare", before, str(Path(after).parent), "-o", str(tmp_path / name)) == (0, "")
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["schema_version"], found["word"], found["basis"]) == (1, "regressed", "unprofiled")
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "c.md").read_text() == shown
    assert (tmp_path / "c.txt").read_text().startswith("Regressed")


def test_hostile_names_stay_text(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    before = record_of([MM, ADD], 222, branch=HOSTILE)
    after = record_of(
        [MM, Work(HOSTILE, HOSTILE, 60)], 282, params={"compile": HOSTILE}, environment={"torch": HOSTILE}
    )
    given = ["compare", saved(before, "a"), saved(after, "b")]
    _, page = call(capsys, *given, "--format", "html")
    assert "<script" not in page
    assert "default-src 'none'" in html.unescape(page)
    _, comment = call(capsys, *given, "--format", "markdown")
    assert "<script" not in comment
    assert "\x1b" not in comment
    assert "](http" not in comment
    rows = [line for line in comment.splitlines() if line.startswith("| GPU added")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [7]
    _, text = call(capsys, *given)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_incomparable_runs_are_refused_by_name(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    before = saved(record_of([MM], 202), "a")
    after = saved(record_of([MM], 202, params={"n": 128, "dtype": "float16"}), "b")
    code, shown = call(capsys, "compare", before, after)
    assert code == 1
    assert "not comparable, params.dtype: bfloat16 and float16; params.n: 64 and 128" in shown
    assert "--across params.dtype --across params.n" in shown
    assert call(capsys, "compare", before, after, "--across", "n")[0] == 1
    code, shown = call(
        capsys, "compare", before, after, "--across", "n", "--across", "params.dtype", "--format", "json"
    )
    assert [each["name"] for each in json.loads(shown)["across"]] == ["params.dtype", "params.n"]
    code, shown = call(capsys, "compare", before, after, "--across", "dtyp")
    assert (code, "did you mean dtype?" in shown) == (2, True)


def test_what_else_is_different(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    before = record_of([MM], 202, commit="a" * 40)
    after = record_of([MM], 202, commit="b" * 40, dirty=True, environment={"torch": "2.14.0", "driver": "590"})
    _, shown = call(capsys, "compare", saved(before, "a"), saved(after, "b"), "--format", "json")
    found = {each["name"]: (each["before"], each["after"]) for each in json.loads(shown)["changed"]}
    assert found == {
        "commit": ("a" * 40, "b" * 40),
        "uncommitted changes": ("no", "yes"),
        "torch": ("2.13.0", "2.14.0"),
        "driver": (None, "590"),
    }


def test_noise_is_given_or_measured_from_repeats(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = [MM._replace(us=2), ADD._replace(us=1)]
    before, after = saved(record_of(small, 20), "a"), saved(record_of(small, 22), "b")

    def word(*options: str) -> str:
        return str(json.loads(call(capsys, "compare", before, after, "--format", "json", *options)[1])["word"])

    assert word() == "inconclusive"
    assert word("--noise-floor", "5") == "regressed"
    assert word("--noise-floor", "10") == "no difference"
    for number, step_time in enumerate((19.9, 20.1)):
        write_folder(tmp_path / "repeats" / str(number), record_of(small, step_time))
    assert word("--repeat-runs", str(tmp_path / "repeats")) == "regressed"
    one = str(tmp_path / "repeats" / "0")
    code, shown = call(capsys, "compare", before, after, "--repeat-runs", one)
    assert (code, "too few to measure noise" in shown) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no-such.json", "x.json"], 1, ".json: no such file"),
        (["a", "b", "c"], 2, "one argument too many"),
        (["no-such-ref", "other-ref"], 1, "not a file, not a run id, and not a git ref"),
    ],
)
def test_sides_that_are_not_there(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], store_uri: str
) -> None:
    found, shown = call(capsys, "compare", *arguments)
    assert (found, said in shown) == (code, True)


def test_a_trace_with_its_step_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Both without the profiler: T is what the caller measured. A record has its own."""
    data = Path(__file__).parent / "data"
    given = [str(data / "matmul_add_4096.json.gz"), str(data / "matmul_add_4096_compile_reduce-overhead.json.gz")]
    times = ["--baseline-step-time-us", "203.5", "--step-time-us", "289.9"]
    _, shown = call(capsys, "compare", *given, *times, "--noise-floor", "5", "--format", "json")
    found = json.loads(shown)
    assert (found["basis"], found["word"]) == ("unprofiled", "regressed")
    assert found["step_time"]["ratio"] == pytest.approx(289.9 / 203.5)


# ---- the store -------------------------------------------------------------------------------------------------------


def test_runs_by_id_and_the_page_kept_with_the_candidate(
    logged: Callable[[Record], str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = logged(record_of([MM, ADD], 222, commit="a" * 40))
    after = logged(record_of([MM, ADD, TINY], 226, commit="b" * 40, started_s=60))
    code, shown = call(capsys, "compare", before, after)
    assert (code, "1 more launch a step (2 -> 3), aten::relu." in flat(shown)) == (0, True)
    runs = Runs.connect()
    assert runs.client.list_artifacts(after, "compare") == []
    call(capsys, "compare", before, after, "--format", "html")
    assert [item.path for item in runs.client.list_artifacts(after, "compare")] == [f"compare/{before}.html"]
    call(capsys, "compare", before, after, "--format", "html", "--no-log")
    assert call(capsys, "compare", after)[0] == 0  # held against the last one on main


def test_git_refs_stand_for_the_runs_of_their_commit(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(tmp_path / "code")
    first, second = repository.commit("One"), repository.commit("Two <b>")
    monkeypatch.chdir(repository.folder)
    for number, step_time in enumerate((221, 222, 224)):
        log(tmp_path / "kept", record_of([MM, ADD], step_time, commit=first, started_s=number))
    log(tmp_path / "kept", record_of([MM], 202, commit=second, started_s=60))
    other = log(tmp_path / "kept", record_of([MM], 402, commit=second, started_s=61, params={"n": 128}))
    code, shown = call(capsys, "compare", "HEAD~1", "HEAD", "--format", "json")
    assert (code, "has runs of 2 kinds" in shown, other in shown) == (2, True, True)
    run = Runs.connect().search({"git.commit": first})[0].run_id
    code, shown = call(capsys, "compare", run, "HEAD", "--format", "json")
    assert json.loads(shown)["word"] == "improved"
    code, shown = call(capsys, "compare", "main~1", other, "--across", "n", "--format", "json")
    found = json.loads(shown)
    assert (found["baseline"]["runs"], found["step_time"]["before_us"]) == (3, 222.0)
    assert found["commits"]["commits"] == [{"hash": second, "subject": "Two <b>"}]
    assert call(capsys, "compare", "main~9", other)[0] == 1


def test_a_run_without_a_record(logged: Callable[[Record], str], capsys: pytest.CaptureFixture[str]) -> None:
    good = logged(record_of([MM], 202))
    runs = Runs.connect()
    empty = runs.client.create_run(runs.get(good).experiment_id).info.run_id
    code, shown = call(capsys, "compare", good, empty)
    assert (code, f"run {empty}: has no record.json" in shown) == (1, True)
    runs.client.delete_run(empty)
    code, shown = call(capsys, "compare", good, empty)
    assert (code, f"no run {empty}" in shown) == (1, True)


def test_the_trace_is_never_fetched(
    logged: Callable[[Record], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    before, after = logged(record_of([MM], 202)), logged(record_of([MM], 203, started_s=1))
    fetched: list[str] = []
    real = MlflowClient.download_artifacts

    def download(self: Any, run_id: str, path: str, dst_path: str | None = None) -> str:
        fetched.append(path)
        return str(real(self, run_id, path, dst_path))

    monkeypatch.setattr(MlflowClient, "download_artifacts", download)
    assert call(capsys, "compare", before, after)[0] == 0
    assert fetched == ["record.json", "record.json"]


@pytest.mark.parametrize("command", ["compare", "gate", "history", "baseline", "prune"])
def test_help_imports_little(command: str) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from proftrack.cli import main\n"
        "try: main([*sys.argv[1:], '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'mlflow', 'pandas', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout.startswith(f"Usage: proftrack {command}")


def test_two_files_are_compared_without_torch_and_mlflow(saved: Callable[..., str]) -> None:
    sides = [saved(record_of([MM], 202 + number, seed=number), name) for number, name in enumerate("ab")]
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from proftrack.cli import main\n"
        "try: main(['compare', *sys.argv[1:]])\n"
        "except SystemExit: print(sorted({'torch', 'mlflow', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *sides], capture_output=True, text=True, check=True)
    assert (done.stderr, "step time 202 us -> 203 us" in done.stdout) == ("[]\n", True)


def test_a_record_of_another_experiment_is_not_comparable(saved: Callable[..., str], capsys: Any) -> None:
    record = record_of([MM], 202)
    assert record.run is not None
    keys = {**record.run.fingerprint_keys, "experiment": "other"}
    other = msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, fingerprint_keys=keys))
    code, shown = call(capsys, "compare", saved(record, "a"), saved(other, "b"))
    assert (code, "experiment: matmul_add and other" in shown) == (1, True)


def test_options_as_mlflow_run_hands_them_over(saved: Callable[..., str], capsys: Any) -> None:
    """`mlflow run -e compare -P noise_floor=5` appends --noise_floor 5."""
    sides = [saved(record_of([MM], 202 + number, seed=number), name) for number, name in enumerate("ab")]
    code, shown = call(capsys, "compare", *sides, "--noise_floor", "5")
    assert (code, "No difference: step time 202 us -> 203 us" in shown) == (0, True)
