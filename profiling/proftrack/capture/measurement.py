"""A workload under measurement, stage by stage: made ready, opened, timed, profiled. `session` has the order."""

from __future__ import annotations

import contextlib
import gc
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from proftrack.capture.budget import Budget, Plan, guarded
from proftrack.capture.ceilings import ceilings_of, known_ceilings
from proftrack.capture.device import Device
from proftrack.capture.dtype import declared, emulated, resolved
from proftrack.capture.gpu_state import gpu_state
from proftrack.capture.lockstep import Pace, PacedStopwatch
from proftrack.capture.profiling import (
    Recorded,
    profile_steps,
    records_all_threads,
    throw_away_session,
    windows,
)
from proftrack.capture.result import Capture, Cycle
from proftrack.capture.step_work import count_step
from proftrack.capture.timing import CPU_WARM_UP, FEWEST_STEPS, GPU_WARM_UP, Stopwatch, Warm, time_steps, warm_up
from proftrack.errors import BudgetError, CaptureError, WorkloadError
from proftrack.experiment import Experiment, workload
from proftrack.experiment.workload import Step
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.gpu_state import GpuState
from proftrack.record.timing import Timing

OnOverrun = Callable[[BudgetError], Any]
"""Ends the measurement of a step that hangs; called in another thread."""


class Progress(Protocol):
    """Where capture says what it is doing; see proftrack.report.progress."""

    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> AbstractContextManager[Any]:
        """A stretch of work; entered when it begins, left when it is over. `live`: it is not timed."""

    def expect(self, seconds: float) -> None:
        """All of it will be over in about so many seconds."""

    def advance(self, amount: int = 1) -> None:
        """Some more of the present phase is done. Called only where time is not measured."""


class ReadyDevice(Struct):
    """What steps run on, made ready once a process: see `ready`."""

    device: Device
    calibrate: bool
    """Whether ceilings and a step's work are asked for."""
    notes: list[str]
    """What could not be had."""


class OpenWorkload(Struct):
    """A workload that is built and has run its first step."""

    experiment: Experiment
    """With what `auto` became on this device."""
    bench: ReadyDevice
    step: Step
    build_us: float
    first_us: float | None
    """None where the process has run other workloads before: what a first step initialises was there already."""
    plan: Plan
    """What of the measurement fits into its time."""
    notes: list[str]
    """The bench's, and those that are added."""
    work: StepWork | None = None
    ceilings: Ceilings | None = None
    steps_run: int = 1
    """Steps that have been run so far."""

    @property
    def device(self) -> Device:
        """Where its steps run."""
        return self.bench.device


class TimedSteps(NamedTuple):
    """What is known once steps were timed: the timing, the peak memory, the GPU's state behind them."""

    timing: Timing
    peak_memory_bytes: int | None
    gpu: GpuState | None
    agreed_step_us: float
    """The step time that all ranks go by; the timing's own where there is but one."""


def ready(device: Device, notes: list[str], progress: Progress, *, calibrate: bool) -> ReadyDevice:
    """The device with its profiler started once. `calibrate`: ceilings and a step's work will be asked for."""
    with progress.phase("start the profiler", live=True):
        throw_away_session(device)
    return ReadyDevice(device, calibrate, notes)


def calibrated(device: Device, dtypes: Iterable[str], progress: Progress, pace: Pace | None = None) -> Ceilings:
    """The device's ceilings for these dtypes; of several ranks on a machine one measures, the others read."""
    with pace.in_turn("ceilings") if pace is not None else contextlib.nullcontext():
        with progress.phase("ceilings of the device", live=True):
            ceilings = ceilings_of(device, dtypes)
            device.release_memory()
        return ceilings


@contextlib.contextmanager
def opened(
    build: workload.Workload,
    experiment: Experiment,
    bench: ReadyDevice,
    progress: Progress,
    transform: Callable[[Step, Device], Step] | None = None,
    *,
    pace: Pace | None = None,
    on_overrun: OnOverrun | None = None,
    timed_steps: int = FEWEST_STEPS,
) -> Iterator[OpenWorkload]:
    """Build the workload, run its first step, plan the rest, count a step's work; the workload is closed at the end.

    `transform` makes the step that is run and timed from the workload's own; its time counts as the first step's. The
    experiment's budget of time begins here; `on_overrun` ends a first step that takes longer, see `budget.guarded`.
    `timed_steps` will be timed at the least. Raises BudgetError where the least that must be measured does not fit.
    """
    device, notes = bench.device, list(bench.notes)
    experiment = resolved(experiment, device)
    budget = Budget(experiment, timed_steps=timed_steps)
    with contextlib.ExitStack() as stack:
        with progress.phase("build", live=True):
            begin = time.perf_counter_ns()
            own = stack.enter_context(workload.open_step(build, device.torch_device, experiment.params))
            with workload.failing(f"{experiment.name}: building"):
                device.synchronize()
            build_us = (time.perf_counter_ns() - begin) / 1e3
        if (slow := emulated(experiment, device)) is not None:
            budget.emulated = slow
            notes.append(slow.sentence())
        first = _FirstSteps(experiment, device, budget, progress, pace, on_overrun)
        step, first_us = first.run(own, transform)
        plan = first.plan(step, first_us / 1e6)
        subject = OpenWorkload(experiment, bench, step, build_us, first_us, plan, notes, steps_run=first.steps)
        if bench.calibrate:
            _count(own, subject, progress, pace)
        progress.expect(plan.expected_seconds)
        yield subject


def time_alone(subject: OpenWorkload, progress: Progress, pace: Pace | None = None) -> TimedSteps:
    """Warm-up and timing of one workload by itself; with `pace` in step with the other ranks."""
    step, device = subject.step, subject.device
    paced = PacedStopwatch(step, device, pace, tick=progress.advance) if pace is not None else None
    watch = paced or Stopwatch(step, device, tick=progress.advance)
    timing, peak = _timed(watch, subject, progress)
    own = paced.own_timing(timing) if paced is not None else timing
    return TimedSteps(own, peak, state_of(device), timing.step_time_us)


def state_of(device: Device) -> GpuState | None:
    """The GPU's state now; None for a CPU."""
    return gpu_state(device.torch_device.index) if device.type == "cuda" else None


def profiled(
    subject: OpenWorkload, folder: Path, step_time_us: float, progress: Progress, rank: int | None = None
) -> list[Recorded]:
    """The scheduled profiler over the subject's steps. Nothing may be timed in this process afterwards.

    `step_time_us`, the same for all ranks, says how many steps keep the GPU's clocks up.
    """
    experiment, seconds = subject.experiment, step_time_us / 1e6
    gc.collect()
    with _phase(progress, experiment, "profiling", _unrecorded_steps(experiment)):
        return profile_steps(
            subject.step, subject.device, experiment, folder, step_seconds=seconds, rank=rank, tick=progress.advance
        )


def result(subject: OpenWorkload, timed: TimedSteps, recorded: list[Recorded], started_ns: int) -> Capture:
    """All that was measured of a subject. Raises CaptureError where not one cycle is whole."""
    experiment = subject.experiment
    notes = [*subject.notes, *recorded_notes(recorded, subject.device, experiment)]
    times = {"build_time_us": subject.build_us, "first_step_time_us": subject.first_us}
    return Capture(
        experiment=experiment,
        timing=msgspec.structs.replace(timed.timing, **times),
        cycles=_whole(recorded, experiment, notes),
        peak_memory_bytes=timed.peak_memory_bytes,
        started_ns=started_ns,
        ended_ns=time.time_ns(),
        device=subject.device.type,
        ceilings=subject.ceilings,
        work=subject.work,
        gpu=timed.gpu,
        all_threads=records_all_threads(experiment.profiler),
        notes=notes,
    )


# ---- before it is timed --------------------------------------------------------------------------------------------


class _FirstSteps:
    """The first step, and the plan that is made from its time; a second one where the first may have compiled."""

    def __init__(
        self,
        experiment: Experiment,
        device: Device,
        budget: Budget,
        progress: Progress,
        pace: Pace | None,
        on_overrun: OnOverrun | None,
    ) -> None:
        self.steps = 0
        self._experiment, self._device, self._budget = experiment, device, budget
        self._progress, self._pace, self._on_overrun = progress, pace, on_overrun

    def run(self, own: Step, transform: Callable[[Step, Device], Step] | None) -> tuple[Step, float]:
        """The step, and the microseconds of its first call: it compiles, tunes and initialises what is left to it."""
        with _phase(self._progress, self._experiment, "first step", live=True), self._guarded():
            begin = time.perf_counter_ns()
            step = transform(own, self._device) if transform is not None else own
            result = step()
            self._device.synchronize()
            elapsed = (time.perf_counter_ns() - begin) / 1e3
            _check_result(result, self._experiment)
        self.steps = 1
        return step, elapsed

    def plan(self, step: Step, first_seconds: float) -> Plan:
        """What fits; where the first step leaves little time, a second one tells how long a step really is."""
        seconds, left = self._agreed(first_seconds), self._agreed(self._budget.left)
        if not self._budget.is_ample(seconds, left):
            with _phase(self._progress, self._experiment, "second step", live=True), self._guarded(first_seconds):
                begin = time.perf_counter_ns()
                step()
                self._device.synchronize()
                again = (time.perf_counter_ns() - begin) / 1e9
            self.steps = 2
            seconds, left = min(seconds, self._agreed(again)), self._agreed(self._budget.left)
        return self._budget.plan(seconds, left)

    def _guarded(self, first_seconds: float | None = None) -> AbstractContextManager[None]:
        return guarded(self._budget, first_seconds=first_seconds, on_overrun=self._on_overrun)

    def _agreed(self, seconds: float) -> float:
        """Rank 0's figure, where there are several ranks: they run equally many steps."""
        return self._pace.agree(seconds) if self._pace is not None else seconds


def _count(own: Step, subject: OpenWorkload, progress: Progress, pace: Pace | None) -> None:
    """Count the step's work and look the ceilings up that it is held against, as far as there is time."""
    plan, device = subject.plan, subject.device
    if plan.count:
        with progress.phase("count a step's work", live=True):
            subject.work, note = count_step(own, device)
        subject.notes += [note] if note else []
        subject.steps_run += 1
    chosen = declared(subject.experiment)
    dtypes = {*(subject.work.dtypes if subject.work is not None else ()), *((chosen,) if chosen else ())}
    if plan.ceilings:
        subject.ceilings = calibrated(device, dtypes or {"float32"}, progress, pace)
    else:
        subject.ceilings = known_ceilings(device, dtypes or {"float32"})
    if not plan.count or subject.ceilings is None:
        what = [] if plan.count else ["counting a step's work"]
        what += [] if subject.ceilings is not None else ["measuring the device's ceilings"]
        subject.notes.append(
            f"The budget of {subject.experiment.timing.budget_seconds:g} s had no time for {' and '.join(what)}; "
            "--budget allows more."
        )


# ---- without the profiler ------------------------------------------------------------------------------------------


def _timed(watch: Stopwatch, subject: OpenWorkload, progress: Progress) -> tuple[Timing, int | None]:
    """Warm-up and timing, as long as the plan has time for; with the peak memory of the timed steps."""
    device, experiment, plan = watch.device, subject.experiment, subject.plan
    limits = GPU_WARM_UP if device.is_gpu else CPU_WARM_UP
    warm = Warm(steps=0, step_seconds=plan.step_seconds, settled=True)
    if plan.warm_up_seconds:
        limits = msgspec.structs.replace(limits, max_seconds=min(limits.max_seconds, plan.warm_up_seconds))
        with _phase(progress, experiment, "warm-up"):
            warm = warm_up(watch, limits)
    gc.collect()
    device.reset_peak_memory()
    with _phase(progress, experiment, "timing without the profiler"):
        timing, short = time_steps(watch, experiment.timing, warm.step_seconds, at_most=plan.timing_seconds)
    subject.notes += [*_warm_up_notes(warm), *short]
    return msgspec.structs.replace(timing, warmup_steps=warm.steps), device.peak_memory_bytes()


def _check_result(result: Any, experiment: Experiment) -> None:
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        kind = type(result).__name__
        result.close()
        raise WorkloadError(
            f"{experiment.name}: the step returns a {kind} and so has done nothing", "it must do its work"
        )


def _warm_up_notes(warm: Warm) -> list[str]:
    if warm.settled:
        return []
    return ["Step times had not settled when the warm-up ended: the spread of the timed blocks shows by how much."]


@contextlib.contextmanager
def _phase(
    progress: Progress, experiment: Experiment, text: str, total: int | None = None, *, live: bool = False
) -> Iterator[None]:
    """A phase in which the user's step runs: its errors name the phase."""
    with progress.phase(text, total, live=live), workload.failing(f"{experiment.name}: {text}: the step"):
        yield


# ---- with the profiler ---------------------------------------------------------------------------------------------


def _unrecorded_steps(experiment: Experiment) -> int:
    """Those of the schedule in which progress may be shown."""
    return experiment.schedule.total_steps - sum(len(window.steps) for window in windows(experiment.schedule))


def _whole(recorded: list[Recorded], experiment: Experiment, notes: list[str]) -> list[Cycle]:
    """The cycles whose traces hold every step of their window; a note about the others, an error if there is none."""
    expected = sum(len(window.steps) for window in windows(experiment.schedule))
    found = sum(len(cycle.counts.steps & cycle.window.steps) for cycle in recorded)
    whole = [cycle for cycle in recorded if cycle.window.steps <= cycle.counts.steps]
    if found < expected:
        where = f"{len(whole)} of {experiment.schedule.repeat} cycles are whole"
        text = f"the profiler recorded {found} of the {expected} steps that the schedule promised ({where})"
        if not whole:
            remedy = "a shorter schedule.active, or fewer operators a step, keeps its buffers from running over"
            raise CaptureError(f"{experiment.name}: {text}", f"{remedy}")
        kept = [cycle.trace.name for cycle in recorded if cycle not in whole]
        left = f"; kept, but left out of the figures: {', '.join(kept)}" if kept else ""
        notes.append(f"{text[0].upper()}{text[1:]}{left}.")
    return [Cycle(trace=cycle.trace, expected_steps=len(cycle.window.steps)) for cycle in whole]


def recorded_notes(recorded: list[Recorded], device: Device, experiment: Experiment) -> list[str]:
    """What the recorded cycles do not hold, in sentences."""
    notes = []
    launches = sum(cycle.counts.launches for cycle in recorded)
    if device.is_gpu and recorded and not any(cycle.counts.gpu_work for cycle in recorded):
        if launches:
            why = "CUPTI is missing, not permitted to this user, or taken by another profiler"
            text = f"GPU was not measured: the profile has {launches} launches and no GPU work; {why}"
            notes.append(f"{text} (KINETO_LOG_LEVEL=0 shows what it says).")
        else:
            notes.append(
                "GPU was not measured: the profile has neither launches nor GPU work; the steps launch none, or this "
                "torch has no CUPTI."
            )
    if experiment.schedule.warmup == 0:
        notes.append("schedule.warmup is 0: the first recorded step holds the profiler's own start.")
    return notes
