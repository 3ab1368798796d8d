"""Timing steps without a profiler.

Back to back: a block is several steps with one synchronisation at the end; its step time is their mean. The host may
run ahead of the GPU inside a block, as it does in real use. Only the first step of a block finds an empty queue, which
is why a block has at least ten steps unless they are slow.

    |s|s|s|s|s|s|s|s|s|s| sync  |s|s|s|s|s|s|s|s|s|s| sync ...      step_time_us    = median over blocks
    |s| sync |s| sync |s| sync ...                                  step_latency_us = median over steps

Between two readings of the clock only the step and the synchronisation run.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from proftrack.capture.cpu_load import load_between, read_load
from proftrack.capture.device import Device
from proftrack.capture.input_waits import InputWaits
from proftrack.experiment import TimingOptions
from proftrack.record.timing import Load, Mode, Timing

BLOCKS = 10
FEWEST_BLOCKS = 5
STEPS_PER_BLOCK = 10
"""At least, if time allows: the cost of an empty queue is paid once per block."""
BLOCK_SECONDS = 0.005
"""At least: reading the clock and synchronising (some 10 us) is negligible against it."""
FEWEST_STEPS = 3
"""Timed however slow a step is."""
MOST_BLOCKS = 200
MOST_LATENCIES = 1000


class Stopwatch:
    """Runs and times steps. `clock` returns monotonic nanoseconds, `tick` is called between measurements."""

    def __init__(
        self,
        step: Callable[[], Any],
        device: Device,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.step, self.device, self.clock, self.tick = step, device, clock, tick

    def block(self, steps: int) -> float:
        """Run `steps` steps back to back and one synchronisation; returns the seconds."""
        seconds = self._seconds(steps, self.clock)
        self.tick()
        return seconds

    def _seconds(self, steps: int, clock: Callable[[], int]) -> float:
        step, device = self.step, self.device
        begin = clock()
        for _ in range(steps):
            step()
        device.synchronize()
        return (clock() - begin) / 1e9


class WarmUp(Struct, frozen=True, kw_only=True):
    """When steps count as warm: after `min_seconds`, once the last `settled_blocks` agree within `tolerance`."""

    min_steps: int = 3
    """torch.compile's CUDA graphs take a warm-up run and a recording before they replay."""
    min_seconds: float = 0.1
    max_seconds: float = 5.0
    block_seconds: float = 0.02
    settled_blocks: int = 4
    tolerance: float = 0.05


GPU_WARM_UP = WarmUp(min_seconds=0.3)  # on an H200 kernels ran 10 % slow in the first 50 ms
CPU_WARM_UP = WarmUp(min_seconds=0.1, max_seconds=2.0, tolerance=0.1)


class Warm(Struct, frozen=True):
    """The result of a warm-up: steps run, the last block's step time, and whether block times settled."""

    steps: int
    step_seconds: float
    settled: bool


def warm_up(watch: Stopwatch, limits: WarmUp) -> Warm:
    """Run steps until clocks are up and block times have settled, or `limits.max_seconds` have passed."""
    steps, size, recent = 0, 1, list[float]()
    begin = watch.clock()
    while True:
        duration = watch.block(size)
        steps += size
        recent = [*recent, duration / size][-limits.settled_blocks :]
        elapsed = (watch.clock() - begin) / 1e9
        settled = len(recent) == limits.settled_blocks and max(recent) <= min(recent) * (1 + limits.tolerance)
        if elapsed >= limits.max_seconds:
            # Too slow to run often enough to see whether it settled.
            return Warm(steps, recent[-1], settled or len(recent) < limits.settled_blocks)
        if settled and elapsed >= limits.min_seconds and steps >= limits.min_steps:
            return Warm(steps, recent[-1], True)
        if duration < limits.block_seconds:
            size, recent = size * 2, []


def plan(step_seconds: float, options: TimingOptions) -> tuple[int, int]:
    """The number of blocks, and of steps per block, for steps that take about `step_seconds`.

    `max_seconds` limits the step count before anything else, but it is never below FEWEST_STEPS.
    """
    step_seconds = max(step_seconds, 1e-9)
    affordable = max(FEWEST_STEPS, int(options.max_seconds / step_seconds))
    block_seconds = max(BLOCK_SECONDS, options.min_seconds / BLOCKS)
    wanted = max(STEPS_PER_BLOCK, math.ceil(options.min_steps / BLOCKS), math.ceil(block_seconds / step_seconds))
    if wanted * BLOCKS <= affordable:
        return BLOCKS, wanted
    blocks = min(affordable, max(FEWEST_BLOCKS, min(BLOCKS, affordable // STEPS_PER_BLOCK)))
    per_block = affordable // blocks
    return (blocks, per_block) if per_block > 1 else (affordable, 1)


class Samples(NamedTuple):
    """Timed stretches, in microseconds per step."""

    times_us: list[float]
    waits_us: list[float] = []
    """How long a step of each waited for its data; empty if no data loader was called."""


def time_steps(
    watch: Stopwatch,
    options: TimingOptions,
    step_seconds: float,
    *,
    at_most: float | None = None,
    around: AbstractContextManager[Any] | None = None,
) -> tuple[Timing, list[str]]:
    """Time warm steps in both ways; `step_seconds` is the warm-up's estimate.

    `at_most`: seconds that the budget allows for each of the two; it applies if it is below the options' max_seconds.
    `around` is entered before the first block of steps back to back, and left after the last one.
    Returns the timing, and a note for each part that had to be cut short.
    """
    original = options
    if at_most is not None and at_most < options.max_seconds:
        options = msgspec.structs.replace(options, max_seconds=at_most, min_seconds=min(options.min_seconds, at_most))
    with InputWaits() as waits:
        before = read_load()
        with around or contextlib.nullcontext():
            per_block, blocks = _throughput(watch, options, step_seconds, waits)
        load = load_between(before, read_load())
        singles = _latencies(watch, options, waits) if per_block > 1 else Samples([], [])
    timing = timing_of(options.mode, blocks, per_block, singles, load=load, batches_ahead=waits.batches_ahead)
    return timing, _notes(timing, options, "timing.max_seconds" if options is original else "timing.budget_seconds")


def timing_of(
    mode: Mode,
    blocks: Samples,
    per_block: int,
    singles: Samples,
    *,
    load: Load | None = None,
    batches_ahead: int | None = None,
) -> Timing:
    """Build a timing from samples: `blocks` are means of several steps, `singles` are synchronised steps.

    A block of one step is also a synchronised step: slow steps are not run again for the same figure.
    """
    latencies = blocks if per_block == 1 else singles
    timing = Timing(
        mode=mode,
        step_time_us=statistics.median(blocks.times_us),
        step_latency_us=statistics.median(latencies.times_us) if latencies.times_us else None,
        step_time_p95_us=float(np.percentile(latencies.times_us, 95)) if latencies.times_us else None,
        steps_per_block=per_block,
        block_step_times_us=list(blocks.times_us),
        step_latencies_us=list(latencies.times_us),
        load=load,
        batches_ahead=batches_ahead if blocks.waits_us else None,
        block_input_waits_us=list(blocks.waits_us),
        latency_input_waits_us=list(latencies.waits_us),
    )
    return msgspec.structs.replace(timing, input_wait_us=timing.chosen.input_wait_us())


def _throughput(
    watch: Stopwatch, options: TimingOptions, step_seconds: float, waits: InputWaits
) -> tuple[int, Samples]:
    count, per_block = plan(step_seconds, options)
    times: list[float] = []
    waited: list[float] = []
    total = 0.0
    watch.device.synchronize()
    waits.lap_us()
    while len(times) < MOST_BLOCKS:
        duration = watch.block(per_block)
        times.append(duration / per_block * 1e6)
        waited.append(waits.lap_us() / per_block)
        total += duration
        steps = len(times) * per_block
        if total >= options.max_seconds and steps >= FEWEST_STEPS:
            break  # slower than in the warm-up
        if len(times) < count:
            continue
        if total + duration > options.max_seconds or (total >= options.min_seconds and steps >= options.min_steps):
            break
    return per_block, Samples(times, waited if waits.calls else [])


def _latencies(watch: Stopwatch, options: TimingOptions, waits: InputWaits) -> Samples:
    times: list[float] = []
    waited: list[float] = []
    total = 0.0
    watch.device.synchronize()
    waits.lap_us()
    while len(times) < max(MOST_LATENCIES, options.min_steps):
        duration = watch.block(1)
        times.append(duration * 1e6)
        waited.append(waits.lap_us())
        total += duration
        if total >= options.min_seconds and len(times) >= options.min_steps:
            break
        if total >= options.max_seconds and len(times) >= FEWEST_STEPS:
            break
    return Samples(times, waited if waits.calls else [])


def _notes(timing: Timing, options: TimingOptions, limit: str) -> list[str]:
    notes = []
    steps = len(timing.block_step_times_us) * timing.steps_per_block
    if steps < options.min_steps:
        seconds = f"{options.max_seconds:.3g} s ({limit})"
        notes.append(f"Only {steps} of {options.min_steps} steps were timed: more would have taken over {seconds}.")
    if timing.steps_per_block == 1:
        notes.append("Steps are so slow that each was timed alone: step_time_us and step_latency_us are the same.")
    return notes
