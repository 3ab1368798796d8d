"""Measure all variants in one process: build each, compare its outputs with the first's, time in turns, then profile.

    open A   open B   ...   check outputs   warm up   A B A B A B ...   profile A   profile B
                                            no profiler |--------------|  no more timing

Several builds are alive at once and share the device's memory. If a variant cannot be built, or the workload does not
allow it, the others go on without it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from proftrack.errors import CaptureError, ProftrackError
from proftrack.experiment import Experiment, workload
from proftrack.frontends.batch.worker import is_out_of_memory
from proftrack.frontends.variants.names import Variant
from proftrack.frontends.variants.result import Status
from proftrack.record import Record
from proftrack.record.compilation import Compilation, OutputCheck
from proftrack.recorder import keep

if TYPE_CHECKING:
    from proftrack.capture.compilation import Counters
    from proftrack.capture.in_turns import RoundTimes
    from proftrack.capture.measurement import OpenWorkload, Progress, ReadyDevice, TimedSteps
    from proftrack.capture.result import Capture
    from proftrack.capture.timing import WarmUp

_AGAIN_SHARE = 0.5
"""Share of its budget that a variant may take to be built once more, for the names of its graphs' kernels."""
CHECKED_STEP = 8
"""The step whose results are compared: by then every compilation mode replays what it recorded."""


class Measured(Struct, kw_only=True):
    """The result of measuring one variant."""

    variant: Variant
    status: Status = "measured"
    error: str | None = None
    """Why it was refused, or why it failed."""
    record: Record | None = None
    folder: Path | None = None
    outputs: OutputCheck | None = None
    """Compared with the first measured variant; None for that variant itself."""
    compilation: Compilation | None = None
    round_us: list[float] = []


class _Open(Struct, kw_only=True):
    """One variant while it is open."""

    variant: Variant
    subject: OpenWorkload
    outputs: list[Any]
    first: Counters
    later: Counters
    started_ns: int


def measure(
    variants: Sequence[Variant],
    folder_of: Callable[[Variant], Path],
    progress: Progress,
    *,
    rounds: int,
    calibrate: bool = True,
) -> list[Measured]:
    """Measure the variants, in their order; the run folder of each is complete afterwards.

    Raises UsageError if the device does not exist, CaptureError if the profiler cannot run.
    """
    from proftrack.capture import compilation
    from proftrack.capture.device import open_device
    from proftrack.capture.measurement import ready
    from proftrack.capture.profiling import no_other_profiler, refuse_running_profiler

    refuse_running_profiler()
    base = variants[0].experiment
    device, notes = open_device(base.device)
    bench = ready(device, notes, progress, calibrate=calibrate)
    measured: dict[str, Measured] = {}
    with contextlib.ExitStack() as stack:
        opened = []
        for variant in variants:
            one, measured[variant.name] = _open_one(variant, bench, progress, stack)
            opened += [one] if one is not None else []
        if opened:
            _check_outputs(opened, measured)
            turns = _timed(opened, base, rounds, progress)
            timed = [_timed_steps(one, times, progress) for one, times in zip(opened, turns, strict=True)]
            with no_other_profiler(base):
                captures = [_profiled(o, t, folder_of(o.variant), progress) for o, t in zip(opened, timed, strict=True)]
            # Only now: nothing is timed or recorded any more.
            captures = [_captured_again(o, c, progress) for o, c in zip(opened, captures, strict=True)]
            for one, times in zip(opened, turns, strict=True):
                measured[one.variant.name].compilation = compilation.summed(one.first, one.later)
                measured[one.variant.name].round_us = _samples(times, base)
    if opened:
        for one in opened:
            one.subject.step = _closed  # a second build needs its memory
        captures = [_built_again(o, c, progress) for o, c in zip(opened, captures, strict=True)]
        for one, captured in zip(opened, captures, strict=True):
            _keep(one, captured, folder_of(one.variant), measured[one.variant.name])
    return [measured[variant.name] for variant in variants]


class Named:
    """Progress with the variant's name before each phase."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def phase(
        self, text: str, total: int | None = None, *, live: bool = False
    ) -> contextlib.AbstractContextManager[Any]:
        """Start a phase."""
        return self._progress.phase(f"{self._name}: {text}", total, live=live)

    def expect(self, seconds: float) -> None:
        """Ignore the time that one variant expects to take: it does not include the others."""

    def advance(self, amount: int = 1) -> None:
        """Advance the current phase."""
        self._progress.advance(amount)


# ---- opening ---------------------------------------------------------------------------------------------------------


def _open_one(
    variant: Variant, bench: ReadyDevice, progress: Progress, stack: contextlib.ExitStack
) -> tuple[_Open | None, Measured]:
    """Open one variant until `stack` is closed, or return why it cannot be opened."""
    from proftrack.capture.step_transforms import Refused

    of_variant = contextlib.ExitStack()
    try:
        with contextlib.ExitStack() as on_failure:
            on_failure.push(of_variant)
            opened = _opened(variant, bench, Named(progress, variant.name), of_variant)
            on_failure.pop_all()
        stack.push(of_variant)
    except Refused as error:
        return None, Measured(variant=variant, status="refused", error=str(error))
    except ProftrackError as error:
        hint = "; use --isolate to give each variant its own process and memory" if is_out_of_memory(error) else ""
        return None, Measured(variant=variant, status="failed", error=f"{error}{hint}")
    return opened, Measured(variant=variant)


def _opened(variant: Variant, bench: ReadyDevice, progress: Progress, stack: contextlib.ExitStack) -> _Open:
    from proftrack.capture import compilation, output_check
    from proftrack.capture.dtype import resolved
    from proftrack.capture.in_turns import FEWEST_ROUNDS
    from proftrack.capture.measurement import opened
    from proftrack.capture.step_transforms import steps_before

    started = time.time_ns()
    variant = msgspec.structs.replace(variant, experiment=resolved(variant.experiment, bench.device))
    # Loaded again for each variant, so that its functions are new objects with their own compiled code.
    build = workload.load(variant.experiment)
    before = compilation.read()
    # The steps up to the check, then a lead-in and a block in each of the fewest rounds.
    timed = CHECKED_STEP + 2 * FEWEST_ROUNDS
    opening = opened(build, variant.experiment, bench, progress, _transform(variant), timed_steps=timed)
    subject = stack.enter_context(opening)
    first = compilation.read().since(before)
    before = compilation.read()
    done = subject.steps_run + steps_before(subject.step)
    with workload.failing(f"{variant.experiment.name}: {variant.name}: the step"):
        for _ in range(max(1, CHECKED_STEP - done)):
            result = subject.step()
        outputs = output_check.keep(result)
        bench.device.synchronize()
    later = compilation.read().since(before)
    return _Open(variant=variant, subject=subject, outputs=outputs, first=first, later=later, started_ns=started)


def _transform(variant: Variant) -> Callable[..., Any] | None:
    from proftrack.capture import step_transforms

    compiled = step_transforms.compiled(variant.compile_mode) if variant.compile_mode is not None else None
    if not variant.cuda_graph:
        return compiled

    def both(step: Any, device: Any) -> Any:
        step_transforms.refuse_uncapturable(step, device)
        return step_transforms.cuda_graph(compiled(step, device) if compiled is not None else step, device)

    return both


def _check_outputs(opened: Sequence[_Open], measured: dict[str, Measured]) -> None:
    from proftrack.capture import output_check

    for other in opened[1:]:
        measured[other.variant.name].outputs = output_check.check(opened[0].outputs, other.outputs)
    for one in opened:
        one.outputs.clear()


# ---- timing and profiling --------------------------------------------------------------------------------------------


def _timed(opened: Sequence[_Open], base: Experiment, rounds: int, progress: Progress) -> list[RoundTimes]:
    from proftrack.capture.in_turns import plan, take_turns
    from proftrack.capture.timing import CPU_WARM_UP, GPU_WARM_UP, Stopwatch, warm_up

    device = opened[0].subject.device
    watches = [Stopwatch(one.subject.step, device) for one in opened]
    limits = GPU_WARM_UP if device.is_gpu else CPU_WARM_UP
    with progress.phase("warm-up"), workload.failing(f"{base.name}: warm-up: the step"):
        seconds = [
            warm_up(watch, _within(limits, one.subject.plan.warm_up_seconds)).step_seconds
            for watch, one in zip(watches, opened, strict=True)
        ]
    affordable = min(one.subject.plan.timing_seconds for one in opened)
    options = msgspec.structs.replace(base.timing, max_seconds=min(base.timing.max_seconds, affordable))
    rounds, per_block = plan(seconds, options, rounds)
    text = f"timing in {rounds} rounds"
    with progress.phase(text, rounds), workload.failing(f"{base.name}: {text}: the step"):
        return take_turns(watches, per_block, rounds, tick=progress.advance)


def _within(limits: WarmUp, seconds: float) -> WarmUp:
    """A warm-up limited to `seconds`."""
    return msgspec.structs.replace(limits, max_seconds=min(limits.max_seconds, seconds))


def _timed_steps(one: _Open, turns: RoundTimes, progress: Progress) -> TimedSteps:
    """The rounds as one timing, and hardware counters, which take some further steps."""
    from proftrack.capture.measurement import TimedSteps, count_hardware, state_of
    from proftrack.capture.timing import timing_of

    subject = one.subject
    timing = timing_of(subject.experiment.timing.mode, turns.blocks, turns.per_block, turns.singles)
    state = state_of(subject.device)
    counters = count_hardware(subject, timing.step_time_us, Named(progress, one.variant.name))
    return TimedSteps(timing, None, state, timing.step_time_us, counters)


def _profiled(one: _Open, timed: TimedSteps, folder: Path, progress: Progress) -> Capture | CaptureError:
    from proftrack.capture.measurement import profiled, result
    from proftrack.capture.run import trace_folder

    subject, named = one.subject, Named(progress, one.variant.name)
    try:
        recorded = profiled(subject, trace_folder(folder, subject.experiment), timed.agreed_step_us, named)
        return result(subject, timed, recorded, one.started_ns)
    except CaptureError as error:
        return error


def _captured_again(one: _Open, captured: Capture | CaptureError, progress: Progress) -> Capture | CaptureError:
    """The capture of a variant that is open, with the names of its graph's kernels if the graph is ours."""
    from proftrack.capture import graph_names
    from proftrack.capture.step_transforms import captured_step

    step = captured_step(one.subject.step)
    if isinstance(captured, CaptureError) or step is None:
        return captured
    named, device = Named(progress, one.variant.name), one.subject.device
    return graph_names.from_step(captured, step, device, captured.cycles[0].trace.parent, named)


def _built_again(one: _Open, captured: Capture | CaptureError, progress: Progress) -> Capture | CaptureError:
    """The capture of a variant that is closed, with the names of the kernels of graphs that it captures itself."""
    from proftrack.capture import graph_names

    if isinstance(captured, CaptureError) or one.variant.cuda_graph:
        return captured
    return graph_names.from_workload(
        captured,
        one.subject.device,
        captured.cycles[0].trace.parent,
        Named(progress, one.variant.name),
        seconds_left=_AGAIN_SHARE * captured.experiment.timing.budget_seconds,
        transform=_transform(one.variant),
    )


def _closed() -> None:
    """The step of a variant that is closed."""


def _samples(turns: RoundTimes, experiment: Experiment) -> list[float]:
    """The step time of each round, in the timing mode of the experiment."""
    if experiment.timing.mode == "latency":
        return [statistics.median(of_round) for of_round in turns.single_us]
    return turns.block_us


def _keep(one: _Open, captured: Capture | CaptureError, folder: Path, measured: Measured) -> None:
    if isinstance(captured, CaptureError):
        measured.status, measured.error = "failed", str(captured)
        return
    measured.record = keep(captured, one.variant.recorded, folder)
    measured.folder = folder
