"""Ranks in lockstep: with a collective in every step, all ranks must run the same number of steps.

The number of warm-up and timed steps depends on how long they take, so rank 0's clock decides for all: after each block
it shares the block's duration, and every rank continues as if its own block had taken as long. Each rank also keeps its
own measurements.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from proftrack.capture.device import Device
from proftrack.capture.timing import Samples, Stopwatch, timing_of
from proftrack.experiment.workload import Step
from proftrack.record.timing import Timing


class Pace(Protocol):
    """What capture needs from the other ranks; see proftrack.frontends.distributed."""

    rank: int

    def agree(self, seconds: float) -> float:
        """Rank 0's figure, for all ranks. Every rank must call it the same number of times."""

    def in_turn(self, what: str) -> AbstractContextManager[Any]:
        """One rank of each machine first, then the others: for what is measured once per machine."""


class PacedStopwatch(Stopwatch):
    """A stopwatch that gives every rank the block times of rank 0. `own` has this rank's block times, in seconds."""

    def __init__(self, step: Step, device: Device, pace: Pace, **more: Any) -> None:
        super().__init__(step, device, **more)
        self.own: list[float] = []
        self._pace, self._elapsed = pace, 0.0
        self.clock = lambda: int(self._elapsed * 1e9)

    def block(self, steps: int) -> float:
        """Run `steps` steps and one synchronisation on every rank; returns the seconds that rank 0 took."""
        self.own.append(self._seconds(steps, time.perf_counter_ns))
        agreed = self._pace.agree(self.own[-1])
        self._elapsed += agreed
        self.tick()
        return agreed

    def own_timing(self, agreed: Timing) -> Timing:
        """The timing with this rank's own times; its blocks were the last to run. Its waits for data are its own."""
        blocks, singles = len(agreed.block_step_times_us), len(agreed.step_latencies_us)
        if agreed.steps_per_block == 1:
            singles = 0  # the blocks are the synchronised steps
        times_us = [seconds * 1e6 for seconds in self.own]
        first_single = len(times_us) - singles
        block_us = [us / agreed.steps_per_block for us in times_us[first_single - blocks : first_single]]
        timing = timing_of(
            agreed.mode,
            Samples(block_us, agreed.block_input_waits_us),
            agreed.steps_per_block,
            Samples(times_us[first_single:], agreed.latency_input_waits_us[:singles]),
            load=agreed.load,
            batches_ahead=agreed.batches_ahead,
        )
        return msgspec.structs.replace(timing, warmup_steps=agreed.warmup_steps)
