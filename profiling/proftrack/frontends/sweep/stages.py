"""What the workers of a sweep do: one times points and never profiles, one profiles them, one keeps what came of it.

    timer      time_point      build, first step, warm-up, timing
    profiler   profile_point   build, first step, warm-up, profiler
    keeper     keep_point      read the traces, judge, write the run folder

`measure_point` is all of these in the process of a point that needs one of its own. A process serves many points: the
workload of one is closed, and its memory given back, before the next.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from proftrack import experiment as experiments
from proftrack.capture.device import Device, open_device
from proftrack.capture.measurement import OpenWorkload, ReadyDevice, TimedSteps
from proftrack.capture.result import Capture
from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment, workload
from proftrack.frontends.batch.worker import Spent, end_call
from proftrack.record.environment import Environment
from proftrack.record.gpu_state import GpuState
from proftrack.report import plots
from proftrack.report.progress import Lines

T = TypeVar("T")

_benches: dict[tuple[str, bool], ReadyDevice] = {}
"""Of this process: (device, whether ceilings are asked for)."""
_served: list[str] = []
"""The points whose workloads this process has run."""


class Start(Struct):
    """What a process is made ready for."""

    device: str
    calibrate: bool


class Started(Struct):
    """What it is on."""

    is_gpu: bool


class Where(Struct):
    """A point of the sweep: what `proftrack run REFERENCE -P ...` would measure."""

    reference: str
    overrides: dict[str, str]

    def experiment(self) -> Experiment:
        """The point's experiment."""
        return experiments.load(self.reference, self.overrides)


class ToTime(Struct):
    """A point to be timed, while so many idle processes of the sweep hold the same GPU."""

    where: Where
    companions: int


class Timings(Struct):
    """What the timer found; `own_process` says why the point needs one, and then nothing else holds."""

    own_process: str = ""
    timed: TimedSteps | None = None
    build_us: float = 0.0
    first_us: float | None = None
    notes: list[str] = []
    started_ns: int = 0


class ToProfile(Struct):
    """A point that was timed, and the run folder that its traces go to."""

    where: Where
    folder: Path
    timings: Timings


class Captured(Struct):
    """What timer and profiler found, and the facts of the process that profiled."""

    capture: Capture
    environment: Environment


class ToKeep(Struct):
    """What is to become of a capture whose traces are in `folder`."""

    folder: Path
    captured: Captured


class ToMeasure(Struct):
    """A point to be measured by one process alone."""

    where: Where
    folder: Path


class Done(Struct):
    """The run folder is whole."""


def start(asked: Start) -> Started:
    """Make the process ready: torch, device and profiler are loaded once."""
    return Started(_bench(asked.device, calibrate=asked.calibrate).device.is_gpu)


def start_keeping(asked: Start) -> Started:
    """Load what a run folder is made with, and no torch."""
    importlib.import_module("proftrack.analysis.pipeline")
    importlib.import_module("proftrack.recorder.write")
    plots.load()
    return Started(is_gpu=False)


def time_point(asked: ToTime) -> Timings:
    """Build and time a point. The process must not have profiled."""
    experiment = asked.where.experiment()
    bench = _bench(experiment.device, calibrate=False)
    return _cleanly(bench.device, lambda: _timings(experiment, bench, asked.companions))


def profile_point(asked: ToProfile) -> Captured:
    """Build and profile a point that was timed elsewhere."""
    experiment = asked.where.experiment()
    bench = _bench(experiment.device, calibrate=True)
    return _cleanly(bench.device, lambda: _captured(experiment, bench, asked))


def keep_point(asked: ToKeep) -> Done:
    """Write the run folder of a point."""
    from proftrack.recorder import keep

    capture, experiment = asked.captured.capture, asked.captured.capture.experiment
    keep(capture, experiment, asked.folder, facts=asked.captured.environment)
    return Done()


def measure_point(asked: ToMeasure) -> Done:
    """As `proftrack run` does."""
    from proftrack.capture.run import capture
    from proftrack.recorder import keep

    captured = capture(asked.where.experiment(), output=asked.folder, progress=Lines(), on_overrun=end_call)
    keep(captured, captured.experiment, asked.folder)
    return Done()


# ---- timing ----------------------------------------------------------------------------------------------------------


def _timings(experiment: Experiment, bench: ReadyDevice, companions: int) -> Timings:
    from proftrack.capture.compilation import watched
    from proftrack.capture.measurement import opened, time_alone
    from proftrack.capture.profiling import no_other_profiler

    started, is_first = time.time_ns(), not _served
    _served.append(experiment.display_name)
    build = workload.load(experiment)
    opening = opened(build, experiment, bench, Lines(), on_overrun=end_call)
    with watched() as seen, opening as subject, no_other_profiler(experiment):
        # What is compiled is not timed in vain; a graph may be captured only once the steps are warm.
        timed = None if seen() else time_alone(subject, Lines())
        if timed is None or seen():
            return Timings(own_process=seen())
        return Timings(
            timed=timed._replace(gpu=_without(timed.gpu, companions)),
            build_us=subject.build_us,
            first_us=subject.first_us if is_first else None,
            notes=subject.notes,
            started_ns=started,
        )


def _without(gpu: GpuState | None, companions: int) -> GpuState | None:
    """The GPU's state without the sweep's own idle processes among its neighbours."""
    if gpu is None or not gpu.other_processes:
        return gpu
    return msgspec.structs.replace(gpu, other_processes=max(gpu.other_processes - companions, 0))


# ---- profiling -------------------------------------------------------------------------------------------------------


def _captured(experiment: Experiment, bench: ReadyDevice, asked: ToProfile) -> Captured:
    from proftrack.capture import environment
    from proftrack.capture.measurement import opened, profiled, result
    from proftrack.capture.profiling import no_other_profiler
    from proftrack.capture.run import trace_folder
    from proftrack.capture.timing import CPU_WARM_UP, Stopwatch, warm_up

    timed = asked.timings.timed
    assert timed is not None
    build = workload.load(experiment)
    folder = trace_folder(asked.folder, experiment)
    opening = opened(build, experiment, bench, Lines(), on_overrun=end_call)
    with opening as own, no_other_profiler(experiment):
        subject = _as_timed(own, asked.timings)
        # Short: on a GPU the profiler has its clocks up before each window.
        with Lines().phase("warm-up"), workload.failing(f"{experiment.name}: warm-up: the step"):
            warm_up(Stopwatch(subject.step, subject.device), CPU_WARM_UP)
        recorded = profiled(subject, folder, timed.agreed_step_us, Lines())
    captured = result(subject, timed, recorded, asked.timings.started_ns)
    return Captured(captured, environment.collect(captured.device, code=experiment.path.parent))


def _as_timed(subject: OpenWorkload, timings: Timings) -> OpenWorkload:
    """The subject with what the timer knows of its start, and its notes."""
    notes = list(dict.fromkeys([*timings.notes, *subject.notes]))
    return msgspec.structs.replace(subject, build_us=timings.build_us, first_us=timings.first_us, notes=notes)


# ---- one process, many points ----------------------------------------------------------------------------------------


def _bench(device: str, *, calibrate: bool) -> ReadyDevice:
    from proftrack.capture.measurement import ready
    from proftrack.capture.profiling import refuse_running_profiler

    if (device, calibrate) not in _benches:
        refuse_running_profiler()
        opened, notes = open_device(device)
        _benches[device, calibrate] = ready(opened, notes, Lines(), calibrate=calibrate)
    return _benches[device, calibrate]


def _cleanly(device: Device, work: Callable[[], T]) -> T:
    """Do the work of one point and give its memory back. Raises Spent where the device does not answer afterwards."""
    failure: ProftrackError | None = None
    try:
        done = work()
    except ProftrackError as error:
        # Another object: this one's traceback holds the workload, and so its memory.
        failure = type(error)(_with_hint(error))
    gc.collect()
    try:
        device.release_memory()
        device.synchronize()
    except Exception as error:  # a CUDA error stays for as long as the process lives
        raise Spent(str(failure or error)) from None
    if failure is not None:
        raise failure
    return done


def _with_hint(error: ProftrackError) -> str:
    text = str(error)
    if isinstance(error, UsageError) or not any(word in text for word in ("out of memory", "OutOfMemory")):
        return text
    return f"{text}; --isolate gives each point a process, and the memory, of its own"
