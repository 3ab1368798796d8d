"""Records of small GPU programs, made by playing them: a host that launches, a GPU that works in order.

    host  |-#2: mm[L] add[L]-|-#3: mm[L] add[L]-|            each operator takes `host_us`, its launch 1 us
    GPU         ====mm====add=====mm====add                  starts behind the launch and the work before it

A value that is read back (`reads=1`) is aten::item: a copy to the host, and a wait until the GPU has done it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from traces import TraceBuilder

from proftrack.analysis.pipeline import analyze_trace
from proftrack.record import Record, RunFacts
from proftrack.record.environment import DeviceFacts, Environment, Git
from proftrack.record.timing import Timing

DEVICE = "Test GPU 0"
STARTED_NS = 1_700_000_000_000_000_000


class Work(NamedTuple):
    """What one operator launches."""

    operator: str
    kernel: str
    us: float
    shapes: Any = ((64, 64), (64, 64))


MM = Work("aten::mm", "gemm_256x128", 200)
ADD = Work("aten::add", "elementwise_add", 20)
TINY = Work("aten::relu", "elementwise_relu", 2)


def trace(works: list[Work], *, reads: int = 0, steps: int = 3, host_us: float = 10) -> TraceBuilder:
    """Play the program."""
    out = TraceBuilder()
    now, gpu, correlation = 0.0, 0.0, 0
    for number in range(2, 2 + steps):
        begin = now
        for work in works:
            correlation += 1
            called = now + host_us - 2
            start = max(called + 2, gpu)
            out.op(work.operator, at=now, dur=host_us, Input_Dims=[list(s) for s in work.shapes])
            out.launch(at=called, correlation=correlation)
            out.kernel(work.kernel, at=start, dur=work.us, correlation=correlation)
            now, gpu = now + host_us, start + work.us
        for _ in range(reads):
            correlation += 1
            start = max(now + 3, gpu)
            gpu = start + 1
            wait_until = gpu + 2
            out.op("aten::item", at=now, dur=wait_until - now + 1)
            out.launch(name="cudaMemcpyAsync", at=now + 1, correlation=correlation)
            out.memcpy("Memcpy DtoH (Device -> Pageable)", at=start, dur=1, correlation=correlation)
            out.sync(name="cudaStreamSynchronize", at=now + 2.5, dur=wait_until - now - 2.5)
            now = wait_until + 1
        out.step(number, at=begin, dur=now - begin)
    return out


def record_of(
    works: list[Work],
    step_time_us: float,
    *,
    reads: int = 0,
    spread: float = 0.005,
    blocks: int = 10,
    seed: int = 0,
    host_us: float = 10,
    **facts: Any,
) -> Record:
    """The record of a run of the program: its trace, and block times around `step_time_us`."""
    with tempfile.TemporaryDirectory() as folder:
        path = trace(works, reads=reads, host_us=host_us).write(Path(folder) / "matmul_add.pt.trace.json.gz")
        found = analyze_trace(path, step_time_us=step_time_us).record
    return as_run(found, step_time_us, spread=spread, blocks=blocks, seed=seed, **facts)


def as_run(
    found: Record,
    step_time_us: float,
    *,
    spread: float = 0.005,
    blocks: int = 10,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    commit: str | None = "c0ffee",
    branch: str | None = "main",
    dirty: bool = False,
    started_s: float = 0,
    environment: dict[str, Any] | None = None,
) -> Record:
    """A trace's record as that of a run. The blocks' median is the step time exactly."""
    noise = np.random.default_rng(seed).normal(0, spread, blocks)
    times = step_time_us * np.exp(noise - np.median(noise))
    values = {"n": 64, "dtype": "bfloat16", "compile": "none", **(params or {})}
    keys = {"experiment": "matmul_add", "device": DEVICE, "timing.mode": "throughput"}
    keys |= {f"params.{name}": value for name, value in values.items() if name != "compile"}
    started = STARTED_NS + int(started_s * 1e9)
    git = Git(commit=commit, branch=branch, dirty=dirty) if commit else None
    facts = {"device": DeviceFacts(type="cuda", name=DEVICE), "torch": "2.13.0", "hostname": "gpu-1"}
    return msgspec.structs.replace(
        found,
        source=msgspec.structs.replace(found.source, kind="run"),
        environment=Environment(git=git, **{**facts, **(environment or {})}),
        run=RunFacts(
            experiment="matmul_add",
            params=values,
            variant_params=["compile"],
            schedule={"skip_first": 0, "wait": 1, "warmup": 1, "active": 3, "repeat": 1},
            profiler={"record_shapes": True},
            fingerprint=f"f{values['n']:011x}",
            fingerprint_keys=keys,
            started_ns=started,
            ended_ns=started + 5_000_000_000,
            peak_memory_bytes=1_000_000,
            display_name=f"matmul_add n={values['n']} bfloat16 {values['compile']}",
        ),
        timing=Timing(
            mode="throughput",
            step_time_us=step_time_us,
            step_latency_us=step_time_us * 1.1,
            step_time_p95_us=step_time_us * 1.2,
            steps_per_block=100,
            block_step_times_us=times.tolist(),
            step_latencies_us=(times * 1.1).tolist(),
        ),
        times=msgspec.structs.replace(found.times, step_time_us=step_time_us, step_latency_us=step_time_us * 1.1),
    )
