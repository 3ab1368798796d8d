"""What marking module calls costs: recorded steps with marks over recorded steps without, in turns in one process.

    python benchmarks/module_marks_cost.py [--device auto] [--pairs 12] [--case small ...]

Training steps of experiments/llm.py, small ones that the host holds back and large ones. Prints for each: the ratio of
the recorded steps' times and the time per marked call; steps without a profiler after all marks were taken away, over
such steps before any was put on; the size of the compressed trace; and the time to put the marks on and to take them
away. Medians over the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "profiling"))

from proftrack import experiment  # noqa: E402
from proftrack.capture import measurement, profiling  # noqa: E402
from proftrack.capture.device import Device, open_device  # noqa: E402
from proftrack.capture.marks import marked  # noqa: E402
from proftrack.capture.trace_file import export  # noqa: E402
from proftrack.experiment import workload  # noqa: E402
from proftrack.report.progress import Silent  # noqa: E402

STEPS = 3
CASES = {
    "small": {"phase": "train", "layers": "4", "hidden": "128", "tokens": "32"},
    "large": {"phase": "train", "layers": "16", "hidden": "2048", "heads": "16", "tokens": "1024", "batch": "4"},
    "large on a CPU": {"phase": "train", "layers": "4", "hidden": "512", "heads": "8", "tokens": "64"},
}


def timed(step: Callable[[], Any], device: Device) -> float:
    """Seconds a step."""
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    device.synchronize()
    return (time.perf_counter() - begin) / STEPS


def recorded_size(step: Callable[[], Any], device: Device, trace: Path) -> int:
    """Bytes of a compressed trace of some steps."""
    with _recording(device) as profiler:
        timed(step, device)
    export(profiler.export_chrome_trace, trace)
    return trace.stat().st_size


def _recording(device: Device) -> Any:
    from torch.profiler import profile

    return profile(activities=device.activities(), record_shapes=True)


def calls_of(step: Callable[[], Any], device: Device) -> int:
    """How many calls of a step are marked."""
    with marked(step), _recording(device) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sum(str(event.get("name", "")).startswith("nn.Module: ") for event in events)


def measure(name: str, bench: measurement.ReadyDevice, pairs: int) -> None:
    """Print the figures of one case."""
    case = experiment.load(str(HERE.parent / "experiments" / "llm.yaml"), CASES[name])
    ratios, added, on, off = [], [], [], []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(profiling.quiet())
        subject = stack.enter_context(measurement.opened(workload.load(case), case, bench, Silent()))
        step, device = subject.step, bench.device
        calls = calls_of(step, device)
        before = statistics.median(timed(step, device) for _ in range(pairs))
        with _recording(device):  # one session: to start and stop it takes longer than the steps
            timed(step, device)
            for pair in range(pairs):
                times: dict[bool, float] = {}
                for with_marks in (bool(pair % 2), not pair % 2):
                    if not with_marks:
                        times[False] = timed(step, device)
                        continue
                    marks = marked(step)
                    begin = time.perf_counter()
                    marks.__enter__()
                    on.append(time.perf_counter() - begin)
                    step()
                    times[True] = timed(step, device)
                    begin = time.perf_counter()
                    marks.__exit__(None, None, None)
                    off.append(time.perf_counter() - begin)
                    step()
                ratios.append(times[True] / times[False])
                added.append((times[True] - times[False]) / calls * 1e6)
        after = statistics.median(timed(step, device) for _ in range(pairs)) / before
        plain = recorded_size(step, device, folder / "plain.json.gz")
        with marked(step):
            larger = recorded_size(step, device, folder / "marked.json.gz") / plain
    print(
        f"{name}: {calls} calls a step; recorded step with marks over without {statistics.median(ratios):.3f} "
        f"({statistics.median(added):.1f} us a call, {pairs} pairs); not recorded, after over before "
        f"{after:.3f}; trace {larger:.3f} times as large; "
        f"put on in {statistics.median(on):.2f} s, taken away in {statistics.median(off):.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--case", action="append", choices=CASES)
    options = parser.parse_args()
    device, notes = open_device(options.device)
    bench = measurement.ready(device, notes, Silent(), calibrate=False)
    for name in options.case or ["small", "large" if device.is_gpu else "large on a CPU"]:
        measure(name, bench, options.pairs)


if __name__ == "__main__":
    main()
