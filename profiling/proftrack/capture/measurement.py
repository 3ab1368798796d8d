"""Measure one workload, stage by stage: ready, opened, timed, profiled. `run` has the order."""

from __future__ import annotations

import contextlib
import gc
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from proftrack.capture.budget import Budget, Plan, guarded
from proftrack.capture.ceilings import ceilings_of, known_ceilings
from proftrack.capture.counters import LONG_SECONDS, Meter, count
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
from proftrack.capture.reachable import with_reachable
from proftrack.capture.result import Capture, Cycle
from proftrack.capture.step_work import CapturedGraphs, count_step
from proftrack.capture.timing import CPU_WARM_UP, FEWEST_STEPS, GPU_WARM_UP, Stopwatch, Warm, time_steps, warm_up
from proftrack.capture.timing import plan as blocks_of
from proftrack.errors import BudgetError, CaptureError, WorkloadError
from proftrack.experiment import Experiment, workload
from proftrack.experiment.workload import Step
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.counters import Counters
from proftrack.record.environment import GpuState
from proftrack.record.timing import Timing

OnOverrun = Callable[[BudgetError], Any]
"""Ends the measurement if a step hangs; called in another thread."""


class Progress(Protocol):
    """Shows what capture is doing, one phase after the other; see proftrack.report.progress."""

    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> AbstractContextManager[Any]:
        """A context around one phase, of `total` parts if that is known. `live`: no step is timed in it."""

    def expect(self, seconds: float) -> None:
        """Everything will be done in about so many seconds."""

    def advance(self, amount: int = 1) -> None:
        """`amount` more parts of this phase are done. Cheap: it is called between timed steps."""


class ReadyDevice(Struct):
    """The device that steps run on, prepared once per process: see `ready`."""

    device: Device
    calibrate: bool
    """Whether ceilings and a step's work are wanted."""
    notes: list[str]
    """Sentences about what is missing."""
    companions: int = 0
    """Other processes on the same GPU that are known to be idle."""


class OpenWorkload(Struct):
    """A workload that is built and has run its first step."""

    experiment: Experiment
    """With `auto` resolved for this device."""
    bench: ReadyDevice
    step: Step
    build_us: float
    first_us: float | None
    """None if the process has run other workloads before: what a first step initialises was there already."""
    plan: Plan
    """The parts of the measurement that fit into the budget."""
    notes: list[str]
    """Those of `bench`, and more as they come up."""
    work: StepWork | None = None
    ceilings: Ceilings | None = None
    tokens_per_step: float | None = None
    """What the workload says."""
    steps_run: int = 1
    """Number of steps run so far."""
    seconds_left: Callable[[], float] = lambda: math.inf
    """What is left of the time budget now."""

    @property
    def device(self) -> Device:
        """The device that its steps run on."""
        return self.bench.device


class TimedSteps(NamedTuple):
    """The results of the timed steps: the timing, the peak memory, the GPU's state right after them, its counters."""

    timing: Timing
    peak_memory_bytes: int | None
    gpu: GpuState | None
    agreed_step_us: float
    """The step time that all ranks use; with one rank, the timing's own."""
    counters: Counters | None = None


def ready(device: Device, notes: list[str], progress: Progress, *, calibrate: bool) -> ReadyDevice:
    """The device, after its profiler was started once. `calibrate`: ceilings and a step's work will be wanted."""
    with progress.phase("start the profiler", live=True):
        throw_away_session(device)
    return ReadyDevice(device, calibrate, notes)


def calibrated(bench: ReadyDevice, dtypes: Iterable[str], progress: Progress, pace: Pace | None = None) -> Ceilings:
    """The device's ceilings for these dtypes. If a machine has several ranks, one measures and the others read."""
    with pace.in_turn("ceilings") if pace is not None else contextlib.nullcontext():
        with progress.phase("ceilings of the device", live=True):
            ceilings = ceilings_of(bench.device, dtypes, companions=bench.companions)
            bench.device.release_memory()
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
    """Build the workload, run its first step, plan the rest, count a step's work; close the workload at the end.

    `transform` turns the workload's step into the one that is run and timed; its time counts as part of the first step.
    The experiment's time budget starts here. `on_overrun` ends a first step that exceeds it, see `budget.guarded`. At
    least `timed_steps` will be timed. Raises BudgetError if the required steps do not fit.
    """
    device, notes = bench.device, list(bench.notes)
    experiment = resolved(experiment, device)
    budget = Budget(experiment, timed_steps=timed_steps)
    budget.counts_hardware = device.is_gpu and experiment.timing.counters != "none"
    graphs = CapturedGraphs(device.type)
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as before_timing:
        if bench.calibrate and device.type == "cuda":
            before_timing.enter_context(graphs.watching())
        with progress.phase("build", live=True):
            begin = time.perf_counter_ns()
            built = stack.enter_context(workload.open_step(build, device.torch_device, experiment.params))
            with workload.failing(f"{experiment.name}: building"):
                device.synchronize()
                tokens = workload.tokens_of(built)
            build_us = (time.perf_counter_ns() - begin) / 1e3
        if (slow := emulated(experiment, device)) is not None:
            budget.emulated = slow
            notes.append(slow.sentence())
        first = _FirstSteps(experiment, device, budget, progress, pace, on_overrun)
        step, first_us = first.run(built, transform)
        plan = first.plan(step, first_us / 1e6)
        subject = OpenWorkload(
            experiment, bench, step, build_us, first_us, plan, notes, tokens_per_step=tokens, steps_run=first.steps
        )
        subject.seconds_left = lambda: budget.left
        if bench.calibrate:
            _count(built, subject, graphs, progress, pace)
        before_timing.close()
        progress.expect(plan.expected_seconds)
        yield subject


def time_alone(subject: OpenWorkload, progress: Progress, pace: Pace | None = None) -> TimedSteps:
    """Warm up and time one workload by itself; with `pace`, in step with the other ranks."""
    step, device = subject.step, subject.device
    paced = PacedStopwatch(step, device, pace, tick=progress.advance) if pace is not None else None
    watch = paced or Stopwatch(step, device, tick=progress.advance)
    with _meter(subject) as meter:
        timing, peak = _timed(watch, subject, progress, meter)
        this_ranks = paced.own_timing(timing) if paced is not None else timing
        state = state_of(device)
        counters = _counted(watch, subject, timing, progress, meter, pace)
    return TimedSteps(this_ranks, peak, state, timing.step_time_us, counters)


def count_hardware(subject: OpenWorkload, step_time_us: float, progress: Progress) -> Counters | None:
    """Repeat the steps of a workload that is warm and was timed, for hardware counters and energy."""
    watch = Stopwatch(subject.step, subject.device)
    with _meter(subject) as meter:
        return _repeated(watch, subject, step_time_us, progress, meter)


def _meter(subject: OpenWorkload) -> Meter:
    wanted = subject.experiment.timing.counters != "none"
    return Meter(subject.device, companions=subject.bench.companions, wanted=wanted)


def state_of(device: Device) -> GpuState | None:
    """The GPU's state now; None for a CPU."""
    return gpu_state(device.torch_device.index) if device.type == "cuda" else None


def profiled(
    subject: OpenWorkload, folder: Path, step_time_us: float, progress: Progress, rank: int | None = None
) -> list[Recorded]:
    """Run the scheduled profiler over the subject's steps. Nothing may be timed in this process afterwards.

    `step_time_us` must be the same on all ranks: it determines how many steps keep the GPU's clocks up.
    """
    experiment, seconds = subject.experiment, step_time_us / 1e6
    gc.collect()
    with _phase(progress, experiment, "profiling", _unrecorded_steps(experiment)):
        return profile_steps(
            subject.step, subject.device, experiment, folder, step_seconds=seconds, rank=rank, tick=progress.advance
        )


def result(subject: OpenWorkload, timed: TimedSteps, recorded: list[Recorded], started_ns: int) -> Capture:
    """Everything that was measured of a subject. Raises CaptureError if no cycle is complete."""
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
        counters=with_reachable(timed.counters, subject.ceilings),
        tokens_per_step=subject.tokens_per_step,
        all_threads=records_all_threads(experiment.profiler),
        notes=notes,
    )


# ---- before it is timed --------------------------------------------------------------------------------------------


class _FirstSteps:
    """The first step, and the plan made from its time. Runs a second step if the first may have compiled."""

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

    def run(self, built: Step, transform: Callable[[Step, Device], Step] | None) -> tuple[Step, float]:
        """The step, and the microseconds of its first call, with compilation, tuning and lazy initialisation."""
        with _phase(self._progress, self._experiment, "first step", live=True), self._guarded():
            begin = time.perf_counter_ns()
            step = transform(built, self._device) if transform is not None else built
            result = step()
            self._device.synchronize()
            elapsed = (time.perf_counter_ns() - begin) / 1e3
            _check_result(result, self._experiment)
        self.steps = 1
        return step, elapsed

    def plan(self, step: Step, first_seconds: float) -> Plan:
        """What fits. If the first step leaves little time, a second one shows how long a step really takes."""
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
        """Rank 0's figure if there are several ranks: all must run the same number of steps."""
        return self._pace.agree(seconds) if self._pace is not None else seconds


def _count(built: Step, subject: OpenWorkload, graphs: CapturedGraphs, progress: Progress, pace: Pace | None) -> None:
    """Count the step's work and get the ceilings to compare it with, as far as there is time."""
    plan, device = subject.plan, subject.device
    if plan.count:
        with progress.phase("count a step's work", live=True):
            subject.work, note = count_step(built, device, graphs)
        subject.notes += [note] if note else []
        subject.steps_run += 1
    chosen = declared(subject.experiment)
    dtypes = {*(subject.work.dtypes if subject.work is not None else ()), *((chosen,) if chosen else ())}
    if plan.ceilings:
        subject.ceilings = calibrated(subject.bench, dtypes or {"float32"}, progress, pace)
    else:
        subject.ceilings = known_ceilings(device, dtypes or {"float32"})
    if not plan.count or subject.ceilings is None:
        skipped = [] if plan.count else ["count a step's work"]
        skipped += [] if subject.ceilings is not None else ["measure the device's ceilings"]
        subject.notes.append(
            f"The budget of {subject.experiment.timing.budget_seconds:g} s left no time to {' and '.join(skipped)}; "
            "allow more with --budget."
        )


# ---- without the profiler ------------------------------------------------------------------------------------------


def _timed(watch: Stopwatch, subject: OpenWorkload, progress: Progress, meter: Meter) -> tuple[Timing, int | None]:
    """Warm-up and timing within the plan's limits, and the peak memory of the timed steps."""
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
        timing, short = time_steps(
            watch,
            experiment.timing,
            warm.step_seconds,
            at_most=plan.timing_seconds,
            around=meter.window() if _are_slow(warm.step_seconds, experiment, plan) else None,
        )
    subject.notes += [*_warm_up_notes(warm), *short]
    return msgspec.structs.replace(timing, warmup_steps=warm.steps), device.peak_memory_bytes()


def _are_slow(step_seconds: float, experiment: Experiment, plan: Plan) -> bool:
    """Whether the timed blocks will last long enough to be counted themselves."""
    blocks, per_block = blocks_of(step_seconds, experiment.timing)
    seconds = max(min(blocks * per_block * step_seconds, plan.timing_seconds), FEWEST_STEPS * step_seconds)
    return seconds >= LONG_SECONDS


def _counted(
    watch: Stopwatch, subject: OpenWorkload, timing: Timing, progress: Progress, meter: Meter, pace: Pace | None
) -> Counters | None:
    """Counters of the timed steps themselves if they took long, else of steps that are repeated."""
    wanted = meter.works and meter.window_seconds < LONG_SECONDS
    if pace.agree(float(wanted)) if pace is not None else wanted:
        return _repeated(watch, subject, timing.step_time_us, progress, meter)
    counters = None
    if meter.window_seconds >= LONG_SECONDS:
        steps = len(timing.block_step_times_us) * timing.steps_per_block
        counters = meter.count(steps, sum(timing.block_step_times_us) * timing.steps_per_block / 1e6)
    subject.notes += meter.notes()
    return counters


def _repeated(
    watch: Stopwatch, subject: OpenWorkload, step_time_us: float, progress: Progress, meter: Meter
) -> Counters | None:
    counters = None
    if meter.works or isinstance(watch, PacedStopwatch):
        if not subject.plan.counters:
            budget = subject.experiment.timing.budget_seconds
            text = f"The budget of {budget:g} s left no time for hardware counters; allow more with --budget."
            subject.notes.append(text)
            return None
        # It has run many times by now: what ends is its data, or a schedule of so many training steps.
        fewer = "if it cannot be repeated so often, --counters none runs fewer steps"
        with _phase(progress, subject.experiment, "hardware counters", remedy=fewer):
            counters = count(watch, meter, step_time_us / 1e6)
    subject.notes += meter.notes()
    return counters


def _check_result(result: Any, experiment: Experiment) -> None:
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        kind = type(result).__name__
        result.close()
        raise WorkloadError(
            f"{experiment.name}: the step returns a {kind}, so it has not done its work yet",
            "make the step a plain function that does its work",
        )


def _warm_up_notes(warm: Warm) -> list[str]:
    if warm.settled:
        return []
    return ["Step times were still changing when the warm-up ended; the spread of the timed blocks shows by how much."]


@contextlib.contextmanager
def _phase(
    progress: Progress,
    experiment: Experiment,
    text: str,
    total: int | None = None,
    *,
    live: bool = False,
    remedy: str | None = None,
) -> Iterator[None]:
    """A phase in which the user's step runs; errors of the step name the phase, and the remedy."""
    with progress.phase(text, total, live=live), workload.failing(f"{experiment.name}: {text}: the step", remedy):
        yield


# ---- with the profiler ---------------------------------------------------------------------------------------------


def _unrecorded_steps(experiment: Experiment) -> int:
    """Number of scheduled steps during which progress may be shown."""
    return experiment.schedule.total_steps - sum(len(window.steps) for window in windows(experiment.schedule))


def _whole(recorded: list[Recorded], experiment: Experiment, notes: list[str]) -> list[Cycle]:
    """The cycles whose traces have every step of their window. The others get a note; raises if none is complete."""
    expected = sum(len(window.steps) for window in windows(experiment.schedule))
    steps = sum(len(cycle.counts.steps & cycle.window.steps) for cycle in recorded)
    complete = [cycle for cycle in recorded if cycle.window.steps <= cycle.counts.steps]
    if steps < expected:
        where = f"{len(complete)} of {experiment.schedule.repeat} cycles are complete"
        text = f"the profiler recorded {steps} of the {expected} scheduled steps ({where})"
        if not complete:
            remedy = "use a shorter schedule.active or fewer operators per step, so that its buffers do not overflow"
            raise CaptureError(f"{experiment.name}: {text}", remedy)
        kept = [cycle.trace.name for cycle in recorded if cycle not in complete]
        left = f"; kept, but left out of the figures: {', '.join(kept)}" if kept else ""
        notes.append(f"{text[0].upper()}{text[1:]}{left}.")
    return [cycle.as_cycle(len(cycle.window.steps)) for cycle in complete]


def recorded_notes(recorded: list[Recorded], device: Device, experiment: Experiment) -> list[str]:
    """Sentences about what is missing from the recorded cycles."""
    notes = []
    launches = sum(cycle.counts.launches for cycle in recorded)
    if device.is_gpu and recorded and not any(cycle.counts.gpu_work for cycle in recorded):
        if launches:
            why = "CUPTI is missing, not permitted for this user, or in use by another profiler"
            text = f"The GPU was not measured: the profile has {launches} launches but no GPU work; {why}"
            notes.append(f"{text} (set KINETO_LOG_LEVEL=0 to see its messages).")
        else:
            notes.append(
                "The GPU was not measured: the profile has neither launches nor GPU work. Either the steps launch "
                "nothing on the GPU, or this torch has no CUPTI."
            )
    if reason := next((cycle.unmarked for cycle in recorded if cycle.unmarked), ""):
        notes.append(f"Calls of modules are not marked in the trace: {reason}.")
    if experiment.schedule.warmup == 0:
        notes.append("schedule.warmup is 0: the first recorded step includes the profiler's own start-up.")
    return notes
