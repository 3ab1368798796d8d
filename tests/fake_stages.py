"""Calls for the workers of a sweep that need no torch. What each process was asked is in the file $FAKE_STAGES.

n=11 ends its process while it is timed, n=12 while it is profiled, n=13 is refused, n=14 has compiled something, n=15
leaves a device that does not answer, n=16 takes long.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from run_folders import make_record, write_folder

from proftrack import experiment
from proftrack.capture.result import Capture
from proftrack.errors import ProftrackError
from proftrack.frontends.batch.worker import Spent
from proftrack.frontends.sweep.stages import (
    Captured,
    Done,
    PointSpec,
    Start,
    Started,
    Timings,
    ToMeasure,
    ToProfile,
    ToTime,
    ToWrite,
)
from proftrack.record.environment import Environment


def start(asked: Start) -> Started:
    if asked.device == "none":
        raise ProftrackError("there is no device none")
    return Started(is_gpu=asked.device == "gpu")


def start_writing(asked: Start) -> Started:
    return Started(is_gpu=False)


def time_point(asked: ToTime) -> Timings:
    n = _said("time", asked.spec)
    print(f"timing {n}")
    if n == 11:
        print("a core dump")
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 13:
        raise ProftrackError('n=13 took "12" s')
    if n == 14:
        return Timings(own_process="its steps are compiled")
    if n == 15:
        raise Spent("CUDA error: an illegal memory access was encountered")
    if n == 16:
        time.sleep(600)
    return Timings(started_ns=n)


def profile_point(asked: ToProfile) -> Captured:
    if _said("profile", asked.spec) == 12:
        sys.exit(12)
    started = asked.timings.started_ns
    capture = Capture(
        experiment=experiment.described(
            {"name": "small", "workload": "w.py:build", "params": {"n": int(asked.spec.overrides["n"])}}, Path("w.py")
        ),
        timing=None,
        cycles=[],
        peak_memory_bytes=None,
        started_ns=started,
        ended_ns=started,
        device="cpu",
    )
    return Captured(capture, Environment())


def write_point(asked: ToWrite) -> Done:
    capture = asked.captured.capture
    _say("keep", capture.experiment.params["n"])
    return _written(asked.folder, capture.started_ns)


def measure_point(asked: ToMeasure) -> Done:
    return _written(asked.folder, _said("measure", asked.spec))


def bug(asked: Start) -> Started:
    raise KeyError("n")


def pipes(asked: Start) -> Started:
    print("printed")
    os.system("echo by a child")
    return Started(is_gpu=sys.stdin.read() == "")


def _said(what: str, spec: PointSpec) -> int:
    n = int(spec.overrides["n"])
    _say(what, n)
    return n


def _say(what: str, n: int) -> None:
    with Path(os.environ["FAKE_STAGES"]).open("a") as file:
        file.write(f"{what} {n} {os.getpid()}\n")


def _written(folder: Path, n: int) -> Done:
    record = make_record()
    assert record.run is not None
    run = msgspec.structs.replace(record.run, started_ns=n, params={"n": n})
    write_folder(folder, msgspec.structs.replace(record, run=run))
    return Done()


def fork_and_exit(asked: PointSpec) -> Started:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    Path(asked.reference).write_text(str(child))
    os._exit(3)
