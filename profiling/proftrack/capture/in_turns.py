"""Several steps timed in turns, A B A B ..., so that drift (clocks, temperature, other load) affects all equally.

round   A: lead-in | block | single single single   B: lead-in | block | single single single
                    ^       ^ the device is waited for
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from proftrack.capture.input_waits import InputWaits
from proftrack.capture.timing import BLOCK_SECONDS, STEPS_PER_BLOCK, Samples, Stopwatch
from proftrack.experiment import TimingOptions

ROUNDS = 20
FEWEST_ROUNDS = 5
SINGLES = 3
_LEAD_IN = 0.1
"""Share of a block's steps: before them, caches and branch predictors still serve the other variant."""


class RoundTimes(Struct):
    """Times of one contestant, by round."""

    per_block: int
    block_us: list[float] = []
    """Mean step time of each round's block."""
    single_us: list[list[float]] = []
    """The individually synchronised steps of each round."""
    block_wait_us: list[float] = []
    """How long a step of each block waited for its data."""
    single_wait_us: list[float] = []
    """The same for all individually synchronised steps, in their order."""
    loads: bool = False
    """Whether any data loader was called."""

    @property
    def blocks(self) -> Samples:
        """The blocks as samples."""
        return Samples(self.block_us, self.block_wait_us if self.loads else [])

    @property
    def singles(self) -> Samples:
        """The individually synchronised steps of all rounds as samples."""
        times = [us for of_round in self.single_us for us in of_round]
        return Samples(times, self.single_wait_us if self.loads else [])


def plan(step_seconds: list[float], options: TimingOptions, rounds: int = ROUNDS) -> tuple[int, list[int]]:
    """The number of rounds, and the steps per block of each contestant, for steps of these durations.

    `max_seconds` limits each contestant's time over all rounds, but there are at least FEWEST_ROUNDS.
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
    with InputWaits() as waits:
        for _ in range(rounds):
            for watch, times in zip(watches, turns, strict=True):
                _take_turn(watch, times, waits)
            tick()
    return turns


def _take_turn(watch: Stopwatch, times: RoundTimes, waits: InputWaits) -> None:
    watch.block(max(1, int(times.per_block * _LEAD_IN)))
    waits.lap_us()
    before = waits.calls
    times.block_us.append(watch.block(times.per_block) / times.per_block * 1e6)
    times.block_wait_us.append(waits.lap_us() / times.per_block)
    singles = []
    for _ in range(0 if times.per_block == 1 else SINGLES):
        singles.append(watch.block(1) * 1e6)
        times.single_wait_us.append(waits.lap_us())
    if not singles:
        singles = times.block_us[-1:]
        times.single_wait_us.append(times.block_wait_us[-1])
    times.single_us.append(singles)
    times.loads = times.loads or waits.calls > before
