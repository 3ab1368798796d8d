"""The same program in ten fresh processes: what is said of any two of them must not be that they differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from calls import PATIENCE_S
from programs import as_run
from test_compare_why import _analyzed
from traces import TraceBuilder

from proftrack.compare import Subject, compare
from proftrack.compare.floors import assumed_floor, measured_floor
from proftrack.compare.results import Floor
from proftrack.record import Record

PROCESSES, ROUNDS = 10, 4
PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import numpy as np
from proftrack.capture.timing import Stopwatch, warm_up, time_steps, CPU_WARM_UP
from proftrack.experiment import TimingOptions

class Device:
    def synchronize(self): pass

a = np.random.default_rng(0).normal(size=(96, 96))
watch = Stopwatch(lambda: a @ a, Device())
warm = warm_up(watch, CPU_WARM_UP)
timing, _ = time_steps(watch, TimingOptions(min_steps=10, min_seconds=0.05, max_seconds=2), warm.step_seconds)
print(json.dumps(timing.block_step_times_us))
"""


def blocks(_: int) -> list[float]:
    """Block times of one fresh process, microseconds a step, by the timing that a run has."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    # Threads of an overloaded machine's BLAS wait for each other: a thousand times as long, in some processes.
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=alone)
    return [float(each) for each in json.loads(done.stdout)]


def record(times: list[float]) -> Record:
    """A CPU run's record with these block times."""
    builder = TraceBuilder(sms=None)
    for number in range(2, 5):
        builder.step(number, at=number * 1000, dur=100).op("aten::mm", at=number * 1000 + 5, dur=80)
    median = float(np.median(times))
    found = as_run(_analyzed(builder, step_time_us=median), median)
    assert found.timing is not None
    timing = msgspec.structs.replace(found.timing, block_step_times_us=times, step_time_us=median)
    return msgspec.structs.replace(found, timing=timing)


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    with ThreadPoolExecutor(2) as two_at_once:
        runs = list(two_at_once.map(blocks, range(PROCESSES)))
    return [Subject(record=record(times), label=str(number)) for number, times in enumerate(runs)]


def claims(subjects: list[Subject], noise: dict[str, Floor]) -> int:
    """How many of five disjoint pairs, four times over, are called improved or regressed."""
    words = []
    for turn in range(ROUNDS):
        order = np.random.default_rng(turn).permutation(PROCESSES).reshape(-1, 2)
        words += [compare(subjects[a], subjects[b], noise=noise).word for a, b in order.tolist()]
    assert len(words) == 20
    return sum(word in ("improved", "regressed") for word in words)


def shown(subjects: list[Subject]) -> Floor:
    """The noise that the processes show themselves."""
    floor = measured_floor([[s.record.timing.step_time_us for s in subjects if s.record.timing]])
    assert floor is not None
    return floor


@pytest.mark.slow
def test_with_the_noise_that_the_processes_show(subjects: list[Subject]) -> None:
    assert claims(subjects, {"step_time_us": shown(subjects)}) <= 1


@pytest.mark.slow
def test_with_the_noise_that_is_assumed(subjects: list[Subject]) -> None:
    """A process that gets a third of a processor takes three times as long: then the times differ in truth."""
    assert claims(subjects, {}) <= 1 or shown(subjects).fraction > assumed_floor(None).fraction
