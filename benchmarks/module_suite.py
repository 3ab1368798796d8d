"""Models from transformers, timm and torchvision: how much of their GPU time has an owner, and what do marks cost?

    python benchmarks/module_suite.py [--only NAME ...] [--part I/N] [--small] [--slow] [--keep FOLDER] [--output FILE]
    python benchmarks/module_suite.py --again FOLDER [--only NAME ...] [--output FILE]

Needs transformers, timm and torchvision, and nothing from the network: weights are random. The models and what is
special about each are in `modules/cases.py`. Each is recorded without marks and with them, in turns (`--rounds`).
With `--slow` it is recorded once more with one layer slowed down, and compared: is that layer named first?
Prints a Markdown table, and below it for each model the largest pieces of work without an owner. A piece has one if it
belongs to a block or something deeper (a path with a number in it, or a module without children), to a compiled region
or to an optimizer. Exits 1 if less than 90 % of a model's B has an owner, if the exclusive times differ from B by over
a microsecond, or if another module than the slowed one is named first.
A case of several ranks is started under torchrun: on GPUs of their own if there are enough, else on one, with gloo.
`--small` takes sizes for a CPU, and a CPU. `--keep` copies the traces, and `--again` measures those anew, anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))
HERE = Path(__file__).resolve().parent

import msgspec  # noqa: E402
from modules.cases import CASES, Case  # noqa: E402

Line = dict[str, Any]
LEAST_SHARE = 0.9
MOST_DIFFERENCE_US = 1.0
_COLUMNS = (
    "model",
    "special",
    "T us",
    "B us",
    "owned",
    "differs us",
    "by pass",
    "recorded step us, plain / marked",
    "calls",
    "slowed",
)
HEAD = "| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|"
_PLAIN, _MARKED, _SLOWED = _KINDS = ("plain", "marked", "slowed")
NOISE_FLOOR = 0.02
"""How far two recordings of the same code may be apart, for the comparison."""
_PIECES = 8


# ---- recording -----------------------------------------------------------------------------------------------------


def record(case: Case, folder: Path, *, small: bool, rounds: int, slow: bool) -> None:
    """Build the model and record its steps without marks and with them, in turns: `folder`/plain0, marked0, ..."""
    import torch

    from proftrack.capture.device import open_device
    from proftrack.capture.profiling import profile_steps, throw_away_session
    from proftrack.experiment import Experiment, ProfilerOptions, Schedule
    from proftrack.experiment.workload import load, open_step

    device, _ = open_device("cpu" if small else "cuda")
    throw_away_session(device)
    experiment = Experiment(
        name=case.name,
        path=HERE / "module_suite.yaml",
        workload=f"modules.{case.workload}",
        params=case.small if small else case.params,
        schedule=Schedule(wait=1, warmup=1, active=3),
    )
    with process_group(case, small), open_step(load(experiment), device.torch_device, experiment.params) as step:
        seconds = timed(step, device)
        alike = 0.03 if case.ranks > 1 else seconds  # all ranks must repeat their steps equally often
        facts = {"T_us": seconds * 1e6, "device": device.name, "torch": torch.__version__}

        def profiled(name: str, marks: bool) -> None:
            options = ProfilerOptions(modules=marks)
            (folder / name).mkdir()
            gc.collect()
            replaced = msgspec.structs.replace(experiment, profiler=options)
            profile_steps(step, device, replaced, folder / name, step_seconds=alike)

        for number in range(rounds):
            profiled(f"{_PLAIN}{number}", marks=False)
            profiled(f"{_MARKED}{number}", marks=True)
        if slow and not case.is_compiled:
            with slower_layer(step, device.torch_device) as facts["slowed"]:
                profiled(f"{_SLOWED}0", marks=True)
        (folder / "facts.json").write_text(json.dumps(facts))


def timed(step: Any, device: Any) -> float:
    """Seconds of a step, after a few."""
    for _ in range(3):
        step()
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        step()
    device.synchronize()
    return (time.perf_counter() - begin) / 5


@contextlib.contextmanager
def slower_layer(step: Any, device: Any) -> Iterator[str]:
    """Slow down the layer in the middle of the model; gives its name. It does a product of its own before each call."""
    import torch

    from proftrack.capture.live_objects import program, reach
    from proftrack.capture.module_names import named

    def is_block(path: str) -> bool:
        *above, last = path.split(".")
        return last.isdigit() and not any(part.isdigit() for part in above)

    all_named = named(program().modules, reach(step))
    blocks = [each for each in all_named if is_block(each.path) and list(each.module.parameters(recurse=True))]
    block = blocks[len(blocks) // 2]
    on_gpu = device.type == "cuda"
    size, dtype = (6144, torch.bfloat16) if on_gpu else (256, torch.float32)
    x = torch.randn(size, size, device=device, dtype=dtype)
    y = torch.empty_like(x)

    def work(module: Any, args: Any) -> None:
        with torch.no_grad():
            torch.mm(x, x, out=y)

    handle = block.module.register_forward_pre_hook(work)
    try:
        yield block.path
    finally:
        handle.remove()


@contextlib.contextmanager
def process_group(case: Case, small: bool) -> Iterator[None]:
    """That of torchrun, for a case of several ranks."""
    if case.ranks == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    own_gpus = not small and torch.cuda.device_count() >= case.ranks
    if not small:
        torch.cuda.set_device(local if own_gpus else 0)
    dist.init_process_group("nccl" if own_gpus else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def under_torchrun(case: Case, folder: Path, *, small: bool, rounds: int, slow: bool) -> None:
    """Start the ranks; that of rank 0 fills the folder."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    words += [__file__, "--rank-of", case.name, "--keep", str(folder), f"--rounds={rounds}"]
    words += [*(["--small"] if small else []), *(["--slow"] if slow else [])]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}: {done.stderr[-1500:]}")


# ---- measuring -----------------------------------------------------------------------------------------------------


def measured(case: Case, folder: Path) -> Line:
    """The line of one case, by its traces."""
    from proftrack.record.modules import owned_share

    records = {kind: [record_of(path) for path in sorted(folder.glob(f"{kind}*/*.gz"))] for kind in _KINDS}
    facts = json.loads((folder / "facts.json").read_text())
    marked = records[_MARKED][0]
    owners, steps = marked.modules, marked.window.typical_steps
    total = sum(owner.busy_us for owner in owners)
    busy = marked.times.gpu_busy_per_step_us
    calls = sum(owner.calls for owner in owners if owner.kind == "module") / steps
    step = {kind: min(step_us(each) for each in found) for kind, found in records.items() if found}
    return {
        "name": case.name,
        "special": case.special,
        "B_us": total / steps if busy is None else busy,
        "owned": owned_share(owners) or 0.0,
        "differs_us": 0.0 if busy is None else total - busy * steps,
        "passes": {part: sum(owner.part_us(part) for owner in owners) for part in passes()},
        "step_us": step,
        "calls": calls,
        "unowned": pieces(unowned(owners), steps, total),
        "owners": len(owners),
        **named_first(marked, records[_SLOWED], facts.get("slowed")),
        **facts,
    }


def record_of(path: Path) -> Any:
    from proftrack.analysis.pipeline import analyze_trace

    return analyze_trace(path).record


def step_us(record: Any) -> float:
    """A recorded step's time: with a GPU its part of the device window, else the shortest on the host."""
    return record.times.step_time_profiled_us or min(step.host_us for step in record.typical_steps)


def named_first(before: Any, slowed: list[Any], path: str | None) -> dict[str, Any]:
    """Whether the slowed layer is the first that the comparison names."""
    if not slowed or not path:
        return {}
    from proftrack.compare.modules import compare_modules

    changes = compare_modules(before, slowed[0], NOISE_FLOOR).changes
    said = [f"{change.path} {change.change_us:+.0f} us" for change in changes[:3]]
    return {"said": said, "named_first": bool(changes) and changes[0].path == path}


def passes() -> tuple[str, ...]:
    from proftrack.record.modules import PASSES

    return PASSES


def unowned(owners: list[Any]) -> list[Any]:
    """Those whose time is not in `owned_share`: without it, the others' share would be larger."""
    from proftrack.record.modules import owned_share

    share = owned_share(owners) or 0.0
    found = []
    for number, owner in enumerate(owners):
        others = [*owners[:number], *owners[number + 1 :]]
        still = msgspec.structs.replace(owner, **{f"{part}_us": 0.0 for part in passes()})  # its place in the tree
        if owner.busy_us and (owned_share([*others, still]) or 0.0) > share:
            found.append(owner)
    return found


def name_of(owner: Any) -> str:
    if owner.kind == "none":
        return "nobody's"
    return f"{owner.kind} {owner.path or '(root)'}"


def pieces(owners: list[Any], steps: int, total: float) -> list[str]:
    """The largest pieces of work of these owners, as lines."""
    found = sorted(((piece.busy_us, owner, piece) for owner in owners for piece in owner.largest), key=lambda x: -x[0])
    return [
        f"{us / steps:.0f} us ({us / total:.1%}) {name_of(owner)} {piece.part}: "
        f"{piece.operator or '(no operator)'}, {piece.kernel[:80]}"
        for us, owner, piece in found[:_PIECES]
    ]


def show(line: Line) -> str:
    """The line as a row of the table."""
    whole = sum(line["passes"].values())
    shares = ", ".join(f"{part} {us / whole:.0%}" for part, us in line["passes"].items() if us > 0.005 * whole)
    plain, marked = (line["step_us"].get(kind) for kind in (_PLAIN, _MARKED))
    cells = [
        line["name"],
        line["special"],
        f"{line['T_us']:.0f}",
        f"{line['B_us']:.0f}",
        f"{line['owned']:.1%}",
        f"{abs(line['differs_us']):.2f}",
        shares,
        f"{number(plain)} / {number(marked)}",
        f"{line['calls']:.0f}",
        f"{line['slowed']}: {'first' if line['named_first'] else 'not first'}" if "named_first" in line else "-",
    ]
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def is_good(line: Line) -> bool:
    if "error" in line or not line.get("named_first", True):
        return False
    return line["owned"] >= LEAST_SHARE and abs(line["differs_us"]) <= MOST_DIFFERENCE_US


# ---- the suite -----------------------------------------------------------------------------------------------------


def line_of(case: Case, options: argparse.Namespace) -> Line:
    begin = time.perf_counter()
    try:
        if options.again:
            return measured(case, options.again / case.name)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / case.name
            folder.mkdir()
            start = record if case.ranks == 1 else under_torchrun
            start(case, folder, small=options.small, rounds=options.rounds, slow=options.slow)
            recorded = time.perf_counter() - begin
            if options.keep:
                shutil.copytree(folder, options.keep / case.name)
            return {**measured(case, folder), "seconds": recorded}
    except Exception as error:
        traceback.print_exc()
        return {"name": case.name, "error": f"{type(error).__name__}: {error}"[:500]}
    finally:
        release()


def release() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def as_rank(name: str, options: argparse.Namespace) -> int:
    """One of several ranks; rank 0's traces are those that count."""
    [case] = [case for case in CASES if case.name == name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep if os.environ["RANK"] == "0" else Path(temporary)
        record(case, folder, small=options.small, rounds=options.rounds, slow=options.slow)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", default="1/1", help="I/N: every N-th model, starting with the I-th")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--rank-of", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return as_rank(options.rank_of, options)
    if unknown := set(options.only) - {case.name for case in CASES}:
        parser.error(f"--only: no model is named {', '.join(sorted(unknown))}")
    part, parts = map(int, options.part.split("/"))
    cases = [case for case in CASES if not options.only or case.name in options.only][part - 1 :: parts]
    if options.again:
        cases = [case for case in cases if (options.again / case.name).is_dir()]
    else:
        cases = [case for case in cases if importlib.util.find_spec(case.package) is not None]
    lines: list[Line] = []
    print(HEAD, flush=True)
    for case in cases:
        lines.append(line_of(case, options))
        print(show(lines[-1]) if "error" not in lines[-1] else f"| {case.name} | {lines[-1]['error']} |", flush=True)
        if options.output:
            options.output.write_text(json.dumps(lines, indent=1))
    for line in lines:
        if line.get("unowned"):
            print(f"\n{line['name']}, without an owner:", *line["unowned"], sep="\n  ")
        if not line.get("named_first", True):
            print(f"{line['name']}, slowed at {line['slowed']}: {'; '.join(line['said']) or 'no module changed'}")
    bad = [line["name"] for line in lines if not is_good(line)]
    print(f"\n{len(lines) - len(bad)} of {len(lines)} good{'; not: ' + ', '.join(bad) if bad else ''}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
