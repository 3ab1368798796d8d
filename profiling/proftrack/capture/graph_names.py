"""Captures the CUDA graphs of the recorded steps once more, under the profiler: the kernels of a replay have no names
of operators, those of its capture do.

    timing   recorded steps | once more:   |capture 1|  |capture 2|  ...  |replay 1|  |replay 2|
                                          ^ the profiler starts                                 ^ NAME.captured

    from_step       the step that a graph was made of is at hand: it is captured
    from_workload   the workload captures its graphs itself (torch.cuda.graph, make_graphed_callables, torch.compile's
                    reduce-overhead): it is built again, and runs until its graphs are captured and replayed
    from_function   a user's own loop: the function that the user has named

All this runs after everything else is measured, and nothing here ends a run: what fails is a sentence in the result.
Whether a trace of captures fits the recorded replays is decided where both are read (`measures`).
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from proftrack.capture import compat, step_transforms
from proftrack.capture.device import Device
from proftrack.capture.marks import marked
from proftrack.capture.measurement import Progress
from proftrack.capture.profiling import Session, no_other_profiler
from proftrack.capture.result import Capture
from proftrack.capture.trace_file import captured_name
from proftrack.errors import CaptureError
from proftrack.experiment import Experiment, workload
from proftrack.experiment.workload import Step, first_line
from proftrack.trace.categories import CAPTURED, CAPTURED_REPLAY, ONE_BRANCH

MOST_STEPS = 8
"""How many steps of a workload that was built again run at most, until its graphs are captured and replayed:
torch.compile's take a warm-up run first, others some warm-up steps."""
_QUIET_STEPS = 2
"""Steps without a further capture or first replay after which none is expected any more."""
_MARKING_SECONDS = 5.0
"""How long modules may be looked for and marked, over all captures: some programs capture a hundred graphs."""
_FIXED_SECONDS = 1.0
"""For starting the profiler and writing the trace."""
SEVERAL_RANKS = "several ranks would have to do it together"
_NOTE = "CUDA graphs were not captured once more to name their kernels"


class Captures:
    """Records what is captured inside of `watching`, and the first replay of each captured graph.

    The profiler starts with the first capture: what is compiled or tuned before that may use one of its own. Modules
    are marked only during a capture: make_graphed_callables takes none with hooks.
    """

    def __init__(self, device: Device, experiment: Experiment) -> None:
        self.step: Step | None = None
        """What captures, if that is known: it tells the names of modules."""
        self.captured = 0
        """How many captures have begun."""
        self.replayed = 0
        """How many of the graphs were replayed."""
        self.has_run = False
        """Whether a whole step has run. Before that, graphs may be missing that are equal to those that are there."""
        self._device, self._experiment = device, experiment
        self._session: Session | None = None
        self._open = contextlib.ExitStack()
        self._is_chain: Callable[[Any], bool] = lambda _: False
        self._regions: dict[Any, contextlib.ExitStack] = {}
        """Of captures and replays that are not over, by graph."""
        self._marking_seconds = 0.0
        """How long it took to mark modules so far."""
        self._waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Numbers of the graphs that were not replayed yet."""

    @property
    def is_waiting(self) -> bool:
        """Whether a captured graph was not replayed yet. One that is empty never is."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the captures and replays inside. The profiler is off afterwards."""
        with self._open:
            self._open.callback(self._discard)
            self._open.callback(self._leave_all)
            hooks = {"begins": self._begins, "ended": self._ended, "replays": self._replays, "replayed": self._replayed}
            self._is_chain = self._open.enter_context(compat.kept_graphs())
            with compat.around_each_graph(**hooks):
                yield

    def write(self, target: Path) -> None:
        """Write the trace. Call it inside of `watching`, at its end. Raises CaptureError if it cannot be written."""
        self._leave_all()
        session, self._session = self._session, None
        if session is not None:
            session.end(target)

    def _discard(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(CaptureError):  # what went wrong before says more, or is Ctrl-C
                session.discard()

    # ---- one graph

    def _begins(self, graph: Any) -> None:
        if self._session is None:
            if compat.every_thread() is None and threading.current_thread() is not threading.main_thread():
                return  # before torch 2.7 a profiler records its own thread, and only that can stop it
            # From here on, as the workload's own session would take over the recording.
            self._open.enter_context(no_other_profiler(self._experiment))
            self._session = Session(self._device, self._experiment.profiler)
        self.captured += 1
        self._waiting[graph] = self.captured
        self._enter(graph, f"{CAPTURED} {self.captured}")
        self._mark_modules(graph)

    def _mark_modules(self, graph: Any) -> None:
        if self._experiment.profiler.modules and self._marking_seconds < _MARKING_SECONDS:
            begin = time.perf_counter()
            self._regions[graph].enter_context(marked(self.step))
            self._marking_seconds += time.perf_counter() - begin

    def _ended(self, graph: Any) -> None:
        if self._is_chain(graph):
            with _region(ONE_BRANCH):
                pass
        self._leave(graph)

    def _replays(self, graph: Any) -> None:
        number = self._waiting.get(graph)
        if number is not None and not compat.capturing():
            self._device.synchronize()
            self._enter(graph, f"{CAPTURED_REPLAY} {number}")

    def _replayed(self, graph: Any) -> None:
        if graph in self._regions:
            self._device.synchronize()
            self._leave(graph)
            del self._waiting[graph]
            self.replayed += 1

    def _enter(self, graph: Any, name: str) -> None:
        stack = self._regions[graph] = contextlib.ExitStack()
        stack.enter_context(_region(name))

    def _leave(self, graph: Any) -> None:
        stack = self._regions.pop(graph, None)
        if stack is not None:
            stack.close()

    def _leave_all(self) -> None:
        for graph in list(self._regions):  # of captures that failed
            self._leave(graph)


def _region(name: str) -> AbstractContextManager[Any]:
    from torch.profiler import record_function

    region: AbstractContextManager[Any] = record_function(name)
    return region


# ---- what is captured again ------------------------------------------------------------------------------------------


def from_step(captured: Capture, step: Step, device: Device, folder: Path, progress: Progress) -> Capture:
    """The result, with a trace in `folder` in which the step is captured and replayed once."""
    return _named(captured, device, folder, progress, lambda captures: _capture(captures, step, device))


def from_workload(
    captured: Capture,
    device: Device,
    folder: Path,
    progress: Progress,
    *,
    seconds_left: float,
    transform: Callable[[Step, Device], Step] | None = None,
) -> Capture:
    """The result, with a trace in `folder` in which the workload captures its graphs once more.

    The first workload must be closed by then; `transform` is that of its step. Does nothing but note it if that takes
    longer than `seconds_left`, by the time that it took before.
    """
    timing, limit = captured.timing, captured.experiment.timing.budget_seconds
    if not is_wanted(captured):
        return captured
    before = 0.0 if timing is None else (timing.build_time_us or 0.0) + (timing.first_step_time_us or 0.0)
    steps = 0.0 if timing is None else MOST_STEPS * timing.step_time_us
    if _FIXED_SECONDS + (before + steps) / 1e6 > seconds_left:
        return skipped(captured, f"the budget of {limit:g} s left no time for it; allow more with --budget")

    def run(captures: Captures) -> None:
        _run_again(captures, captured.experiment, device, transform)

    return _named(captured, device, folder, progress, run)


def from_function(
    captured: Capture, function: Callable[[], Any], device: Device, folder: Path, progress: Progress
) -> Capture:
    """The result, with a trace in `folder` of what `function` captures and replays, or if it captures nothing, of
    itself, captured and replayed once.
    """

    def run(captures: Captures) -> None:
        captures.step = function
        function()
        device.synchronize()
        if not captures.captured:
            _capture(captures, function, device)

    return _named(captured, device, folder, progress, run)


def is_wanted(captured: Capture) -> bool:
    """Whether the recorded steps replay CUDA graphs whose kernels are to have names."""
    is_on = captured.experiment.profiler.graph_names and captured.device == "cuda"
    return is_on and any(cycle.graph_launches for cycle in captured.cycles)


def skipped(captured: Capture, why: str) -> Capture:
    """The result, with a note if it lacks names for this reason."""
    if not is_wanted(captured):
        return captured
    return msgspec.structs.replace(captured, notes=[*captured.notes, f"{_NOTE}: {why}."])


def _capture(captures: Captures, step: Step, device: Device) -> None:
    captures.step = step
    graph, _ = step_transforms.capture(step)
    graph.replay()
    device.synchronize()


def _run_again(
    captures: Captures, experiment: Experiment, device: Device, transform: Callable[[Step, Device], Step] | None
) -> None:
    """Build the workload and run its first steps, until it has captured and replayed its graphs."""
    if compat.has_compiled():
        compat.forget_compiled()  # or the new step could run what was compiled, and captured, for the old one
    release_memory(device)
    build = workload.load(experiment)
    with workload.open_step(build, device.torch_device, experiment.params) as built:
        captures.step = built
        step = transform(built, device) if transform is not None else built
        quiet = 0
        for _ in range(MOST_STEPS):
            before = captures.captured, captures.replayed
            step()
            device.synchronize()
            captures.has_run = True
            quiet = quiet + 1 if before == (captures.captured, captures.replayed) else 0
            if captures.replayed and quiet >= (_QUIET_STEPS if captures.is_waiting else 1):
                break


def _named(
    captured: Capture, device: Device, folder: Path, progress: Progress, run: Callable[[Captures], None]
) -> Capture:
    """The result, with the trace of what `run` captures, or with a note that says why there is none."""
    if not is_wanted(captured):
        return captured
    target = folder / captured_name(captured.experiment.name)
    captures, failure = Captures(device, captured.experiment), ""
    try:
        with progress.phase("capture the graphs once more", live=True), captures.watching():
            try:
                run(captures)
            except (Exception, SystemExit) as error:
                failure = f"{type(error).__name__}: {first_line(error)}"
            if captures.replayed and (captures.has_run or not failure):
                captures.write(target)
    except Exception as error:  # the profiler
        failure = failure or first_line(error)
    release_memory(device)
    if target.is_file():
        return msgspec.structs.replace(captured, captured=[target])
    if failure:
        return skipped(captured, f"it failed ({failure})")
    return skipped(captured, _why_none(captures))


def _why_none(captures: Captures) -> str:
    if captures.captured:
        return "the workload replayed none of those that it captured when it was built again"
    return f"the workload captured none when it was built again and ran {MOST_STEPS} steps"


def release_memory(device: Device) -> None:
    """Free what is no longer used. An error of the GPU that a failed capture has left is none of the run's."""
    gc.collect()
    with contextlib.suppress(Exception):
        device.release_memory()
