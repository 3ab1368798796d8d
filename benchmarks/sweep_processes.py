"""The points of a sweep in shared processes compared with one process per point: difference of figures, time saved.

    python benchmarks/sweep_processes.py --output FOLDER [--device cuda] [--n 64,...,8192] [--repeats 1]

Does not use MLflow. The results stay in FOLDER for `proftrack sync FOLDER`. T and B are printed as ratios, shared
over isolated; with several repeats the two ways alternate, and each point's ratio is that of the medians. The last
line is the sweep with its crossover, in shared processes."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "profiling"
sys.path.insert(0, str(ROOT))

SIZES = "64,256,512,1024,2048,4096,8192"
WAYS: dict[str, list[str]] = {"shared": [], "isolated": ["--isolate"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--n", default=SIZES)
    parser.add_argument("--dtype", help="instead of the one in the experiment")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    words = ["-P", f"n={given.n}", "--device", given.device]
    words += ["-P", f"dtype={given.dtype}"] if given.dtype else []
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1, given.repeats + 1):
        for way, more in WAYS.items():
            seconds[way].append(run([*words, *more], given.output / f"{way}-{number}"))
    print("\n| n | T shared | T ratio | B ratio | regimes |\n|---|---|---|---|---|")
    folders = {way: [given.output / f"{way}-{number}" for number in range(1, given.repeats + 1)] for way in WAYS}
    for size in given.n.split(","):
        print(row(int(size), folders))
    shared, isolated = (statistics.median(seconds[way]) for way in WAYS)
    print(f"\nwall time: shared {shared:.1f} s, isolated {isolated:.1f} s, {isolated / shared:.2f} times as long")
    found = run([*words, "--find-crossover"], given.output / "crossover")
    print(f"with the crossover: {found:.1f} s, {len(points(given.output / 'crossover'))} points")


def run(words: list[str], folder: Path) -> float:
    """The seconds that a sweep takes, from its start to its end."""
    command = [sys.executable, str(ROOT), "sweep", "matmul_add", *words, "--no-mlflow", "--output", str(folder)]
    begin = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - begin


def points(folder: Path) -> dict[int, tuple[float, float, str]]:
    """T, B and the regime of each n."""
    import msgspec

    from proftrack.frontends.sweep import result

    sweep = msgspec.json.decode((folder / "sweep.json").read_bytes(), type=result.Sweep)
    return {p.values["n"]: (p.step_time_us or 0.0, p.busy_us or 0.0, p.regime) for p in sweep.points}


def row(n: int, folders: dict[str, list[Path]]) -> str:
    """A size as a line of the table."""
    found = {way: [points(folder)[n] for folder in of_way] for way, of_way in folders.items()}
    t, b = ({way: statistics.median(each[place] for each in of) for way, of in found.items()} for place in (0, 1))
    regimes = sorted({each[2] for of in found.values() for each in of})
    ratios = [f"{x['shared'] / x['isolated']:.3f}" if x["isolated"] else "-" for x in (t, b)]
    return f"| {n} | {t['shared']:.2f} us | {' | '.join(ratios)} | {', '.join(regimes)} |"


if __name__ == "__main__":
    main()
