"""What timing the waits for data costs: a DataLoader's batches with and without it, in turns.

    python benchmarks/input_wait_cost.py [--rounds N] [--batches N]

Prints the time of a batch in both cases, the difference, and their ratio; medians over the rounds. The batches cost
next to nothing to make, so that this is the most that it can cost.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "profiling"))


def nanoseconds_per_batch(batches: Any, count: int, timed: AbstractContextManager[Any]) -> float:
    with timed:
        begin = time.perf_counter_ns()
        for _ in range(count):
            next(batches)
        return (time.perf_counter_ns() - begin) / count


def main() -> None:
    from torch.utils.data import DataLoader, IterableDataset

    from proftrack.capture.input_waits import InputWaits

    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(int, 1)

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--batches", type=int, default=2000)
    given = parser.parse_args()
    batches = iter(DataLoader(Endless(), batch_size=None))
    plain, timed = [], []
    for _ in range(given.rounds):
        plain.append(nanoseconds_per_batch(batches, given.batches, contextlib.nullcontext()))
        timed.append(nanoseconds_per_batch(batches, given.batches, InputWaits()))
    added = statistics.median(b - a for a, b in zip(plain, timed, strict=True))
    ratio = statistics.median(b / a for a, b in zip(plain, timed, strict=True))
    print(
        f"{statistics.median(plain) / 1e3:.2f} us a batch, {statistics.median(timed) / 1e3:.2f} us timed: "
        f"{added / 1e3:.2f} us more ({ratio:.3f} times)"
    )


if __name__ == "__main__":
    main()
