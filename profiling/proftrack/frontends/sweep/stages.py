"""The work of a sweep's processes: one times points and never profiles, one profiles them, others write the results.

    timer      time_point      build, first step, warm-up, timing
    profiler   profile_point   build, first step, warm-up, profiler
    writer     write_point     read the traces, judge, write the run folder

`measure_point` does all of these in one process, for a point that needs its own. The other processes serve many points:
they close one workload, and free its memory, before the next.
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
from proftrack.capture.measurement import ReadyDevice, TimedSteps
from proftrack.capture.result import Capture
from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment, workload
from proftrack.frontends.batch.worker import Spent, end_call, is_out_of_memory
from proftrack.record.environment import Environment, GpuState
from proftrack.report import plots
from proftrack.report.progress import Lines

T = TypeVar("T")

_benches: dict[tuple[str, bool], ReadyDevice] = {}
"""The devices that this process has made ready, by (device, whether ceilings are measured)."""
_served: list[str] = []
"""The points that this process has timed."""


class Start(Struct):
    """What a process must prepare for."""

    device: str
    calibrate: bool


class Started(Struct):
    """The process is ready, on this kind of device."""

    is_gpu: bool


class PointSpec(Struct):
    """A point of the sweep, as `proftrack run REFERENCE -P ...` would specify it."""

    reference: str
    overrides: dict[str, str]

    def experiment(self) -> Experiment:
        """Load the point's experiment."""
        return experiments.load(self.reference, self.overrides)


class ToTime(Struct):
    """A point to time, while `companions` idle processes of the sweep hold the same GPU."""

    spec: PointSpec
    companions: int


class Timings(Struct):
    """The timer's result. If `own_process` is set, it says why the point needs one, and the other fields are unset."""

    own_process: str = ""
    timed: TimedSteps | None = None
    build_us: float = 0.0
    first_us: float | None = None
    notes: list[str] = []
    started_ns: int = 0


class ToProfile(Struct):
    """A timed point to profile, with the run folder for its traces; `companions` as above."""

    spec: PointSpec
    folder: Path
    timings: Timings
    companions: int


class Captured(Struct):
    """The results of timer and profiler, and the environment of the process that profiled."""

    capture: Capture
    environment: Environment


class ToWrite(Struct):
    """A capture to analyse and write; its traces are in `folder`."""

    folder: Path
    captured: Captured


class ToMeasure(Struct):
    """A point to measure in a process of its own."""

    spec: PointSpec
    folder: Path


class Done(Struct):
    """The run folder is complete."""


def start(request: Start) -> Started:
    """Prepare the process: load torch, the device and the profiler once."""
    return Started(_bench(request.device, calibrate=request.calibrate).device.is_gpu)


def start_writing(_request: Start) -> Started:
    """Load what writing a run folder needs, which does not include torch."""
    importlib.import_module("proftrack.analysis.pipeline")
    importlib.import_module("proftrack.recorder.write")
    plots.load()
    return Started(is_gpu=False)


def time_point(request: ToTime) -> Timings:
    """Build and time a point. The process must not have profiled."""
    experiment = request.spec.experiment()
    bench = _bench(experiment.device, calibrate=False, companions=request.companions)
    return _cleanly(bench.device, lambda: _timings(experiment, bench))


def profile_point(request: ToProfile) -> Captured:
    """Build and profile a point that another process has timed."""
    experiment = request.spec.experiment()
    bench = _bench(experiment.device, calibrate=True, companions=request.companions)
    return _cleanly(bench.device, lambda: _captured(experiment, bench, request))


def write_point(request: ToWrite) -> Done:
    """Write the run folder of a point."""
    from proftrack.recorder import keep

    capture, experiment = request.captured.capture, request.captured.capture.experiment
    keep(capture, experiment, request.folder, facts=request.captured.environment)
    return Done()


def measure_point(request: ToMeasure) -> Done:
    """Measure a point as `proftrack run` does."""
    from proftrack.capture.run import capture
    from proftrack.recorder import keep

    captured = capture(request.spec.experiment(), output=request.folder, progress=Lines(), on_overrun=end_call)
    keep(captured, captured.experiment, request.folder)
    return Done()


# ---- timing ----------------------------------------------------------------------------------------------------------


def _timings(experiment: Experiment, bench: ReadyDevice) -> Timings:
    from proftrack.capture.compilation import watched
    from proftrack.capture.measurement import opened, time_alone
    from proftrack.capture.profiling import no_other_profiler

    started, is_first = time.time_ns(), not _served
    _served.append(experiment.display_name)
    build = workload.load(experiment)
    opening = opened(build, experiment, bench, Lines(), on_overrun=end_call)
    with watched() as seen, opening as subject, no_other_profiler(experiment):
        # Do not waste time timing a compiled point. A graph may be captured only once the steps are warm.
        timed = None if seen() else time_alone(subject, Lines())
        if timed is None or seen():
            return Timings(own_process=seen())
        return Timings(
            timed=timed._replace(gpu=_without(timed.gpu, bench.companions)),
            build_us=subject.build_us,
            first_us=subject.first_us if is_first else None,
            notes=subject.notes,
            started_ns=started,
        )


def _without(gpu: GpuState | None, companions: int) -> GpuState | None:
    """The GPU's state with the sweep's own idle processes not counted among the other processes."""
    if gpu is None or not gpu.other_processes:
        return gpu
    return msgspec.structs.replace(gpu, other_processes=max(gpu.other_processes - companions, 0))


# ---- profiling -------------------------------------------------------------------------------------------------------


def _captured(experiment: Experiment, bench: ReadyDevice, request: ToProfile) -> Captured:
    from proftrack.capture import environment
    from proftrack.capture.measurement import opened, profiled, result
    from proftrack.capture.profiling import no_other_profiler
    from proftrack.capture.run import trace_folder
    from proftrack.capture.timing import CPU_WARM_UP, Stopwatch, warm_up

    timed = request.timings.timed
    assert timed is not None
    build = workload.load(experiment)
    folder = trace_folder(request.folder, experiment)
    opening = opened(build, experiment, bench, Lines(), on_overrun=end_call)
    with opening as workload_here, no_other_profiler(experiment):
        # The result has the timer's build time and first step, and the notes of both processes.
        subject = msgspec.structs.replace(
            workload_here,
            build_us=request.timings.build_us,
            first_us=request.timings.first_us,
            notes=list(dict.fromkeys([*request.timings.notes, *workload_here.notes])),
        )
        # A short warm-up is enough: on a GPU the profiler brings the clocks up before each window.
        with Lines().phase("warm-up"), workload.failing(f"{experiment.name}: warm-up: the step"):
            warm_up(Stopwatch(subject.step, subject.device), CPU_WARM_UP)
        recorded = profiled(subject, folder, timed.agreed_step_us, Lines())
    captured = result(subject, timed, recorded, request.timings.started_ns)
    return Captured(captured, environment.collect(captured.device, code=experiment.path.parent))


# ---- one process, many points ----------------------------------------------------------------------------------------


def _bench(device: str, *, calibrate: bool, companions: int = 0) -> ReadyDevice:
    from proftrack.capture.measurement import ready
    from proftrack.capture.profiling import refuse_running_profiler

    if (device, calibrate) not in _benches:
        refuse_running_profiler()
        opened, notes = open_device(device)
        _benches[device, calibrate] = ready(opened, notes, Lines(), calibrate=calibrate)
    return msgspec.structs.replace(_benches[device, calibrate], companions=companions)


def _cleanly(device: Device, work: Callable[[], T]) -> T:
    """Do the work of one point and free its memory. Raises Spent if the device no longer responds afterwards."""
    failure: ProftrackError | None = None
    try:
        done = work()
    except ProftrackError as error:
        # A new object, since the traceback of this one keeps the workload, and so its memory, alive.
        failure = type(error)(error.problem, _remedy(error))
    gc.collect()
    try:
        device.release_memory()
        device.synchronize()
    except Exception as error:  # a CUDA error persists for as long as the process lives
        raise Spent(str(failure or error)) from None
    if failure is not None:
        raise failure
    return done


def _remedy(error: ProftrackError) -> str | None:
    if isinstance(error, UsageError) or not is_out_of_memory(error):
        return error.remedy
    return "; ".join(filter(None, [error.remedy, "use --isolate to give each point its own process and memory"]))
