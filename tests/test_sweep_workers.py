"""The processes of a sweep: what each is asked and in which order, how one that dies is replaced, how all end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_stages
import psutil
import pytest

from proftrack import experiment
from proftrack.errors import ProftrackError
from proftrack.frontends.batch.worker import Worker
from proftrack.frontends.sweep import stages
from proftrack.frontends.sweep.measuring import Measured, Measuring, Request
from proftrack.frontends.sweep.stages import PointSpec, Start, Started
from proftrack.report.progress import Silent

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and sessions as POSIX has them")

HERE = Path(__file__).parent


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stages are fake ones; what they were asked, line by line."""
    for name in ("start", "start_writing", "time_point", "profile_point", "write_point", "measure_point"):
        monkeypatch.setattr(stages, name, getattr(fake_stages, name))
    paths = [str(HERE), str(HERE.parent / "profiling"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("FAKE_STAGES", str(tmp_path / "said"))
    return tmp_path / "said"


@pytest.fixture
def worker(said: Path) -> Iterator[Worker]:
    found = Worker()
    yield found
    found.end()


def small(folder: Path, device: str = "cpu", compile: str = "none") -> experiment.Experiment:
    path = folder / "small.yaml"
    path.write_text(f"workload: small.py:build\ndevice: cpu\nparams: {{n: 1, compile: {compile}}}\n")
    import msgspec

    return msgspec.structs.replace(experiment.load(str(path)), device=device)


def requests(folder: Path, *sizes: int, compile: str = "none") -> list[Request]:
    return [
        Request(
            key=str(n),
            experiment=small(folder, compile=compile),
            spec=PointSpec("small", {"n": str(n)}),
            folder=folder / "points" / str(n),
            log=folder / "logs" / f"{n}.txt",
            text=f"n={n}",
        )
        for n in sizes
    ]


def measure(folder: Path, *sizes: int, device: str = "cpu", isolate: bool = False) -> list[Measured]:
    with Measuring(small(folder, device), isolate=isolate, phase=Silent().phase) as measurer:
        return list(measurer.measure(requests(folder, *sizes)))


def calls(said: Path) -> list[str]:
    """`time 1`, in order."""
    return [" ".join(line.split()[:2]) for line in said.read_text().splitlines()]


def processes(said: Path, what: str) -> list[int]:
    return [int(line.split()[2]) for line in said.read_text().splitlines() if line.startswith(f"{what} ")]


def sizes(done: list[Measured]) -> list[int]:
    return [each.record.run.params["n"] for each in done if each.record is not None and each.record.run is not None]


def is_gone(pid: int) -> bool:
    """Also where nobody has waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- one worker ------------------------------------------------------------------------------------------------------


def test_a_call_has_its_own_log_and_no_part_in_the_answers(worker: Worker, tmp_path: Path) -> None:
    """Nor has a process that it starts; its stdin is empty. The second call's log goes on behind the first's."""
    for _ in range(2):
        assert worker.call(fake_stages.pipes, Start("cpu", False), Started, tmp_path / "logs" / "a.txt").is_gpu
    lines = (tmp_path / "logs" / "a.txt").read_text().split("\n")
    assert sorted(lines) == ["", "by a child", "by a child", "printed", "printed"]


def test_a_bug_is_a_sentence_and_its_traceback_is_in_the_log(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(ProftrackError, match=r"^KeyError: 'n' \(a bug in proftrack; the log has the traceback\)$"):
        worker.call(fake_stages.bug, Start("cpu", False), Started, tmp_path / "a.txt")
    assert "Traceback" in (tmp_path / "a.txt").read_text()
    assert not worker.is_usable


def test_a_child_that_outlives_its_worker_keeps_nobody_waiting(worker: Worker, tmp_path: Path) -> None:
    """A forked one has the answers' pipe open. It ends with the worker's session."""
    children = tmp_path / "children"
    with pytest.raises(ProftrackError, match="the process ended with exit code 3"):
        worker.call(fake_stages.fork_and_exit, PointSpec(str(children), {}), Started)
    child = int(children.read_text())
    wait_until(lambda: is_gone(child))


# ---- who does what ---------------------------------------------------------------------------------------------------


def test_all_points_are_timed_before_any_is_profiled_and_never_in_a_process_that_has(
    said: Path, tmp_path: Path
) -> None:
    with Measuring(small(tmp_path), isolate=False, phase=Silent().phase) as measurer:
        first = list(measurer.measure(requests(tmp_path, 1, 2)))
        later = list(measurer.measure(requests(tmp_path, 3)))
    assert sizes(first) == [1, 2] and sizes(later) == [3]
    assert calls(said) == [
        *("time 1", "time 2", "profile 1", "keep 1", "profile 2", "keep 2"),
        *("time 3", "profile 3", "keep 3"),
    ]
    timers, profilers = set(processes(said, "time")), set(processes(said, "profile"))
    assert len(timers) == len(profilers) == 1 and timers != profilers
    assert not any(psutil.pid_exists(pid) for pid in timers | profilers)


def test_on_a_gpu_a_point_is_kept_while_the_next_is_profiled(said: Path, tmp_path: Path) -> None:
    """It is asked for before the first is kept; nothing is timed meanwhile."""
    assert sizes(measure(tmp_path, 1, 2, 3, device="gpu")) == [1, 2, 3]
    order = calls(said)
    assert order[:4] == ["time 1", "time 2", "time 3", "profile 1"]
    assert sorted(order[4:]) == ["keep 1", "keep 2", "keep 3", "profile 2", "profile 3"]


def test_isolated_points_have_a_process_each(said: Path, tmp_path: Path) -> None:
    assert sizes(measure(tmp_path, 1, 2, isolate=True)) == [1, 2]
    assert calls(said) == ["measure 1", "measure 2"]
    assert len(set(processes(said, "measure"))) == 2


def test_compiled_points_have_a_process_each_and_are_not_tried_in_the_shared_one(said: Path, tmp_path: Path) -> None:
    with Measuring(small(tmp_path), isolate=False, phase=Silent().phase) as measurer:
        assert sizes(list(measurer.measure(requests(tmp_path, 1, compile="default")))) == [1]
    assert calls(said) == ["measure 1"]


def test_a_point_that_turns_out_to_compile_and_those_behind_it_have_a_process_each(said: Path, tmp_path: Path) -> None:
    assert sizes(measure(tmp_path, 1, 14, 2)) == [1, 14, 2]
    assert calls(said) == ["time 1", "time 14", "profile 1", "keep 1", "measure 14", "measure 2"]


# ---- what dies -------------------------------------------------------------------------------------------------------


def test_what_dies_or_fails_loses_no_other_point(said: Path, tmp_path: Path) -> None:
    done = measure(tmp_path, 1, 11, 12, 13, 15, 2)
    assert sizes(done) == [1, 2]
    assert {each.request.key: each.error for each in done if each.error} == {
        "11": "the process was ended by SIGKILL, perhaps because memory ran out: a core dump",
        "12": "the process ended with exit code 12",
        "13": 'n=13 took "12" s',
        "15": "CUDA error: an illegal memory access was encountered",
    }
    one, eleven, twelve, thirteen, fifteen, two = processes(said, "time")
    assert one == eleven, "one process for all"
    assert twelve == thirteen == fifteen != eleven, "a new one for the one that died; a refusal costs none"
    assert two != fifteen, "the device does not answer any more"
    first, twelfth, last = processes(said, "profile")
    assert first == twelfth != last


def test_what_cannot_start_is_not_tried_for_every_point(said: Path, tmp_path: Path) -> None:
    done = measure(tmp_path, 1, 2, device="none")
    assert [each.error for each in done] == ["there is no device none"] * 2
    assert not said.exists()


# ---- how all end -----------------------------------------------------------------------------------------------------


def test_an_interruption_ends_all_at_once(said: Path, tmp_path: Path) -> None:
    """While one is at a step that takes minutes; what was done is kept."""

    def interrupt() -> None:
        wait_until(lambda: said.exists() and "time 16" in said.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, 16)
    assert not psutil.pid_exists(processes(said, "time")[0])


def test_workers_end_with_a_parent_that_was_killed(said: Path, tmp_path: Path) -> None:
    code = (
        "from fake_stages import Timings, ToTime, PointSpec, time_point\n"
        "from proftrack.frontends.batch.worker import Worker\n"
        "worker = Worker(); worker.send(time_point, ToTime(PointSpec('', {'n': '16'}), 0)); worker.receive(Timings)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: said.exists() and said.read_text().endswith("\n"))
    parent.kill()
    parent.wait()
    (pid,) = processes(said, "time")
    wait_until(lambda: is_gone(pid))


def test_leaving_before_the_processes_are_ready_ends_them(said: Path, tmp_path: Path) -> None:
    with Measuring(small(tmp_path), isolate=False, phase=Silent().phase) as measurer:
        measurer.begin(small(tmp_path))
        pids = [role.worker.pid for role in measurer._roles]
    assert len(pids) == 3 and not any(psutil.pid_exists(pid) for pid in pids)
