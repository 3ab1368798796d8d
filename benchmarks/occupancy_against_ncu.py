"""Derived occupancy and waves against Nsight Compute's theoretical ones, launch by launch.

    python benchmarks/occupancy_against_ncu.py [--ncu NCU] [--keep FOLDER]     on a machine with a GPU: torch and ncu
    python benchmarks/occupancy_against_ncu.py --trace TRACE --csv CSV         of kernels recorded before

Records each workload once with torch.profiler and once under ncu, in two processes, and joins the launches in their
order; launches with different grids or blocks are counted, not compared. Of launches that are the same in everything
one is shown. Last line: how many there are, how many are within LIMIT_POINTS, and the largest difference.
The CSV is ncu's `--page raw --print-units base` with at least METRICS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "profiling"
sys.path.insert(0, str(SOURCE))

import numpy as np  # noqa: E402

from proftrack.capture.ncu import number, printed  # noqa: E402
from proftrack.measures.occupancy import fill_of  # noqa: E402
from proftrack.text import brief  # noqa: E402
from proftrack.trace.categories import Kind  # noqa: E402
from proftrack.trace.reader import read  # noqa: E402

LIMIT_POINTS = 5.0
THEORETICAL, WAVES, ACHIEVED = (
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__waves_per_multiprocessor",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
BLOCK, GRID, CLUSTER, CARVE_OUT = (
    "launch__block_size",
    "launch__grid_size",
    "launch__cluster_size",
    "launch__shared_mem_config_size",
)
METRICS = (THEORETICAL, WAVES, ACHIEVED, BLOCK, GRID, CLUSTER, CARVE_OUT)
ODD = r"""
extern "C" __global__ void odd(float* x, int n) {
    extern __shared__ float s[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < 0) s[threadIdx.x] = x[i];
    if (i < n) x[i] = x[i] * 2.0f + (n < 0 ? s[0] : 0.0f);
}
extern "C" __global__ void __launch_bounds__(128) wide(float* x, int n) {
    float v[96];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < 96; k++) v[k] = x[(i + k * 37) % n];
    #pragma unroll
    for (int k = 0; k < 96; k++) v[k] = v[k] * v[(k * 7 + 3) % 96] + v[(k + 1) % 96];
    float sum = 0;
    #pragma unroll
    for (int k = 0; k < 96; k++) sum += v[k];
    if (i < n) x[i] = sum;
}
"""
ODD_LAUNCHES = (
    # kernel, blocks, threads of a block, bytes of dynamic shared memory
    ("odd", 5000, 96, 0),
    ("odd", 1000, 1000, 0),
    ("odd", 3000, 224, 20_000),
    ("odd", 700, 640, 40_000),
    ("odd", 131, 1024, 100_000),
    ("odd", 400, 32, 47_000),
    ("odd", 9000, 33, 1),
    ("odd", 133, 256, 220_000),
    ("wide", 2000, 128, 0),
    ("wide", 100, 64, 30_000),
)


class Row(NamedTuple):
    """One launch: derived, and as ncu says."""

    name: str
    derived: float
    ncu: float
    waves: float
    ncu_waves: float
    achieved: float
    note: str


def workloads() -> list[tuple[str, Callable[[], Any]]]:
    """Kernels of many kinds; each workload is a few launches."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    cuda: dict[str, Any] = {"device": "cuda"}
    half: dict[str, Any] = {**cuda, "dtype": torch.bfloat16}
    a, b = torch.randn(1000, 3000, **half), torch.randn(3000, 2000, **half)
    single, double = torch.randn(1500, 1500, **cuda), torch.randn(700, 700, device="cuda", dtype=torch.float64)
    batch = torch.randn(64, 256, 256, **half)
    q, kv = torch.randn(2, 8, 1024, 64, **half), torch.randn(2, 8, 1024, 64, **half)
    image, volume = torch.randn(16, 32, 64, 64, **half), torch.randn(4, 8, 24, 24, 24, **cuda)
    signal = torch.randn(32, 64, 4096, **cuda)
    table, index = torch.randn(100_000, 64, **cuda), torch.randint(100_000, (60_000,), **cuda)
    flat, bools = torch.rand(3_000_000, **cuda), torch.rand(1_000_000, **cuda) > 0.5
    parameters = [torch.randn(300_000, device="cuda", requires_grad=True) for _ in range(6)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW(parameters)
    rnn = torch.nn.LSTM(128, 256, device="cuda")
    sequence = torch.randn(4, 8, 128, **cuda)
    x = torch.zeros(10_000_000, **cuda)
    found: list[tuple[str, Callable[[], Any]]] = [
        ("matmul", lambda: a @ b),
        ("matmul float32", lambda: single @ single),
        ("matmul float64", lambda: double @ double),
        ("bmm", lambda: batch @ batch),
        ("gemv", lambda: single @ single[0]),
        ("sdpa", lambda: F.scaled_dot_product_attention(q, kv, kv)),
        ("sdpa one query", lambda: F.scaled_dot_product_attention(q[:, :, :1], kv, kv)),
        ("conv1d", lambda: F.conv1d(signal, signal[:, :, :5].contiguous())),
        ("conv2d", lambda: F.conv2d(image, image[:, :, :3, :3].contiguous())),
        ("conv3d", lambda: F.conv3d(volume, volume[:, :, :3, :3, :3].contiguous())),
        ("batch norm", lambda: F.batch_norm(image, None, None, training=True)),
        ("group norm", lambda: F.group_norm(image, 8)),
        ("max pool", lambda: F.max_pool2d(image, 2)),
        ("embedding", lambda: F.embedding(index, table)),
        ("scatter", lambda: torch.zeros_like(table).index_add_(0, index, table[index])),
        ("softmax", lambda: torch.softmax(signal, -1)),
        ("cross entropy", lambda: F.cross_entropy(table[:, :50], index[:1].expand(100_000) % 50)),
        ("sort", lambda: torch.sort(flat)),
        ("topk", lambda: torch.topk(flat, 100)),
        ("nonzero", lambda: torch.nonzero(bools)),
        ("cumsum", lambda: torch.cumsum(flat, 0)),
        ("unique", lambda: torch.unique(index)),
        ("fft", lambda: torch.fft.rfft(signal)),
        ("cdist", lambda: torch.cdist(table[:2000], table[:2000])),
        ("lstm", lambda: rnn(sequence)),
        ("adamw", adam.step),
        ("norm of gradients", lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)),
        ("random", lambda: torch.randn(5_000_000, **cuda)),
        ("transposed copy", lambda: single.t().contiguous()),
        ("concatenate", lambda: torch.cat([table, table])),
    ]
    return found + [(f"own {i}", own) for i, own in enumerate(_odd_launches(torch, x))]


def _odd_launches(torch: Any, x: Any) -> list[Callable[[], Any]]:
    """Blocks and shared memory as no library chooses them."""

    def launch(name: str, blocks: int, threads: int, shared: int) -> None:
        kernel = compiled(name)
        if shared > 48 << 10:
            kernel.set_shared_memory_config(shared)
        kernel(grid=(blocks, 1, 1), block=(threads, 1, 1), args=[x, x.numel()], shared_mem=shared)

    compiled = cache(lambda name: torch.cuda._compile_kernel(ODD, name))
    return [partial(launch, *each) for each in ODD_LAUNCHES]


def record(trace: Path | None) -> None:
    """Run each workload once: into a trace, or between the calls that turn ncu on and off."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    working = []
    for name, run in workloads():
        try:
            run(), run()
            torch.cuda.synchronize()
            working.append(run)
        except Exception as error:  # a missing library or an old torch must not cost the others
            print(f"left out {name}: {str(error)[:150]}", file=sys.stderr)
    if trace is None:
        cudart: Any = torch.cuda.cudart()
        cudart.cudaProfilerStart()
        for run in working:
            run()
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for run in working:
            run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))


def record_both(folder: Path, ncu: str) -> tuple[Path, Path]:
    """The trace and ncu's CSV, by two processes of this file."""
    trace, table = folder / "kernels.json.gz", folder / "ncu.csv"
    again = [sys.executable, __file__]
    subprocess.run([*again, "--record", str(trace)], check=True)
    options = ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    with table.open("w") as out:
        command = [ncu, *options, "--metrics", ",".join(METRICS), *again, "--record", ""]
        subprocess.run(command, check=True, stdout=out)
    return trace, table


def compared(trace: Path, table: Path) -> tuple[list[Row], int]:
    """The launches that both have, and how many are not the same."""
    events = read(trace).table
    kernels = np.flatnonzero(events.kind == Kind.KERNEL)
    kernels = kernels[np.argsort(events.ts[kernels], kind="stable")]
    filled = fill_of(events, kernels)
    rows: dict[tuple[Any, ...], Row] = {}
    other = 0
    measured = printed(table.read_text(encoding="utf-8")).rows
    for i, said in zip(range(len(kernels)), measured, strict=False):
        config = events.configs[events.config[kernels[i]]]
        if (config.block_threads, config.blocks) != (_number(said[BLOCK]), _number(said[GRID])):
            other += 1
            continue
        notes = [f"cluster of {said[CLUSTER]}"] if said.get(CLUSTER) not in (None, "", "0", "1") else []
        notes += [f"carve-out {_number(said[CARVE_OUT]) / 1024:.0f} KB"] if said.get(CARVE_OUT) else []
        name = events.names[events.name[kernels[i]]]
        rows[name, config] = Row(
            name=name,
            derived=100 * float(filled.theoretical[i]),
            ncu=_number(said[THEORETICAL]),
            waves=float(filled.waves[i]),
            ncu_waves=_number(said[WAVES]),
            achieved=_number(said[ACHIEVED]),
            note=", ".join(notes),
        )
    return list(rows.values()), other + abs(len(kernels) - len(measured))


def _number(text: str) -> float:
    value = number(text)
    return float("nan") if value is None else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--keep", type=Path, help="folder for the trace and the CSV")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record is not None:
        record(Path(given.record) if given.record else None)
        return
    with tempfile.TemporaryDirectory() as temporary:
        trace, table = given.trace, given.csv
        if trace is None or table is None:
            import torch

            if not torch.cuda.is_available():
                parser.error("without --trace and --csv it needs an NVIDIA GPU, and ncu")
            trace, table = record_both(given.keep or Path(temporary), given.ncu)
        rows, other = compared(trace, table)
    print(f"{'kernel':44} {'derived %':>9} {'ncu %':>7} {'waves':>9} {'ncu':>9} {'achieved %':>10}  note")
    for row in rows:
        print(
            f"{brief(row.name, 44):44} {row.derived:9.2f} {row.ncu:7.2f} {row.waves:9.2f} {row.ncu_waves:9.2f} "
            f"{row.achieved:10.1f}  {row.note}"
        )
    apart = [abs(row.derived - row.ncu) for row in rows]
    within = sum(points <= LIMIT_POINTS for points in apart)
    print(
        f"{len(rows)} launches, {within} within {LIMIT_POINTS:.0f} points, largest difference {max(apart):.2f}; "
        f"{other} not the same in both"
    )


if __name__ == "__main__":
    main()
