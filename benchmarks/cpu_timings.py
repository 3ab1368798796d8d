"""Records the input of the CPU verdict for workloads with a known regime, as a test fixture.

    python3 benchmarks/cpu_timings.py --output tests/data/cpu/NAME.json

Each workload runs in a fresh process in each of three settings: one thread, all threads, and all threads next to as
many busy processes as there are cores. The ceilings are measured once in each setting. Needs torch (2.6 or newer),
numpy, msgspec, PyYAML and psutil; no MLflow. Takes two to four minutes."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))

LABELS = {
    "matmul_large": ["compute-bound"],
    "convolution": ["compute-bound"],
    "copy_large": ["memory-bound"],
    "chain_large": ["memory-bound"],
    "product_tiny": ["overhead-bound"],
    "operators_tiny": ["overhead-bound"],
    "training_tiny": ["overhead-bound"],
    "numpy_between": ["host-bound"],
    "sleep_between": ["host-bound"],
    "thread_pool": ["compute-bound"],
    "data_loader": ["host-bound", "input-bound"],
}
"""By workload the regimes that are right; argued from what it does, before it was run."""
SETTINGS = ("one", "all", "loaded")
KEPT = 20
"""Blocks and single steps that a fixture keeps: evenly spaced among the sorted ones."""

WORKLOADS = """
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch


def build(device, case):
    return globals()[case]()


def matmul_large():
    x, w, out = torch.randn(1536, 1536), torch.randn(1536, 1536), torch.empty(1536, 1536)
    return lambda: torch.mm(x, w, out=out)


def convolution():
    layer, x = torch.nn.Conv2d(64, 64, 3, padding=1), torch.randn(8, 64, 56, 56)
    return torch.no_grad()(lambda: layer(x))


def copy_large():
    x, y = torch.ones(1 << 25), torch.empty(1 << 25)
    return lambda: y.copy_(x)


def chain_large():
    x = torch.ones(1 << 24)

    def step():
        y = x
        for _ in range(6):
            y = torch.mul(y, 1.5)
        return y

    return step


def product_tiny():
    x, w, b = torch.randn(16, 16), torch.randn(16, 16), torch.randn(16)
    return lambda: torch.matmul(x, w) + b


def operators_tiny():
    x = torch.ones(16)

    def step():
        for _ in range(200):
            x.add_(1.0)
        return x

    return step


def training_tiny():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    optimizer, x = torch.optim.SGD(model.parameters(), 0.01), torch.randn(4, 16)

    def step():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def numpy_between():
    x, values = torch.ones(16, 16), numpy.random.default_rng(0).random(200_000)

    def step():
        numpy.sort(values)
        return torch.mm(x, x)

    return step


def sleep_between():
    x = torch.ones(16, 16)

    def step():
        time.sleep(0.01)
        return torch.mm(x, x)

    return step


def thread_pool():
    x, pool = torch.randn(768, 768), ThreadPoolExecutor(3)

    def step():
        waiting = [pool.submit(torch.mm, x, x) for _ in range(3)]
        return [each.result() for each in waiting]

    return step


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return torch.tensor(sum(i * i for i in range(2000)) % 7 + index, dtype=torch.float32)


def data_loader():
    batches, w = iter(torch.utils.data.DataLoader(Slow(), batch_size=16)), torch.randn(16, 16)
    return lambda: next(batches) @ w
"""


def main() -> None:
    """Record every workload in every setting; or, as a child of that, one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cases", default=",".join(LABELS), help="comma-separated; all by default")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="comma-separated; all by default")
    parser.add_argument("--threads", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--ceilings", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "ceilings":
        sys.stdout.buffer.write(_ceilings(options.threads))
    elif options.child:
        sys.stdout.buffer.write(_case(options.child, options.threads, options.ceilings))
    elif options.output is None:
        parser.error("--output: name the file to write")
    else:
        _record(options.output, options.cases.split(","), options.settings.split(","))


# ---- the parent


def _record(output: Path, cases: list[str], settings: list[str]) -> None:
    begin, cores = time.time(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores
    ceilings: dict[str, Any] = {}
    recorded: list[dict[str, Any]] = []
    machine = _machine(cores)
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings:
            threads = 1 if setting == "one" else cores
            with _busy_processes(cores if setting == "loaded" else 0):
                ceilings[setting] = json.loads(_child("--child=ceilings", f"--threads={threads}"))
                held = Path(folder) / f"{setting}.json"
                held.write_text(json.dumps(ceilings[setting]))
                for case in cases:
                    text = _child(f"--child={case}", f"--threads={threads}", f"--ceilings={held}")
                    recorded.append({"case": case, "setting": setting, "labels": LABELS[case], **json.loads(text)})
                    _write(output, {"machine": machine, "ceilings": ceilings}, recorded)
                    print(f"{time.time() - begin:5.0f} s  {setting:7}{case}", file=sys.stderr)
    print(f"{output}: {len(recorded)} cases, {output.stat().st_size} bytes", file=sys.stderr)


def _write(output: Path, head: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    """A case on each line. Written anew after each: one that is broken off leaves what there is."""
    output.parent.mkdir(parents=True, exist_ok=True)
    start = json.dumps({**head, "cases": 0}, separators=(",", ":")).removesuffix("0}")
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    output.write_text(f"{start}[\n" + ",\n".join(lines) + "\n]}\n")


def _child(*arguments: str) -> str:
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _machine(cores: int) -> dict[str, Any]:
    from proftrack.capture.environment import cpu_model

    settings = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "cpu": cpu_model(),
        "cores": cores,
        "python": platform.python_version(),
        "torch": _child_torch(),
        "system": platform.system(),
        "variables": {name: os.environ[name] for name in settings if name in os.environ},
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "date": datetime.date.today().isoformat(),
        "command": f"python3 benchmarks/cpu_timings.py {' '.join(sys.argv[1:])}",
    }


def _child_torch() -> str:
    return subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()


# ---- a child


def _ceilings(threads: int) -> bytes:
    import torch

    from proftrack.capture import ceilings
    from proftrack.capture.device import CpuDevice

    torch.set_num_threads(threads)
    return _compact(ceilings.measure(CpuDevice(), ["float32"]))  # all that the workloads use


def _case(case: str, threads: int, ceilings: Path) -> bytes:
    """Run one workload as `proftrack run` does, and keep what its verdict looks at."""
    import torch

    from proftrack import experiment
    from proftrack.capture import capture, measurement
    from proftrack.measures import combine, measure
    from proftrack.measures.origins import origins
    from proftrack.measures.view import view
    from proftrack.measures.work import cpu_calls, operator_costs
    from proftrack.record.ceilings import Ceilings
    from proftrack.report.progress import Silent
    from proftrack.trace.reader import read

    torch.set_num_threads(threads)
    given = msgspec.json.decode(ceilings.read_bytes(), type=Ceilings)
    measurement.ceilings_of = lambda *_, **__: given  # measured once for all workloads
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "workloads.py").write_text(WORKLOADS)
        (folder / "case.yaml").write_text(f"workload: workloads.py:build\nparams: {{case: {case}}}\n")
        overrides = {"device": "cpu", "min_seconds": "0.3", "max_seconds": "4"}
        captured = capture(experiment.load(str(folder / "case.yaml"), overrides), output=folder, progress=Silent())
        tables = [read(cycle.trace).table for cycle in captured.cycles]
        measures = combine([measure(table) for table in tables])
        seen = view(tables[0])
        trace = cpu_calls(tables[0], seen.forest, operator_costs(origins(seen, [])))
    timing = captured.timing
    assert timing is not None
    kept = {
        "threads": threads,
        "all_threads": captured.all_threads,
        "timing": msgspec.structs.replace(
            timing,
            block_step_times_us=_thinned(timing.block_step_times_us),
            step_latencies_us=_thinned(timing.step_latencies_us),
        ),
        "work": captured.work,
        "trace": trace,
        "measures": replace(measures, ops=measures.ops[:3], regions=[], sites=[], modules=[], launch=None),
    }
    return _compact(kept)


def _thinned(values: list[float]) -> list[float]:
    ordered = sorted(values)
    if len(ordered) <= KEPT:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (KEPT - 1))] for i in range(KEPT)]


def _compact(value: Any) -> bytes:
    return msgspec.json.encode(_rounded(msgspec.to_builtins(value)))


def _rounded(value: Any) -> Any:
    """Four digits of each figure: more than any of them repeats to."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
