"""Makes the tables of docs/tutorial.md again: runs its commands and prints their figures as Markdown.

    python benchmarks/tutorial.py --output FOLDER [--part 1..4]

Needs a GPU, but not MLflow. Each part takes under eight minutes on an H200: 1 matmul_add and its crossover, 2 its
variants, 3 linear, mlp and its variants, 4 llm and its variants, data_pipeline. The results stay in FOLDER, one
folder per command, for `proftrack sync FOLDER`; a command with a complete folder is not run again."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1] / "profiling"
sys.path.insert(0, str(ROOT))


class Command(NamedTuple):
    """One command of the tutorial: where it is kept, and its words."""

    name: str
    words: str


PARTS: dict[int, list[Command]] = {
    1: [
        Command("n64", "run matmul_add --n 64"),
        Command("n4096", "run matmul_add --n 4096"),
        Command("n4096-compiled", "run matmul_add --n 4096 --compile default"),
        Command("crossover", "sweep matmul_add -P n=512,4096 --find-crossover"),
    ],
    2: [
        Command("variants-n64", "variants matmul_add --n 64"),
        Command("variants-n4096", "variants matmul_add --n 4096"),
    ],
    3: [
        Command("linear", "run linear"),
        Command("linear-large", "run linear --batch 8192 --features 4096 --passes forward-backward"),
        Command("mlp", "run mlp"),
        Command("variants-mlp", "variants mlp --variants for-loop,foreach,fused,fused+cuda-graph"),
    ],
    4: [
        Command("llm", "run llm"),
        Command("llm-prefill", "run llm --phase prefill --tokens 2048 --layers 8 --hidden 2048 --heads 16"),
        Command("variants-llm", "variants llm --variants eager,compile,static+compile,cuda-graph"),
        Command("data_pipeline", "run data_pipeline"),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--part", type=int, choices=sorted(PARTS))
    given = parser.parse_args()
    failed = 0
    for part in [given.part] if given.part else sorted(PARTS):
        for command in PARTS[part]:
            failed += run(command, given.output / command.name)
    sys.exit(1 if failed else 0)


def run(command: Command, folder: Path) -> int:
    """Run a command, unless its folder is whole; print what it found. 1 where it failed."""
    print(f"\n### `proftrack {command.words}`\n", flush=True)
    begin = time.monotonic()
    kind, *rest = command.words.split()
    whole = {"run": "record.json", "sweep": "sweep.json", "variants": "variants.json"}[kind]
    if not (folder / whole).is_file():
        words = [sys.executable, str(ROOT), kind, *rest, "--device", "cuda", "--no-mlflow", "--output", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"failed: {(done.stderr.strip().splitlines() or ['(nothing said)'])[-1]}")
            return 1
    {"run": of_run, "sweep": of_sweep, "variants": of_variants}[kind](folder)
    print(f"\n({time.monotonic() - begin:.0f} s)", flush=True)
    return 0


def of_run(folder: Path) -> None:
    from proftrack import record as records
    from proftrack.text import duration, percent

    record = records.load(folder / "record.json")
    times, verdict = record.times, record.verdict
    print("| T | B | u | R | verdict | confidence |\n|---|---|---|---|---|---|")
    cells = [duration(record.step_time_us), duration(times.gpu_busy_per_step_us), percent(verdict.gpu_busy_fraction)]
    print(f"| {' | '.join([*cells, duration(times.roofline_time_us), verdict.regime, verdict.confidence])} |\n")
    print(verdict.summary)


def of_sweep(folder: Path) -> None:
    print((folder / "sweep.md").read_text(encoding="utf-8"))


def of_variants(folder: Path) -> None:
    print((folder / "variants.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
