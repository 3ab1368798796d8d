"""How well changes are found in series with known changes, and how often noise is mistaken for a change.

    python benchmarks/changepoints.py [--series 200]

This compares the method of `proftrack history`, its first step alone (optimal partitioning with a penalty fitted to
normal noise), binary segmentation with a permutation test, and e-divisive with a permutation test. If ruptures is
installed (`pip install ruptures`, used only here), its PELT with the BIC-like penalty suggested by its documentation
is included.

Prints one Markdown table: the share of series without a change in which one is found, by kind of noise, and the share
of series with known changes in which exactly those are found. Sizes are in standard deviations of the noise."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "profiling"))

from proftrack.compare import changepoints

Series = np.ndarray
Method = Callable[[Series], list[int]]
SHORTEST = changepoints.SHORTEST


def ours(series: Series) -> list[int]:
    return changepoints.stretches(series)[1:-1]


def partitioning(series: Series) -> list[int]:
    return changepoints.proposed(series)[1:-1]


def binary_segmentation(series: Series, alpha: float = 0.025, shuffles: int = 199) -> list[int]:
    """The best split of a stretch, tested against the best splits of its shuffles; then both halves."""
    generator = np.random.default_rng(0)

    def split(low: int, high: int) -> Iterator[int]:
        if high - low < max(2 * SHORTEST, 5):
            return
        piece = series[low:high]
        strength, at = changepoints._best_cut(piece[None])
        others, _ = changepoints._best_cut(generator.permuted(np.tile(piece, (shuffles, 1)), axis=1))
        if (1 + (others >= strength[0] - 1e-12).sum()) / (shuffles + 1) <= alpha:
            middle = low + int(at[0])
            yield from (middle, *split(low, middle), *split(middle, high))

    return sorted(split(0, len(series)))


def e_divisive(series: Series, alpha: float = 0.025, shuffles: int = 99) -> list[int]:
    """Matteson & James 2014: the split with the largest energy distance, tested by permutation; then both halves."""
    generator = np.random.default_rng(0)

    def energy(piece: Series) -> tuple[float, int]:
        count = len(piece)
        sums = np.abs(piece[:, None] - piece[None, :]).cumsum(0).cumsum(1)
        left = np.arange(SHORTEST, count - SHORTEST + 1)
        right = count - left
        within = sums[left - 1, left - 1]
        between = sums[left - 1, -1] - within
        beyond = sums[-1, -1] - within - 2 * between
        distance = 2 * between / (left * right) - within / (left * (left - 1)) - beyond / (right * (right - 1))
        strength = left * right / count * distance
        return float(strength.max()), int(left[strength.argmax()])

    def split(low: int, high: int) -> Iterator[int]:
        if high - low < max(2 * SHORTEST, 5):
            return
        piece = series[low:high]
        strength, at = energy(piece)
        worse = sum(energy(generator.permutation(piece))[0] >= strength - 1e-12 for _ in range(shuffles))
        if (1 + worse) / (shuffles + 1) <= alpha:
            yield from (low + at, *split(low, low + at), *split(low + at, high))

    return sorted(split(0, len(series)))


def ruptures_pelt(series: Series) -> list[int]:
    import ruptures

    noise = 1.4826 * float(np.median(np.abs(np.diff(series)))) / math.sqrt(2)
    model = ruptures.Pelt(model="l2", min_size=SHORTEST, jump=1).fit(series / max(noise, 1e-12))
    return [int(at) for at in model.predict(pen=2 * math.log(len(series)) * 1.0)[:-1]]


METHODS: dict[str, Method] = {
    "proftrack": ours,
    "optimal partitioning alone": partitioning,
    "binary segmentation, permuted": binary_segmentation,
    "e-divisive": e_divisive,
}
if importlib.util.find_spec("ruptures") is not None:
    METHODS["ruptures PELT"] = ruptures_pelt

NOISE: dict[str, Callable[[np.random.Generator, int], Series]] = {
    "normal": lambda g, n: g.normal(size=n),
    "heavy tails (t, 3)": lambda g, n: g.standard_t(3, size=n) / math.sqrt(3),
    "two modes": lambda g, n: np.where(g.random(n) < 0.3, 1.5, -0.5) + 0.3 * g.normal(size=n),
    "exponential": lambda g, n: g.exponential(size=n),
}
# (name, runs, positions of the changes, size of each in standard deviations of the noise)
KNOWN: tuple[tuple[str, int, tuple[int, ...], tuple[float, ...]], ...] = (
    ("8 runs, +5", 8, (4,), (5,)),
    ("12 runs, +5", 12, (6,), (5,)),
    ("12 runs, last 3 +8", 12, (9,), (8,)),
    ("12 runs, +10 +10", 12, (4, 8), (10, 10)),
    ("12 runs, +10 -10", 12, (4, 8), (10, -10)),
    ("40 runs, +3", 40, (20,), (3,)),
    ("40 runs, +5 -5 +3", 40, (10, 20, 30), (5, -5, 3)),
    ("400 runs, +3", 400, (200,), (3,)),
    ("400 runs, +5 -5 +3", 400, (100, 200, 300), (5, -5, 3)),
)


def false_alarms(method: Method, noise: str, runs: int, count: int) -> float:
    found = [bool(method(NOISE[noise](np.random.default_rng(seed), runs))) for seed in range(count)]
    return sum(found) / count


def power(method: Method, runs: int, at: tuple[int, ...], sizes: tuple[float, ...], count: int) -> float:
    """Share of series in which exactly the known changes are found."""
    level = np.zeros(runs)
    for place, size in zip(at, sizes, strict=True):
        level[place:] += size
    hits = [method(level + np.random.default_rng(seed).normal(size=runs)) == list(at) for seed in range(count)]
    return sum(hits) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="series per figure (default 200)")
    count = parser.parse_args().series
    print(f"| {count} series each | {' | '.join(METHODS)} |")
    print(f"|---|{'---:|' * len(METHODS)}")
    for noise in NOISE:
        for runs in (8, 12, 40, 400):
            shares = [f"{false_alarms(method, noise, runs, count):.1%}" for method in METHODS.values()]
            print(f"| false alarms, {noise}, {runs} runs | {' | '.join(shares)} |", flush=True)
    for name, runs, at, sizes in KNOWN:
        shares = [f"{power(method, runs, at, sizes, count):.0%}" for method in METHODS.values()]
        print(f"| found, {name} | {' | '.join(shares)} |", flush=True)
    for runs in (1000, 10_000):
        long = np.random.default_rng(0).normal(size=runs) + np.repeat([0, 5], runs // 2)
        begin = time.perf_counter()
        ours(long)
        print(f"\nproftrack: {runs} runs in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
