"""`proftrack analyze` compared with other readers, on the same file and in one run: ratios of time and peak memory.

    python benchmarks/bench_analyze.py [TRACE] [--hta-python PYTHON] [--repeats 3] [--growth 10]

TRACE: your own trace (default: a generated one with the structure that torch writes). It is compared with

- json.load(gzip.open(TRACE)): what a plain Python reader costs before it has done anything,
- HolisticTraceAnalysis (pip install HolisticTraceAnalysis, in a separate environment: --hta-python): temporal, idle
  time and kernel breakdown; left out if it is not installed,
- torch's key_averages() on a profile recorded here, as the cost per event.

Every reader runs in its own process, and its start is included. Growth: the same trace ten times over (times and ids
shifted).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "profiling"

JSON_LOAD = "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"
HTA = """
import shutil, sys, tempfile, logging, contextlib, io
from pathlib import Path
with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
    shutil.copy(sys.argv[1], folder + "/rank-0.json.gz")
    from hta.trace_analysis import TraceAnalysis
    t = TraceAnalysis(trace_files={0: folder + "/rank-0.json.gz"}, trace_dir=folder)
    t.get_temporal_breakdown(visualize=False)
    t.get_idle_time_breakdown(visualize=False)
    t.get_gpu_kernel_breakdown(visualize=False)
"""
KEY_AVERAGES = """
import sys, time, torch
from torch.profiler import profile, ProfilerActivity
x = torch.ones(8)
with profile(activities=[ProfilerActivity.CPU]) as p:
    for _ in range(20000):
        torch.add(x, x)
begin = time.perf_counter(); p.key_averages()
print("US_AN_EVENT", (time.perf_counter() - begin) / len(p.events()) * 1e6)
"""


class Cost(NamedTuple):
    """Median seconds and peak megabytes of a command."""

    seconds: float
    megabytes: float


def measured(command: list[str], repeats: int) -> Cost | None:
    seconds, peaks = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            return None
        seconds.append(time.perf_counter() - begin)
        peaks.append(usage.ru_maxrss / 1024)
    return Cost(statistics.median(seconds), max(peaks))


def environment() -> dict[str, str]:
    """Ours from its sources; their bytecode is kept, as an installation would have it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(SOURCE), "KINETO_LOG_LEVEL": "6"}


def made_up(path: Path, steps: int = 40, operators: int = 800) -> None:
    """A trace as torch writes it: operators that launch a kernel each."""
    events: list[dict[str, Any]] = []
    ts, correlation = 5_000_000_000_000.0, 0
    for step in range(steps):
        begin = ts
        for _ in range(operators):
            correlation += 1
            host = {"pid": 9, "tid": 9}
            args = {"External id": correlation, "Record function id": 0, "Ev Idx": correlation}
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mul", **host, "ts": ts, "dur": 9.123, "args": args},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": ts + 2, "dur": 5.001,
                 "args": {"External id": correlation, "cbid": 211, "correlation": correlation}},
                {"ph": "X", "cat": "kernel", "name": "void at::native::elementwise_kernel<4>", "pid": 0, "tid": 7,
                 "ts": ts + 8, "dur": 2.5, "args": {"External id": correlation, "device": 0, "context": 1, "stream": 7,
                 "correlation": correlation, "registers per thread": 16, "grid": [64, 1, 1], "block": [128, 1, 1]}},
            ]  # fmt: skip
            ts += 10.5
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9, "tid": 9,
                       "ts": begin, "dur": ts - begin, "args": {}})  # fmt: skip
    with gzip.open(path, "wt", compresslevel=4) as file:
        json.dump({"traceEvents": events}, file, indent=1)


def grown(source: Path, target: Path, times: int) -> None:
    """The same events `times` over: shifted in time, with ids and step numbers of their own."""
    with gzip.open(source) as file:
        document = json.load(file)
    events = document["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X" and isinstance(e.get("ts"), (int, float))]
    span = max(e["ts"] + e.get("dur", 0) for e in timed) - min(e["ts"] for e in timed) + 1000
    ids = 1 + max(int(e.get("args", {}).get(k, 0) or 0) for e in timed for k in ("correlation", "External id"))
    document["traceEvents"] = []
    head = json.dumps(document)
    with gzip.open(target, "wt", compresslevel=4) as out:
        out.write(head[: head.index('"traceEvents": [') + len('"traceEvents": [')])
        for copy in range(times):
            for number, event in enumerate(events):
                out.write(",\n" if copy or number else "\n")
                out.write(json.dumps(shifted(event, copy, span, ids)))
        out.write(head[head.index('"traceEvents": [') + len('"traceEvents": [') :])


def shifted(event: dict[str, Any], copy: int, span: float, ids: int) -> dict[str, Any]:
    if not copy or "ts" not in event:
        return event
    out = {**event, "ts": round(event["ts"] + copy * span, 3)}
    if "id" in event:
        out["id"] = event["id"] + copy * ids
    args = event.get("args")
    if isinstance(args, dict):
        out["args"] = {k: v + copy * ids if k in ("correlation", "External id") else v for k, v in args.items()}
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        out["name"] = f"ProfilerStep#{int(event['name'].split('#')[1]) + 1000 * copy}"
    return out


def compare(trace: Path, hta_python: str, repeats: int) -> Cost:
    ours = measured([sys.executable, "-m", "proftrack", "analyze", str(trace), "--json", "-"], repeats)
    if ours is None:
        raise SystemExit(f"proftrack cannot read {trace}")
    plain = measured([sys.executable, "-c", JSON_LOAD, str(trace)], repeats)
    hta = measured([hta_python, "-c", HTA, str(trace)], 1)
    print(f"{'':<28}{'time, proftrack = 1':>22}{'peak memory, proftrack = 1':>30}")
    print(f"{'proftrack analyze --json':<28}{1:>22.2f}{1:>30.2f}   ({ours.seconds:.2f} s, {ours.megabytes:.0f} MB)")
    for name, cost in (("json.load(gzip.open())", plain), ("HTA, three breakdowns", hta)):
        if cost is None:
            print(f"{name:<28}{'not installed':>22}")
        else:
            print(f"{name:<28}{cost.seconds / ours.seconds:>22.2f}{cost.megabytes / ours.megabytes:>30.2f}")
    return ours


def price_of_key_averages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEY_AVERAGES], capture_output=True, text=True, env=environment(), check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("US_AN_EVENT"):
            print(f"torch key_averages(): {float(line.split()[1]):.1f} us an event")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--hta-python", default=sys.executable, help="a Python with HolisticTraceAnalysis installed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace
        if trace is None:
            trace = Path(folder) / "made_up.json.gz"
            made_up(trace)
        ours = compare(trace, options.hta_python, options.repeats)
        events = subprocess.run(
            [sys.executable, "-m", "proftrack", "analyze", str(trace), "--json", "-"],
            capture_output=True, env=environment(), check=True,
        )  # fmt: skip
        count = json.loads(events.stdout)["source"]["files"][0]["events"]
        print(f"proftrack: {ours.seconds / count * 1e6:.1f} us an event, its start included ({count} events)")
        price_of_key_averages()
        if options.growth > 1:
            large = Path(folder) / "grown.json.gz"
            grown(trace, large, options.growth)
            cost = measured([sys.executable, "-m", "proftrack", "analyze", str(large), "--json", "-"], 1)
            if cost is None:
                raise SystemExit("proftrack cannot read the grown trace")
            print(
                f"growth: {options.growth}x the events take {cost.seconds / ours.seconds:.1f}x the time, "
                f"{cost.megabytes:.0f} MB at most"
            )


if __name__ == "__main__":
    main()
