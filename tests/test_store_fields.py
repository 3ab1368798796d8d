"""Names and values that reach MLflow. The names are a contract (docs/mlflow.md)."""

from __future__ import annotations

import math

import msgspec
import pytest
from run_folders import make_record

from proftrack.measures.quality import flag
from proftrack.record import Record
from proftrack.record.figures import CpuWork, FlagCode
from proftrack.report.markdown import escape
from proftrack.report.pages.note import NOTE_CHARS, note
from proftrack.store import fields, keys

METRICS = """
    self_cpu_time_total_us self_cuda_time_total_us self_cpu_time_per_step_us self_cuda_time_per_step_us step_time_us
    step_latency_us step_time_p95_us step_time_profiled_us first_step_time_us profiler_overhead_ratio gpu_busy_fraction
    gpu_busy_fraction_profiled gpu_busy_per_step_us gpu_idle_per_step_us
    cpu_work_per_step_us cpu_work_fraction kernels_per_step launches_per_step
    roofline_time_us tflops gbytes_per_s mfu mbu sm_active occupancy dram_utilization tensor_utilization
    pipe_utilization energy_per_step_joules power_watts tokens_per_s joules_per_token input_wait_us
    peak_memory_bytes recorded_steps
"""
TAGS = """
    regime regime.cause regime.confidence regime.basis device.name git.commit git.branch git.dirty
    proftrack.experiment proftrack.version proftrack.fingerprint
"""
CONTRACT_METRICS = set(METRICS.split())
CONTRACT_TAGS = set(TAGS.split())


def values(record: Record) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for point in fields.metrics(record):
        found.setdefault(point.key, []).append((point.step, point.value))
    return found


def test_metric_names_are_the_contract(record: Record) -> None:
    assert set(keys.METRICS) == CONTRACT_METRICS
    on_cpu = msgspec.structs.replace(record, cpu=CpuWork(operators=9, operators_us=300.0, working_us={}))
    assert set(values(on_cpu)) == CONTRACT_METRICS
    assert len(CONTRACT_METRICS) < 50


def test_metric_values(record: Record) -> None:
    found = values(record)
    assert found["step_time_us"] == [(0, 100.0)]
    assert found["step_latency_us"] == [(0, 120.0)]
    assert found["step_time_p95_us"] == [(0, 130.0)]
    assert found["first_step_time_us"] == [(0, 50_000.0)]
    assert found["step_time_profiled_us"] == [(0, 180.0)]
    assert found["profiler_overhead_ratio"] == [(0, 1.8)]
    assert found["gpu_busy_per_step_us"] == [(0, 40.0)]
    assert found["gpu_idle_per_step_us"] == [(0, 60.0)]
    assert found["gpu_busy_fraction"] == [(0, 0.4)]
    assert found["gpu_busy_fraction_profiled"] == [(0, 0.2)]
    assert found["self_cpu_time_total_us"] == [(0, 450.0)]
    assert found["self_cuda_time_total_us"] == [(0, 126.0)]
    assert found["kernels_per_step"] == [(0, 2.0)]
    assert found["launches_per_step"] == [(0, 3.0)]
    assert found["roofline_time_us"] == [(0, 5.0)]
    assert found["peak_memory_bytes"] == [(0, 4096.0)]
    assert found["recorded_steps"] == [(0, 3.0)]
    assert found["tflops"] == [(0, 1.5)]
    assert found["gbytes_per_s"] == [(0, 20.0)]
    assert found["mfu"] == [(0, 0.03)]
    assert found["mbu"] == [(0, 0.05)]


def test_counters_are_raw_shares_and_use_of_what_is_reachable(record: Record) -> None:
    """u is 40 of 100 us: DRAM 0.17 / 0.4 / 0.85; tensor cores 0.0728 / 0.4 / 0.91; FP32 0.076 / 0.4 / 0.76."""
    found = values(record)
    assert found["sm_active"] == [(0, 0.38)]
    assert found["occupancy"] == [(0, 0.15)]
    assert found["dram_utilization"] == [(0, 0.5)]
    assert found["tensor_utilization"] == [(0, 0.2)]
    assert found["pipe_utilization"] == [(0, 0.25)]
    assert found["energy_per_step_joules"] == [(0, 0.03)]
    assert found["power_watts"] == [(0, 300.0)]
    assert found["input_wait_us"] == [(0, 12.0)]


def test_tokens_are_those_of_the_step_time_and_its_energy(record: Record) -> None:
    """500 tokens in 100 us; in latency mode in 120 us. The energy is that of the steps back to back."""
    found = values(record)
    assert found["tokens_per_s"] == [(0, 5e6)]
    assert found["joules_per_token"] == [(0, 6e-5)]
    timing = msgspec.structs.replace(record.timing, mode="latency")
    assert values(msgspec.structs.replace(record, timing=timing))["tokens_per_s"] == [(0, 4166670.0)]
    unsaid = msgspec.structs.replace(record.run, tokens_per_step=None)
    assert not {"tokens_per_s", "joules_per_token"} & set(values(msgspec.structs.replace(record, run=unsaid)))


def test_a_pipe_without_a_reachable_value_counts_with_its_share_of_the_peak(record: Record) -> None:
    counters = msgspec.structs.replace(record.counters, shares={"dram": 0.1, "integer": 0.328, "imma": 0.4})
    found = values(msgspec.structs.replace(record, counters=counters))
    assert found["pipe_utilization"] == [(0, 0.82)]  # 0.328 / 0.4; a part of the tensor cores is no pipe
    assert not {"tensor_utilization", "sm_active", "occupancy"} & set(found)


def test_use_is_that_of_the_steps_back_to_back_and_never_above_one(record: Record) -> None:
    """In latency mode T is 120 us, but the counters saw steps of 100 us; 0.36 / 0.4 / 0.85 is 1.06."""
    counters = msgspec.structs.replace(record.counters, shares={"dram": 0.17, "tensor": 0.36})
    timing = msgspec.structs.replace(record.timing, mode="latency")
    found = values(msgspec.structs.replace(record, counters=counters, timing=timing))
    assert found["dram_utilization"] == [(0, 0.5)]
    assert found["tensor_utilization"] == [(0, 0.989011)]
    counters = msgspec.structs.replace(counters, shares={"tensor": 0.4})
    assert values(msgspec.structs.replace(record, counters=counters))["tensor_utilization"] == [(0, 1.0)]


def test_energy_alone_and_counters_of_a_gpu_whose_work_was_not_recorded(record: Record) -> None:
    used = {"dram_utilization", "tensor_utilization", "pipe_utilization"}
    energy = msgspec.structs.replace(record.counters, source="nvml", shares={}, reachable={})
    found = values(msgspec.structs.replace(record, counters=energy))
    assert not {"sm_active", "occupancy", *used} & set(found)
    assert found["energy_per_step_joules"] == [(0, 0.03)]
    times = msgspec.structs.replace(record.times, gpu_busy_per_step_us=None)
    found = values(msgspec.structs.replace(record, times=times))
    assert not used & set(found)
    assert found["sm_active"] == [(0, 0.38)]


def test_per_step_metrics_carry_the_profiler_step_number(record: Record) -> None:
    assert values(record)["self_cuda_time_per_step_us"] == [(2, 40.0), (3, 41.0), (4, 42.0)]
    assert values(record)["self_cpu_time_per_step_us"] == [(2, 150.0), (3, 149.0), (4, 148.0)]


def test_idle_takes_the_step_time_that_the_mode_chooses(record: Record) -> None:
    timing = msgspec.structs.replace(record.timing, mode="latency")
    found = values(msgspec.structs.replace(record, timing=timing))
    assert found["gpu_idle_per_step_us"] == [(0, 80.0)]  # 120 of latency less 40 busy
    assert found["step_time_us"] == [(0, 100.0)]


def test_a_cpu_runs_work_is_per_step_and_a_share_of_the_step(record: Record) -> None:
    """Three steps with 150 us of work: 50 of 100 us each; self times may exceed a step without the profiler."""
    cpu = CpuWork(operators=9, operators_us=300.0, working_us={"arithmetic": 120.0, "bandwidth": 30.0})
    found = values(msgspec.structs.replace(record, cpu=cpu))
    assert found["cpu_work_per_step_us"] == [(0, 50.0)]
    assert found["cpu_work_fraction"] == [(0, 0.5)]
    more = msgspec.structs.replace(cpu, working_us={"unknown": 360.0})
    assert values(msgspec.structs.replace(record, cpu=more))["cpu_work_fraction"] == [(0, 1.0)]
    assert "cpu_work_per_step_us" not in values(record)


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        (51.238471239847, 51.2385),
        (0.05452933123, 0.0545293),
        (1234567.891, 1234570.0),
        (1234567891.0, 1234567891.0),  # bytes and counts
        (0.0, 0.0),
        (-1.23456789e-9, -1.23457e-9),
    ],
)
def test_figures_are_rounded_to_six_digits(record: Record, value: float, logged: float) -> None:
    assert fields.rounded(value) == logged
    times = msgspec.structs.replace(record.times, roofline_time_us=value)
    assert values(msgspec.structs.replace(record, times=times))["roofline_time_us"] == [(0, logged)]


def test_a_device_busier_than_the_step_is_never_idle(record: Record) -> None:
    times = msgspec.structs.replace(record.times, gpu_busy_per_step_us=101.0)
    assert values(msgspec.structs.replace(record, times=times))["gpu_idle_per_step_us"] == [(0, 0.0)]


def test_what_does_not_exist_is_absent() -> None:
    """A CPU run: no GPU figure at all, not even 0 kernels."""
    whole = make_record()
    totals = msgspec.structs.replace(
        whole.totals,
        self_cuda_time_total_us=None,
        gpu_busy_us=None,
        gpu_idle_us=None,
        gpu_busy_fraction_profiled=None,
        kernels=0,
        launches=0,
    )
    steps = [msgspec.structs.replace(step, self_cuda_time_us=None, kernels=0, launches=0) for step in whole.per_step]
    times = msgspec.structs.replace(
        whole.times, step_time_profiled_us=None, gpu_busy_per_step_us=None, roofline_time_us=None
    )
    verdict = msgspec.structs.replace(whole.verdict, gpu_busy_fraction=None, cause=None)
    run = msgspec.structs.replace(whole.run, peak_memory_bytes=None, tokens_per_step=None)
    timing = msgspec.structs.replace(whole.timing, input_wait_us=None)
    cpu = make_record(
        totals=totals,
        per_step=steps,
        times=times,
        timing=timing,
        verdict=verdict,
        run=run,
        rates=None,
        counters=None,
    )
    assert set(values(cpu)) == {
        "self_cpu_time_total_us",
        "self_cpu_time_per_step_us",
        "step_time_us",
        "step_latency_us",
        "step_time_p95_us",
        "first_step_time_us",
        "recorded_steps",
    }
    assert "regime.cause" not in fields.tags(cpu)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_nan_and_no_infinity(record: Record, bad: float) -> None:
    times = msgspec.structs.replace(record.times, roofline_time_us=bad, gpu_busy_per_step_us=bad)
    found = values(msgspec.structs.replace(record, times=times))
    assert "roofline_time_us" not in found
    assert all(math.isfinite(value) for points in found.values() for _, value in points)


def test_a_bare_trace_has_no_unprofiled_step_time(record: Record) -> None:
    verdict = msgspec.structs.replace(record.verdict, basis="profiled")
    found = values(msgspec.structs.replace(record, run=None, timing=None, verdict=verdict))
    assert not {"step_time_us", "gpu_idle_per_step_us", "profiler_overhead_ratio"} & set(found)
    assert found["step_time_profiled_us"] == [(0, 180.0)]


def test_params(record: Record) -> None:
    assert fields.params(record) == {
        "experiment": "matmul_add",
        "n": "64",
        "dtype": "bfloat16",
        "compile": "none",
        "seed": "0",
        "schedule.skip_first": "0",
        "schedule.wait": "1",
        "schedule.warmup": "1",
        "schedule.active": "3",
        "schedule.repeat": "1",
        "timing.mode": "throughput",
    }


def test_long_params_are_cut_and_bad_names_replaced(record: Record) -> None:
    run = msgspec.structs.replace(record.run, params={"text": "x" * 7000, "a<b>": 1})
    params = fields.params(msgspec.structs.replace(record, run=run))
    assert len(params["text"]) == 6000
    assert params["text"].endswith("…")
    assert params["a_b_"] == "1"


def test_tags(record: Record) -> None:
    tags = fields.tags(record)
    assert set(tags) == CONTRACT_TAGS
    assert tags["regime"] == "overhead-bound"
    assert tags["git.dirty"] == "true"
    assert tags["proftrack.fingerprint"] == "f00d"


@pytest.mark.parametrize("code", ["repaired_json", "partial_file"])
def test_a_trace_that_is_not_json_is_tagged(record: Record, code: FlagCode) -> None:
    broken = msgspec.structs.replace(record, quality=[flag("no_region", 1), flag(code, 2)])
    assert fields.tags(broken)["proftrack.trace_repaired"] == code


def test_a_dirty_tree_does_not_look_clean_in_mlflows_own_tags(record: Record) -> None:
    tags = fields.source_tags(record)
    assert tags["mlflow.source.git.commit"] == "c0ffee"
    assert tags["mlflow.source.git.dirty"] == "true"


def test_tags_are_bounded_and_on_one_line(record: Record) -> None:
    verdict = msgspec.structs.replace(record.verdict, cause="a\nb\x00c" + "x" * 9000)
    tags = fields.tags(msgspec.structs.replace(record, verdict=verdict))
    assert tags["regime.cause"].startswith("a b cx")
    assert len(tags["regime.cause"]) == fields.TAG_CHARS


def test_run_name(record: Record) -> None:
    assert fields.run_name(record) == "matmul_add n=64 bfloat16 eager"


def test_note_says_verdict_times_and_kernels(record: Record) -> None:
    text = note(record)
    assert text.startswith("**overhead-bound** (high confidence, unprofiled): The host cannot launch fast enough.")
    for line in ("| step time T | 100 us |", "| GPU busy B | 40.0 us |", "| roofline R | 5.00 us |"):
        assert line in text
    assert "| gemm_64x64 | matmul | 6 | 126 us | 100.0 % |" in text
    assert "- Compile the step." in text


def test_note_names_the_five_largest_kernels_only(record: Record) -> None:
    kernels = [msgspec.structs.replace(record.kernels[0], name=f"kernel_{index}") for index in range(8)]
    text = note(msgspec.structs.replace(record, kernels=kernels))
    assert "kernel_4" in text
    assert "kernel_5" not in text


def test_note_is_short_enough_whatever_is_in_it(record: Record) -> None:
    kernels = [msgspec.structs.replace(record.kernels[0], name="<|*>" * 1000)] * 8
    verdict = msgspec.structs.replace(
        record.verdict, summary="<" * 5000, advice=["|" * 5000] * 9, reasons=["*" * 5000] * 9
    )
    text = note(msgspec.structs.replace(record, kernels=kernels, verdict=verdict))
    assert len(text) <= NOTE_CHARS < 8000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "&#60;script&#62;alert(1)&#60;/script&#62;"),
        ("a|b", "a&#124;b"),
        ("[x](javascript:1)", "&#91;x&#93;(javascript:1)"),
        ("![x](y)", "&#33;&#91;x&#93;(y)"),
        ("two\nlines", "two lines"),
        ("snake_case_kernel", "snake_case_kernel"),
        ("_bold_", "&#95;bold&#95;"),
        ("http://evil", "http&#58;//evil"),
        ("std::vector", "std::vector"),
        ("a&lt;b", "a&#38;lt;b"),
    ],
)
def test_untrusted_names_are_shown_as_they_are(name: str, shown: str) -> None:
    assert escape(name) == shown
