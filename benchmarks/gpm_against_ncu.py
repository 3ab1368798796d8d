"""Do NVML's counters and Nsight Compute's agree about the same kernel?

    python benchmarks/gpm_against_ncu.py [--only NAME ...] [--output FILE]

Ten loops of one large kernel each. GPM counts over half a second of each loop, read here and apart from proftrack;
then a process of its own runs the same loop, and one more step under `ncu`. Two differences are taken out: GPM's time
includes the gaps between kernels (its shares are divided by GRAPHICS_UTIL, the share of time with a kernel), and ncu
holds no clocks (the loop has warmed the GPU up). Prints a Markdown table, and exits 1 if DRAM or tensor shares differ
by over 5 points.

For products, the last columns explain mfu by the tensor share. The share counts cycles in which a tensor pipe is busy.
A product that wastes none has FLOPs / (FLOPs per cycle x clock x time) of them: `by FLOPs`. With ncu's clock, which it
counts, the two agree. With the clock that NVML shows meanwhile they need not: under the power limit the GPU does less
than this clock allows. mfu is FLOPs / T over the best rate that a short load reached, so it falls there, too, while the
share stays."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))

from labelled.cases import CASES, HELD_OUT, Case

from proftrack.capture.ncu import find_ncu, number, printed

LOOPS = (
    "matmul_8192",
    "fp8_8192",
    "int8_8192",
    "tf32_8192",
    "fp64_4096",
    "fp32_4096",
    "triton_copy",
    "attention",
    "triton_polynomial",
    "gather",
)
FLOPS = {name: 2.0 * 8192**3 for name in LOOPS if name.endswith("_8192")} | {"fp64_4096": 2.0 * 4096**3}
PER_CYCLE = {"matmul_8192": 4096, "fp8_8192": 8192, "int8_8192": 8192, "tf32_8192": 2048, "fp64_4096": 256}
"""FLOPs that the tensor cores of one multiprocessor do in a cycle, on Hopper: the data sheet's rates over 132
multiprocessors and their clock."""
METRICS = {
    "us": "gpu__time_duration.sum",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fp32": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "integer": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "hertz": "sm__cycles_elapsed.avg.per_second",
}
GPM = {"busy": "GRAPHICS_UTIL", "dram": "DRAM_BW_UTIL", "tensor": "ANY_TENSOR_UTIL"}
CLOSE = 5.0
_SECONDS = 0.5
_WARM_SECONDS = 0.4


class Kernel(NamedTuple):
    """What ncu says of one kernel: microseconds, percent of each peak, and its clock."""

    name: str
    us: float
    dram: float
    tensor: float
    fp32: float
    integer: float
    hertz: float


class Counted(NamedTuple):
    """What GPM says of a loop, in percent, with its step time and clock."""

    busy: float
    dram: float
    tensor: float
    step_us: float
    clock_mhz: float


def case_of(name: str) -> Case:
    return next(case for case in (*CASES, *HELD_OUT) if case.name == name)


@contextlib.contextmanager
def step_of(case: Case) -> Iterator[Callable[[], Any]]:
    """The case's step on this machine's GPU, after its first run."""
    import torch

    torch.manual_seed(0)
    module, function = case.workload.split(":")
    built = getattr(importlib.import_module(f"labelled.{module}"), function)(torch.device("cuda", 0), **case.params)
    with built if hasattr(built, "__enter__") else contextlib.nullcontext(built) as step:
        step()
        torch.cuda.synchronize()
        yield step


def loop(step: Callable[[], Any], seconds: float) -> float:
    """Run steps back to back for so long; returns the microseconds of each."""
    import torch

    steps, size = 0, 1
    begin = now = time.perf_counter()
    while now - begin < seconds:
        last = now
        for _ in range(size):
            step()
        torch.cuda.synchronize()
        now = time.perf_counter()
        steps += size
        if now - last < seconds / 10:
            size *= 2
    return (now - begin) / steps * 1e6


# ---- GPM -----------------------------------------------------------------------------------------------------------


def gpm_of(name: str) -> Counted:
    """GPM's shares over a loop of the case's steps."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    with step_of(case_of(name)) as step:
        loop(step, _WARM_SECONDS)
        first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, first)
        with polled(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)) as clocks:
            us = loop(step, _SECONDS)
        pynvml.nvmlGpmSampleGet(handle, second)
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics, asked.sample1, asked.sample2 = len(GPM), first, second
    for index, metric in enumerate(GPM.values()):
        asked.metrics[index].metricId = getattr(pynvml, f"NVML_GPM_METRIC_{metric}")
    pynvml.nvmlGpmMetricsGet(asked)
    values = {key: asked.metrics[index].value for index, key in enumerate(GPM)}
    for sample in (first, second):
        pynvml.nvmlGpmSampleFree(sample)
    torch.cuda.empty_cache()
    return Counted(step_us=us, clock_mhz=sum(clocks) / len(clocks), **values)


@contextlib.contextmanager
def polled(read: Callable[[], float]) -> Iterator[list[float]]:
    """What `read` gives every few milliseconds while the block runs, in another thread."""
    values = [read()]
    over = threading.Event()

    def poll() -> None:
        while not over.wait(0.005):
            values.append(read())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield values
    finally:
        over.set()
        thread.join()


# ---- ncu -----------------------------------------------------------------------------------------------------------


def bare(name: str) -> None:
    """A loop, then one step that a profiler around this process is told to look at."""
    import torch

    with step_of(case_of(name)) as step:
        loop(step, _WARM_SECONDS)
        torch.cuda.cudart().cudaProfilerStart()
        step()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def ncu_of(name: str) -> list[Kernel]:
    """ncu's figures for the kernels of one step of the case. Raises RuntimeError if ncu is missing or fails."""
    ncu = find_ncu()
    if ncu is None:
        raise RuntimeError(f"{name}: no ncu was found")
    command = [
        *(str(ncu), "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"),
        *("--metrics", ",".join(METRICS.values()), "--csv", "--page", "raw", "--print-units", "base"),
        *(sys.executable, str(Path(__file__).resolve()), "--bare", name),
    ]
    environment = {**os.environ, "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{name}: ncu did not run: {error}") from error
    kernels = parsed(ended.stdout)
    if not kernels:
        said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        raise RuntimeError(f"{name}: ncu (exit {ended.returncode}) measured no kernel: {' '.join(said[-3:])[:500]}")
    return kernels


def parsed(text: str) -> list[Kernel]:
    """The kernels of what ncu printed; NaN where a metric is n/a."""

    def figure(row: dict[str, str], key: str) -> float:
        value = number(row[METRICS[key]])
        return float("nan") if value is None else value

    return [
        Kernel(row["Kernel Name"], figure(row, "us") / 1e3, *(figure(row, key) for key in _FIGURES))
        for row in printed(text).rows
    ]


_FIGURES = ("dram", "tensor", "fp32", "integer", "hertz")


def mean(kernels: list[Kernel], key: str) -> float:
    """Of a figure over the kernels' time."""
    return sum(getattr(kernel, key) * kernel.us for kernel in kernels) / sum(kernel.us for kernel in kernels)


# ---- side by side --------------------------------------------------------------------------------------------------

_COLUMNS = (
    *("loop", "DRAM %, GPM", "ncu", "difference", "tensor %, GPM", "ncu", "difference"),
    *("T us", "clock MHz", "TFLOP/s", "tensor % by FLOPs", "ncu us", "clock MHz", "TFLOP/s", "tensor % by FLOPs"),
)
HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def row(name: str, counted: Counted, kernels: list[Kernel], multiprocessors: int) -> dict[str, Any]:
    """Both answers, GPM's for the time with a kernel."""
    out: dict[str, Any] = {"name": name, "kernels": [kernel._asdict() for kernel in kernels]}
    for key in ("dram", "tensor"):
        out[f"gpm_{key}"] = getattr(counted, key) / counted.busy * 100
        out[f"ncu_{key}"] = mean(kernels, key)
        out[f"{key}_differs"] = out[f"gpm_{key}"] - out[f"ncu_{key}"]
    out |= {"gpm_us": counted.step_us, "gpm_mhz": counted.clock_mhz}
    out |= {"ncu_us": sum(kernel.us for kernel in kernels), "ncu_mhz": mean(kernels, "hertz") / 1e6}
    for by in ("gpm", "ncu") if name in FLOPS else ():
        rate = FLOPS[name] / (out[f"{by}_us"] / 1e6)
        out[f"{by}_tflops"] = rate / 1e12
        out[f"{by}_by_flops"] = 100 * rate / (PER_CYCLE[name] * multiprocessors * out[f"{by}_mhz"] * 1e6)
    return out


def show(line: dict[str, Any]) -> str:
    shares = ("gpm_dram", "ncu_dram", "dram_differs", "gpm_tensor", "ncu_tensor", "tensor_differs")
    cells = [f"{line[key]:.1f}" for key in shares]
    for by in ("gpm", "ncu"):
        cells += [f"{line[f'{by}_{key}']:.4g}" for key in ("us", "mhz")]
        cells += [f"{line[f'{by}_{key}']:.1f}" if f"{by}_{key}" in line else "-" for key in ("tflops", "by_flops")]
    return f"| {' | '.join([line['name'], *cells])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--bare", metavar="NAME", help="run one loop, for ncu")
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("needs an NVIDIA GPU with hardware counters, and ncu")
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    lines = []
    print(HEAD, flush=True)
    failed = []
    for name in options.only or LOOPS:
        try:
            lines.append(row(name, gpm_of(name), ncu_of(name), multiprocessors))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(name)
        else:
            print(show(lines[-1]), flush=True)
    apart = [line["name"] for line in lines if max(abs(line["dram_differs"]), abs(line["tensor_differs"])) > CLOSE]
    print(
        f"\n{len(lines) - len(apart)} of {len(lines) + len(failed)} within {CLOSE:g} points; apart: "
        f"{', '.join(apart) or 'none'}; failed: {', '.join(failed) or 'none'}"
    )
    if options.output:
        options.output.write_text(json.dumps(lines, indent=1))
    return int(bool(apart or failed))


if __name__ == "__main__":
    sys.exit(main())
