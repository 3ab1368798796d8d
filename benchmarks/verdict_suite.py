"""Workloads with a known regime: does the verdict find it?

    python benchmarks/verdict_suite.py [--only NAME ...] [--part I/N] [--held-out] [--output FOLDER] [--ncu]
    python benchmarks/verdict_suite.py --again FOLDER [--only NAME ...] [--output FOLDER]
    python benchmarks/verdict_suite.py --table FILE ... [--into PAGE]
    python benchmarks/verdict_suite.py --repeats N

Needs a GPU, and nothing but torch. The workloads, which regimes are right and why are in `labelled/cases.py`: each
reason was written before the first run. Prints a Markdown table, and exits 1 if a verdict is wrong at high confidence
or fewer than 19 in 20 are right. `--part` runs every N-th case: one process for each part, so that no workload is
judged in a process that many others have used. `--held-out` runs other shapes of the same kinds, which no rule was made
for.
`--keep` writes what was measured of each case to a folder, and `--again` judges that anew, on any machine: what a
change of the rules does, on the same figures. `--ncu` asks Nsight Compute about the kernels of one step of each case.
`--repeats` judges matmul_add at three sizes N times each instead."""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))
HERE = Path(__file__).resolve().parent

import msgspec  # noqa: E402
from labelled.cases import CASES, HELD_OUT, Case  # noqa: E402

Line = dict[str, Any]
_COLUMNS = (
    "workload",
    "T us",
    "B us",
    "u",
    "R us",
    "DRAM",
    "largest pipe",
    "verdict",
    "confidence",
    "reason given beforehand",
)
_BEGIN, _END = "<!-- suite -->", "<!-- end of suite -->"
HEAD = "| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|"


def experiment_of(case: Case, params: dict[str, Any]) -> Any:
    from proftrack.experiment import Experiment, Schedule, TimingOptions

    return Experiment(
        name=case.name,
        path=HERE / "verdict_suite.yaml",
        workload=f"labelled.{case.workload}",
        params=params,
        timing=TimingOptions(min_steps=10, min_seconds=0.2, max_seconds=3.0),  # a suite of many cases has to end
        schedule=Schedule(**case.schedule),
    )


def run(case: Case, params: dict[str, Any] | None = None, keep: Path | None = None) -> Any:
    """Capture and judge one case; returns the record. `keep`: a folder for what was measured."""
    import torch

    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture import capture, environment
    from proftrack.report.progress import Silent

    torch.manual_seed(0)
    experiment = experiment_of(case, case.params if params is None else params)
    try:
        with tempfile.TemporaryDirectory() as folder:
            captured = capture(experiment, output=Path(folder), progress=Silent())
            around = environment.collect(captured.device, code=HERE)
            if keep is not None:
                _keep(keep / case.name, captured, around, Path(folder))
            return analyze_capture(captured, experiment, around).record
    finally:
        gc.collect()  # what a graph or an iterator keeps
        torch.cuda.empty_cache()


def _keep(folder: Path, captured: Any, around: Any, traces: Path) -> None:
    shutil.copytree(traces, folder)
    cycles = [msgspec.structs.replace(c, trace=c.trace.relative_to(traces)) for c in captured.cycles]
    parts = {"capture": msgspec.structs.replace(captured, cycles=cycles), "environment": around}
    (folder / "measured.json").write_bytes(msgspec.json.encode(parts, enc_hook=str))


def again(folder: Path) -> Any:
    """The record of a case by what was kept of it, judged by today's rules."""
    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture.result import Capture
    from proftrack.record.environment import Environment

    def path_of(kind: type, value: Any) -> Any:
        return kind(value)

    parts = msgspec.json.decode((folder / "measured.json").read_bytes())
    captured = msgspec.convert(parts["capture"], Capture, dec_hook=path_of)
    cycles = [msgspec.structs.replace(c, trace=folder / c.trace) for c in captured.cycles]
    captured = msgspec.structs.replace(captured, cycles=cycles)
    around = msgspec.convert(parts["environment"], Environment)
    return analyze_capture(captured, captured.experiment, around).record


# ---- what is kept of a record --------------------------------------------------------------------------------------


def line_of(case: Case, record: Any, seconds: float) -> Line:
    verdict, times = record.verdict, record.times
    return {
        "name": case.name,
        "right": list(case.regimes),
        "because": case.because,
        "regime": verdict.regime,
        "ok": verdict.regime in case.regimes,
        "confidence": verdict.confidence,
        "cause": verdict.cause,
        "T_us": record.step_time_us,
        "B_us": times.gpu_busy_per_step_us,
        "u": verdict.gpu_busy_fraction,
        "R_us": times.roofline_time_us,
        "rates": {k: getattr(record.rates, k, None) for k in ("tflops", "gbytes_per_s", "mfu", "mbu")},
        "counters": counters_of(record.counters, verdict.gpu_busy_fraction),
        "input_wait_us": getattr(record.timing, "input_wait_us", None),
        "busy": {e.name: e.value for e in verdict.evidence if e.name.startswith(("busy_", "idle_", "waits"))},
        "kernels": [[kernel.name[:100], kernel.kind, kernel.total_us] for kernel in record.kernels[:5]],
        "summary": verdict.summary,
        "reasons": verdict.reasons,
        "flags": [f.code for f in record.quality],
        "notes": record.run.notes,
        "advice": verdict.advice[0] if verdict.advice else "",
        "seconds": round(seconds, 1),
    }


def counters_of(counters: Any, u: float | None) -> dict[str, Any] | None:
    """The raw shares, and those of section "What limits a busy GPU": DRAM and the pipe that is used the most."""
    from proftrack.record.counters import PIPES

    if counters is None:
        return None
    use = {unit: counters.utilization(unit, u or 0.0) for unit in ("dram", *PIPES)}
    pipes = {unit: share for unit, share in use.items() if unit != "dram" and share is not None}
    pipe = max(pipes, key=lambda unit: pipes[unit], default=None)
    return {
        "shares": counters.shares,
        "reachable": counters.reachable,
        "s_mem": use["dram"],
        "pipe": pipe,
        "s_pipe": pipes.get(pipe),
        "joules_per_step": counters.energy_joules_per_step,
        "watts": counters.power_watts,
        "window_s": counters.window_s,
    }


def show(line: Line) -> str:
    """The line as a row of the table."""
    if line["regime"] == "failed":
        cells = ["", "", "", "", "", "", "failed", "", line["because"]]
    else:
        counters = line["counters"] or {}
        pipe = f"{counters['pipe']} {counters['s_pipe']:.2f}" if counters.get("pipe") else "-"
        mark = "" if line["ok"] else f" (wanted {' or '.join(line['right'])})"
        cells = [
            *(number(line[key], ".4g") for key in ("T_us", "B_us")),
            number(line["u"], ".2f"),
            number(line["R_us"], ".4g"),
            number(counters.get("s_mem"), ".2f"),
            pipe,
            f"{line['regime']}{mark}",
            line["confidence"],
            line["because"],
        ]
    return f"| {' | '.join([line['name'], *cells])} |"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def score(lines: list[Line]) -> tuple[str, bool]:
    """How many are right, those that are not by name, and whether that is good enough."""
    right = sum(line["ok"] for line in lines)
    wrong = [line for line in lines if not line["ok"]]
    sure = _names(line for line in wrong if line["confidence"] == "high" and line["regime"] != "inconclusive")
    unsure = _names(line for line in wrong if line["confidence"] != "high" and line["regime"] not in _NO_ANSWER)
    open_, failed = (_names(line for line in wrong if line["regime"] == name) for name in _NO_ANSWER)
    text = (
        f"{right} of {len(lines)} right; wrong at high confidence: {sure or 'none'}; wrong below: {unsure or 'none'}; "
        f"inconclusive: {open_ or 'none'}" + (f"; failed: {failed}" if failed else "")
    )
    return text, not sure and right * 20 >= 19 * len(lines)


_NO_ANSWER = ("inconclusive", "failed")


def _names(lines: Iterable[Line]) -> str:
    return ", ".join(line["name"] for line in lines)


def table(files: list[Path], page: Path | None = None) -> int:
    """Print what several parts wrote as one table, in the order of the cases, and put it into the page."""
    parts = [json.loads(file.read_text()) for file in files]
    order = {case.name: index for index, case in enumerate((*CASES, *HELD_OUT))}
    lines = sorted((line for part in parts for line in part["lines"]), key=lambda line: order.get(line["name"], -1))
    text, good = score(lines)
    seconds = sum(line.get("seconds", 0.0) for line in lines)
    rows = "\n".join([HEAD, *map(show, lines)])
    checks = [line for part in parts for line in part["extra"]]
    took = f"{len(lines)} workloads took {seconds:.0f} s in {len(parts)} processes"
    print("\n".join([rows, "", *checks, took, text]))
    if page is not None:
        before, _, rest = page.read_text().partition(f"{_BEGIN}\n")
        _, end, after = rest.partition(_END)
        if not end:
            raise SystemExit(f"{page}: has no lines {_BEGIN} and {_END}; add them where the table belongs")
        page.write_text(f"{before}{_BEGIN}\n{rows}\n\n{text}.\n{_END}{after}")
    return int(not good)


# ---- checks beside the verdicts ------------------------------------------------------------------------------------


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


def graph_line(case: Case, eager: Line) -> str:
    """Replaying the step as a graph takes launch overhead away: T must come near the B that was predicted."""
    try:
        time = run(case, {**case.params, "graph": True}).step_time_us
    except Exception as error:
        return f"graph of {case.name}: {type(error).__name__}: {error}"
    predicted = eager["B_us"]
    return (
        f"graph of {case.name}: predicted B {predicted:.4g} us, T {eager['T_us']:.4g} -> "
        f"{time:.4g} us: {time / predicted:.2f} of B"
    )


def repeats(count: int) -> int:
    lines = []
    for n in (64, 2048, 4096):
        case = Case(f"matmul_add_{n}", "operators:matmul_add", {"n": n}, (), "repeat")
        found = [run(case) for _ in range(count)]
        said = [(r.verdict.regime, r.verdict.confidence, round(r.verdict.gpu_busy_fraction, 3)) for r in found]
        high = {regime for regime, confidence, _ in said if confidence == "high"}
        lines.append({"n": n, "said": said, "flips_at_high": len(high) > 1})
        print(json.dumps(lines[-1]), flush=True)
    return int(any(line["flips_at_high"] for line in lines))


# ---- the suite -----------------------------------------------------------------------------------------------------


def judge(case: Case, record_of: Callable[[Case], Any], *, ncu: bool) -> Line:
    """The line of one case."""
    begin = time.perf_counter()
    try:
        record = record_of(case)
        line = line_of(case, record, time.perf_counter() - begin)
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        return {
            "name": case.name,
            "right": list(case.regimes),
            "because": case.because,
            "ok": False,
            "confidence": "none",
            "regime": "failed",
            "error": said[:500],
        }
    if ncu:
        from gpm_against_ncu import ncu_of

        line["ncu"] = [kernel._asdict() for kernel in ncu_of(case.name)]
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", default="1/1", help="I/N: every N-th case, starting with the I-th")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    parser.add_argument("--ncu", action="store_true")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--into", type=Path, metavar="PAGE")
    parser.add_argument("--repeats", type=int, default=0)
    options = parser.parse_args()
    if options.table:
        return table(options.table, options.into)
    if options.repeats:
        return repeats(options.repeats)
    part, parts = map(int, options.part.split("/"))
    cases = HELD_OUT if options.held_out else CASES
    if unknown := set(options.only) - {case.name for case in (*CASES, *HELD_OUT)}:
        parser.error(f"--only: no workload is named {', '.join(sorted(unknown))}")
    if options.only:
        cases = tuple(case for case in (*CASES, *HELD_OUT) if case.name in options.only)
    if options.again:
        cases = tuple(case for case in (*CASES, *HELD_OUT) if (options.again / case.name).is_dir() and case in cases)

    def record_of(case: Case) -> Any:
        return again(options.again / case.name) if options.again else run(case, keep=options.keep)

    lines: list[Line] = []
    extra: list[str] = []

    def write() -> None:
        if options.output:
            options.output.mkdir(parents=True, exist_ok=True)
            name = f"{'held_out' if options.held_out else 'suite'}_{part}_{parts}.json"
            (options.output / name).write_text(json.dumps({"lines": lines, "extra": extra}, indent=1))

    print(HEAD, flush=True)
    for case in cases[part - 1 :: parts]:
        lines.append(judge(case, record_of, ncu=options.ncu))
        print(show(lines[-1]), flush=True)
        if case.graph and not options.again and lines[-1]["regime"] != "failed":
            extra.append(graph_line(case, lines[-1]))
        write()  # a later case may end the process
    extra += check_rates() if part == 1 and not (options.only or options.held_out or options.again) else []
    text, good = score(lines)
    print("\n".join(["", *extra, text]))
    write()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
