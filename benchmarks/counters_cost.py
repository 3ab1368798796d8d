"""What reading hardware counters and energy costs, and how far energy can be relied on.

    python benchmarks/counters_cost.py [--n 4096] [--pairs 20]     on a machine with an NVIDIA GPU

Prints, for matmul_add of this size: joules per step in six windows; mean power by the energy counter over NVML's
instantaneous power, read every few milliseconds and integrated; and T of steps that are followed by counting over T of
steps that are not, in pairs of alternating order in one process.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "profiling"))

import msgspec  # noqa: E402

from proftrack.capture import measurement  # noqa: E402
from proftrack.capture.counters import Meter, count  # noqa: E402
from proftrack.capture.device import open_device  # noqa: E402
from proftrack.capture.nvml import handle_of  # noqa: E402
from proftrack.capture.timing import GPU_WARM_UP, Stopwatch, warm_up  # noqa: E402
from proftrack.experiment import Experiment, TimingOptions, workload  # noqa: E402
from proftrack.report.progress import Silent  # noqa: E402

WINDOWS, WINDOW_SECONDS, LONG_SECONDS, POLL_SECONDS = 6, 1.0, 3.0, 0.004


def energy(step: Any, device: Any) -> None:
    """Windows of a second, and one against integrated power."""
    watch = Stopwatch(step, device)
    seconds = warm_up(watch, GPU_WARM_UP).step_seconds
    meter = Meter(device)
    try:
        for _ in range(WINDOWS):
            counted = count(watch, meter, seconds, WINDOW_SECONDS)
            if counted is None or counted.energy_joules_per_step is None:
                raise SystemExit(f"nothing was counted: {'; '.join(meter.notes()) or 'proftrack doctor says why'}")
            print(f"{counted.energy_joules_per_step:.6f} J per step, {counted.power_watts:.1f} W")
        readings: list[tuple[float, float]] = []
        over = threading.Event()
        poller = threading.Thread(target=_poll, args=(device, readings, over))
        poller.start()
        try:
            begin = time.perf_counter()
            counted = count(watch, meter, seconds, LONG_SECONDS)
            end = time.perf_counter()
        finally:
            over.set()
            poller.join()
    finally:
        meter.close()
    inside = [(at, watts) for at, watts in readings if end - LONG_SECONDS <= at <= end and at >= begin]
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(inside))
    integrated = joules / (inside[-1][0] - inside[0][0])
    if counted is not None and counted.power_watts is not None:
        print(f"counter over integrated power: {counted.power_watts / integrated:.4f}")


def _poll(device: Any, readings: list[tuple[float, float]], over: threading.Event) -> None:
    import pynvml

    pynvml.nvmlInit()
    handle = handle_of(pynvml, device.torch_device.index)
    while not over.wait(POLL_SECONDS):
        field = pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_POWER_INSTANT, 0)])[0]
        readings.append((time.perf_counter(), field.value.uiVal / 1e3))
    pynvml.nvmlShutdown()


def pairs(subject: measurement.OpenWorkload, number: int) -> None:
    """T with counting over T without."""
    ratios, extra = [], []
    plan = subject.plan
    measurement.time_alone(subject, Silent())
    for i in range(number):
        times: dict[bool, tuple[float, float]] = {}
        for counts in (bool(i % 2), not i % 2):
            subject.plan = msgspec.structs.replace(plan, counters=counts)
            begin = time.perf_counter()
            timed = measurement.time_alone(subject, Silent())
            times[counts] = (timed.timing.step_time_us, time.perf_counter() - begin)
        ratios.append(times[True][0] / times[False][0])
        extra.append(times[True][1] - times[False][1])
    error = statistics.stdev(ratios) / number**0.5
    print(f"T with over T without: {statistics.mean(ratios):.4f} (standard error {error:.4f}, {number} pairs)")
    print(f"counting takes {statistics.median(extra):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    device, notes = open_device("auto")
    if device.type != "cuda":
        raise SystemExit("needs an NVIDIA GPU, and PyTorch sees none")
    experiment = Experiment(
        name="matmul_add",
        path=HERE / "counters_cost.yaml",
        workload="labelled.operators:matmul_add",
        params={"n": options.n},
        timing=TimingOptions(min_steps=10, min_seconds=0.1, max_seconds=1.0),
    )
    bench = measurement.ready(device, notes, Silent(), calibrate=False)
    with measurement.opened(workload.load(experiment), experiment, bench, Silent()) as subject:
        energy(subject.step, device)
        pairs(subject, options.pairs)


if __name__ == "__main__":
    main()
