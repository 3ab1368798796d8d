"""Record -> params, metrics and tags of an MLflow run. Plain functions; the names are a contract, pinned by a test.

A figure that does not exist is absent: never 0, NaN or infinity. Names of operators and kernels never become keys;
figures per kernel are in tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from proftrack.record import Record
from proftrack.record.counters import PIPES
from proftrack.record.figures import FlagCode, launches_per_step
from proftrack.redact import scrub
from proftrack.store import keys

DIGITS = 6
"""Significant digits of a logged metric; no figure of a run is more precise. record.json has all digits."""
# MLflow's own limits; it only warns when it cuts a longer param.
PARAM_CHARS = 6000
KEY_CHARS = 250
TAG_CHARS = 500


class Point(Struct, frozen=True):
    """One value of one metric. `step` is the ProfilerStep number for figures of one step, else 0."""

    key: str
    value: float
    step: int = 0


def params(record: Record) -> dict[str, str]:
    """What the user requested: experiment, the workload's params, schedule.*, timing.mode."""
    if record.run is None:
        return {}
    values: dict[str, Any] = dict(record.run.params)
    values[keys.EXPERIMENT_PARAM] = record.run.experiment
    values |= {f"{keys.SCHEDULE_PARAMS}{name}": value for name, value in record.run.schedule.items()}
    if record.timing is not None:
        values[keys.TIMING_MODE_PARAM] = record.timing.mode
    return as_params(values)


def as_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Any values as MLflow params: valid names, no credentials, no longer than MLflow's limit."""
    return {_key(name): cut(scrub(str(value)), PARAM_CHARS) for name, value in values.items()}


def metrics(record: Record) -> list[Point]:
    """Every figure that exists, in the order of keys.METRICS."""
    parts = (_totals, _times, _derived, _cpu_work, _means, _rates, _counted)
    figures = {name: value for part in parts for name, value in part(record).items()}
    points = [Point(name, float(value)) for name, value in figures.items() if value is not None]
    points += _series(record)
    order = {name: index for index, name in enumerate(keys.METRICS)}
    finite = sorted((point for point in points if math.isfinite(point.value)), key=lambda point: order[point.key])
    return [Point(point.key, rounded(point.value), point.step) for point in finite]


def rounded(value: float) -> float:
    """A figure rounded to DIGITS; counts and bytes stay exact."""
    return value if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def tags(record: Record) -> dict[str, str]:
    """The tags that history and comparison search by."""
    verdict, environment = record.verdict, record.environment
    git = environment.git
    values: dict[str, str | None] = {
        keys.REGIME_TAG: verdict.regime,
        keys.CAUSE_TAG: verdict.cause,
        keys.CONFIDENCE_TAG: verdict.confidence,
        keys.BASIS_TAG: verdict.basis,
        keys.DEVICE_TAG: environment.device.name if environment.device else None,
        keys.VERSION_TAG: record.source.proftrack_version,
        keys.EXPERIMENT_TAG: record.run.experiment if record.run else None,
        keys.FINGERPRINT_TAG: record.run.fingerprint if record.run else None,
        keys.TRACE_REPAIRED_TAG: ", ".join(unfit_for_viewers(record)),
    }
    if git is not None:
        values |= {keys.COMMIT_TAG: git.commit, keys.BRANCH_TAG: git.branch, keys.DIRTY_TAG: str(git.dirty).lower()}
        values[keys.UNTRACKED_TAG] = "true" if git.untracked_only else None
    return bounded(values)


def unfit_for_viewers(record: Record) -> list[FlagCode]:
    """The flags that say that a trace of this record is not valid JSON, so that other programs cannot read it."""
    return [flag.code for flag in record.quality if flag.code in ("repaired_json", "partial_file")]


def source_tags(record: Record) -> dict[str, str]:
    """MLflow's own source tags. A dirty tree never looks clean: the commit always comes with `dirty`."""
    git = record.environment.git
    values: dict[str, str | None] = {keys.SOURCE_NAME_TAG: "proftrack", keys.SOURCE_TYPE_TAG: "LOCAL"}
    if git is not None:
        values |= {
            keys.SOURCE_COMMIT_TAG: git.commit,
            keys.SOURCE_BRANCH_TAG: git.branch,
            keys.SOURCE_REMOTE_TAG: git.remote,
            keys.SOURCE_DIRTY_TAG: str(git.dirty).lower(),
        }
    return bounded(values)


def run_name(record: Record) -> str:
    """The run's name in lists: `matmul_add n=4096 bfloat16 eager`."""
    if record.run is None:
        return "trace"
    return one_line(scrub(record.run.display_name or record.run.experiment))


def bounded(values: dict[str, str | None]) -> dict[str, str]:
    """The non-empty tags, each on one line, at most TAG_CHARS long, without passwords in URLs."""
    return {name: cut(one_line(scrub(value)), TAG_CHARS) for name, value in values.items() if value}


def one_line(text: str) -> str:
    """Text without line breaks and control characters: names in traces are untrusted."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def cut(text: str, chars: int) -> str:
    """Text of at most `chars` characters; an ellipsis shows that something is missing."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _totals(record: Record) -> dict[str, float | None]:
    totals = record.totals
    return {
        keys.SELF_CPU_TIME_TOTAL_US: totals.self_cpu_time_total_us,
        keys.SELF_CUDA_TIME_TOTAL_US: totals.self_cuda_time_total_us,
        keys.GPU_BUSY_FRACTION_PROFILED: totals.gpu_busy_fraction_profiled,
        keys.RECORDED_STEPS: record.window.steps or None,
        keys.PEAK_MEMORY_BYTES: record.run.peak_memory_bytes if record.run else None,
    }


def _times(record: Record) -> dict[str, float | None]:
    times, timing = record.times, record.timing
    figures = {
        keys.STEP_TIME_US: record.unprofiled_step_time_us,
        keys.STEP_LATENCY_US: times.step_latency_us,
        keys.STEP_TIME_PROFILED_US: times.step_time_profiled_us,
        keys.GPU_BUSY_PER_STEP_US: times.gpu_busy_per_step_us,
        keys.ROOFLINE_TIME_US: times.roofline_time_us,
        keys.TOKENS_PER_S: record.tokens_per_s,
    }
    if timing is not None:
        figures |= {
            keys.STEP_TIME_US: timing.step_time_us,
            keys.STEP_LATENCY_US: timing.step_latency_us,
            keys.STEP_TIME_P95_US: timing.step_time_p95_us,
            keys.FIRST_STEP_TIME_US: timing.first_step_time_us,
            keys.INPUT_WAIT_US: timing.input_wait_us,
        }
    return figures


def _derived(record: Record) -> dict[str, float | None]:
    step, busy, profiled = (
        record.unprofiled_step_time_us,
        record.times.gpu_busy_per_step_us,
        record.times.step_time_profiled_us,
    )
    return {
        keys.GPU_BUSY_FRACTION: record.verdict.gpu_busy_fraction,
        # B may exceed T by the difference of the clocks; the device is then never idle.
        keys.GPU_IDLE_PER_STEP_US: max(0.0, step - busy) if step is not None and busy is not None else None,
        keys.PROFILER_OVERHEAD_RATIO: profiled / step if step and profiled is not None else None,
    }


def _cpu_work(record: Record) -> dict[str, float | None]:
    """W, the CPU run's counterpart of the GPU's busy time."""
    if record.cpu is None or not record.window.steps:
        return {}
    step, work = record.unprofiled_step_time_us, sum(record.cpu.working_us.values()) / record.window.steps
    # Self times are measured under the profiler, so they may exceed the step time without it.
    return {keys.CPU_WORK_PER_STEP_US: work, keys.CPU_WORK_FRACTION: min(1.0, work / step) if step else None}


def _means(record: Record) -> dict[str, float | None]:
    """Means over the typical steps."""
    steps = record.typical_steps
    if not steps or record.totals.self_cuda_time_total_us is None:
        return {}
    return {
        keys.KERNELS_PER_STEP: sum(step.kernels for step in steps) / len(steps),
        keys.LAUNCHES_PER_STEP: launches_per_step(steps),
    }


def _rates(record: Record) -> dict[str, float | None]:
    rates = record.rates
    if rates is None:
        return {}
    return {keys.TFLOPS: rates.tflops, keys.GBYTES_PER_S: rates.gbytes_per_s, keys.MFU: rates.mfu, keys.MBU: rates.mbu}


def _counted(record: Record) -> dict[str, float | None]:
    """Hardware counters and energy. Shares of the peak as counted, use of what is reachable while the GPU is busy."""
    counters = record.counters
    if counters is None:
        return {}
    pipes = [use for unit, use in record.utilizations.items() if unit in PIPES]
    return {
        keys.SM_ACTIVE: counters.shares.get("sm_active"),
        keys.OCCUPANCY: counters.shares.get("occupancy"),
        keys.DRAM_UTILIZATION: record.utilization("dram"),
        keys.TENSOR_UTILIZATION: record.utilization("tensor"),
        keys.PIPE_UTILIZATION: max(pipes, default=None),
        keys.ENERGY_PER_STEP_JOULES: counters.energy_joules_per_step,
        keys.POWER_WATTS: counters.power_watts,
        keys.JOULES_PER_TOKEN: record.joules_per_token,
    }


def _series(record: Record) -> Iterator[Point]:
    """One value per recorded step, logged at the step's number."""
    for step in record.per_step:
        if step.self_cpu_time_us is not None:
            yield Point(keys.SELF_CPU_TIME_PER_STEP_US, step.self_cpu_time_us, step.step)
        if step.self_cuda_time_us is not None:
            yield Point(keys.SELF_CUDA_TIME_PER_STEP_US, step.self_cuda_time_us, step.step)


def _key(name: str) -> str:
    return re.sub(r"[^\w.\-/ ]", "_", name).strip("/ .")[:KEY_CHARS] or "_"
