"""Ranks in step: with a collective in every step, all of them must run the same number of steps.

How many steps warm-up and timing run depends on how long they take. So rank 0's clock decides for all: after each block
it says how long its block took, and every rank goes on as if its own had taken as long. What each rank measured itself
is kept beside it.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from proftrack.capture.device import Device
from proftrack.capture.timing import Stopwatch, timing_of
from proftrack.experiment.workload import Step
from proftrack.record.timing import Timing


class Pace(Protocol):
    """What capture needs of the other ranks; see proftrack.frontends.distributed."""

    rank: int

    def agree(self, seconds: float) -> float:
        """Rank 0's figure, for all ranks. Every rank calls it equally often."""

    def in_turn(self, what: str) -> AbstractContextManager[Any]:
        """One rank of each machine first, then the others: for what is measured once a machine."""


class PacedStopwatch(Stopwatch):
    """A stopwatch whose blocks take, for all ranks, what they took on rank 0. `own` holds what they took here."""

    def __init__(self, step: Step, device: Device, pace: Pace, **more: Any) -> None:
        super().__init__(step, device, **more)
        self.own: list[float] = []
        self._pace, self._elapsed = pace, 0.0
        self.clock = lambda: int(self._elapsed * 1e9)

    def block(self, steps: int) -> float:
        """Rank 0's seconds for so many steps and one synchronisation; every rank has run them."""
        self.own.append(self._seconds(steps, time.perf_counter_ns))
        agreed = self._pace.agree(self.own[-1])
        self._elapsed += agreed
        self.tick()
        return agreed

    def own_timing(self, agreed: Timing) -> Timing:
        """The timing with this rank's own times: its blocks were the last ones that were run."""
        blocks, singles = len(agreed.block_step_times_us), len(agreed.step_latencies_us)
        if agreed.steps_per_block == 1:
            singles = 0  # the blocks are the synchronised steps
        taken = [seconds * 1e6 for seconds in self.own]
        first_single = len(taken) - singles
        block_us = [us / agreed.steps_per_block for us in taken[first_single - blocks : first_single]]
        own = timing_of(agreed.mode, block_us, agreed.steps_per_block, taken[first_single:], load=agreed.load)
        return msgspec.structs.replace(own, warmup_steps=agreed.warmup_steps)
