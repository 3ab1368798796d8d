"""Workloads with a known regime: does the verdict find it?

    python benchmarks/verdict_suite.py [--only NAME ...] [--part I/N] [--output FOLDER] [--repeats]

Needs a GPU. Each regime was derived from the nature of the workload before its first run; the reason is given next to
it. Prints a Markdown table and a line for each check, and exits 1 if a verdict is wrong at high confidence or fewer
than 19 in 20 are right. `--repeats` judges matmul_add at three sizes ten times each instead."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))
HERE = Path(__file__).resolve().parent


class Case(NamedTuple):
    """A workload, its parameters, the regimes that are right, and why."""

    name: str
    workload: str
    params: dict[str, Any]
    right: tuple[str, ...]
    because: str
    graph: bool = False
    """The same step can be captured as a graph: then T must come to B."""


CASES = (
    Case("matmul_add_64", "matmul_add", {"n": 64}, ("overhead-bound",), "0.5 MFLOP against two launches"),
    Case(
        "matmul_add_256", "matmul_add", {"n": 256}, ("overhead-bound",), "34 MFLOP: under a microsecond of arithmetic"
    ),
    Case(
        "matmul_add_1024", "matmul_add", {"n": 1024}, ("overhead-bound",), "2 GFLOP: some 5 us, two launches cost more"
    ),
    Case("matmul_add_4096", "matmul_add", {"n": 4096}, ("compute-bound",), "137 GFLOP: 0.2 ms in one kernel"),
    Case("matmul_add_8192", "matmul_add", {"n": 8192}, ("compute-bound",), "1.1 TFLOP: 1.5 ms in one kernel"),
    Case("compiled_64", "matmul_add", {"n": 64, "compile": True}, ("overhead-bound",), "guards and launches remain"),
    Case("compiled_4096", "matmul_add", {"n": 4096, "compile": True}, ("compute-bound",), "the product remains"),
    Case("graph_4096", "matmul_add", {"n": 4096, "graph": True}, ("compute-bound",), "the product remains"),
    Case("matmul_8192", "matmul", {"n": 8192}, ("compute-bound",), "1.1 TFLOP: 1.5 ms in one kernel"),
    Case(
        "normalize_chain",
        "normalize_chain",
        {"rows": 16384, "width": 8192},
        ("memory-bound",),
        "four passes over 0.5 GB, a few FLOPs a value",
    ),
    Case("gemv", "gemv", {"n": 16384}, ("memory-bound",), "one FLOP a byte of the matrix"),
    Case("elementwise_1g", "elementwise", {"mebibytes": 1024}, ("memory-bound",), "a quarter FLOP a byte"),
    Case(
        "mlp_train_large",
        "mlp_train",
        {"batch": 8192, "width": 4096, "hidden": 16384},
        ("compute-bound",),
        "6.6 TFLOP a step against some GB of optimizer traffic",
    ),
    Case(
        "attention",
        "attention",
        {"batch": 8, "heads": 32, "length": 4096, "width": 128},
        ("compute-bound",),
        "2.2 TFLOP on 1 GB of q, k, v",
    ),
    Case("copy_pageable", "host_copy", {"mebibytes": 256, "pinned": False}, ("transfer-bound",), "nothing but a copy"),
    Case("copy_pinned", "host_copy", {"mebibytes": 256, "pinned": True}, ("transfer-bound",), "nothing but a copy"),
    Case(
        "hidden_copies",
        "hidden_copies",
        {"n": 8192, "mebibytes": 32},
        ("compute-bound",),
        "0.6 ms of copies behind 1.5 ms of arithmetic",
    ),
    Case("slow_loader", "slow_loader", {"batch": 16, "width": 512}, ("input-bound",), "16 ms of decoding a batch"),
    Case("host_work", "host_work", {"n": 2048, "milliseconds": 10.0}, ("host-bound",), "10 ms of numpy a step"),
    Case(
        "item_loop",
        "item_loop",
        {"n": 4096, "small_operators": 12},
        ("sync-bound",),
        "each read drains the queue; 12 launches would hide behind the next 0.2 ms product",
    ),
    Case(
        "few_blocks_graph",
        "few_blocks_graph",
        {"rows": 8, "width": 65536, "count": 20},
        ("latency-bound",),
        "eight blocks on 132 multiprocessors",
    ),
    Case(
        "optimizer_for_loop",
        "optimizer_only",
        {"tensors": 200, "size": 1024, "kind": "for-loop"},
        ("overhead-bound",),
        "some 2,000 launches on 4 KB each",
    ),
    Case(
        "optimizer_foreach_small",
        "optimizer_only",
        {"tensors": 200, "size": 1024, "kind": "foreach"},
        ("overhead-bound",),
        "a dozen launches on less than a megabyte, and Python over 200 tensors",
    ),
    Case(
        "optimizer_fused_large",
        "optimizer_only",
        {"tensors": 16, "size": 16 << 20, "kind": "fused"},
        ("memory-bound",),
        "7 GB of parameters, moments and gradients",
    ),
    Case("resnet50_fp32", "resnet", {"batch": 64}, ("compute-bound",), "1.6 TFLOP in float32, images on the GPU"),
    Case(
        "mlp_train_small",
        "mlp_train",
        {"batch": 64, "width": 256, "hidden": 1024},
        ("overhead-bound",),
        "0.2 GFLOP against some 30 launches and autograd",
        True,
    ),
    Case(
        "mlp_train_mid",
        "mlp_train",
        {"batch": 256, "width": 1024, "hidden": 4096},
        ("overhead-bound",),
        "13 GFLOP: some 20 us of arithmetic and 0.1 ms of optimizer traffic against some 30 launches and autograd",
        True,
    ),
    Case(
        "decode",
        "decode",
        {"layers": 8, "width": 512, "tokens": 16},
        ("overhead-bound",),
        "thousands of launches of microsecond kernels",
    ),
)


def experiment_of(case: Case, params: dict[str, Any]) -> Any:
    from proftrack.experiment import Experiment, Schedule, TimingOptions

    return Experiment(
        name=case.name,
        path=HERE / "verdict_suite.yaml",
        workload=f"verdict_workloads.py:{case.workload}",
        params=params,
        timing=TimingOptions(max_seconds=6.0),
        # The window begins with an empty queue: what runs side by side in the long run needs some steps to get there.
        schedule=Schedule(active=10) if case.workload == "hidden_copies" else Schedule(),
    )


def run(case: Case, params: dict[str, Any] | None = None) -> Any:
    """Capture and judge one case; returns the record."""
    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture import capture, environment
    from proftrack.report.progress import Silent

    experiment = experiment_of(case, case.params if params is None else params)
    with tempfile.TemporaryDirectory() as folder:
        captured = capture(experiment, output=Path(folder), progress=Silent())
        return analyze_capture(captured, experiment, environment.collect(captured.device, code=HERE)).record


def line_of(case: Case, record: Any, seconds: float) -> dict[str, Any]:
    verdict, times = record.verdict, record.times
    return {
        "name": case.name,
        "right": list(case.right),
        "because": case.because,
        "regime": verdict.regime,
        "ok": verdict.regime in case.right,
        "confidence": verdict.confidence,
        "cause": verdict.cause,
        "T_us": record.step_time_us,
        "B_us": times.gpu_busy_per_step_us,
        "u": verdict.gpu_busy_fraction,
        "R_us": times.roofline_time_us,
        "rates": {k: getattr(record.rates, k, None) for k in ("tflops", "gbytes_per_s", "mfu", "mbu")},
        "busy": {e.name: e.value for e in verdict.evidence if e.name.startswith(("busy_", "idle_", "waits"))},
        "reasons": verdict.reasons,
        "flags": [f.code for f in record.quality],
        "notes": record.run.notes,
        "advice": verdict.advice[0] if verdict.advice else "",
        "seconds": round(seconds, 1),
    }


def show(line: dict[str, Any]) -> str:
    r = "-" if line["R_us"] is None else f"{line['R_us']:.4g}"
    mark = "" if line["ok"] else f" (wanted {' or '.join(line['right'])})"
    return (
        f"| {line['name']} | {line['T_us']:.4g} | {line['B_us']:.4g} | {line['u']:.2f} | {r} | "
        f"{line['regime']}{mark} | {line['confidence']} | {line['because']} |"
    )


def check_rates() -> list[str]:
    """mfu and mbu against CUDA events, timed here and apart from proftrack."""
    import torch

    out = []
    device = torch.device("cuda")
    x, w = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    big = torch.ones(1 << 28, device=device)
    for name, work, amount in (
        ("8192 matmul, TFLOP/s", lambda: torch.mm(x, w), 2 * 8192**3 / 1e12),
        ("1 GiB elementwise, GB/s", lambda: big.mul_(1.0000001), 2 * big.numel() * 4 / 1e9),
    ):
        for _ in range(200):
            work()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(200):
            work()
        end.record()
        torch.cuda.synchronize()
        out.append(f"events: {name} = {amount / (begin.elapsed_time(end) / 1000 / 200):.1f}")
    return out


def graph_line(case: Case, eager: Any) -> str:
    """Replaying the step as a graph takes launch overhead away: T must come near the B that was predicted."""
    record = run(case, {**case.params, "graph": True})
    predicted, time = eager.times.gpu_busy_per_step_us, record.step_time_us
    return (
        f"graph of {case.name}: predicted B {predicted:.4g} us, T {eager.step_time_us:.4g} -> "
        f"{time:.4g} us: {time / predicted:.2f} of B"
    )


def repeats(count: int) -> list[dict[str, Any]]:
    lines = []
    for n in (64, 2048, 4096):
        case = Case(f"matmul_add_{n}", "matmul_add", {"n": n}, (), "repeat")
        found = [run(case) for _ in range(count)]
        said = [(r.verdict.regime, r.verdict.confidence, round(r.verdict.gpu_busy_fraction, 3)) for r in found]
        high = {regime for regime, confidence, _ in said if confidence == "high"}
        lines.append({"n": n, "said": said, "flips_at_high": len(high) > 1})
        print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", default="1/1", help="I/N: every N-th case, starting with the I-th")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeats", type=int, default=0)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    extra: list[str] = []
    if options.repeats:
        found = repeats(options.repeats)
        return int(any(line["flips_at_high"] for line in found))
    part, parts = map(int, options.part.split("/"))
    chosen = [c for i, c in enumerate(CASES) if i % parts == part - 1 and (not options.only or c.name in options.only)]
    print("| workload | T us | B us | u | R us | verdict | confidence | reason given beforehand |\n" + "|---" * 8 + "|")
    for case in chosen:
        begin = time.perf_counter()
        try:
            record = run(case)
            lines.append(line_of(case, record, time.perf_counter() - begin))
            print(show(lines[-1]), flush=True)
            if case.graph:
                extra.append(graph_line(case, record))
        except Exception:
            traceback.print_exc()
            lines.append({"name": case.name, "ok": False, "confidence": "none", "regime": "failed"})
    extra += check_rates() if not options.only else []
    print("\n".join(extra))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / f"suite_{part}_{parts}.json").write_text(
            json.dumps({"lines": lines, "extra": extra}, indent=1)
        )
    right = sum(line["ok"] for line in lines)
    wrong_and_sure = [line["name"] for line in lines if not line["ok"] and line["confidence"] == "high"]
    print(f"{right} of {len(lines)} right; wrong at high confidence: {', '.join(wrong_and_sure) or 'none'}")
    return int(bool(wrong_and_sure) or right * 20 < 19 * len(lines))


if __name__ == "__main__":
    sys.exit(main())
