"""benchmarks/verdict_suite.py: its workloads build and run, and it keeps the score as it says."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("verdict_suite")


@pytest.fixture
def cases(suite: Any) -> Any:
    return importlib.import_module("labelled.cases")


def test_the_suite_is_large_enough_and_half_of_it_is_new(cases: Any) -> None:
    assert len(cases.CASES) >= 64
    assert len(cases.CASES) - len(cases._FIRST) >= 34
    assert len(cases.HELD_OUT) >= 12
    names = [case.name for case in (*cases.CASES, *cases.HELD_OUT)]
    assert len(set(names)) == len(names)


def test_every_label_is_a_regime_with_a_reason(cases: Any) -> None:
    from typing import get_args

    from proftrack.record.verdict import GpuRegime, HostRegime

    regimes = {name for kind in (HostRegime, GpuRegime) for name in get_args(kind)}
    for case in (*cases.CASES, *cases.HELD_OUT):
        assert case.regimes and set(case.regimes) <= regimes and case.because, case.name
    several = [case.name for case in cases.CASES if len(case.regimes) > 1]
    assert len(several) * 10 < len(cases.CASES), "two answers are right for too many"


@pytest.mark.slow
def test_every_workload_that_needs_no_gpu_runs_here(cases: Any) -> None:
    ran = set()
    for case in (*cases.CASES, *cases.HELD_OUT):
        small = cases.small(case)
        if small is None or (case.workload, str(small)) in ran:
            continue
        ran.add((case.workload, str(small)))
        module, function = case.workload.split(":")
        built = getattr(importlib.import_module(f"labelled.{module}"), function)(torch.device("cpu"), **small)
        with built if hasattr(built, "__enter__") else contextlib.nullcontext(built) as step:
            step()
            step()
    assert len({workload for workload, _ in ran}) >= 40


def a_line(name: str, regime: str, confidence: str, right: str = "memory-bound") -> dict[str, Any]:
    counters = {"s_mem": 0.9, "pipe": "fp32", "s_pipe": 0.25}
    return {
        "name": name,
        "right": [right],
        "because": "bytes",
        "regime": regime,
        "ok": regime == right,
        "confidence": confidence,
        "T_us": 10.0,
        "B_us": 9.5,
        "u": 0.95,
        "R_us": None,
        "counters": counters,
        "seconds": 2.0,
    }


def test_the_score_names_what_is_wrong_by_how_sure_it_was(suite: Any) -> None:
    lines = [a_line(f"good_{i}", "memory-bound", "high") for i in range(19)]
    text, good = suite.score([*lines, a_line("open", "inconclusive", "low")])
    assert good and text == ("19 of 20 right; wrong at high confidence: none; wrong below: none; inconclusive: open")
    text, good = suite.score([*lines, a_line("sure", "compute-bound", "high")])
    assert not good and "high confidence: sure; wrong below: none" in text
    text, good = suite.score([*lines[:18], a_line("unsure", "compute-bound", "medium"), a_line("x", "failed", "none")])
    assert not good and "wrong below: unsure; inconclusive: none; failed: x" in text


def test_parts_are_joined_to_one_table(suite: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("a", ["gemv", "matmul_add_64"]), ("b", ["matmul_8192"])):
        found = {"lines": [a_line(line, "memory-bound", "high") for line in lines], "extra": [f"checked {name}"]}
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- suite -->\nold\n<!-- end of suite -->\nafter\n")
    assert suite.table([tmp_path / "b.json", tmp_path / "a.json"], page) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in out[2:5]] == ["matmul_add_64", "matmul_8192", "gemv"]
    assert out[2] == "| matmul_add_64 | 10 | 9.5 | 0.95 | - | 0.90 | fp32 0.25 | memory-bound | high | bytes |"
    assert "3 of 3 right" in out[-1] and "checked a" in out and out[-2] == "3 workloads took 6 s in 2 processes"
    filled = page.read_text().splitlines()
    assert filled[0] == "before" and filled[-2:] == ["<!-- end of suite -->", "after"] and "old" not in filled
    assert filled[2:7] == out[:5]


def test_a_page_without_a_place_is_refused(suite: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"lines": [], "extra": []}))
    (tmp_path / "page.md").write_text("nothing\n")
    with pytest.raises(SystemExit, match="has no lines"):
        suite.table([tmp_path / "a.json"], tmp_path / "page.md")


def test_counters_are_summed_up_by_the_pipe_that_is_used_the_most(suite: Any) -> None:
    from proftrack.record.counters import Counters

    counted = Counters(
        source="gpm",
        window_s=0.5,
        shares={"dram": 0.4, "tensor": 0.36, "integer": 0.3, "sm_active": 0.9},
        reachable={"dram": 0.8, "tensor": 0.9},
    )
    found = suite.counters_of(counted, 0.8)
    # By hand: 0.4 / 0.8 / 0.8; tensor 0.36 / 0.8 / 0.9 = 0.5, integer 0.3 / 0.8 = 0.375 of its peak.
    assert found["s_mem"] == pytest.approx(0.625)
    assert (found["pipe"], found["s_pipe"]) == ("tensor", pytest.approx(0.5))
    assert suite.counters_of(None, 0.8) is None


NCU = """==PROF== Connected to process 1
==WARNING== Note: Running with unmodified GPU clocks.
"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed","sm__cycles_elapsed.avg.per_second"
"","","ns","%","%","%","%","hz"
"0","gemm<a, b>","1,500,000","20","90","1","2","1,400,000,000"
"1","copy","500,000","80","0","n/a","2","1,800,000,000"
"""


def test_ncu_is_read_and_compared_by_time(suite: Any) -> None:
    both = importlib.import_module("gpm_against_ncu")
    kernels = both.parsed(NCU)
    assert [(kernel.name, kernel.us) for kernel in kernels] == [("gemm<a, b>", 1500.0), ("copy", 500.0)]
    assert both.mean(kernels, "dram") == pytest.approx(35.0)  # (20 x 1500 + 80 x 500) / 2000
    counted = both.Counted(busy=80.0, dram=26.4, tensor=54.0, step_us=2500.0, clock_mhz=1500)
    line = both.row("matmul_8192", counted, kernels, 132)
    assert line["dram_differs"] == pytest.approx(33.0 - 35.0)  # 26.4 of 80
    assert line["tensor_differs"] == pytest.approx(67.5 - 67.5)
    # 1.0995e12 FLOP in 2.5 ms; 4096 x 132 x 1.5e9 = 811 TFLOP/s
    assert line["gpm_tflops"] == pytest.approx(439.8, abs=0.1)
    assert line["gpm_by_flops"] == pytest.approx(54.2, abs=0.1)
    # The same in 2 ms at 1.5 GHz, the mean of 1.4 and 1.8 over the kernels' time.
    assert line["ncu_mhz"] == pytest.approx(1500.0) and line["ncu_by_flops"] == pytest.approx(67.8, abs=0.1)
    assert both.show(line) == (
        "| matmul_8192 | 33.0 | 35.0 | -2.0 | 67.5 | 67.5 | 0.0 | 2500 | 1500 | 439.8 | 54.2 | 2000 | 1500 | 549.8 | "
        "67.8 |"
    )
