"""Several steps timed in turns, A B A B ..., so that drift (clocks, temperature, neighbours) hits all alike.

round   A: lead-in | block | single single single   B: lead-in | block | single single single
                    ^       ^ the device is waited for
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from proftrack.capture.timing import BLOCK_SECONDS, STEPS_PER_BLOCK, Stopwatch
from proftrack.experiment import TimingOptions

ROUNDS = 20
FEWEST_ROUNDS = 5
SINGLES = 3
_LEAD_IN = 0.1
"""Of a block's steps: caches and branch predictors are the other variant's before."""


class RoundTimes(Struct):
    """Times of one contestant, by round."""

    per_block: int
    block_us: list[float] = []
    """Mean step time of each round's block."""
    single_us: list[list[float]] = []
    """Of each round, steps that were each waited for."""


def plan(step_seconds: list[float], options: TimingOptions, rounds: int = ROUNDS) -> tuple[int, list[int]]:
    """Rounds, and the steps in a block of each contestant, for steps that take so long.

    A round is bounded by `max_seconds` for each contestant over all rounds; there are FEWEST_ROUNDS at the least.
    """
    budget = options.max_seconds
    blocks = []
    for seconds in (max(s, 1e-9) for s in step_seconds):
        wanted = max(STEPS_PER_BLOCK, math.ceil(max(BLOCK_SECONDS, options.min_seconds / rounds) / seconds))
        blocks.append(max(1, min(wanted, int(budget / rounds / seconds))))
    slowest = max(step_seconds)
    if slowest * rounds > budget:
        rounds = max(FEWEST_ROUNDS, min(rounds, int(budget / slowest)))
    return rounds, blocks


def take_turns(
    watches: list[Stopwatch], per_block: list[int], rounds: int, *, tick: Callable[[], Any] = lambda: None
) -> list[RoundTimes]:
    """Run the rounds. `tick` is called between them."""
    turns = [RoundTimes(count) for count in per_block]
    for _ in range(rounds):
        for watch, found in zip(watches, turns, strict=True):
            watch.block(max(1, int(found.per_block * _LEAD_IN)))
            found.block_us.append(watch.block(found.per_block) / found.per_block * 1e6)
            singles = 0 if found.per_block == 1 else SINGLES
            found.single_us.append([watch.block(1) * 1e6 for _ in range(singles)] or found.block_us[-1:])
        tick()
    return turns
