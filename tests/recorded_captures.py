"""Stand-ins for measuring: traces from tests/data and hand-written timings in place of a capture.

Everything after the capture is real: analysis, verdict, run folder, MLflow, rendering. The golden tests reach into the
package only here (and in points_by_hand.py), so only these files need fixing when modules move.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from points_by_hand import by_hand
from run_points import run_point

import proftrack.capture.environment
import proftrack.capture.run
import proftrack.frontends.sweep.measuring
import proftrack.frontends.variants.measure
import proftrack.git
from proftrack import experiment as experiments
from proftrack.capture.result import Capture, Cycle
from proftrack.compare.history import History, Series
from proftrack.errors import ProftrackError
from proftrack.experiment import Experiment
from proftrack.frontends.variants.measure import Measured
from proftrack.record import Record
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.compilation import Compilation, OutputCheck
from proftrack.record.environment import DeviceFacts, Environment, Git, GpuState
from proftrack.record.timing import Load, Timing
from proftrack.recorder import keep
from proftrack.report import markdown
from proftrack.report.pages import history as history_page

DATA = Path(__file__).parent / "data"
STARTED_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000
DIFF = "diff --git a/model.py b/model.py\n"

H200 = Environment(
    device=DeviceFacts(
        type="cuda", name="NVIDIA H200", sm_count=132, memory_bytes=150_000_000_000, compute_capability="9.0"
    ),
    driver="580.95.05",
    cuda="13.0",
    torch="2.11.0+cu130",
    python="3.11.7",
    platform="Linux",
    cpu="Intel Xeon",
    cpu_count=16,
    threads=16,
    hostname="node1",
    packages={"numpy": "2.4.0", "triton": "3.6.0"},
    variables={"OMP_NUM_THREADS": "16"},
    git=Git(
        commit="c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
        branch="main",
        dirty=True,
        remote="https://example.org/repo.git",
    ),
)


CPU = replace(
    H200, device=DeviceFacts(type="cpu", name="Intel Xeon", memory_bytes=64_000_000_000), driver=None, cuda=None
)
GPU_CEILINGS = Ceilings(
    device="NVIDIA H200",
    flops_per_s={"bfloat16": 750e12, "float32": 51e12},
    bytes_per_s=4.2e12,
    measured_ns=STARTED_NS,
)
CPU_CEILINGS = Ceilings(
    device="Intel Xeon",
    flops_per_s={"float32": 100e9},
    bytes_per_s=16e9,
    dispatch_us=2.0,
    call_us={"aten::matmul": 1.6, "aten::mm": 8.6, "aten::add": 3.7},
    measured_ns=STARTED_NS,
)
CPU_LOAD = Load(wall_us=45_000.0, cores=16, thread_us=44_900.0, process_us=44_950.0, python_threads_us=0.0)
GPU_STATE = GpuState(
    sm_clock_mhz=1980,
    sm_clock_max_mhz=1980,
    memory_clock_mhz=3201,
    power_watts=250.0,
    temperature_c=40,
    other_processes=0,
)


class Recorded(Struct, frozen=True, kw_only=True):
    """What a capture would leave: one trace and the steps timed before it. Microseconds per step."""

    trace: str
    """File name in tests/data without .json.gz, or `cpu` for cpu_trace()."""
    block_us: Sequence[float]
    latency_us: Sequence[float]
    n: int
    """Matrix size; determines the least work of a step."""
    dtype: str = "bfloat16"
    first_step_us: float = 90_000.0


SMALL = Recorded(
    trace="matmul_add_64", n=64, block_us=[50.6, 50.8, 51.0, 51.0, 51.2, 51.4, 51.6], latency_us=[57.0, 58.0, 59.0]
)
LARGE = Recorded(
    trace="matmul_add_4096", n=4096, block_us=[222.0, 222.5, 223.0, 223.5, 224.0], latency_us=[236.0, 237.0, 239.0]
)
REPLAYED = Recorded(
    trace="matmul_add_64_cudagraph",
    n=64,
    block_us=[9.0, 9.0, 9.1, 9.0, 8.9, 9.0, 9.0],
    latency_us=[14.0, 14.5, 15.0],
    first_step_us=400_000.0,
)
TRAINING = Recorded(trace="mlp_train", n=1024, block_us=[690.0, 695.0, 700.0, 705.0, 710.0], latency_us=[740.0] * 3)
ON_CPU = Recorded(
    trace="cpu", n=256, block_us=[895.0, 898.0, 900.0, 902.0, 905.0], latency_us=[905.0, 910.0, 915.0], dtype="float32"
)


def cpu_trace() -> dict[str, Any]:
    """Three steps of 1000 us on a CPU, each with an 850 us matrix product and a 50 us sum."""
    events: list[dict[str, Any]] = []

    def row(cat: str, name: str, ts: float, dur: float) -> None:
        square = {"Input Dims": [[256, 256], [256, 256]], "Input type": ["float", "float"]}
        args = square if cat == "cpu_op" else {}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, "args": args})

    for number in (2, 3, 4):
        at = 1000.0 * number
        row("user_annotation", f"ProfilerStep#{number}", at, 1000.0)
        row("user_annotation", "matmul_add", at + 20.0, 960.0)
        row("cpu_op", "aten::matmul", at + 30.0, 870.0)
        row("cpu_op", "aten::mm", at + 40.0, 850.0)
        row("cpu_op", "aten::add", at + 910.0, 50.0)
    return {"schemaVersion": 1, "record_shapes": 1, "traceEvents": events}


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


_begun: list[int] = []
"""Start times of the captures so far (epoch ns). They are a minute apart, so no two records are identical."""


def capture_of(recorded: Recorded, experiment: Experiment, folder: Path) -> Capture:
    """The capture of an experiment into a run folder; timing.mode comes from the experiment."""
    on_cpu = recorded.trace == "cpu"
    trace = folder / "trace" / f"{experiment.name}.pt.trace.json.gz"
    trace.parent.mkdir(parents=True, exist_ok=True)
    if on_cpu:
        trace.write_bytes(gzip.compress(json.dumps(cpu_trace()).encode(), mtime=0))
    else:
        shutil.copyfile(DATA / f"{recorded.trace}.json.gz", trace)
    n, started_ns = recorded.n, STARTED_NS + len(_begun) * MINUTE_NS
    _begun.append(started_ns)
    return Capture(
        experiment=experiment,
        timing=Timing(
            mode=experiment.timing.mode,
            step_time_us=_median(recorded.block_us),
            step_latency_us=_median(recorded.latency_us),
            step_time_p95_us=max(recorded.latency_us),
            steps_per_block=10,
            block_step_times_us=list(recorded.block_us),
            step_latencies_us=list(recorded.latency_us),
            build_time_us=2_000.0,
            first_step_time_us=recorded.first_step_us,
            warmup_steps=100,
            load=CPU_LOAD if on_cpu else None,
        ),
        cycles=[Cycle(trace=trace, expected_steps=3)],
        peak_memory_bytes=None if on_cpu else 1_048_576,
        started_ns=started_ns,
        ended_ns=started_ns + 12_000_000_000,
        device="cpu" if on_cpu else "cuda",
        ceilings=CPU_CEILINGS if on_cpu else GPU_CEILINGS,
        work=StepWork(
            flops_by_dtype={recorded.dtype: 2.0 * n**3},
            bytes=2.0 * (3 * n * n + n),
            source="counted",
            dtypes=[recorded.dtype],
        ),
        gpu=None if on_cpu else GPU_STATE,
        notes=["One note of the capture."],
    )


def kept(recorded: Recorded, experiment: Experiment, folder: Path) -> Record:
    """Write the run folder of a capture with the real pipeline."""
    return keep(capture_of(recorded, experiment, folder), experiment, folder)


def replace_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that every run happens on one H200 (or one CPU), at one commit, at known times."""
    _begun.clear()
    monkeypatch.setattr(proftrack.capture.environment, "collect", lambda device, **_: CPU if device == "cpu" else H200)
    monkeypatch.setattr(proftrack.git, "git_diff", lambda *_, **__: DIFF)


def replace_capture(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Make `run` measure this."""

    def capture(experiment: Experiment, *, output: Path, **_: Any) -> Capture:
        return capture_of(recorded, experiment, output)

    monkeypatch.setattr(proftrack.capture.run, "capture", capture)


def replace_points(
    monkeypatch: pytest.MonkeyPatch, reference: str, of: Callable[[dict[str, str]], Recorded | str]
) -> None:
    """Make `sweep` measure what `of` returns for a point's parameters; a string is an error message."""

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Record:
        point = of(overrides)
        if isinstance(point, str):
            raise ProftrackError(point)
        return kept(point, experiments.load(reference, overrides), folder)

    monkeypatch.setattr(proftrack.frontends.sweep.measuring, "Measuring", by_hand(measure))


def replace_variants(monkeypatch: pytest.MonkeyPatch, of: dict[str, Recorded | str]) -> None:
    """Make `variants` measure these; a string is the reason why a variant is refused. All outputs are equal."""

    def measure(asked: Sequence[Any], folder_of: Callable[[Any], Path], *_: object, **__: object) -> list[Measured]:
        out: list[Measured] = []
        for variant in asked:
            recorded = of[variant.name]
            if isinstance(recorded, str):
                out.append(Measured(variant=variant, status="refused", error=recorded))
                continue
            folder = folder_of(variant)
            compiled = variant.name == "compile"
            out.append(
                Measured(
                    variant=variant,
                    record=kept(recorded, variant.recorded, folder),
                    folder=folder,
                    outputs=OutputCheck(equal=True, error=0.001, tolerance=0.02, text="equal") if out else None,
                    compilation=Compilation(graphs=2, graph_breaks=1, break_reasons=["print"]) if compiled else None,
                    round_us=list(recorded.block_us),
                )
            )
        return out

    monkeypatch.setattr(proftrack.frontends.variants.measure, "measure", measure)


def long_history() -> list[str]:
    """Lines of the history page of 1,001 runs in one series, one more than a picture shows."""
    points = [run_point(number, step_time_us=100.0) for number in range(1001)]
    series = Series(experiment="matmul_add", fingerprint="f00d", variant={}, runs=points)
    history = History(experiment="matmul_add", metric="step_time_us", series=[series], ordered_by="commits")
    return [line.strip() for line in markdown.render(history_page.page(history)).splitlines()]
