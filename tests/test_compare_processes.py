"""The same program in ten fresh processes: what is said of any two of them must not be that they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from programs import as_run
from test_compare_why import _analyzed
from traces import TraceBuilder

from proftrack.compare import Subject, compare
from proftrack.compare.floors import measured_floor
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
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [float(each) for each in json.loads(done.stdout)]


def record(times: list[float]) -> Record:
    """A CPU run's record with these block times."""
    builder = TraceBuilder(sms=None)
    for number in range(2, 5):
        builder.step(number, at=number * 1000, dur=100).op("aten::mm", at=number * 1000 + 5, dur=80)
    median = float(np.median(times))
    found = as_run(_analyzed(builder, step_time_us=median), median)
    assert found.timing is not None
    import msgspec

    return msgspec.structs.replace(found, timing=msgspec.structs.replace(found.timing, block_step_times_us=times))


@pytest.mark.slow
def test_ten_processes_of_the_same_code() -> None:
    """Five disjoint pairs, four times over: at most one of 20 is called improved or regressed.

    Once with the noise that the ten themselves show, once with what is assumed where nobody knows.
    """
    with ThreadPoolExecutor(2) as two_at_once:
        runs = list(two_at_once.map(blocks, range(PROCESSES)))
    subjects = [Subject(record=record(times), label=str(number)) for number, times in enumerate(runs)]
    floor = measured_floor([[float(np.median(times)) for times in runs]])
    assert floor is not None
    for noise in ({"step_time_us": floor}, {}):
        words = []
        for turn in range(ROUNDS):
            order = np.random.default_rng(turn).permutation(PROCESSES).reshape(-1, 2)
            words += [compare(subjects[a], subjects[b], noise=noise).word for a, b in order.tolist()]
        assert len(words) == 20
        assert sum(word in ("improved", "regressed") for word in words) <= 1, words
