"""The order of a capture. Each part is there for the next, and nothing is timed once the profiler has run.

throw-away profiler   ceilings   build   first step   counted step   warm-up   timing without a profiler   profiler
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from proftrack import workload
from proftrack.capture.ceilings import ceilings_of
from proftrack.capture.device import Device, open_device
from proftrack.capture.gpu_state import gpu_state
from proftrack.capture.profiling import (
    Recorded,
    no_other_profiler,
    profile_steps,
    refuse_running_profiler,
    throw_away_session,
    windows,
)
from proftrack.capture.result import Capture, Cycle, Timing
from proftrack.capture.timing import CPU_WARM_UP, GPU_WARM_UP, Stopwatch, Warm, time_steps, warm_up
from proftrack.capture.trace import file_name
from proftrack.capture.work import count_step
from proftrack.errors import CaptureError, UsageError, WorkloadError
from proftrack.experiment import Experiment
from proftrack.hardware import Ceilings, StepWork


class Progress(Protocol):
    """Where capture says what it is doing; see proftrack.report.progress."""

    def phase(self, text: str, total: int | None = None) -> AbstractContextManager[Any]:
        """A stretch of work; entered when it begins, left when it is over."""

    def advance(self, amount: int = 1) -> None:
        """Some more of the present phase is done. Called only where time is not measured."""


def capture(experiment: Experiment, *, output: Path, progress: Progress, calibrate: bool = True) -> Capture:
    """Run an experiment: its timing, and a trace for each cycle in `output`/trace.

    With `calibrate` the device's ceilings are measured (or taken from the user's cache) and one step's work is counted.
    The user's code runs in this process and thread. Raises UsageError (a GPU that is not there, a parameter that the
    workload refuses, traces in `output` already), WorkloadError (the user's code raised), CaptureError (the profiler
    cannot run or recorded less than one whole cycle). Ctrl-C passes; the profiler is stopped and the workload closed in
    every case.
    """
    started = time.time_ns()
    refuse_running_profiler()
    build = workload.load(experiment)
    device, notes = open_device(experiment.device)
    folder = _trace_folder(output, experiment)
    with progress.phase("start the profiler"):
        throw_away_session(device)
    ceilings = _ceilings(device, progress) if calibrate else None
    with contextlib.ExitStack() as stack:
        with progress.phase("build"):
            begin = time.perf_counter_ns()
            step = stack.enter_context(workload.open_step(build, device.torch_device, experiment.params))
            with workload.failing(f"{experiment.name}: building"):
                device.synchronize()
            build_us = (time.perf_counter_ns() - begin) / 1e3
        first_us = _first_step(step, device, experiment, progress)
        work = _work(step, device, progress, notes) if calibrate else None
        stack.enter_context(no_other_profiler(experiment))  # not before: autotuning may profile while it compiles
        timing, peak = _timed(step, device, experiment, progress, notes)
        state = gpu_state(device.torch_device.index) if device.type == "cuda" else None
        gc.collect()
        with _phase(progress, experiment, "profiling", _unrecorded_steps(experiment)):
            seconds = timing.step_time_us / 1e6
            recorded = profile_steps(step, device, experiment, folder, step_seconds=seconds, tick=progress.advance)
    notes += _notes(recorded, device, experiment)
    return Capture(
        timing=msgspec.structs.replace(timing, build_time_us=build_us, first_step_time_us=first_us),
        cycles=_whole(recorded, experiment, notes),
        peak_memory_bytes=peak,
        started_ns=started,
        ended_ns=time.time_ns(),
        device=device.type,
        ceilings=ceilings,
        work=work,
        gpu=state,
        notes=notes,
    )


def _ceilings(device: Device, progress: Progress) -> Ceilings:
    with progress.phase("ceilings of the device"):
        ceilings = ceilings_of(device)
        device.release_memory()
    return ceilings


def _work(step: Callable[[], Any], device: Device, progress: Progress, notes: list[str]) -> StepWork | None:
    with progress.phase("count a step's work"):
        work, note = count_step(step, device)
    notes += [note] if note else []
    return work


def _trace_folder(output: Path, experiment: Experiment) -> Path:
    """`output`/trace, able to take this capture's traces; earlier ones there are not overwritten."""
    folder = output / "trace"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror}); name another output folder") from error
    for cycle in range(experiment.schedule.repeat):
        target = folder / file_name(experiment.name, cycle + 1)
        if target.exists():
            raise UsageError(f"{target}: is there already, from another run; name another output folder")
    return folder


# ---- without the profiler ------------------------------------------------------------------------------------------


def _first_step(step: Callable[[], Any], device: Device, experiment: Experiment, progress: Progress) -> float:
    """Microseconds of the step that compiles, tunes and initialises whatever is left to its first call."""
    with _phase(progress, experiment, "first step"):
        begin = time.perf_counter_ns()
        result = step()
        device.synchronize()
        elapsed = (time.perf_counter_ns() - begin) / 1e3
        _check_result(result, experiment)
    return elapsed


def _timed(
    step: Callable[[], Any], device: Device, experiment: Experiment, progress: Progress, notes: list[str]
) -> tuple[Timing, int | None]:
    """Warm-up and timing; with the peak memory of the timed steps."""
    watch = Stopwatch(step, device, tick=progress.advance)
    with _phase(progress, experiment, "warm-up"):
        warm = warm_up(watch, GPU_WARM_UP if device.is_gpu else CPU_WARM_UP)
    gc.collect()
    device.reset_peak_memory()
    with _phase(progress, experiment, "timing without the profiler"):
        timing, short = time_steps(watch, experiment.timing, warm.step_seconds)
    notes += [*_warm_up_notes(warm), *short]
    return msgspec.structs.replace(timing, warmup_steps=warm.steps), device.peak_memory_bytes()


def _check_result(result: Any, experiment: Experiment) -> None:
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        kind = type(result).__name__
        result.close()
        raise WorkloadError(
            f"{experiment.name}: the step returns a {kind} and so has done nothing; it must do its work"
        )


def _warm_up_notes(warm: Warm) -> list[str]:
    if warm.settled:
        return []
    return ["Step times had not settled when the warm-up ended: the spread of the timed blocks shows by how much."]


@contextlib.contextmanager
def _phase(progress: Progress, experiment: Experiment, text: str, total: int | None = None) -> Iterator[None]:
    """A phase in which the user's step runs: its errors name the phase."""
    with progress.phase(text, total), workload.failing(f"{experiment.name}: {text}: the step"):
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
            raise CaptureError(f"{experiment.name}: {text}; {remedy}")
        kept = [cycle.trace.name for cycle in recorded if cycle not in whole]
        left = f"; kept, but left out of the figures: {', '.join(kept)}" if kept else ""
        notes.append(f"{text[0].upper()}{text[1:]}{left}.")
    return [Cycle(trace=cycle.trace, expected_steps=len(cycle.window.steps)) for cycle in whole]


def _notes(recorded: list[Recorded], device: Device, experiment: Experiment) -> list[str]:
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
