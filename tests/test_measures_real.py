"""Real traces, against figures from elsewhere: torch's own table, an independent reading, and plain sums made here."""

from __future__ import annotations

import functools
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from traces import flags, table_of

from proftrack.measures import Measures, measure
from proftrack.trace.reader import read
from proftrack.verdict.context import Context
from proftrack.verdict.judge import judge

DATA = Path(__file__).parent / "data"


@functools.cache
def measures(name: str) -> Measures:
    path = DATA / name
    return measure(read(path if path.exists() else DATA / f"{name}.json.gz").table)


def regime(name: str, step_time_us: float | None = None) -> str:
    return judge(measures(name), Context(step_time_us=step_time_us)).verdict.regime


# file: self CPU, self CUDA, GPU events, kernels, without launch, window, device window's B, regime given T, T
KNOWN: dict[str, tuple[Any, ...]] = {
    "matmul_add_64": (572.832, 8.383, 6, 6, 0, 591.918, 2.794, "overhead-bound", 51.2),
    "matmul_add_64_cudagraph": (411.145, 8.832, 6, 6, 0, 439.659, 2.944, "overhead-bound", 27.9),
    "matmul_add_4096": (635.718, 581.511, 9, 6, 0, 723.346, 193.837, "compute-bound", 203.5),
    "matmul_add_4096_compile_reduce-overhead": (
        *(1265.726, 792.28, 18, 12, 0, 1373.147, 264.093),
        *("compute-bound", 289.9),
    ),
    "elementwise_1g": (1558.113, 1522.423, 3, 3, 0, 1641.305, 507.474, "memory-bound", 521.1),
    "h2d_pinned_256m": (20526.199, 15840.416, 3, 0, 0, 20600.867, 5280.139, "transfer-bound", 5192.4),
    "mlp_train": (11575.676, 630.455, 81, 75, 0, 8743.461, 210.152, "overhead-bound", 2104.5),
    "sync_item": (6899.486, 3491.882, 240, 120, 0, 6955.399, 1163.961, "mixed", 1955.3),
    "two_streams": (1659.803, 708.985, 30, 30, 0, 1702.617, 236.328, "mixed", 388.5),
    "hta_mi250_rocm": (16857.535, 149.042, 16, 14, 0, 9374.374, 74.521, None, None),
    "tracelens_h100_qwen": (49318.674, 45647.3, 1707, 1465, 509, 49378.903, 31905.473, None, None),
    "tracelens_vllm_graph": (2408.598, 10717.708, 434, 425, None, None, None, None, None),
    "kineto_resnet50_workers0": (1106820, 653527, 10015, 9564, 733, 928789, 103059.5, "input-bound", None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_figures_to_the_nanosecond(name: str) -> None:
    self_cpu, self_cuda, events, kernels, without, window, busy, _, _ = KNOWN[name]
    got = measures(name)
    assert got.totals.self_cpu_time_total_us == self_cpu
    assert got.totals.self_cuda_time_total_us == self_cuda
    assert (got.totals.gpu_events, got.totals.kernels) == (events, kernels)
    if without is not None:
        assert got.totals.gpu_events_without_launch == without
    if window is not None:
        assert got.window.duration_us == window
        assert got.gpu_busy_per_step_us == pytest.approx(busy, abs=0.0011)  # known to the nanosecond a step


@pytest.mark.parametrize("name", [n for n, known in KNOWN.items() if known[7]])
def test_verdicts(name: str) -> None:
    *_, expected, step_time = KNOWN[name]
    assert regime(name, step_time) == expected


def test_bare_verdicts_where_both_readings_agree_and_where_they_do_not() -> None:
    assert regime("matmul_add_64") == "overhead-bound"
    assert regime("elementwise_1g") == "memory-bound"
    assert regime("kineto_resnet50_workers0") == "input-bound"
    assert regime("hta_mi250_rocm") == "overhead-bound"  # u = 0.02 as traced, at most 0.03 without the inflation


@pytest.mark.parametrize("name", KNOWN)
def test_sums_hold(name: str) -> None:
    check_sums(measures(name))


def check_sums(got: Measures) -> None:
    totals, window = got.totals, got.window
    assert sum(o.self_cpu_time_us for o in got.ops) == pytest.approx(totals.self_cpu_time_total_us, abs=1e-6)
    assert totals.self_cuda_time_total_us is not None
    assert sum(k.total_us for k in got.kernels) == pytest.approx(totals.self_cuda_time_total_us, abs=1e-6)
    assert sum(k.calls for k in got.kernels) == totals.gpu_events
    assert window.duration_us is not None
    assert totals.gpu_busy_us is not None
    assert totals.gpu_idle_us is not None
    assert totals.gpu_busy_us + totals.gpu_idle_us == pytest.approx(window.duration_us, abs=1e-6)
    split = got.split
    assert split is not None
    parts = split.compute_us + split.exposed_communication_us + split.exposed_copy_us + split.idle_us
    assert parts == pytest.approx(window.duration_us, abs=1e-6)
    assert split.idle_us == pytest.approx(totals.gpu_idle_us, abs=1e-6)
    steps = window.typical_steps
    assert got.typical_us is not None
    assert got.busy_us is not None
    idle = got.typical_us - got.busy_us
    assert sum(got.idle.by_cause_us_per_step.values()) * steps == pytest.approx(idle, abs=0.01 * steps)
    assert sum(got.busy_by_limit_us.values()) == pytest.approx(got.busy_us, abs=1e-3)
    assert sum(d.self_cuda_time_total_us for d in got.devices) == pytest.approx(totals.self_cuda_time_total_us)


def plain_events(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / f"{name}.json.gz").read_bytes())
    document = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    return [e for e in document["traceEvents"] if e.get("ph") == "X"]


@pytest.mark.parametrize("name", ["sync_item", "mlp_train", "tracelens_h100_qwen", "kineto_resnet50_workers0"])
def test_totals_equal_plain_sums_of_the_file(name: str) -> None:
    gpu = [
        e for e in plain_events(name) if e["cat"].lower() in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
    ]
    got = measures(name)
    assert got.totals.gpu_events == len(gpu)
    assert got.totals.self_cuda_time_total_us == float(sum(e["dur"] for e in gpu))
    by_name: dict[str, Decimal] = {}
    for event in gpu:
        by_name[event["name"]] = by_name.get(event["name"], Decimal(0)) + event["dur"]
    assert {k.name: k.total_us for k in got.kernels} == {name: float(dur) for name, dur in by_name.items()}


def test_every_row_of_a_file_is_in_the_table_with_its_exact_times() -> None:
    events = plain_events("mlp_train")
    table = read(DATA / "mlp_train.json.gz").table
    assert [table.names[n] for n in table.name] == [e["name"] for e in events]
    assert (table.ts + table.origin_ns).tolist() == [int(e["ts"] * 1000) for e in events]
    assert table.dur.tolist() == [int(e["dur"] * 1000) for e in events]


def test_epoch_times_with_decimals_are_exact_to_the_nanosecond() -> None:
    # As V100 traces of 2024 have them: a float64 of 1.7e15 us steps by a quarter of a microsecond.
    start = [1712195495519689047, 1712195495519695812, 1712195495519698687]
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","ts":{ns // 1000}.{ns % 1000:03d},"dur":1.001}}' for ns in start
    )
    table = table_of(f'{{"traceEvents":[{events}]}}'.encode())
    assert (table.ts + table.origin_ns).tolist() == start
    assert table.dur.tolist() == [1001] * 3


# -- what these traces are known for


def test_flags_of_real_traces() -> None:
    assert "work_before_window" in flags(measures("tracelens_h100_qwen"))
    assert flags(measures("tracelens_h100_qwen"))["gpu_work_without_launch"] == 509
    assert flags(measures("kineto_resnet50_workers0"))["work_before_window"] == 733
    assert "no_steps" in flags(measures("tracelens_vllm_graph"))
    assert "under_recorded_graphs" not in flags(measures("tracelens_vllm_graph"))
    for name in ("matmul_add_64_cudagraph", "matmul_add_4096_compile_reduce-overhead", "two_streams"):
        assert set(flags(measures(name))) <= {"no_region", "work_before_window"}


def test_graph_replays_count_as_one_launch_each() -> None:
    got = measures("matmul_add_64_cudagraph")
    assert [(s.launches, s.kernels) for s in got.per_step] == [(1, 2)] * 3
    assert measures("tracelens_vllm_graph").totals.launches >= 1


def test_streams_that_overlap_do_not_make_more_than_all() -> None:
    for name in ("two_streams", "tracelens_h100_qwen"):
        fraction = measures(name).totals.gpu_busy_fraction_profiled
        assert fraction is not None
        assert fraction <= 1


# -- hand-made cases


def test_cases() -> None:
    got = measures("cases/gpu_user_annotation.json")
    assert (got.totals.gpu_events, got.totals.self_cuda_time_total_us, got.totals.gpu_busy_us) == (2, 190, 190)
    assert (got.totals.gpu_busy_fraction_profiled, got.totals.self_cpu_time_total_us) == (0.475, 400)
    assert {o.name: o.self_cpu_time_us for o in got.ops} == {
        "ProfilerStep#3": 30,
        "fwd": 120,
        "aten::mm": 30,
        "aten::add": 20,
        "cudaLaunchKernel": 20,
        "cudaDeviceSynchronize": 180,
    }
    got = measures("cases/overlapping_streams.json")
    assert (got.totals.self_cuda_time_total_us, got.totals.gpu_busy_us) == (1300, 750)
    assert got.totals.gpu_busy_fraction_profiled == 0.75
    got = measures("cases/zero_ts_zero_dur.json")
    assert (got.totals.kernels, got.window.duration_us, got.totals.gpu_busy_us) == (3, 1000, 200)
    assert flags(got)["invalid_timestamps"] == 1
    got = measures("cases/unescaped_quote.json")
    assert (got.totals.self_cuda_time_total_us, got.totals.gpu_busy_us, got.window.duration_us) == (30, 30, 100)
    assert flags(got)["repaired_json"] == 1
    got = measures("cases/trailing_comma.json")
    assert (got.totals.gpu_events, got.totals.self_cuda_time_total_us, got.totals.gpu_busy_us) == (2, 190, 190)
    assert flags(got)["repaired_json"] == 1
    got = measure(read(DATA / "cases" / "truncated.json", salvage=True).table)
    assert (got.totals.gpu_events, got.totals.self_cuda_time_total_us) == (1, 150)
    assert flags(got)["partial_file"] == 1
    got = measures("cases/host_work.json")
    assert (got.totals.self_cuda_time_total_us, got.window.device_duration_us) == (4000, 40_000)
    assert got.gpu_busy_per_step_us == 2000
    assert regime("cases/host_work.json") == "host-bound"
