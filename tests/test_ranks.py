"""Runs of several ranks: in step, one folder, one run, and an end within a minute whatever happens to one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import PATIENCE_S
from stores import mlflow_runs

from proftrack import process
from proftrack import record as records
from proftrack.capture import lockstep, timing
from proftrack.errors import CaptureError, WorkloadError
from proftrack.experiment import TimingOptions
from proftrack.frontends import distributed as teams
from proftrack.frontends.distributed import Team, join_team
from proftrack.record.timing import Timing
from proftrack.signals import Interrupted
from proftrack.store import connect

torch = pytest.importorskip("torch")


class Shared:
    """torchrun's store, within one process."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text

    def has(self, key: str) -> bool:
        return key in self.texts

    def count(self, key: str) -> int:
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key]

    def wait(self, key: str, look: Callable[[], None], timeout_s: float) -> bool:
        if key not in self.texts:
            look()
        return key in self.texts

    def get(self, key: str, look: Callable[[], None], timeout_s: float) -> str:
        if not self.wait(key, look, timeout_s):
            raise CaptureError("nobody will ever put it there")
        return self.texts[key]


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> list[Team]:
    """Three ranks, all of this process: none of them is ever dead unless a test says so."""
    monkeypatch.setattr(teams, "_REPORT_S", 0.0)
    shared: Any = Shared()
    return [Team(rank, 3, rank, shared, shared) for rank in range(3)]


# ---- in step ---------------------------------------------------------------------------------------------------------


def test_rank_0s_figure_is_everybodys(team: list[Team]) -> None:
    assert team[0].agree(1.5) == 1.5
    assert [team[1].agree(9.0), team[2].agree(7.0)] == [1.5, 1.5]
    assert team[0].agree(2.5) == 2.5
    assert team[1].agree(0.0) == 2.5


class Device:
    is_gpu = False

    def synchronize(self) -> None:
        pass


class Agreed:
    """Rank 0's durations, as they were: blocks of 10 ms a step."""

    rank = 1

    def agree(self, seconds: float) -> float:
        return self.steps * 0.01

    steps = 0


def test_other_ranks_run_as_many_steps_as_rank_0_whatever_they_take_themselves() -> None:
    """Rank 0's steps take 10 ms; here they take nothing. Both run what 10 ms steps are run."""

    class Counted(lockstep.PacedStopwatch):
        def block(self, steps: int) -> float:
            agreed.steps = steps
            return super().block(steps)

    agreed: Any = Agreed()
    ran = []
    watch = Counted(lambda: ran.append(1), Device(), agreed)  # type: ignore[arg-type]
    warm = timing.warm_up(watch, timing.CPU_WARM_UP)
    # A block of one step, then of two: 20 ms are long enough; four blocks that agree; 0.1 s are over.
    assert (warm.steps, warm.settled) == (1 + 2 * 5, True)
    found, _ = timing.time_steps(watch, TimingOptions(), warm.step_seconds)
    assert (found.steps_per_block, len(found.block_step_times_us)) == (10, 10)
    assert found.step_time_us == pytest.approx(10_000)
    own = watch.own_timing(found)
    assert len(own.block_step_times_us) == 10 and len(own.step_latencies_us) == len(found.step_latencies_us)
    assert 0 < own.step_time_us < 1000
    assert len(ran) == warm.steps + 100 + len(found.step_latencies_us)


def test_own_timing_takes_the_last_blocks() -> None:
    watch = lockstep.PacedStopwatch(lambda: None, Device(), Agreed())  # type: ignore[arg-type]
    watch.own = [9.0, 0.2, 0.4, 0.05, 0.06, 0.07]  # a warm-up, two blocks of two steps, three single steps
    agreed = Timing(
        mode="throughput",
        step_time_us=1.0,
        step_latency_us=1.0,
        step_time_p95_us=1.0,
        steps_per_block=2,
        block_step_times_us=[1.0, 1.0],
        step_latencies_us=[1.0, 1.0, 1.0],
        input_wait_us=1.0,
        block_input_waits_us=[3.0, 500.0],
        latency_input_waits_us=[4.0, 5.0, 6.0],
        batches_ahead=8,
    )
    own = watch.own_timing(agreed)
    assert own.block_input_waits_us == [3.0, 500.0] and own.latency_input_waits_us == [4.0, 5.0, 6.0]
    assert (own.input_wait_us, own.batches_ahead) == (3.0, 8)  # of its own median, between its two blocks
    assert own.block_step_times_us == [100_000.0, 200_000.0]
    assert own.step_latencies_us == pytest.approx([50_000.0, 60_000.0, 70_000.0])
    assert (own.step_time_us, own.step_latency_us) == (150_000.0, pytest.approx(60_000.0))


def test_one_rank_of_each_machine_measures_first(team: list[Team]) -> None:
    waited: list[str] = []
    shared: Any = team[0]._exchange
    shared.wait = lambda key, *_: waited.append(key) or key in shared.texts  # type: ignore[func-returns-value]
    with team[0].in_turn("ceilings"):
        assert not any(key.startswith("turn/") for key in shared.texts)
    with team[1].in_turn("ceilings"):
        pass
    assert [key in shared.texts for key in waited] == [True]


def test_a_loop_is_compared_over_the_ranks_that_profile_it() -> None:
    """`enabled=rank == 0` is common, and nobody may wait for the others."""
    shared: Any = Shared()
    first = Team(0, 3, 0, shared, shared)
    assert first.wait_for_others(joined=True) == []
    second = Team(1, 3, 1, shared, shared)
    second.done()
    assert first.wait_for_others(joined=True) == [1]
    with pytest.raises(CaptureError, match="nobody will"):
        first.wait_for_others()
    second.need_first()


def test_a_loop_that_rank_0_does_not_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = Shared()
    with pytest.raises(CaptureError, match="rank 1 profiles and rank 0 does not"):
        Team(1, 2, 1, shared, shared).need_first()


def test_the_folder_must_be_one_that_all_can_see(team: list[Team], tmp_path: Path) -> None:
    team[0].announce(tmp_path, "run")
    assert team[1].place() == (tmp_path, "run")
    (tmp_path / "ranks").rmdir()
    with pytest.raises(CaptureError, match=r"rank 1 .* cannot see .*give --output a folder that all machines share"):
        team[1].place()


# ---- failures --------------------------------------------------------------------------------------------------------


def test_what_went_wrong_first_is_what_is_told(team: list[Team]) -> None:
    assert [each.failure() for each in team] == [None, None, None]
    team[2].fail(WorkloadError("w.py: the step raised ZeroDivisionError: division by zero"))
    team[0].fail(WorkloadError("w.py: the step raised ValueError: later"))
    said = str(team[1].failure())
    assert said == "rank 2 failed: w.py: the step raised ZeroDivisionError: division by zero"
    assert str(team[0].failure()) == said
    assert team[2].failure() is None  # its own error is the one to tell
    assert team[0].is_gone() and team[1].is_gone()


@pytest.mark.parametrize(
    "consequence",
    [
        WorkloadError("the step raised RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        WorkloadError("the step raised DistBackendError: NCCL error"),
        Interrupted("SIGTERM", 143),
    ],
)
def test_a_consequence_said_first_is_not_the_cause(team: list[Team], consequence: BaseException) -> None:
    team[0].fail(consequence)
    team[1].fail(WorkloadError("the step raised KeyError: 'loss'"))
    assert str(team[0].failure()) == "rank 1 failed: the step raised KeyError: 'loss'"
    assert str(team[2].failure()) == "rank 1 failed: the step raised KeyError: 'loss'"


def test_an_interruption_of_all_is_nobodys_failure(team: list[Team]) -> None:
    for each in team:
        each.fail(Interrupted("SIGINT", 130))
    assert [each.failure() for each in team] == [None, None, None]


def test_a_rank_that_is_gone_without_a_word(team: list[Team], monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {2}

    def is_dead(member: process.Process, here: process.Process) -> bool:
        return asked.pop() in dead

    asked: list[int] = []
    real = Team._is_dead

    def watched(self: Team, rank: int) -> bool:
        asked.append(rank)
        found = real(self, rank)
        asked.clear()
        return found

    monkeypatch.setattr(process, "is_dead", is_dead)
    monkeypatch.setattr(Team, "_is_dead", watched)
    team[0].fail(WorkloadError("Connection closed by peer"))
    assert f"rank 2 (process {os.getpid()} on" in str(team[0].failure())
    assert "ended without reporting an error: killed or crashed" in str(team[1].failure())
    team[2].done()  # one that has done its part may end
    assert team[1].failure() is not None  # what rank 0 said is left
    dead.add(0)
    assert (team[1].leads_now(), team[2].leads_now()) == (True, False)


def test_alone_there_is_no_team_and_without_torchrun_none_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_team() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(CaptureError, match="WORLD_SIZE is 2, but this process was not started by torchrun"):
        join_team()


# ---- real ranks, with gloo -------------------------------------------------------------------------------------------

WORKLOAD = """\
import contextlib, os, signal, time
import torch
import torch.distributed as dist

@contextlib.contextmanager
def build(device, fails, at):
    dist.init_process_group("gloo")
    rank, x, steps = dist.get_rank(), torch.ones(8), []

    def step():
        steps.append(1)
        if rank == int(fails[-1]) and len(steps) == at:
            if fails.startswith("raise"): raise ValueError("no luck")
            os.kill(os.getpid(), signal.SIGKILL)
        y = x * 2
        dist.all_reduce(y)
        return y

    try:
        yield step
    finally:
        dist.destroy_process_group()
"""


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs two ranks of WORKLOAD."""
    (tmp_path / "w.py").write_text(WORKLOAD)
    (tmp_path / "e.yaml").write_text(
        "name: e\nworkload: w.py:build\ndevice: cpu\nparams: {fails: never-9, at: 20}\n"
        "timing: {min_steps: 5, min_seconds: 0.05, max_seconds: 5}\n"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        root = Path(records.__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.run(
            [*command, "-m", "proftrack", "run", str(tmp_path / "e.yaml"), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    return run


@pytest.mark.slow
def test_two_ranks_are_one_run_with_both_in_it(torchrun: Any, store_uri: str, tmp_path: Path) -> None:
    done = torchrun()
    assert done.returncode == 0, done.stderr
    (run,) = mlflow_runs()
    assert (run.info.status, run.data.params["experiment"]) == ("FINISHED", "e")
    client = connect.connect(connect.resolve())
    names = [item.path for item in client.list_artifacts(run.info.run_id, "trace")]
    assert sorted(names) == [f"trace/e.cycle1.rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    assert [item.path for item in client.list_artifacts(run.info.run_id, "ranks")] == ["ranks/1.record.json"]
    summary = json.loads(Path(client.download_artifacts(run.info.run_id, "ranks.json", str(tmp_path))).read_text())
    assert [each["rank"] for each in summary["ranks"]] == [0, 1]
    assert all(each["step_time_us"] > 0 and each["communication_us"] > 0 for each in summary["ranks"])
    # By noise the ranks may differ by less than 5 %.
    assert summary["slowest_rank"] in (0, 1, None) and summary["spread"] >= 0
    other = records.load(Path(client.download_artifacts(run.info.run_id, "ranks/1.record.json", str(tmp_path))))
    own = records.load(Path(client.download_artifacts(run.info.run_id, "record.json", str(tmp_path))))
    assert own.timing is not None and other.timing is not None and own.run is not None
    # Equally many steps, each timed by its own clock.
    assert own.timing.steps_per_block == other.timing.steps_per_block
    assert own.timing.warmup_steps == other.timing.warmup_steps
    assert own.timing.block_step_times_us != other.timing.block_step_times_us
    assert "One of 2 ranks; the figures are those of rank 0." in own.run.notes
    assert done.stdout.count("Run     ") == 1
    assert not (tmp_path / "proftrack-runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("raise-1", "rank 1 failed: e: {phase}: the step raised ValueError: no luck"),
        ("kill-1", "rank 1 (process {pid} on {host}) ended without reporting an error: killed or crashed"),
        ("kill-0", "rank 0 (process {pid} on {host}) ended without reporting an error: killed or crashed"),
    ],
)
def test_when_a_rank_fails_the_run_is_failed_and_says_which(
    torchrun: Any, store_uri: str, fails: str, words: str
) -> None:
    done = torchrun("-P", f"fails={fails}")
    assert done.returncode != 0
    (run,) = mlflow_runs()
    assert run.info.status == "FAILED"
    error = run.data.tags["proftrack.error"]
    before, _, after = words.partition("{pid}" if "{pid}" in words else "{phase}")
    assert error.startswith(before), error
    assert error.endswith(after.partition("}")[2] or after), error
    assert run.data.metrics == {}


@pytest.mark.slow
def test_a_loop_of_the_users_own_on_two_ranks_is_one_run(store_uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "import proftrack\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(4)\n"
        "schedule = {'wait': 12, 'warmup': 1, 'active': 2}\n"
        "with proftrack.profile('mine', schedule=schedule, device='cpu', calibrate=False, quiet=True) as p:\n"
        "    for _ in range(20):\n"
        "        dist.all_reduce(x * 2)\n"
        "        p.step()\n"
        "line = f'rank {dist.get_rank()} {p.record.window.steps} {p.error}\\n'\n"
        "os.write(1, line.encode())\n"
        "dist.barrier()\n"
        # torch 2.13 with gloo can abort in a process that has profiled, when it exits: two of eight did without us.
        "os._exit(0)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(records.__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 2 None",
        "rank 1 2 None",
    ]
    (run,) = mlflow_runs()
    assert run.info.status == "FINISHED"
    client = connect.connect(connect.resolve())
    assert len(client.list_artifacts(run.info.run_id, "trace")) == 2
    assert not (tmp_path / "proftrack-runs").exists()
