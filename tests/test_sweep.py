"""`proftrack sweep`: its points, the crossover, what is measured again and what is not. Points are made by hand."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import call
from points_by_hand import by_hand
from run_folders import make_record, write_folder
from stores import mlflow_runs

from proftrack import record as records
from proftrack.capture.device import CpuDevice
from proftrack.errors import ProftrackError, UsageError, WorkloadError
from proftrack.frontends.batch import worker
from proftrack.frontends.batch.result import fill
from proftrack.frontends.sweep import crossover, measuring, plan, result, shown, stages
from proftrack.frontends.sweep.result import Point
from proftrack.record import Record
from proftrack.record.environment import GpuState
from proftrack.report import terminal
from proftrack.rundir import batch as groups
from proftrack.store import connect

pytest.importorskip("torch")


def sweep_in(folder: Path) -> result.Sweep:
    return msgspec.json.decode((folder / "sweep.json").read_bytes(), type=result.Sweep)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment `small` of its own, which is the working directory."""
    folder = tmp_path / "project"
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments" / "small.yaml").write_text(
        "workload: small.py:build\ndevice: cpu\n"
        "params: {n: 64, kind: a, list: [1, 2]}\nsweep: {n: [1, 2], kind: [a, b]}\n"
    )
    (folder / "experiments" / "small.py").write_text("def build(device, n, kind, list): return lambda: None\n")
    monkeypatch.chdir(folder)
    return folder


Asked = list[dict[str, str]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, inconclusive: set[int]) -> Asked:
    """What would have been measured: a step has 8 us of overhead and keeps the GPU busy for n / 8 us.

    B = n / 8 and T = max(8, B) + 1: B reaches half of T at n = 36.
    """
    asked: Asked = []

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Record:
        asked.append(overrides)
        n = int(overrides.get("n", "64"))
        if n == 13:
            raise ProftrackError("small.py:build refuses n=13: unlucky")
        if n == 666:
            raise KeyboardInterrupt
        regime = "inconclusive" if n in inconclusive else None
        record = of_size(
            n, regime=regime, name=f"{json.dumps(overrides)}, measured as number {len(asked)} by {time.time_ns()}"
        )
        write_folder(folder, record)
        log.parent.mkdir(exist_ok=True)
        log.write_text("said\n")
        return record

    monkeypatch.setattr(measuring, "Measuring", by_hand(measure))
    return asked


@pytest.fixture
def inconclusive() -> set[int]:
    """The sizes whose verdict is inconclusive."""
    return set()


def of_size(n: int, name: str, regime: str | None = None) -> Record:
    base = make_record()
    assert base.timing is not None and base.run is not None
    busy = n / 8
    step = max(8.0, busy) + 1
    return msgspec.structs.replace(
        base,
        timing=msgspec.structs.replace(base.timing, step_time_us=step),
        times=msgspec.structs.replace(base.times, step_time_us=step, gpu_busy_per_step_us=busy),
        run=msgspec.structs.replace(base.run, experiment="small", display_name=name),
        verdict=msgspec.structs.replace(
            base.verdict,
            regime=regime or ("overhead-bound" if busy < step / 2 else "compute-bound"),
            reasons=["The timed blocks differ by more than a third."],
        ),
    )


def values(asked: Asked, key: str = "n") -> list[str]:
    return [each[key] for each in asked]


# ---- points ----------------------------------------------------------------------------------------------------------


def test_a_parameter_with_several_values_is_swept_and_one_with_one_holds_for_all(project: Path) -> None:
    found = plan.plan("small", {"n": "64, 512,4096", "kind": "b"})
    assert found.axes == {"n": [64, 512, 4096]}
    assert [(p.params["n"], p.params["kind"]) for p in found.points] == [(64, "b"), (512, "b"), (4096, "b")]
    assert plan.overrides(found.points[1], found) == {"kind": "b", "n": "512"}
    assert plan.label(plan.values_of(found.points[1], found.axes)) == "n=512"


def test_several_axes_are_crossed_in_order(project: Path) -> None:
    found = plan.plan("small", {"n": "1,2", "kind": "a,b"})
    assert [(p.params["n"], p.params["kind"]) for p in found.points] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_without_values_it_is_the_experiments_own_sweep_less_what_is_given(project: Path) -> None:
    assert plan.plan("small", {}).axes == {"n": [1, 2], "kind": ["a", "b"]}
    found = plan.plan("small", {"n": "7"})
    assert found.axes == {"kind": ["a", "b"]}
    assert {p.params["n"] for p in found.points} == {7}


def test_a_setting_can_be_swept_and_equal_values_are_one_point(project: Path) -> None:
    assert [p.schedule.active for p in plan.plan("small", {"active": "1,3,03"}).points] == [1, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"n": "1", "kind": "a"},
            "nothing to sweep: the experiment sweeps n, kind, and -P gives one value of each; give",
        ),
        ({"n": "1,,2"}, "-P n=1,,2: one of the values is empty"),
        ({"n": "1,x"}, "n=x is not allowed; it must be a whole number"),
        ({"m": "1,2"}, "unknown parameter m=1"),
        ({"list": "1,2"}, "list takes lists"),
        ({"n": ",".join(map(str, range(501)))}, "501 points exceed the limit of 500"),
    ],
)
def test_points_that_cannot_be(project: Path, given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan.plan("small", given)
    assert words in str(refused.value)


# ---- the crossover ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (64, 4096, 512),  # the geometric mean itself
        (512, 1024, 768),  # of 671..782 the one with most factors of two: 3 * 256
        (768, 1024, 896),  # of 822..957: 7 * 128
        (896, 1024, None),  # within a factor of 1.25
        (1, 2, None),  # nothing between
        (1, 4, 2),
        (3, 5, 4),
        (0, 100, 48),  # no geometric mean: about 50, and round
        (-8, 8, 0),
        (1.0, 16.0, 4.0),
        (0.1, 0.12, None),
    ],
)
def test_the_value_to_look_at_next(low: Any, high: Any, expected: Any) -> None:
    assert crossover.between(low, high, 1.25) == expected


def points(*pairs: tuple[Any, float | None]) -> list[Point]:
    return [
        Point(key=str(n), label=f"n={n}", values={"n": n}, step_time_us=None if u is None else 1.0, busy_us=u)
        for n, u in pairs
    ]


def test_bisection_closes_in_on_where_half_is_passed() -> None:
    """u = n / 1000: half is at 500. Geometric means, and the roundest number near them:

    64..8192 724 -> 768, 64..768 222 -> 224, 224..768 415 -> 416, 416..768 565 -> 576, 416..576 489 -> 512.
    """
    seen: list[int] = []

    def measure(n: int) -> Point:
        seen.append(n)
        return points((n, n / 1000))[0]

    found = crossover.search(points((64, 0.064), (8192, 8.192)), "n", measure)
    assert seen == [768, 224, 416, 576, 512]
    assert (found.low, found.high, found.runs) == (416, 512, 7)
    assert found.estimate == pytest.approx(416 * (512 / 416) ** ((0.5 - 0.416) / (0.512 - 0.416)))


def test_a_falling_fraction_has_a_crossover_too() -> None:
    found = crossover.search(points((1, 0.9), (16, 0.1)), "n", lambda n: points((n, 1 / n))[0], tolerance=2)
    assert (found.low, found.high) == (2, 4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (points((64, 0.1), (512, 0.2)), "no crossover between n=64 and n=512: B is below half of T at every point"),
        (points((64, 0.7), (512, 0.9)), "B is above half of T at every point; sweep a wider range"),
        (points((64, None), (512, None)), "B and T are not known at any point"),
    ],
)
def test_where_there_is_no_crossover(given: list[Point], words: str) -> None:
    with pytest.raises(ProftrackError) as said:
        crossover.search(given, "n", lambda n: pytest.fail("nothing to measure"))
    assert words in str(said.value)


def doubtful(*sizes: int) -> list[Point]:
    return [msgspec.structs.replace(point, regime="inconclusive") for point in points(*((n, n / 1000) for n in sizes))]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            [*points((64, 0.064), (1024, 1.024)), *doubtful(256)],
            "crossover not located: B reaches half of T somewhere between n=64 and n=1024, but n=256 between "
            "them is inconclusive; close other programs and measure again with --fresh, or for longer with -P "
            "min_seconds=2",
        ),
        (
            [*points((64, 0.064), (1024, 1.024)), *doubtful(256, 512)],
            "but n=256 and n=512 between them are inconclusive",
        ),
        ([*points((64, 0.064)), *doubtful(1024)], "crossover not located: n=1024 is inconclusive; close"),
        (doubtful(64, 1024), "crossover not located: n=64 and n=1024 are inconclusive; close"),
    ],
)
def test_inconclusive_points_name_no_crossover(given: list[Point], words: str) -> None:
    with pytest.raises(ProftrackError) as said:
        crossover.search(given, "n", lambda n: pytest.fail("nothing to measure"))
    assert words in str(said.value)


def test_bisection_ends_at_an_inconclusive_point() -> None:
    """256 = the geometric mean of 64 and 1024."""
    with pytest.raises(ProftrackError, match="between n=64 and n=1024, but n=256 between them is inconclusive"):
        crossover.search(points((64, 0.064), (1024, 1.024)), "n", lambda n: doubtful(n)[0])


def test_inconclusive_points_elsewhere_do_not_matter() -> None:
    given = [*doubtful(16), *points((64, 0.4), (72, 0.6)), *doubtful(512)]
    found = crossover.search(given, "n", lambda n: pytest.fail("nothing to measure"))
    assert (found.low, found.high) == (64, 72)


def test_a_parameter_without_sizes_has_none() -> None:
    with pytest.raises(UsageError, match="needs numbers, and some values of n are not"):
        crossover.search(points(("a", 0.1), ("b", 0.9)), "n", lambda n: pytest.fail("nothing to measure"))


# ---- the command, into a folder --------------------------------------------------------------------------------------


def test_a_sweep_into_a_folder(
    project: Path, measured: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    arguments = ["sweep", "small", "-P", "n=8,64", "--find-crossover", "--no-mlflow", "--output", str(folder)]
    assert call(*arguments) == 0
    # 8: B = 1 of 9 us. 64: 8 of 9. Half at 36: bisected at 24, then at 40 (u = 5/9), then at 32 (4/9).
    assert values(measured) == ["8", "64", "24", "40", "32"]
    sweep = sweep_in(folder)
    assert [(p.values["n"], p.busy_us, p.step_time_us) for p in sweep.ordered()] == [
        (8, 1.0, 9.0),
        (24, 3.0, 9.0),
        (32, 4.0, 9.0),
        (40, 5.0, 9.0),
        (64, 8.0, 9.0),
    ]
    assert sweep.crossover is not None
    assert (sweep.crossover.low, sweep.crossover.high, sweep.crossover.runs) == (32, 40, 5)
    assert sweep.crossover.estimate == pytest.approx(32 * (40 / 32) ** 0.5)  # u is as far below a half as above it
    table = json.loads((folder / "tables" / "sweep.json").read_text())
    assert table["columns"][:4] == ["n", "step_time_us", "busy_us", "busy_fraction"]
    assert table["data"][0][:4] == [8, 9.0, 1.0, 1 / 9]
    assert (folder / "plots" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Found with 5 runs." in shown
    assert "overhead-bound below, compute-bound above" in shown
    assert f"Log it proftrack sync {folder}" in shown
    found = groups.load(folder)
    assert len(found.parts) == 5 and found.error is None and found.ended_ns is not None
    for part in found.parts:
        assert records.load(folder / str(part.folder) / "record.json").run is not None
    assert "| 8 | 9.00 us | 1.00 us | 11.1 % |" in found.note


def test_a_point_that_fails_does_not_lose_the_others(
    project: Path, measured: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    assert call("sweep", "small", "-P", "n=8,13,64", "--no-mlflow", "--output", str(folder)) == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == ("proftrack: 1 of 3 points failed; n=13: small.py:build refuses n=13: unlucky")
    assert "n=13 failed: small.py:build refuses n=13: unlucky" in shown.out
    assert values(measured) == ["8", "13", "64"]
    measured.clear()
    # What failed is tried again, what is done is not.
    assert call("sweep", "small", "-P", "n=8,13,64", "--no-mlflow", "--output", str(folder)) == 1
    assert values(measured) == ["13"]
    assert "2 of 3 points reused from an earlier sweep; --fresh measures again." in capsys.readouterr().out


def test_an_interrupted_sweep_goes_on_with_what_is_missing(
    project: Path, measured: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    arguments = ["sweep", "small", "--no-mlflow", "--output", str(folder)]
    assert call(*arguments, "-P", "n=8,64,666,512") == 130
    assert f"2 parts kept in {folder}" in capsys.readouterr().err
    assert groups.load(folder).ended_ns is None
    measured.clear()
    assert call(*arguments, "-P", "n=8,64,512,1024") == 0
    assert values(measured) == ["512", "1024"]
    assert [p.source for p in sweep_in(folder).ordered()] == [
        "earlier",
        "earlier",
        "measured",
        "measured",
    ]


def test_other_code_or_parameters_are_another_sweep(
    project: Path, measured: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    arguments = ["sweep", "small", "-P", "n=8,64", "--no-mlflow", "--output", str(folder)]
    assert call(*arguments) == 0
    assert call(*arguments, "-P", "kind=b") == 2
    assert "holds another sweep (its code, machine or parameters differ)" in capsys.readouterr().err
    assert call(*arguments, "--fresh") == 2
    assert "name a new folder to measure it again with --fresh" in capsys.readouterr().err
    workload = project / "experiments" / "small.py"
    workload.write_text(workload.read_text() + "# faster now\n")
    assert call(*arguments) == 2
    assert len(measured) == 2


def test_a_folder_with_something_else_in_it_is_refused(project: Path, measured: Asked, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    assert call("sweep", "small", "--no-mlflow", "--output", str(tmp_path)) == 2
    assert measured == []


def test_a_crossover_goes_along_one_parameter(
    project: Path, measured: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("sweep", "small", "--find-crossover", "--no-mlflow") == 2
    assert (
        "--find-crossover searches along one parameter, and 2 are swept; give the others one value each"
        in capsys.readouterr().err
    )
    assert measured == []


def test_no_crossover_is_said_and_the_sweep_stands(
    project: Path, measured: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("sweep", "small", "-P", "n=64,512", "--find-crossover", "--no-mlflow") == 0
    assert "No crossover between n=64 and n=512: B is above half of T" in capsys.readouterr().out


def test_inconclusive_points_are_named_with_why_and_what_to_do(
    project: Path, measured: Asked, inconclusive: set[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, the description and the JSON. The change lies between 8 and 64; 24 is the first look."""
    inconclusive.add(24)
    folder = tmp_path / "kept"
    arguments = ["sweep", "small", "-P", "n=8,64", "--find-crossover", "--no-mlflow", "--output", str(folder)]
    assert call(*arguments) == 0
    assert values(measured) == ["8", "64", "24"]
    sweep = sweep_in(folder)
    assert sweep.crossover is None
    assert [(point.label, point.doubts) for point in sweep.ordered()] == [
        ("n=8", []),
        ("n=24", ["The timed blocks differ by more than a third."]),
        ("n=64", []),
    ]
    group = groups.load(folder)
    assert group.metrics == {"points": 3, "failed_points": 0, "inconclusive_points": 1}
    for text in (" ".join(capsys.readouterr().out.split()), group.note):
        assert "n=24 is inconclusive: The timed blocks differ by more than a third." in text
        assert "Crossover not located: B reaches half of T somewhere between n=8 and n=64, but n=24" in text
        assert text.count("measure again with --fresh") == 1
        assert "Found with" not in text


def test_a_sweep_without_a_crossover_names_inconclusive_points_as_well(
    project: Path, measured: Asked, inconclusive: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    inconclusive.add(64)
    assert call("sweep", "small", "-P", "n=8,64", "--no-mlflow") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "- n=64 is inconclusive: The timed blocks differ by more than a third. - Close other programs" in shown


# ---- the command, with a store ---------------------------------------------------------------------------------------


def all_runs() -> list[Any]:
    return mlflow_runs()


def parent_and_children() -> tuple[Any, list[Any]]:
    found = all_runs()
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in found if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {parent.info.run_id}
    return parent, children


def test_a_sweep_is_a_parent_run_with_a_child_for_each_point(project: Path, measured: Asked, store_uri: str) -> None:
    assert call("sweep", "small", "-P", "n=8,64", "-P", "kind=b", "--find-crossover") == 0
    parent, children = parent_and_children()
    assert (parent.info.status, {run.info.status for run in children}) == ("FINISHED", {"FINISHED"})
    assert len(children) == 5
    assert parent.data.params == {"experiment": "small", "kind": "b", "list": "[1, 2]", "sweep.n": "8,64"}
    assert (parent.data.metrics["crossover_low"], parent.data.metrics["crossover_high"]) == (32, 40)
    assert parent.data.metrics["points"] == 5
    assert "failed_points" not in parent.data.metrics  # 0 would be an empty chart
    assert parent.data.tags["proftrack.kind"] == "sweep"
    assert parent.data.tags["conclusion"].startswith("B reaches half of T between n=32 and 40")
    assert parent.data.tags["regime"] == "overhead-bound, compute-bound"
    assert parent.data.tags["proftrack.experiment"] == "small"
    assert "B reaches half of T" in parent.data.tags["mlflow.note.content"]
    client = connect.connect(connect.resolve())
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {"sweep.json", "sweep.md", "tables", "plots", "logs", "group.json"} <= names
    assert "points" not in names
    child = children[0]
    assert {"record.json", "events.parquet"} <= {item.path for item in client.list_artifacts(child.info.run_id)}
    assert not (project / "proftrack-runs").exists()
    assert not Path(os.environ["PROFTRACK_SPOOL"]).exists()


def test_points_that_are_done_are_taken_from_the_store(
    project: Path, measured: Asked, store_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("sweep", "small", "-P", "n=8,64,666") == 130
    parent, children = parent_and_children()
    assert (parent.info.status, len(children)) == ("KILLED", 2)
    assert "| 64 |" in parent.data.tags["mlflow.note.content"]
    measured.clear()
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "Measuring", by_hand(lambda overrides, folder, log: measure_666(folder)))
        assert call("sweep", "small", "-P", "n=8,64,666") == 0
    again, children = parent_and_children()
    assert (again.info.run_id, again.info.status, len(children)) == (parent.info.run_id, "FINISHED", 3)
    assert "proftrack.ended_by" not in again.data.tags
    capsys.readouterr()
    assert call("sweep", "small", "-P", "n=8,64,666") == 0
    assert measured == []
    assert "3 of 3 points reused from an earlier sweep" in capsys.readouterr().out
    assert len(all_runs()) == 4
    assert call("sweep", "small", "-P", "n=8,64", "--fresh") == 0
    assert values(measured) == ["8", "64"]
    assert len(all_runs()) == 4 + 3


def test_the_parents_params_wait_for_what_auto_becomes(
    project: Path, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow changes no param: one that was logged as auto would stay so where the sweep goes on."""
    (project / "experiments" / "small.yaml").write_text(
        "workload: small.py:build\ndevice: cpu\nparams: {n: 64, dtype: auto}\n"
    )
    killed = [True, False]

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Record:
        if killed.pop(0):
            raise KeyboardInterrupt
        record = of_size(int(overrides["n"]), "measured")
        assert record.run is not None
        run = msgspec.structs.replace(record.run, params={"n": int(overrides["n"]), "dtype": "float32"})
        record = msgspec.structs.replace(record, run=run)
        write_folder(folder, record)
        return record

    monkeypatch.setattr(measuring, "Measuring", by_hand(measure))
    assert call("sweep", "small", "-P", "n=8,64") == 130
    parent, _ = parent_and_children()
    assert parent.data.params == {"experiment": "small", "sweep.n": "8,64"}
    killed[:] = [False, False]
    assert call("sweep", "small", "-P", "n=8,64") == 0
    again, _ = parent_and_children()
    assert again.info.run_id == parent.info.run_id
    assert again.data.params == {"experiment": "small", "sweep.n": "8,64", "dtype": "float32"}


def measure_666(folder: Path) -> Record:
    """Measure the point that was interrupted, by hand."""
    record = of_size(666, "measured after all")
    write_folder(folder, record)
    return record


def test_under_mlflow_run_the_parent_is_its_run(
    project: Path, measured: Asked, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLproject's entry point: flags arrive as parameters."""
    assert call("sweep", "small", "-P", "n=8,64") == 0
    client = connect.connect(connect.resolve())
    given = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    measured.clear()
    assert call("sweep", "small", "--n", "8,64,512", "--find_crossover", "true", "--fresh", "false") == 0
    assert values(measured) == ["512", "24", "40", "32"]
    run = client.get_run(given)
    assert run.info.status == "FINISHED"
    assert run.data.tags["proftrack.kind"] == "sweep"
    children = [each for each in all_runs() if each.data.tags.get("mlflow.parentRunId") == given]
    assert len(children) == 4
    assert {each.info.experiment_id for each in children} == {"0"}


def test_failed_points_make_the_parent_failed(project: Path, measured: Asked, store_uri: str) -> None:
    assert call("sweep", "small", "-P", "n=8,13") == 1
    parent, children = parent_and_children()
    assert (parent.info.status, len(children)) == ("FAILED", 1)
    assert parent.data.tags["proftrack.error"] == ("1 of 2 points failed; n=13: small.py:build refuses n=13: unlucky")
    assert parent.data.metrics["failed_points"] == 1


def test_what_the_store_refuses_is_kept_and_can_be_synced(
    project: Path, measured: Asked, store_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from proftrack.store import upload

    def fail(*_: object) -> None:
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_log_figures", fail)
        assert call("sweep", "small", "-P", "n=8,64") == 1
    assert values(measured) == ["8", "64"]
    shown = capsys.readouterr().err
    assert "2 parts kept in" in shown
    assert call("sync") == 0
    parent, children = parent_and_children()
    assert (parent.info.status, sorted(run.info.status for run in children)) == ("FINISHED", ["FINISHED"] * 2)


# ---- sync of a folder ------------------------------------------------------------------------------------------------


def test_a_folder_is_synced_as_a_parent_with_children_once(
    project: Path, measured: Asked, store_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "all" / "kept"
    assert call("sweep", "small", "-P", "n=8,13,64", "--no-mlflow", "--output", str(folder)) == 1
    for _ in range(2):
        assert call("sync", str(tmp_path / "all")) == 0
        parent, children = parent_and_children()
        assert len(children) == 2
        assert {run.info.status for run in children} == {"FINISHED"}
        assert parent.info.status == "FAILED"
        assert "1 of 3 points failed" in parent.data.tags["proftrack.error"]
        assert parent.data.params["sweep.n"] == "8,13,64"
    assert f"{folder} as run {parent.info.run_id}" in capsys.readouterr().out
    # And a sweep with a store takes the points over.
    measured.clear()
    assert call("sweep", "small", "-P", "n=8,64") == 0
    assert measured == []


def test_a_group_that_points_outside_of_its_folder_is_refused(
    project: Path, measured: Asked, store_uri: str, tmp_path: Path, run_folder: Callable[..., Path]
) -> None:
    elsewhere = run_folder("elsewhere")
    folder = tmp_path / "kept"
    assert call("sweep", "small", "-P", "n=8,64", "--no-mlflow", "--output", str(folder)) == 0
    group = groups.load(folder)
    group.parts[0].folder = f"../{elsewhere.name}"
    groups.save(folder, group)
    assert call("sync", str(folder)) == 2


@pytest.mark.parametrize(
    ("regimes", "regime", "conclusion"),
    [
        (["overhead-bound"], "overhead-bound", "overhead-bound at 1 point."),
        (["mixed", "mixed"], "mixed", "mixed at all 2 points."),
        (
            ["overhead-bound"] * 4 + ["mixed", "", "compute-bound"],
            "overhead-bound, mixed, compute-bound",
            "overhead-bound at n=0, n=1, n=2 and 1 more; mixed at n=4; compute-bound at n=6. 1 point failed.",
        ),
        ([""], None, None),
    ],
)
def test_the_parents_row_tells_the_conclusion(regimes: list[str], regime: str | None, conclusion: str | None) -> None:
    """A point without a regime failed."""
    found = [
        Point(key=str(n), label=f"n={n}", values={"n": n}, regime=name, error=None if name else "x")
        for n, name in enumerate(regimes)
    ]
    sweep = result.Sweep(experiment="e", title="e: n", device="", axes={"n": list(range(9))}, fixed={}, points=found)
    assert (shown.tags(sweep).get("regime"), shown.tags(sweep).get("conclusion")) == (regime, conclusion)


# ---- real points -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_points_share_processes(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two that are well, one that takes its process with it. The first step is that of a process once."""
    (project / "e.yaml").write_text(
        "workload: w.py:build\ndevice: cpu\nparams: {n: 1}\ntiming: {min_steps: 5, min_seconds: 0.02, max_seconds: 2}\n"
    )
    (project / "w.py").write_text(
        "import os, torch\n"
        "def build(device, n):\n"
        "    if n == 2: print('a core dump', flush=True); os._exit(11)\n"
        "    return lambda: torch.ones(n)\n"
    )
    folder = tmp_path / "kept"
    assert call("sweep", str(project / "e.yaml"), "-P", "n=1,3,2", "--no-mlflow", "--output", str(folder)) == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == (
        "proftrack: 1 of 3 points failed; n=2: the process ended with exit code 11: a core dump"
    )
    assert "On the CPU there is no GPU time to measure" in " ".join(shown.out.split())
    sweep = sweep_in(folder)
    assert [(point.values["n"], point.error is None) for point in sweep.ordered()] == [(1, True), (2, False), (3, True)]
    kept = {part.key: part for part in groups.load(folder).parts}
    first, third = (
        records.load(folder / str(kept[point.key].folder) / "record.json").timing for point in sweep.ordered()[::2]
    )
    assert first is not None and third is not None
    assert (first.first_step_time_us or 0) > 0 and third.first_step_time_us is None
    assert third.step_time_us > 0 and (third.build_time_us or 0) > 0


# ---- the stages of a point -------------------------------------------------------------------------------------------


@pytest.fixture
def workload(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., stages.PointSpec]:
    """A point whose workload has this code, in a process that has served none."""
    monkeypatch.setattr(stages, "_served", [])
    monkeypatch.setattr(stages, "_benches", {})
    # Ceilings are not what is tested, and take seconds.
    bench = stages._bench
    monkeypatch.setattr(stages, "_bench", lambda device, *, calibrate, **more: bench(device, calibrate=False, **more))

    def write(code: str, n: int = 1) -> stages.PointSpec:
        (project / "e.yaml").write_text(
            "workload: w.py:build\ndevice: cpu\nparams: {n: 1}\n"
            "timing: {min_steps: 5, min_seconds: 0.02, max_seconds: 2}\n"
        )
        (project / "w.py").write_text(code)
        return stages.PointSpec(str(project / "e.yaml"), {"n": str(n)})

    return write


EAGER = "import torch\ndef build(device, n): return lambda: torch.ones(n)\n"


def test_a_point_in_stages(workload: Callable[..., stages.PointSpec], tmp_path: Path) -> None:
    """T and what goes with it are the timer's, the trace the profiler's."""
    where, folder = workload(EAGER), tmp_path / "point"
    timings = stages.time_point(stages.ToTime(where, companions=1))
    assert timings.timed is not None and not timings.own_process
    assert (timings.first_us or 0) > 0
    assert stages.time_point(stages.ToTime(where, companions=1)).first_us is None
    captured = stages.profile_point(stages.ToProfile(where, folder, timings, companions=1))
    assert captured.capture.timing == msgspec.structs.replace(
        timings.timed.timing, build_time_us=timings.build_us, first_step_time_us=timings.first_us
    )
    assert captured.capture.started_ns == timings.started_ns
    sent = worker._encoded(stages.ToWrite(folder, captured))
    stages.write_point(msgspec.json.decode(sent, type=stages.ToWrite, dec_hook=worker._decoded))
    record = records.load(folder / "record.json")
    assert record.timing == captured.capture.timing and record.window.steps == 3


def test_the_sweeps_own_idle_processes_are_no_neighbours() -> None:
    state = GpuState(other_processes=2)
    assert stages._without(state, 1) == GpuState(other_processes=1)
    assert stages._without(GpuState(other_processes=0), 1) == GpuState(other_processes=0)
    assert stages._without(GpuState(), 1) == GpuState()
    assert stages._without(None, 1) is None


def test_a_point_that_compiles_is_not_timed(workload: Callable[..., stages.PointSpec]) -> None:
    compiled = "import torch\ndef build(device, n): return torch.compile(lambda: torch.ones(n), backend='eager')\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler's imports
        timings = stages.time_point(stages.ToTime(workload(compiled), companions=0))
    assert timings == stages.Timings(own_process="its steps are compiled")


def test_a_point_that_captures_a_graph_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from proftrack.capture.compilation import watched

    captured = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", captured.append)
    with watched() as seen:
        assert seen() == ""
        torch.cuda.CUDAGraph.capture_begin("a graph")
        assert seen() == "its steps capture a CUDA graph"
    assert captured == ["a graph"]


def test_a_point_that_fails_gives_its_memory_back(workload: Callable[..., stages.PointSpec]) -> None:
    """Nothing keeps its workload alive, not even the error."""
    failing = (
        "import torch, weakref\n"
        "alive = []\n"
        "class Big: pass\n"
        "def build(device, n):\n"
        "    big = Big()\n"
        "    torch.big = weakref.ref(big)\n"
        "    def step():\n"
        "        assert big\n"
        "        raise RuntimeError('CUDA out of memory')\n"
        "    return step\n"
    )
    import torch

    with pytest.raises(ProftrackError) as said:
        stages.time_point(stages.ToTime(workload(failing), companions=0))
    big: Any = torch.big  # type: ignore[attr-defined]
    del torch.big  # type: ignore[attr-defined]
    assert big() is None
    assert str(said.value).endswith(
        "raised RuntimeError: CUDA out of memory; use --isolate to give each point its own process and memory"
    )


def test_a_device_that_does_not_answer_makes_the_process_useless() -> None:
    class Dead(CpuDevice):
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    def work() -> None:
        raise WorkloadError("the step raised")

    with pytest.raises(worker.Spent, match="the step raised"):
        stages._cleanly(Dead(), work)


def test_a_table_of_long_values_holds_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    values = {"n": 4096, "attention_backend": "scaled_dot_product_flash"}
    facts: dict[str, Any] = {"step_time_us": 2.65e6, "busy_us": 1.25e6, "roofline_us": 1e5, "confidence": "medium"}
    one = Point(key="k", label="l", values=values, regime="compute-bound", **facts)
    axes = {key: [value] for key, value in values.items()}
    sweep = result.Sweep(experiment="e", title="e", device="d", axes=axes, fixed={}, points=[one])
    terminal.show(shown.page(sweep))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for cell in ("4096", "2.65 s", "1.25 s", "47.2 %", "100 ms", "compute-bound", "medium"):
        assert cell in text


def test_energy_has_a_column_if_a_point_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(key=str(n), label=f"n={n}", values={"n": n}, step_time_us=9.0) for n in (1, 2)]
    sweep = result.Sweep(experiment="e", title="e", device="d", axes={"n": [1, 2]}, fixed={}, points=points)
    terminal.show(shown.page(sweep))
    assert "energy" not in capsys.readouterr().out
    fill(points[0], make_record())
    terminal.show(shown.page(sweep))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["n", "T", "B", "u", "R", "energy", "regime", "confidence"] in lines
    assert ["1", "100", "us", "40.0", "us", "40.0", "%", "5.00", "us", "30.0", "mJ", "overhead-bound", "high"] in lines
    assert ["2", "9.00", "us", "-", "-", "-", "-"] in lines
    rows = json.loads(shown.table(sweep))
    assert [row[rows["columns"].index("energy_per_step_joules")] for row in rows["data"]] == [0.03, None]


def test_columns_without_room_stand_below_with_all_swept_parameters_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    one = Point(key="k", label="l", values={"n": 4096, "m": 17}, regime="compute-bound", confidence="medium")
    axes = {"n": [4096], "m": [17]}
    sweep = result.Sweep(experiment="e", title="e", device="d", axes=axes, fixed={}, points=[one])
    terminal.show(shown.page(sweep))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["n", "m", "confidence"] in lines and ["4096", "17", "medium"] in lines
