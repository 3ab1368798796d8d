"""The same measurements in a user's own loop, which calls `step()` at the end of each step.

    |-- skip_first + wait: no profiler ------------------------|-- torch's schedule --------
    | first | warm-up | block | block | block | synchronised   | warmup | active ... | (wait | warmup | active) ...
            ^         ^       ^       ^       ^ ^ ^ ^ ^ ^ ^ ^ ^  the device is waited for and the clock is read

Between two readings only the step count changes. Evaluation between two steps (`pause`, `resume`) is taken out of the
stretch that holds it, and in a recorded step it has a region of its own. A user's step cannot be run again: nothing
keeps a GPU's clocks up before a window, and a step's work is counted from the shapes in the trace.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proftrack.capture import graph_names
from proftrack.capture.counters import LEAD_IN_SECONDS, Meter
from proftrack.capture.cpu_load import Reading, load_between, read_load
from proftrack.capture.device import open_device
from proftrack.capture.input_waits import InputWaits
from proftrack.capture.lockstep import Pace
from proftrack.capture.measurement import Progress, calibrated, ready, recorded_notes, state_of
from proftrack.capture.profiling import (
    Recorded,
    Recording,
    no_other_profiler,
    quiet,
    records_all_threads,
    refuse_running_profiler,
)
from proftrack.capture.reachable import with_reachable
from proftrack.capture.result import Capture, Cycle
from proftrack.capture.run import trace_folder
from proftrack.capture.timing import BLOCKS, STEPS_PER_BLOCK, Samples, timing_of
from proftrack.experiment import Experiment
from proftrack.record.counters import Counters
from proftrack.record.environment import GpuState
from proftrack.record.timing import Timing
from proftrack.text import short_time

FEWEST_STEPS = 10
"""Fewest unrecorded steps that are timed: with fewer, T (the step time) is the trace's own."""
GPU_DTYPES, CPU_DTYPES = ("bfloat16", "float16", "float32"), ("float32",)
"""Types whose ceilings are measured for a loop."""
_NO_FUNCTION = "that takes the function that was captured: proftrack.profile(..., captured=FUNCTION)"
_FEWEST_BLOCKS = 3
_SINGLES_FROM = 20
_MOST_SINGLES = 50


class Plan(NamedTuple):
    """How the steps before the first window are used; see the top of this file."""

    warm: int
    """Steps before the timed ones, including the very first."""
    blocks: int
    per_block: int
    singles: int
    """Steps after the blocks, each followed by a synchronisation."""

    @property
    def timed_until(self) -> int:
        """The number of steps when the last block ends."""
        return self.warm + self.blocks * self.per_block


class _Stretch(NamedTuple):
    """Steps between two readings of the clock."""

    until: int
    """The number of steps at its end."""
    us: float
    waited_us: float
    """The part in which the loop waited for its data."""


def plan(before: int, mode: str) -> Plan | None:
    """How to use `before` steps without a profiler; None if there are too few to time."""
    if before < FEWEST_STEPS:
        return None
    timed = before - before // 5
    if mode == "latency":
        return Plan(before - timed, timed, 1, 0)
    singles = min(_MOST_SINGLES, timed // 5) if timed >= _SINGLES_FROM else 0
    blocks = min(BLOCKS, max(_FEWEST_BLOCKS, (timed - singles) // STEPS_PER_BLOCK))
    per_block = (timed - singles) // blocks
    return Plan(before - singles - blocks * per_block, blocks, per_block, singles)


class LoopCapture:
    """Times and records the steps of a user's loop. Call `step()` after each step and `finish()` at the end.

    Methods raise CaptureError if the profiler fails or a trace cannot be written. `close()` and `finish()` turn the
    profiler off.
    """

    def __init__(
        self,
        experiment: Experiment,
        output: Path,
        *,
        rank: int | None = None,
        captured: Callable[[], Any] | None = None,
    ) -> None:
        """`captured`: see `graph_names.from_function`. Raises UsageError if the requested GPU is missing, or if
        `output` already has traces.
        """
        refuse_running_profiler()
        self.experiment = experiment
        self._device, self._notes = open_device(experiment.device)
        self._folder = trace_folder(output, experiment, rank)
        self._rank, self._captured = rank, captured
        schedule = experiment.schedule
        self._before = schedule.skip_first + schedule.wait
        self._plan = plan(self._before, experiment.timing.mode)
        self._marks = _marks(self._plan, self._before)
        self._stretches: list[_Stretch] = []
        self._waits = InputWaits()
        self._first_is_timed = True
        self._last = 0
        self._loads: list[Reading] = []
        self._meter: Meter | None = None
        self._alone_since: int | None = None  # the mark after which nothing but steps ran
        self._counted_from: int | None = None
        self._counters: Counters | None = None
        self._gpu: GpuState | None = None
        self._recording = Recording(self._device, experiment, self._folder, rank=rank)
        self._region: Any = None
        self._open = contextlib.ExitStack()
        self._timing_only = contextlib.ExitStack()
        self._paused_at: int | None = None
        self._paused_ns = 0
        self._excluded = contextlib.ExitStack()
        self.steps = 0
        """Number of finished steps."""

    @property
    def is_over(self) -> bool:
        """Whether the whole schedule has run."""
        return self.steps >= self.experiment.schedule.total_steps

    def start(
        self, progress: Progress, *, calibrate: bool, pace: Pace | None = None, first_is_over: bool = False
    ) -> None:
        """Load the profiler, get the ceilings, start the clock. The loop's next step begins when this returns.

        `first_is_over`: the loop has already run its first step, which is then not timed.
        """
        self._started_ns, self._progress = time.time_ns(), progress
        self._bench = ready(self._device, self._notes, progress, calibrate=calibrate)
        # The loop's types are only known once it is over, when nothing may be timed any more.
        dtypes = GPU_DTYPES if self._device.is_gpu else CPU_DTYPES
        self._ceilings = calibrated(self._bench, dtypes, progress, pace) if calibrate else None
        self._device.reset_peak_memory()  # of the ceilings' loads, some GiB
        if self._plan is not None and self.experiment.timing.counters != "none":
            self._meter = Meter(self._device)
        if first_is_over and self._before:
            self.steps = 1
            self._marks.discard(1)
            self._first_is_timed = False
        if self.steps == self._before:
            self._record()
        else:
            self._waits = self._timing_only.enter_context(InputWaits())
        self._last = time.perf_counter_ns()

    def step(self) -> None:
        """Call at the end of each step. Ends a pause."""
        self.resume()
        self.steps += 1
        if self.steps in self._marks:
            self._mark()
        if self.steps == self._before:
            self._timing_only.close()
            self._gpu = state_of(self._device)
            self._record()
        elif self.steps > self._before and not self.is_over:
            self._advance()
        elif self.is_over:
            self._advance()
            self.close()

    def finish(self) -> Capture | None:
        """Stop and return what was measured; None if no step was recorded."""
        self._recording.partial = True
        self.close()
        recorded = self._recording.recorded
        cycles = [
            cycle.as_cycle(len(cycle.window.steps & cycle.counts.steps))
            for cycle in recorded
            if cycle.window.steps & cycle.counts.steps
        ]
        if not cycles:
            return None
        return self._with_names_of_graphs(self._result(recorded, cycles))

    def _result(self, recorded: list[Recorded], cycles: list[Cycle]) -> Capture:
        return Capture(
            experiment=self.experiment,
            timing=self._timing(),
            cycles=cycles,
            peak_memory_bytes=self._device.peak_memory_bytes(),
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            device=self._device.type,
            ceilings=self._ceilings,
            gpu=self._gpu,
            counters=with_reachable(self._counters, self._ceilings),
            all_threads=records_all_threads(self.experiment.profiler),
            notes=[*self._bench.notes, *self._own_notes(), *recorded_notes(recorded, self._device, self.experiment)],
        )

    def _with_names_of_graphs(self, result: Capture) -> Capture:
        if self._rank is not None:
            return graph_names.skipped(result, graph_names.SEVERAL_RANKS)
        if self._captured is None:
            return graph_names.skipped(result, _NO_FUNCTION)
        return graph_names.from_function(result, self._captured, self._device, self._folder, self._progress)

    def close(self) -> None:
        """Turn the profiler off if it is on. `finish` also writes a window that is not complete yet."""
        self._excluded.close()
        self._timing_only.close()
        self._leave_region()
        self._end_counting()
        with quiet():
            self._open.close()

    # ---- between two steps

    def pause(self) -> None:
        """What follows is no part of a step, until `resume`."""
        if self._paused_at is not None:
            return
        if self._is_timing:
            self._device.synchronize()  # the steps' own work is part of them
            self._alone_since = self._counted_from = None  # what follows would be counted as theirs
        self._paused_at = time.perf_counter_ns()
        self._excluded.enter_context(self._recording.excluded())
        self._excluded.enter_context(self._waits.ignored())

    def resume(self) -> None:
        """The current step goes on after a pause; without one, nothing happens."""
        if self._paused_at is None:
            return
        self._excluded.close()
        if self._is_timing:
            self._device.synchronize()
            paused = time.perf_counter_ns() - self._paused_at
            self._paused_ns += paused
            self._last += paused
        self._paused_at = None

    @property
    def _is_timing(self) -> bool:
        return self.steps < self._before

    # ---- without the profiler

    def _mark(self) -> None:
        self._device.synchronize()
        now = time.perf_counter_ns()
        self._stretches.append(_Stretch(self.steps, (now - self._last) / 1e3, self._waits.lap_us()))
        if self._plan is not None and self._read(self._plan):
            now = time.perf_counter_ns()
        self._last = now

    def _read(self, plan: Plan) -> bool:
        """Read what is counted over several blocks: the GPU's counters and the processors' load. Whether it was due."""
        counted = self._read_counters(plan)
        if self.steps in (plan.warm, plan.timed_until):
            self._loads.append(read_load())
            return True
        return counted

    def _read_counters(self, plan: Plan) -> bool:
        """Count from the first block that follows a lead-in to the last block."""
        if self._meter is None or self._alone_since is None:
            self._alone_since = self.steps
        elif self._counted_from is not None:
            if self.steps < plan.timed_until:
                return False
            self._meter.stop()
            self._counters = self._meter.count(*self._since(self._counted_from))
            self._end_counting()
            return True
        elif plan.warm <= self.steps < plan.timed_until and self._since(self._alone_since)[1] >= LEAD_IN_SECONDS:
            self._meter.start()
            self._counted_from = self.steps
            return True
        return False

    def _since(self, step: int) -> tuple[int, float]:
        """The numbers of steps and of seconds since the end of a step at which the clock was read."""
        return self.steps - step, sum(each.us for each in self._stretches if each.until > step) / 1e6

    def _end_counting(self) -> None:
        if self._meter is not None:
            self._notes += self._meter.notes()
            self._meter.close()
            self._meter = None

    def _timing(self) -> Timing | None:
        if self._plan is None or len(self._stretches) < len(self._marks):
            return None
        _, blocks, per_block, singles = self._plan
        first_single = len(self._stretches) - singles
        timing = timing_of(
            self.experiment.timing.mode,
            self._samples(slice(first_single - blocks, first_single), per_block),
            per_block,
            self._samples(slice(first_single, None), 1),
            load=load_between(*self._loads) if len(self._loads) == 2 else None,
            batches_ahead=self._waits.batches_ahead,
        )
        first = self._stretches[0].us if self._first_is_timed else None
        return msgspec.structs.replace(timing, first_step_time_us=first, warmup_steps=self._plan.warm)

    def _samples(self, which: slice, steps: int) -> Samples:
        """These stretches, of so many steps each."""
        stretches = self._stretches[which]
        waits = [each.waited_us / steps for each in stretches] if self._waits.calls else []
        return Samples([each.us / steps for each in stretches], waits)

    def _own_notes(self) -> list[str]:
        notes = []
        if self._paused_ns:
            seconds = short_time(self._paused_ns / 1000)
            notes.append(
                f"{seconds} of evaluation and other work between the timed steps is not part of the step time."
            )
        if self._plan is None:
            notes.append(
                f"Only {self._before} steps run before the profiler starts, and timing needs {FEWEST_STEPS}: the step "
                "time comes from the trace. Raise schedule.wait to time more steps."
            )
        return notes

    # ---- with the profiler

    def _record(self) -> None:
        """Start the profiler: the schedule's unrecorded steps are over."""
        # The guard starts only here: autotuning may use a profiler while it compiles.
        self._open.enter_context(no_other_profiler(self.experiment))
        with quiet():
            self._open.enter_context(self._recording)
            for _ in range(self._before):
                self._recording.next_step()
        self._enter_region()

    def _advance(self) -> None:
        self._leave_region()
        with quiet():
            self._recording.next_step()
        self._enter_region()

    def _enter_region(self) -> None:
        self._region = self._recording.region()
        self._region.__enter__()

    def _leave_region(self) -> None:
        if self._region is not None:
            self._region.__exit__(None, None, None)
            self._region = None


def _marks(used: Plan | None, before: int) -> set[int]:
    """The step counts at which the clock is read."""
    if used is None:
        return {1} if before else set()
    ends = [used.warm + index * used.per_block for index in range(used.blocks + 1)]
    return {1, *ends, *range(ends[-1] + 1, before + 1)}
