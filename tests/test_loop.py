"""proftrack.profile: how a loop's steps are used, and what is left of it in MLflow, in a folder, and in the caller."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stores import mlflow_runs

import proftrack
from proftrack import record as records
from proftrack import rundir
from proftrack.capture import loop as capture_loop
from proftrack.errors import CaptureError, StoreError, UsageError
from proftrack.frontends.loop import SCHEDULE, Profile, ProfileWarning, fitting_schedule
from proftrack.record.figures import EXCLUDED_REGION
from proftrack.store import connect

torch = pytest.importorskip("torch")

SHORT = {"wait": 12, "warmup": 1, "active": 2}
"""12 steps before the profiler: 2 to warm up, 10 that are timed, in 3 blocks of 3 (so 3 warm up)."""
QUIET: dict[str, Any] = {"device": "cpu", "calibrate": False, "quiet": True}


def steps(profile: Any, count: int) -> None:
    x = torch.ones(8)
    for _ in range(count):
        torch.add(x, x)
        profile.step()


def all_runs() -> list[Any]:
    return mlflow_runs()


# ---- how the steps before the profiler are used ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "mode", "expected"),
    [
        (9, "throughput", None),
        (10, "throughput", (4, 3, 2, 0)),  # 8 to be timed: three blocks of two, the other two warm up as well
        (12, "throughput", (3, 3, 3, 0)),
        (50, "throughput", (12, 3, 10, 8)),  # 40: a fifth one by one, 32 in blocks of ten
        (1000, "throughput", (200, 10, 75, 50)),
        (12, "latency", (2, 10, 1, 0)),
    ],
)
def test_plan(before: int, mode: str, expected: tuple[int, ...] | None) -> None:
    found = capture_loop.plan(before, mode)
    assert found == expected
    if found is not None:
        assert found.warm + found.blocks * found.per_block + found.singles == before


@pytest.mark.parametrize(
    ("count", "total"),
    [(None, 20), *((n, n) for n in (1, 2, 3, 4, 5, 10, 20, 57)), (58, 58), (59, 58), (1000, 58)],
)
def test_a_fitting_schedule_fits(count: int | None, total: int) -> None:
    found = fitting_schedule(count)
    assert found["active"] >= 1
    assert sum(found.values()) - found["repeat"] == total


def test_the_usual_schedule_is_short_and_its_step_time_unprofiled() -> None:
    """3 blocks of 4 steps after 3 that warm up: twelve timed steps, and twenty in all."""
    assert sum(SCHEDULE.values()) - SCHEDULE["repeat"] == 20
    assert capture_loop.plan(SCHEDULE["skip_first"] + SCHEDULE["wait"], "throughput") == (3, 3, 4, 0)


# ---- a loop that goes well -------------------------------------------------------------------------------------------


def test_a_ten_line_script_leaves_a_whole_run(tmp_path: Path, store_uri: str) -> None:
    """As a user runs it: a process of its own, MLflow's default of this environment, nothing but the loop."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "import proftrack\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"with proftrack.profile('train', params={{'n': 4}}, schedule={SHORT}, device='cpu') as p:\n"
        "    for _ in range(20):\n"
        "        optimizer.zero_grad()\n"
        "        model(torch.ones(2, 4)).sum().backward()\n"
        "        optimizer.step()\n"
        "        p.step()\n"
        "print('after', p.run_id, p.error)\n"
    )
    root = Path(proftrack.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = all_runs()
    assert f"Run     {found.info.run_id}" in done.stdout
    assert f"after {found.info.run_id} None" in done.stdout
    assert found.info.status == "FINISHED"
    assert found.data.params["n"] == "4"
    assert found.data.params["schedule.wait"] == "12"
    assert found.data.metrics["recorded_steps"] == 2
    assert found.data.metrics["step_time_us"] > 0
    assert found.data.tags["regime.basis"] == "unprofiled"
    assert found.data.tags["proftrack.experiment"] == "train"
    assert "step_latency_us" not in found.data.metrics  # too few steps to time them one by one as well
    assert not (tmp_path / "proftrack-runs").exists()


def test_the_record_holds_the_steps_of_the_schedule_and_their_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"output": tmp_path / "o", "mlflow": False, "tokens_per_step": 8, **QUIET}
    with proftrack.profile("e", schedule={**SHORT, "repeat": 2}, **options) as p:
        steps(p, 40)
    assert isinstance(p, Profile)
    record = p.record
    assert record is not None and record.run is not None and record.timing is not None
    assert record == records.load(tmp_path / "o" / "record.json")
    # wait 12, warmup 1, active 2, and again.
    assert record.window.step_names == [f"ProfilerStep#{number}" for number in (13, 14, 28, 29)]
    assert [region.calls for region in record.regions if region.name == "e"] == [4]
    assert record.verdict.basis == "unprofiled"
    assert (record.timing.steps_per_block, len(record.timing.block_step_times_us)) == (3, 3)
    assert record.timing.warmup_steps == 3
    assert record.times.step_time_us == record.timing.step_time_us
    assert "fewer_steps" not in {flag.code for flag in record.quality}
    assert record.run.params == {}
    assert record.run.tokens_per_step == 8
    assert record.run.fingerprint_keys["workload"] == "test_loop.py:loop"
    assert (p.folder, p.run_id) == (tmp_path / "o", None)
    assert sum(1 for _ in (tmp_path / "o" / "trace").iterdir()) == 2


def test_steps_are_timed_outside_of_the_profiler(tmp_path: Path) -> None:
    seen = []
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        for _ in range(20):
            seen.append(torch.autograd.profiler._is_profiler_enabled)
            p.step()
    assert seen == [*[False] * 13, True, True, *[False] * 5]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time that a loop is timed by, in nanoseconds: one entry, which the test moves on."""
    now = [0]
    monkeypatch.setattr(capture_loop, "time", SimpleNamespace(perf_counter_ns=lambda: now[0], time_ns=time.time_ns))
    return now


def test_what_is_excluded_is_no_part_of_the_step_time(tmp_path: Path, clock: list[int]) -> None:
    """Steps of 1 ms; evaluation takes 500 ms after every fifth step, and 2 ms more are spent on each first step."""
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        for number in range(15):
            clock[0] += 1_000_000
            p.step()
            if number % 5 == 1:
                with p.excluded():
                    clock[0] += 500_000_000
    assert p.record is not None and p.record.timing is not None and p.record.run is not None
    assert p.record.timing.block_step_times_us == [1000, 1000, 1000]
    assert p.record.timing.first_step_time_us == 1000
    # After the 2nd and the 7th of the 12 timed steps; the one after the 12th is over, and no part of the timing.
    assert "1 s of evaluation and other work between the timed steps" in " ".join(p.record.run.notes)


def test_the_next_step_ends_what_is_excluded(tmp_path: Path, clock: list[int]) -> None:
    """A step inside of it, or an exception that the loop handles."""
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        for number in range(15):
            if number == 5:
                with pytest.raises(RuntimeError, match="no data"), p.excluded():
                    clock[0] += 500_000_000
                    raise RuntimeError("no data")
                clock[0] += 1_000_000
                p.step()
            elif number == 7:
                with p.excluded(), p.excluded():
                    clock[0] += 500_000_000
                    p.step()
                clock[0] += 3_000_000
            else:
                clock[0] += 1_000_000
                p.step()
    assert p.record is not None and p.record.timing is not None
    # Blocks of three: the 4th to the 6th step, of which one is not seen; the 7th to the 9th, of which the same holds,
    # but which has the 3 ms after it.
    assert p.record.timing.block_step_times_us == [pytest.approx(2000 / 3), pytest.approx(5000 / 3), 1000]


def test_what_is_excluded_from_a_recorded_step_is_marked(tmp_path: Path) -> None:
    x = torch.ones(8)
    with proftrack.profile("e", schedule={**SHORT, "active": 4}, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        for number in range(20):
            torch.add(x, x)
            p.step()
            if number in (3, 14):  # in the step that is recorded as number 15
                with p.excluded():
                    for _ in range(200):
                        torch.mul(x, x)
    assert p.record is not None
    assert [region.calls for region in p.record.regions if region.name == EXCLUDED_REGION] == [1]
    (flag,) = [flag for flag in p.record.quality if flag.code == "evaluation_in_steps"]
    assert flag.count == 1
    assert "In step 15:" in flag.message


def test_with_the_profile_switched_off_nothing_is_excluded() -> None:
    with proftrack.profile("e", enabled=False) as p, p.excluded():
        p.step()


def test_latency_times_every_step_by_itself(tmp_path: Path) -> None:
    with proftrack.profile("e", schedule=SHORT, timing="latency", output=tmp_path / "o", mlflow=False, **QUIET) as p:
        steps(p, 15)
    assert p.record is not None and p.record.timing is not None
    assert p.record.timing.mode == "latency"
    assert len(p.record.timing.step_latencies_us) == 10
    assert p.record.times.step_latency_us == p.record.timing.step_latency_us


def test_with_fewer_than_ten_steps_before_it_the_time_is_the_traces_own(tmp_path: Path) -> None:
    with proftrack.profile("e", schedule={"wait": 9}, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        steps(p, 13)
    assert p.record is not None and p.record.run is not None
    assert (p.record.timing, p.record.verdict.basis) == (None, "profiled")
    assert p.record.times.step_time_us == p.record.times.step_time_profiled_us
    assert any("timing needs 10" in note for note in p.record.run.notes)


def test_a_schedule_without_steps_to_wait_for(tmp_path: Path) -> None:
    schedule = {"wait": 0, "warmup": 0, "active": 2}
    with proftrack.profile("e", schedule=schedule, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        steps(p, 5)
    assert p.record is not None
    assert p.record.window.step_names == ["ProfilerStep#0", "ProfilerStep#1"]


def test_the_result_is_there_once_the_schedule_is_over(tmp_path: Path) -> None:
    """And not at the end of a training that goes on for days."""
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        steps(p, 15)
        assert p.record is not None
        steps(p, 5)


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with proftrack.profile("e", enabled=False) as p, proftrack.profile("f", enabled=False) as q:
        p.step()
        q.step()
    assert (p.record, p.run_id, p.folder, p.error) == (None, None, None, None)
    assert list(tmp_path.iterdir()) == []


# ---- the caller's own run, signals and program stay as they are ------------------------------------------------------


def test_a_run_of_the_callers_becomes_the_parent_and_stays_open(store_uri: str) -> None:
    import mlflow

    handler = signal.getsignal(signal.SIGTERM)
    with mlflow.start_run(run_name="mine") as mine:
        mlflow.log_metric("loss", 1.0)
        with proftrack.profile("e", schedule=SHORT, **QUIET) as p:
            assert signal.getsignal(signal.SIGTERM) is handler
            steps(p, 20)
        active = mlflow.active_run()
        assert active is not None and active.info.run_id == mine.info.run_id
        mlflow.log_metric("loss", 0.5)
    found = {run.info.run_id: run for run in all_runs()}
    assert len(found) == 2
    own, child = found.pop(mine.info.run_id), next(iter(found.values()))
    assert child.info.run_id == p.run_id
    assert child.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert child.info.experiment_id == own.info.experiment_id
    assert (own.info.status, child.info.status) == ("FINISHED", "FINISHED")
    assert own.data.metrics == {"loss": 0.5}
    assert own.data.params == {}
    assert not [tag for tag in own.data.tags if tag.startswith("proftrack")]


def test_under_mlflow_run_it_is_a_child_of_that_run(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect.connect(connect.resolve())
    given = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    for _ in range(2):  # a script may profile two loops
        with proftrack.profile("e", schedule=SHORT, **QUIET) as p:
            steps(p, 15)
        assert client.get_run(p.run_id).data.tags["mlflow.parentRunId"] == given
    assert client.get_run(given).info.status == "RUNNING"


def test_without_mlflow_a_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "mlflow", None)
        with proftrack.profile("e", schedule=SHORT, **QUIET) as p:
            steps(p, 15)
        with pytest.raises(StoreError, match="pip install mlflow"):
            proftrack.profile("e", mlflow=True, **QUIET).__enter__()
    assert p.folder is not None and p.run_id is None
    assert rundir.load(p.folder).run is not None


def test_a_store_that_cannot_be_used_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite://")
    with (
        pytest.warns(ProfileWarning, match=r"in memory is lost.*the profile is kept in .*proftrack sync"),
        proftrack.profile("e", schedule=SHORT, **QUIET) as p,
    ):
        steps(p, 15)
    assert p.folder is not None
    assert rundir.load(p.folder).run is not None


def test_what_cannot_be_logged_at_the_end_stays_in_its_folder(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.store import upload

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(upload, "_log_figures", fail)
    with (
        pytest.warns(ProfileWarning, match="no space left.*everything measured is in .*proftrack sync"),
        proftrack.profile("e", schedule=SHORT, **QUIET) as p,
    ):
        steps(p, 20)
    assert p.folder is not None and p.error is not None
    assert rundir.load(p.folder).run is not None
    (found,) = all_runs()
    assert found.info.status == "FAILED"


# ---- loops that do not go well ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [0, 3, 14, 15, 20])
def test_an_exception_in_the_loop_passes_and_the_run_is_failed(store_uri: str, done: int) -> None:
    """Before, inside and after the recorded steps; no half window is taken for a result."""
    with pytest.raises(ZeroDivisionError), proftrack.profile("e", schedule=SHORT, **QUIET) as p:
        steps(p, done)
        _ = 1 / 0
    (found,) = all_runs()
    assert found.info.status == "FAILED"
    assert (p.verdict is not None) == (p.record is not None)
    assert found.data.tags["proftrack.error"] == "ZeroDivisionError: division by zero"
    assert (p.record is not None) == (done >= 15)
    assert not torch.autograd.profiler._is_profiler_enabled
    with proftrack.profile("again", schedule=SHORT, **QUIET) as q:  # nothing is left open
        steps(q, 15)
    assert q.record is not None


def test_ctrl_c_kills_the_run(store_uri: str) -> None:
    with pytest.raises(KeyboardInterrupt), proftrack.profile("e", schedule=SHORT, **QUIET) as p:
        steps(p, 14)
        raise KeyboardInterrupt
    assert [run.info.status for run in all_runs()] == ["KILLED"]


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (0, r"step\(\) was never called, so nothing was recorded; call p.step\(\)"),
        (5, r"ended after 5 steps, before recording began at step 14 \(skip_first 0 \+ wait 12 \+ warmup 1\)"),
        (13, "ended after 13 steps, before recording began at step 14"),
    ],
)
def test_too_few_steps_to_record_any(store_uri: str, done: int, words: str) -> None:
    with pytest.warns(ProfileWarning, match=words), proftrack.profile("e", schedule=SHORT, **QUIET) as p:
        steps(p, done)
    (found,) = all_runs()
    assert (found.info.status, found.data.metrics) == ("FAILED", {})
    assert "nothing was recorded" in found.data.tags["proftrack.error"]
    assert p.record is None and p.error is not None
    assert not rundir.spool_root().exists()


def test_the_warning_points_at_the_callers_line(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with proftrack.profile("e", output=tmp_path / "o", mlflow=False, **QUIET):
            pass
    assert [(Path(w.filename).name, w.category) for w in caught] == [("test_loop.py", ProfileWarning)]


def test_a_loop_that_ends_within_the_window_gives_the_steps_that_were_over(store_uri: str) -> None:
    with (
        pytest.warns(
            ProfileWarning,
            match=r"fewer steps.*1 of 3 were recorded, and the loop ran 14 of the schedule's 16 steps; "
            "run at least 16 steps, or use a schedule that fits 14: skip_first 2, wait 8, warmup 1, active 3",
        ),
        proftrack.profile("e", schedule={**SHORT, "active": 3}, **QUIET) as p,
    ):
        steps(p, 14)
        torch.mul(torch.ones(8), 2)  # no step() behind it: not a step
    assert p.record is not None
    assert p.record.window.step_names == ["ProfilerStep#13"]
    assert [step.step for step in p.record.per_step] == [13]
    assert [flag.count for flag in p.record.quality if flag.code == "fewer_steps"] == [2]
    (found,) = all_runs()
    assert (found.info.status, found.data.metrics["recorded_steps"]) == ("FINISHED", 1)


def test_the_row_of_an_unfinished_step_is_not_called_a_step(tmp_path: Path) -> None:
    with (
        pytest.warns(ProfileWarning, match="fewer steps"),
        proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p,
    ):
        steps(p, 14)
    (trace,) = (tmp_path / "o" / "trace").iterdir()
    names = [row.get("name") for row in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert [name for name in names if "step" in str(name).lower()] == ["ProfilerStep#13", "unfinished step 14"]


def test_one_profile_inside_another_is_refused(tmp_path: Path) -> None:
    inner = proftrack.profile("inner", output=tmp_path / "i", mlflow=False, **QUIET)
    with proftrack.profile("outer", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        with pytest.raises(CaptureError, match="inner: the profile 'outer' is still open"):
            inner.__enter__()
        steps(p, 15)
    assert p.record is not None
    assert not (tmp_path / "i").exists()


def test_a_profiler_of_the_loops_own_is_refused_while_ours_records(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CPU]), pytest.raises(CaptureError, match="already running"):
        proftrack.profile("e", output=tmp_path / "o", mlflow=False, **QUIET).__enter__()
    with (
        pytest.raises(CaptureError, match="starts a torch profiler of its own"),
        proftrack.profile("e", schedule=SHORT, output=tmp_path / "p", mlflow=False, **QUIET) as p,
    ):
        steps(p, 13)
        with torch_profile(activities=[ProfilerActivity.CPU]):
            pass


def test_our_own_failure_is_a_warning_and_the_loop_goes_on(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.capture import profiling

    def full(*_: object) -> None:
        raise CaptureError("the trace cannot be written (No space left on device)")

    monkeypatch.setattr(profiling, "export", full)
    with pytest.warns(ProfileWarning, match="No space left"), proftrack.profile("e", schedule=SHORT, **QUIET) as p:
        steps(p, 30)
    assert p.error is not None
    (found,) = all_runs()
    assert found.info.status == "FAILED"
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": {"active": 0}}, "e: schedule.active=0 is not allowed"),
        ({"schedule": {"waits": 3}}, "e: unknown key waits in schedule; .* did you mean wait"),
        ({"params": {"n": object()}}, "params.n=.* is not allowed"),
        ({"timing": "fast"}, "timing.mode=fast is not allowed; it must be one of throughput, latency"),
        ({"device": "tpu"}, "device=tpu is not allowed"),
        ({"variant_params": ["m"]}, "unknown parameter m in variant_params; allowed: none"),
        ({"tokens_per_step": 0}, "tokens_per_step=0 is not allowed; it must be a number above 0"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        proftrack.profile("e", **arguments)


def test_a_step_after_the_end_is_refused(tmp_path: Path) -> None:
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **QUIET) as p:
        steps(p, 15)
    with pytest.raises(CaptureError, match=r"step\(\) was called after the profile had ended"):
        p.step()


# ---- what is said, and when ------------------------------------------------------------------------------------------

LOUD: dict[str, Any] = {**QUIET, "quiet": False}


def test_the_verdict_is_there_when_it_is_known_and_printed_when_the_loop_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **LOUD) as p:
        assert (p.record, p.verdict) == (None, None)
        steps(p, 15)
        assert p.record is not None and p.verdict is p.record.verdict
        assert capsys.readouterr().out == ""
        steps(p, 5)
    shown = capsys.readouterr().out
    assert shown.split("\n")[1] == p.verdict.summary[: len(shown.split("\n")[1])] != ""
    assert f"\nReport  {tmp_path / 'o' / 'report.html'}\n        proftrack report {tmp_path / 'o'}  # " in shown
    assert shown.count("Kept    ") == 1


def test_without_with_the_first_step_begins_it_and_the_programs_end_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr("atexit.unregister", at_exit.remove)
    p = proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, **LOUD)
    assert at_exit == []
    steps(p, 15)  # the whole schedule: the step that began it counts
    assert p.record is not None and p.record.window.step_names == ["ProfilerStep#13", "ProfilerStep#14"]
    assert capsys.readouterr().out == ""
    (end,) = at_exit
    end()
    assert at_exit == []  # said once
    assert capsys.readouterr().out.count("Kept    ") == 1


def test_a_program_that_died_leaves_a_failed_run(
    store_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = proftrack.profile("e", schedule=SHORT, **LOUD)
    assert isinstance(p, Profile)
    steps(p, 5)
    monkeypatch.setattr(sys, "last_value", ZeroDivisionError("division by zero"), raising=False)
    p._program_ends()
    assert [run.info.status for run in all_runs()] == ["FAILED"]
    assert (p.record, p.verdict, capsys.readouterr().out) == (None, None, "")


def test_an_error_from_before_is_none_of_the_programs_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt keeps the last one of the whole session."""
    monkeypatch.setattr(sys, "last_value", NameError("foo"), raising=False)
    p = proftrack.profile("e", schedule=SHORT, output=tmp_path / "o", mlflow=False, quiet=True)
    assert isinstance(p, Profile)
    steps(p, 14)
    with pytest.warns(ProfileWarning):  # one step is missing
        p._program_ends()
    assert p.error is None and p.record is not None


def test_switched_off_there_is_no_verdict() -> None:
    assert proftrack.profile("e", enabled=False).verdict is None


def test_importing_proftrack_imports_nothing_heavy() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import proftrack; proftrack.profile('e', enabled=False)\n"
        "print(sorted({'torch', 'mlflow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
