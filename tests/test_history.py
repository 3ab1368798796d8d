"""`proftrack history`: runs over commits, out of a real store, with the changes between them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from programs import ADD, MM, TINY, Work, record_of
from stores import Repository, call, flat, log

import proftrack
from proftrack.errors import NotFoundError, UsageError
from proftrack.record import Record
from proftrack.record.model import SCHEMA_VERSION
from proftrack.record.saved import load
from proftrack.report.pages import history as history_page
from proftrack.store.runs import Runs

EXTRA_LAUNCH, SLOWER = 4, 8
"""Which of the twelve commits add a launch, and a slower operator."""
COMMITS = 12


def twelve(commits: list[str]) -> Iterator[Record]:
    """One run a commit; step times vary by 0.5 % between processes."""
    generator = np.random.default_rng(3)
    for number, commit in enumerate(commits):
        works = [MM._replace(us=230) if number >= SLOWER else MM, ADD]
        works += [Work("aten::relu", "elementwise_relu", 12)] if number >= EXTRA_LAUNCH else []
        busy = sum(work.us for work in works)
        step_time = (busy + 2) * float(np.exp(generator.normal(0, 0.005)))
        yield record_of(works, step_time, commit=commit, started_s=3600 * number, seed=number)


class Past:
    """A store with the runs of twelve commits, and the repository that these are in."""

    def __init__(self, repository: Repository, commits: list[str], runs: list[str], uri: str) -> None:
        self.repository, self.commits, self.runs, self.uri = repository, commits, runs, uri


@pytest.fixture(scope="module")
def past(_empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past")
    repository = Repository(folder / "code")
    commits = [repository.commit(f"Change {number}") for number in range(COMMITS)]
    database = folder / "mlflow.db"
    database.write_bytes(_empty_store.read_bytes())
    uri = f"sqlite:///{database}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        runs = [log(folder / "kept", record) for record in twelve(commits)]
    return Past(repository, commits, runs, uri)


@pytest.fixture
def here(past: Past, monkeypatch: pytest.MonkeyPatch) -> Past:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", past.uri)
    monkeypatch.chdir(past.repository.folder)
    return past


def changes(found: dict[str, Any]) -> set[tuple[str, str]]:
    """(metric, first commit that has it) of all changes."""
    return {(change["metric"], change["after"]["commit"]) for series in found["series"] for change in series["changes"]}


def test_both_commits_are_found_and_no_other(here: Past, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "history", "matmul_add", "--format", "json")
    assert code == 0
    found = json.loads(shown)
    extra, slower = here.commits[EXTRA_LAUNCH], here.commits[SLOWER]
    assert changes(found) == {
        ("step_time_us", extra),
        ("step_time_us", slower),
        ("launches_per_step", extra),
        ("kernels_per_step", extra),
    }
    assert found["ordered_by"] == "commits"
    time = [c for c in found["series"][0]["changes"] if c["metric"] == "step_time_us"]
    for change, ratio in zip(time, (234 / 222, 264 / 234), strict=True):
        assert change["point"]["interval"]["low"] < ratio < change["point"]["interval"]["high"]
        assert change["point"]["ratio"] == pytest.approx(ratio, rel=0.01)
    assert [commit["subject"] for commit in time[0]["commits"]["commits"]] == [f"Change {EXTRA_LAUNCH}"]
    assert "1 file changed" in time[0]["commits"]["summary"]


def test_text_says_what_changed_between_which_commits(here: Past, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "history", "matmul_add")
    assert code == 0
    before, after = here.commits[EXTRA_LAUNCH - 1][:10], here.commits[EXTRA_LAUNCH][:10]
    assert f"between commit {before} and commit {after}: kernels_per_step 2 -> 3 (+50.0 %)" in flat(shown)
    assert "launches_per_step 2 -> 3 (+50.0 %); step_time_us 222 us -> 23" in flat(shown)
    assert f"{after} Change {EXTRA_LAUNCH}" in shown
    assert len([line for line in shown.splitlines() if " <- " in line]) == 2
    assert max(len(line) for line in shown.splitlines()) <= 100


def test_bisect_hint(here: Past, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "history", "matmul_add", "--bisect-hint")
    assert code == 0
    good, bad = here.commits[SLOWER - 1], here.commits[SLOWER]
    assert f"git bisect start {bad} {good}" in shown
    assert "proftrack run matmul_add -P compile=none -P dtype=bfloat16 -P n=64" in shown
    assert f"proftrack gate HEAD --baseline {here.runs[SLOWER - 1]}" in shown


def test_the_dataframe(here: Past) -> None:
    frame = proftrack.history("matmul_add")
    assert list(frame["commit"]) == here.commits
    assert list(frame["run_id"]) == here.runs
    assert frame.loc[frame["change"], "commit"].tolist() == [here.commits[EXTRA_LAUNCH], here.commits[SLOWER]]
    assert str(frame["started"].dtype).endswith(", UTC]")
    assert frame["launches_per_step"].tolist() == [2.0] * EXTRA_LAUNCH + [3.0] * (COMMITS - EXTRA_LAUNCH)
    assert {change["metric"] for change in frame.attrs["changes"]} >= {"step_time_us", "launches_per_step"}


def test_csv(here: Past, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = call(capsys, "history", "matmul_add", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert [row["commit"] for row in rows] == here.commits
    assert rows[0]["started"] == "2023-11-14T22:13:20+00:00"
    assert float(rows[0]["step_time_us"]) == pytest.approx(222, rel=0.02)


def test_no_cell_is_a_formula() -> None:
    text = history_page.as_csv([{"name": "=HYPERLINK(1)", "branch": "+x", "commit": "@y", "n": -1.5, "z": "\t=2"}])
    assert text == "name,branch,commit,n,z\n'=HYPERLINK(1),'+x,'@y,-1.5,'=2\n"


def test_pictures_and_pages(here: Past, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("h.html", "h.md", "h.png"):
        code, shown = call(capsys, "history", "matmul_add", "-o", str(tmp_path / name))
        assert (code, shown) == (0, "")
    page = (tmp_path / "h.html").read_text()
    assert page.count('class="change"') == 4
    assert page.count('class="one-run"') == COMMITS
    assert "<script" not in page
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    assert "Runs, newest first" in (tmp_path / "h.md").read_text()


def test_elsewhere_the_order_is_that_of_time(
    here: Past, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkout, another machine: nothing but the store."""
    monkeypatch.chdir(tmp_path)
    _, shown = call(capsys, "history", "matmul_add", "--format", "json")
    found = json.loads(shown)
    assert found["ordered_by"] == "time"
    assert ("step_time_us", here.commits[SLOWER]) in changes(found)
    assert found["series"][0]["changes"][0]["commits"]["known"] is False


def test_bad_questions_get_one_sentence(here: Past, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "history", "matmul_add", "--metric", "step_tme_us")
    assert (code, "did you mean step_time_us?" in shown) == (2, True)
    code, shown = call(capsys, "history", "no_such")
    assert (code, "no FINISHED run of no_such" in shown) == (1, True)
    code, shown = call(capsys, "history", "matmul_add", "--format", "png")
    assert (code, "-o history.png" in shown) == (2, True)
    with pytest.raises(NotFoundError, match="on branch feature"):
        proftrack.history("matmul_add", branch="feature")
    with pytest.raises(UsageError):
        proftrack.history("matmul_add", metric="x")


# ---- which runs are one series ---------------------------------------------------------------------------------------


@pytest.fixture
def logged(store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    return lambda record: log(tmp_path / "kept", record)


def test_records_of_the_first_format_stand_beside_new_ones(
    logged: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The old record lacks what later formats added; its figures are shown as they are."""
    old = load(Path(__file__).parent / "goldens" / "records" / "record-1.json")
    assert old.schema_version == 1
    assert old.run is not None
    day_later = msgspec.structs.replace(old.run, started_ns=old.run.started_ns + 86_400_000_000_000)
    logged(old)
    logged(msgspec.structs.replace(old, schema_version=SCHEMA_VERSION, run=day_later))
    code, shown = call(capsys, "history", "matmul_add", "--dirty", "--format", "json")
    assert code == 0, shown
    found = json.loads(shown)
    [series] = found["series"]
    assert [run["metrics"]["step_time_us"] for run in series["runs"]] == [51.0, 51.0]
    assert series["changes"] == []


def test_a_variant_and_another_fingerprint_are_series_of_their_own(logged: Callable[..., str], capsys: Any) -> None:
    logged(record_of([MM], 202, commit="a" * 40))
    logged(record_of([MM], 203, commit="b" * 40, started_s=1, params={"compile": "default"}))
    logged(record_of([MM], 204, commit="c" * 40, started_s=2, params={"n": 128}))
    logged(record_of([MM], 205, commit="c" * 40, started_s=3))
    _, shown = call(capsys, "history", "matmul_add", "--format", "json")
    found = json.loads(shown)["series"]
    assert sorted((len(series["runs"]), series["variant"].get("compile", "")) for series in found) == [
        (1, ""),
        (1, "default"),
        (2, "none"),
    ]


def test_a_series_in_latency_mode_is_one_of_latencies(logged: Callable[..., str], capsys: Any) -> None:
    record = record_of([MM], 200, commit="a" * 40)
    logged(msgspec.structs.replace(record, timing=msgspec.structs.replace(record.timing, mode="latency")))
    _, shown = call(capsys, "history", "matmul_add", "--format", "json")
    [series] = json.loads(shown)["series"]
    assert (series["metric"], series["runs"][0]["metrics"]["step_time_us"]) == ("step_latency_us", 200.0)
    _, shown = call(capsys, "history", "matmul_add")
    assert "(step_latency_us, and counts)" in flat(shown) and "220 us" in shown


def test_uncommitted_changes_are_left_out_and_said(logged: Callable[..., str], capsys: Any) -> None:
    logged(record_of([MM], 202, commit="a" * 40))
    logged(record_of([MM], 300, commit="a" * 40, dirty=True, started_s=1))
    _, shown = call(capsys, "history", "matmul_add")
    assert "1 run with uncommitted changes; --dirty shows it" in flat(shown)
    _, shown = call(capsys, "history", "matmul_add", "--dirty", "--format", "json")
    assert len(json.loads(shown)["series"][0]["runs"]) == 2


def test_runs_that_make_no_series_are_counted_among_those_left_out(logged: Callable[..., str], capsys: Any) -> None:
    """Two of another n, one of them for an untracked file alone: their series is not shown, they are told of."""
    logged(record_of([MM], 202, commit="a" * 40))
    other = record_of([MM], 300, commit="a" * 40, dirty=True, params={"n": 128}, started_s=1)
    logged(other)
    git = msgspec.structs.replace(other.environment.git, untracked_only=True)
    logged(with_environment(record_of([MM], 301, params={"n": 128}, started_s=2), git=git))
    _, shown = call(capsys, "history", "matmul_add")
    assert (
        "2 runs with uncommitted changes (1 only because of untracked files: commit them, or add them to "
        ".gitignore); --dirty shows them"
    ) in flat(shown)
    _, shown = call(capsys, "history", "matmul_add", "--dirty")
    assert "left out" not in shown


def with_environment(record: Record, **facts: Any) -> Record:
    return msgspec.structs.replace(record, environment=msgspec.structs.replace(record.environment, **facts))


def test_eighty_columns_hold_and_ids_are_shortened(past: Past, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", past.uri)
    monkeypatch.chdir(past.repository.folder)
    monkeypatch.setenv("COLUMNS", "80")
    _, shown = call(capsys, "history", "matmul_add")
    assert max(map(len, shown.splitlines())) <= 80
    assert f" {past.runs[0][:8]}" in shown
    assert past.runs[0] not in shown
    monkeypatch.setenv("COLUMNS", "200")
    assert past.runs[0] in call(capsys, "history", "matmul_add")[1]


def test_a_change_without_a_commit_names_the_environment(logged: Callable[..., str], capsys: Any) -> None:
    logged(record_of([MM, ADD], 222, commit="a" * 40))
    logged(record_of([MM, ADD, TINY], 225, commit="a" * 40, started_s=1, environment={"torch": "2.14.0"}))
    _, shown = call(capsys, "history", "matmul_add")
    assert "between two runs of commit aaaaaaaaaa (the code is the same: see what else differs)" in flat(shown)
    assert "also different: torch 2.13.0 -> 2.14.0" in flat(shown)


def test_a_run_that_was_logged_twice_is_one(logged: Callable[..., str], store_uri: str) -> None:
    run = logged(record_of([MM], 202, commit="a" * 40))
    runs = Runs.connect()
    found = runs.get(run)
    twin = runs.client.create_run(found.experiment_id, tags=found.tags)
    runs.client.set_terminated(twin.info.run_id)
    assert [each.run_id for each in runs.search({"proftrack.experiment": "matmul_add"})] == [run]


def test_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    code, shown = call(capsys, "history", "matmul_add")
    assert (code, "no such store" in shown) == (1, True)
    assert not (tmp_path / "none.db").exists()


# ---- baselines and old traces ----------------------------------------------------------------------------------------


def test_baselines_are_marked_listed_and_unmarked(logged: Callable[..., str], capsys: Any) -> None:
    run = logged(record_of([MM], 202))
    assert "No run is marked" in call(capsys, "baseline")[1]
    assert call(capsys, "baseline", run)[0] == 0
    assert run in call(capsys, "baseline")[1]
    assert call(capsys, "baseline", run, "--remove")[0] == 0
    assert "No run is marked" in call(capsys, "baseline")[1]
    assert call(capsys, "baseline", "main")[0] == 2
    code, shown = call(capsys, "baseline", "0" * 32)
    assert (code, "no run 000" in shown) == (1, True)


def test_prune_drops_old_traces_and_nothing_else(logged: Callable[..., str], capsys: Any) -> None:
    import time

    old, marked = logged(record_of([MM], 202)), logged(record_of([MM], 203, started_s=1))
    young = logged(record_of([MM], 204, started_s=time.time() - 1_700_000_000 - 3600))
    call(capsys, "baseline", marked)
    runs = Runs.connect()

    def traces(run: str) -> int:
        return len(runs.client.list_artifacts(run, "trace"))

    before = [item.path for item in runs.client.list_artifacts(old)]
    code, shown = call(capsys, "prune", "--older-than", "90d", "--dry-run")
    assert (code, old in shown, marked in shown, young in shown) == (0, True, False, False)
    assert "Traces of 1 run would be deleted" in shown
    assert [traces(run) for run in (old, marked, young)] == [1, 1, 1]

    code, shown = call(capsys, "prune", "--older-than", "90d")
    assert (code, "Traces of 1 run deleted" in shown) == (0, True)
    assert [traces(run) for run in (old, marked, young)] == [0, 1, 1]
    assert [item.path for item in runs.client.list_artifacts(old)] == [path for path in before if path != "trace"]
    assert runs.record(runs.get(old)).run is not None
    assert "Traces of 0 runs" in call(capsys, "prune", "--older-than", "90d")[1]
    code, shown = call(capsys, "prune", "--older-than", "soon")
    assert (code, "write it as 90d" in shown) == (2, True)


def test_the_repositorys_own_git_is_not_touched(here: Past) -> None:
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout == ""


def test_gate_fails_on_the_commits_that_are_worse_and_passes_on_the_rest(
    here: Past, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [call(capsys, "gate", run)[0] for run in here.runs]
    expected = [0] * COMMITS
    expected[0] = 4  # nothing before it
    expected[EXTRA_LAUNCH] = expected[SLOWER] = 3
    assert codes == expected
    found = Runs.connect()
    assert found.get(here.runs[EXTRA_LAUNCH]).tags["gate.failed"] == (
        "step_time_us, gpu_busy_per_step_us, launches_per_step, kernels_per_step"
    )
    assert found.get(here.runs[SLOWER]).tags["gate.failed"] == "step_time_us, gpu_busy_per_step_us"
    by_ref = call(capsys, "gate", here.commits[SLOWER][:12], "--baseline", here.commits[SLOWER - 1])
    assert by_ref[0] == 3
    assert call(capsys, "gate", "HEAD", "--baseline", "HEAD~1")[0] == 0
