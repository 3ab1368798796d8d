"""Records and run folders made by hand, for tests of what is done with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from proftrack import record as records
from proftrack.record import Rates, Record, RunFacts, Source, SourceFile, Times
from proftrack.record.counters import Counters
from proftrack.record.environment import DeviceFacts, Environment, Git
from proftrack.record.figures import Flag, Idle, Kernel, Op, Step, Totals, Window
from proftrack.record.timing import Timing
from proftrack.record.verdict import Verdict

if TYPE_CHECKING:
    from proftrack.experiment import Experiment

TRACE = "matmul_add.pt.trace.json.gz"
STARTED_NS = 1_700_000_000_000_000_000
ENDED_NS = STARTED_NS + 12_000_000_000


COUNTERS = Counters(
    source="gpm",
    window_s=0.5,
    shares={
        "sm_active": 0.38,
        "occupancy": 0.15,
        "dram": 0.17,
        "tensor": 0.0728,
        "hmma": 0.0728,
        "imma": 0.0,
        "dmma": 0.0,
        "fp64": 0.0,
        "fp32": 0.076,
        "fp16": 0.0,
        "integer": 0.02,
    },
    reachable={"dram": 0.85, "tensor": 0.91, "fp32": 0.76},
    link_bytes_per_s={"pcie_tx": 2e9, "pcie_rx": 1e9, "nvlink_tx": 0.0, "nvlink_rx": 0.0},
    energy_joules_per_step=0.03,
    power_watts=300.0,
)
"""If the GPU is busy for 0.4 of the time: DRAM 0.5 of reachable, FP32 0.25, tensor cores 0.2; integer 0.05 of peak."""


def make_record(**changes: Any) -> Record:
    """Three steps of 100 us on a GPU that is busy for 40 us of each; `changes` replace sections."""
    record = Record(
        source=Source(kind="run", proftrack_version="0.1.0", files=[SourceFile(name=TRACE, bytes=100, events=42)]),
        environment=Environment(
            device=DeviceFacts(type="cuda", name="NVIDIA H200"),
            python="3.11.7",
            git=Git(commit="c0ffee", branch="main", dirty=True, remote="https://example.org/repo.git"),
        ),
        run=RunFacts(
            experiment="matmul_add",
            params={"n": 64, "dtype": "bfloat16", "compile": "none", "seed": 0},
            variant_params=["compile"],
            schedule={"skip_first": 0, "wait": 1, "warmup": 1, "active": 3, "repeat": 1},
            profiler={"record_shapes": True},
            fingerprint="f00d",
            fingerprint_keys={"experiment": "matmul_add"},
            started_ns=STARTED_NS,
            ended_ns=ENDED_NS,
            peak_memory_bytes=4096,
            tokens_per_step=500,
            display_name="matmul_add n=64 bfloat16 eager",
        ),
        timing=Timing(
            mode="throughput",
            step_time_us=100.0,
            step_latency_us=120.0,
            step_time_p95_us=130.0,
            steps_per_block=10,
            block_step_times_us=[99.0, 100.0, 101.0],
            step_latencies_us=[120.0],
            first_step_time_us=50_000.0,
            input_wait_us=12.0,
        ),
        counters=COUNTERS,
        window=Window(steps=3, step_names=["ProfilerStep#2"], duration_us=600.0, device_duration_us=540.0),
        totals=Totals(
            self_cpu_time_total_us=450.0,
            self_cuda_time_total_us=126.0,
            gpu_busy_us=120.0,
            gpu_idle_us=480.0,
            gpu_busy_fraction_profiled=0.2,
            gpu_events=6,
            kernels=6,
            launches=9,
            gpu_events_without_launch=0,
        ),
        per_step=[
            Step(
                step=2 + index,
                host_us=180.0,
                self_cpu_time_us=150.0 - index,
                self_cuda_time_us=40.0 + index,
                gpu_events=2,
                kernels=2,
                launches=3,
            )
            for index in range(3)
        ],
        ops=[
            Op(
                name="aten::mm",
                category="cpu_op",
                calls=3,
                self_cpu_time_us=450.0,
                cpu_time_us=450.0,
                self_cuda_time_us=126.0,
                cuda_time_us=126.0,
            )
        ],
        kernels=[
            Kernel(
                name="gemm_64x64",
                kind="matmul",
                calls=6,
                total_us=126.0,
                mean_us=21.0,
                min_us=20.0,
                max_us=22.0,
                share=1.0,
                limit="arithmetic",
            )
        ],
        regions=[],
        idle=Idle(by_cause_us_per_step={"dispatch": 60.0}, largest=[]),
        split=None,
        launch=None,
        devices=[],
        times=Times(
            step_time_us=100.0,
            step_latency_us=120.0,
            step_time_profiled_us=180.0,
            gpu_busy_per_step_us=40.0,
            roofline_time_us=5.0,
        ),
        rates=Rates(tflops=1.5, gbytes_per_s=20.0, mfu=0.03, mbu=0.05),
        quality=[Flag(code="uneven_steps", count=1, message="One step took twice as long.")],
        verdict=Verdict(
            regime="overhead-bound",
            cause="dispatch",
            confidence="high",
            basis="unprofiled",
            gpu_busy_fraction=0.4,
            summary="The host cannot launch fast enough.",
            evidence=[],
            advice=["Compile the step."],
            reasons=[],
            thresholds={"overhead_u": 0.5},
        ),
    )
    return msgspec.structs.replace(record, **changes)


def write_folder(folder: Path, record: Record) -> Path:
    """A run folder as `proftrack.recorder.write` writes it, with small contents."""
    for name in ("trace", "tables"):
        (folder / name).mkdir(parents=True)
    records.save(record, folder / "record.json")
    with gzip.open(folder / "trace" / TRACE, "wt") as file:
        json.dump({"traceEvents": []}, file)
    (folder / "tables" / "key_averages.txt").write_text("Self CPU time total: 450us\n")
    for name in ("ops", "kernels"):
        table = {"columns": ["name", "calls"], "data": [["aten::mm", 3]]}
        (folder / "tables" / f"{name}.json").write_text(json.dumps(table))
    (folder / "events.parquet").write_bytes(b"PAR1")
    (folder / "git.diff").write_text("diff\n")
    return folder


def replace_capture(patch: pytest.MonkeyPatch, measure: Callable[[Experiment, Path], Record]) -> None:
    """`proftrack run` without a capture: `measure` makes the run folder, and gives its record."""

    def measured(experiment: Experiment, folder: Path, *_: object, **__: object) -> Any:
        from proftrack.analysis.pipeline import Analysis

        return Analysis(measure(experiment, folder), [])

    patch.setattr("proftrack.frontends.experiment.measured", measured)
    patch.setattr("proftrack.recorder.content.write", lambda analysis, *_, **__: analysis.record)
