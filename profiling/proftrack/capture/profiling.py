"""The scheduled profiler: one trace per cycle of the schedule.

    step     0     1       2       3       4       5     6       7       8       9
    torch    wait  warmup  record  record  record  wait  warmup  record  record  record
                        (*)|                     ^ trace of cycle 1 is written
                           ^ the device is synchronised, then recording starts

(*) On a GPU the last step before a window is repeated, unrecorded, for a tenth of a second. Starting the profiler and
writing a trace leave the GPU idle for so long that its clocks drop, and the first recorded kernels would be slow.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from msgspec import Struct

from proftrack.capture import compat
from proftrack.capture.device import Device
from proftrack.capture.marks import marked
from proftrack.capture.result import Cycle
from proftrack.capture.trace_file import Counts, export, file_name, region_name, without_step
from proftrack.errors import CaptureError, ProftrackError
from proftrack.experiment import Experiment, ProfilerOptions, Schedule
from proftrack.experiment.workload import first_line
from proftrack.record.figures import EXCLUDED_REGION

REWARM_SECONDS = 0.1
REWARM_STEPS = 2000
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"  # one above Kineto's highest severity
_REMARKS = (
    ".*Profiler clears events at the end of each cycle",
    "Profiler won't be using warmup",
    "Device profiling activity collection was stopped early",
)


class Window(Struct, frozen=True):
    """One active window of a schedule. Steps are numbered from 0; `end` is exclusive."""

    first: int
    end: int

    @property
    def steps(self) -> set[int]:
        """The step numbers that the trace's ProfilerStep rows must have."""
        return set(range(self.first, self.end))


class Recorded(Struct, frozen=True):
    """A cycle whose trace was written: its window, the trace's path and its counts."""

    window: Window
    trace: Path
    counts: Counts
    unmarked: str = ""
    """Why its modules are not marked, if that failed."""

    def as_cycle(self, steps: int) -> Cycle:
        """The cycle, as part of a result, with so many steps."""
        return Cycle(trace=self.trace, expected_steps=steps, graph_launches=self.counts.graph_launches)


def windows(schedule: Schedule) -> list[Window]:
    """The active windows of a schedule, in order."""
    length = schedule.wait + schedule.warmup + schedule.active
    ends = [schedule.skip_first + (cycle + 1) * length for cycle in range(schedule.repeat)]
    return [Window(end - schedule.active, end) for end in ends]


def refuse_running_profiler() -> None:
    """Raise CaptureError if a profiler is already on: torch would let both run, and one would record nothing."""
    if compat.profiler_is_on():
        raise CaptureError(
            "a torch profiler is already running in this process, and two cannot record at once",
            "stop it, or remove it from the workload, before proftrack profiles",
        )


@contextlib.contextmanager
def no_other_profiler(experiment: Experiment) -> Iterator[None]:
    """Raise CaptureError from the workload's own call if it starts a profiler.

    Inside proftrack's, it would take over the recording without an error, or crash the process in torch's C++ code
    (2.13).
    """

    def refuse_others() -> None:
        if not _ours.get():
            raise CaptureError(
                f"{experiment.name}: the workload starts a torch profiler of its own, and two cannot record at once",
                "remove it from the workload",
            )

    # If this torch has no such hook the run continues; a disturbed cycle shows in its step count.
    with compat.before_each_profiler(refuse_others):
        yield


def throw_away_session(device: Device) -> None:
    """Start and stop a profiler: the first one of a process loads CUPTI, which takes seconds."""
    import torch
    from torch.profiler import profile

    refuse_running_profiler()
    with quiet(), _running(profile(activities=device.activities())):
        _torch(lambda: torch.ones(1, device=device.torch_device))
        _torch(device.synchronize)


class Recording:
    """The scheduled profiler, advanced step by step. Each cycle's trace is written to `folder` when the cycle ends.

    A context manager: leaving it stops the profiler in every case. With `partial`, an incomplete window is written too,
    with the steps that had finished. Methods raise CaptureError if the profiler fails or a trace cannot be written.
    Enter it and call its methods inside `quiet()`.
    """

    def __init__(
        self,
        device: Device,
        experiment: Experiment,
        folder: Path,
        *,
        rank: int | None = None,
        step: Callable[[], Any] | None = None,
    ) -> None:
        """`step` runs the steps, if that is known; see `marked`."""
        self.number = 0
        """The number of the current step, from 0."""
        self.recorded: list[Recorded] = []
        """The cycles written so far."""
        self.partial = False
        self._experiment, self._device, self._folder, self._rank = experiment, device, folder, rank
        self._windows = windows(experiment.schedule)
        self._starts = {window.first for window in self._windows}
        self._recording = {number for window in self._windows for number in window.steps}
        self._region = region_name(experiment.name)
        self._between = False
        self._profiler: Any = None
        self._step = step
        self._marks: contextlib.AbstractContextManager[Any] | None = None
        self._unmarked = ""

    def __enter__(self) -> Recording:
        refuse_running_profiler()
        self._device.synchronize()
        self._mark()
        try:
            self._running = _running(_scheduled(self._experiment, self._device, self._written))
            self._profiler = self._running.__enter__()
        except BaseException:
            self._unmark()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._running.__exit__(*error)
        finally:
            self._unmark()

    @property
    def is_recorded(self) -> bool:
        """Whether the current step is recorded."""
        return self.number in self._recording

    @property
    def starts_next(self) -> bool:
        """Whether the next step is the first of a window."""
        return self.number + 1 in self._starts

    def region(self) -> contextlib.AbstractContextManager[Any]:
        """A context around the current step that marks it in the trace if it is recorded."""
        from torch.profiler import record_function

        return record_function(self._region) if self.is_recorded else contextlib.nullcontext()

    def excluded(self) -> contextlib.AbstractContextManager[Any]:
        """A context around what runs in the current step but is no part of it; marked if the step is recorded."""
        from torch.profiler import record_function

        return record_function(EXCLUDED_REGION) if self.is_recorded else contextlib.nullcontext()

    def next_step(self) -> None:
        """End the current step and begin the next. Synchronises the device first if that one starts a window."""
        if self.starts_next:
            self._device.synchronize()
        self._between = True
        try:
            _torch(self._profiler.step)
        finally:
            self._between = False
        self.number += 1
        self._mark()

    def _mark(self) -> None:
        """Mark modules from the step before a window to the window's end: finding them would let the GPU idle."""
        if not (self._experiment.profiler.modules and (self.is_recorded or self.starts_next)):
            self._unmark()
        elif self._marks is None and not self._unmarked:
            marks = marked(self._step)
            try:
                marks.__enter__()
                self._marks = marks
            except Exception as error:  # of code of the program's modules; the steps are recorded without marks
                self._unmarked = f"{type(error).__name__}: {first_line(error)}"

    def _unmark(self) -> None:
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.__exit__(None, None, None)

    def _written(self, profiler: Any) -> None:
        cycle = next(index for index, window in enumerate(self._windows) if self.number < window.end)
        window = self._windows[cycle]
        save = profiler.export_chrome_trace
        if not self._between:  # stopped inside a window: torch gives what there is of it
            if not (self.partial and window.first < self.number):
                return  # a step raised, or none had finished
            save = without_step(save, self.number)
        target = self._folder / file_name(self._experiment.name, cycle + 1, self._rank)
        self.recorded.append(Recorded(window, target, export(save, target), self._unmarked))


def profile_steps(
    step: Callable[[], Any],
    device: Device,
    experiment: Experiment,
    folder: Path,
    *,
    step_seconds: float,
    rank: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Recorded]:
    """Run the experiment's schedule under the profiler. Each cycle's trace is written to `folder` when the cycle ends.

    `step_seconds`, the unprofiled step time, determines how many steps keep the GPU's clocks up. `tick` is called after
    each unrecorded step. Raises CaptureError if the profiler fails or a trace cannot be written.
    """
    again = _rewarm_steps(device, step_seconds)
    with quiet(), Recording(device, experiment, folder, rank=rank, step=step) as recording:
        for _ in range(experiment.schedule.total_steps):
            with recording.region():
                step()
            if not recording.is_recorded:
                tick()
                for _ in range(again if recording.starts_next else 0):
                    step()
            recording.next_step()
    return recording.recorded


class Session:
    """A profiler without a schedule, from its creation to `end`, or `discard`. Any thread may end it.

    Methods, and the creation, raise CaptureError if the profiler fails or the trace cannot be written.
    """

    def __init__(self, device: Device, options: ProfilerOptions) -> None:
        from torch.profiler import profile

        self._profiler = profile(
            activities=device.activities(),
            record_shapes=options.record_shapes,
            experimental_config=compat.every_thread(),
        )
        with quiet():
            _torch(self._profiler.start)

    def end(self, target: Path) -> None:
        """Stop, and write the trace to `target`."""
        with quiet():
            _torch(self._profiler.stop)
            export(self._profiler.export_chrome_trace, target)

    def discard(self) -> None:
        """Stop, and forget what was recorded."""
        with quiet():
            _torch(self._profiler.stop)


def _scheduled(experiment: Experiment, device: Device, on_trace_ready: Callable[[Any], None]) -> Any:
    from torch.profiler import profile, schedule

    plan, options = experiment.schedule, experiment.profiler
    # acc_events stays off: it would keep every cycle's operators in memory and parse them at each cycle's end, only for
    # key_averages(); the exported trace has the last cycle either way.
    return profile(
        activities=device.activities(),
        schedule=schedule(
            skip_first=plan.skip_first, wait=plan.wait, warmup=plan.warmup, active=plan.active, repeat=plan.repeat
        ),
        on_trace_ready=on_trace_ready,
        record_shapes=options.record_shapes,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        experimental_config=compat.every_thread() if records_all_threads(options) else None,
    )


def records_all_threads(options: ProfilerOptions) -> bool:
    """Whether threads that the user starts are recorded: if this torch can (2.7 or later) and memory is not profiled.

    With both options on, torch drops the memory events (pytorch#166121, still in 2.13).
    """
    return not options.profile_memory and compat.every_thread() is not None


def _rewarm_steps(device: Device, step_seconds: float) -> int:
    if not device.is_gpu or step_seconds >= REWARM_SECONDS:
        return 0
    return min(REWARM_STEPS, math.ceil(REWARM_SECONDS / max(step_seconds, 1e-9)))


@contextlib.contextmanager
def _running(profiler: Any) -> Iterator[Any]:
    """Start the profiler and stop it in every case. An error while stopping does not hide an earlier one."""
    _torch(profiler.__enter__)
    try:
        yield profiler
    except BaseException:
        with contextlib.suppress(Exception):
            profiler.__exit__(None, None, None)
        raise
    _torch(lambda: profiler.__exit__(None, None, None))


def _torch(call: Callable[[], Any]) -> None:
    """Call proftrack's own profiler: its failures are not the workload's."""
    token = _ours.set(True)
    try:
        call()
    except ProftrackError:
        raise
    except Exception as error:
        raise CaptureError(f"torch's profiler failed with {type(error).__name__}: {first_line(error)}") from error
    finally:
        _ours.reset(token)


_ours: ContextVar[bool] = ContextVar("ours", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide torch's warnings about profiling; those that matter become a note.

    The filters stay: `warnings.catch_warnings` saves and restores the list of the whole process, which would lose the
    changes of another thread in the meantime. Kineto's log level is set for the first session of the process, when
    Kineto reads it.
    """
    for remark in _REMARKS:
        # Only once: after each change of the filters Python repeats warnings that it had already shown.
        if not any(action == "ignore" and text and text.pattern == remark for action, text, *_ in warnings.filters):
            warnings.filterwarnings("ignore", message=remark)
    with _kineto_silenced() if not _kineto_has_started.is_set() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _kineto_silenced() -> Iterator[None]:
    _kineto_has_started.set()
    if _KINETO_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LEVEL] = _SILENT
    try:
        yield
    finally:
        del os.environ[_KINETO_LEVEL]


_kineto_has_started = threading.Event()
