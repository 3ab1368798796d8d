"""The order of a capture. Each part prepares the next, and nothing is timed once the profiler has run.

throw-away profiler   build   first step   counted step   ceilings   warm-up   timing without a profiler   profiler
|----- ready ------|  |------- opened -------------------------|  |-- time_alone ---------------|   |- profiled -|

If the recorded steps replay CUDA graphs, the workload is then built again, for the names of their kernels
(`graph_names`).
"""

from __future__ import annotations

import time
from pathlib import Path

from proftrack.capture import graph_names
from proftrack.capture.device import open_device
from proftrack.capture.lockstep import Pace
from proftrack.capture.measurement import OnOverrun, Progress, opened, profiled, ready, result, time_alone
from proftrack.capture.profiling import no_other_profiler, refuse_running_profiler
from proftrack.capture.result import Capture
from proftrack.capture.trace_file import file_name
from proftrack.errors import UsageError
from proftrack.experiment import Experiment, workload
from proftrack.rundir.layout import TRACES


def capture(
    experiment: Experiment,
    *,
    output: Path,
    progress: Progress,
    calibrate: bool = True,
    pace: Pace | None = None,
    on_overrun: OnOverrun | None = None,
) -> Capture:
    """Run an experiment: time it, and write a trace for each cycle to `output`/trace.

    With `calibrate`, the device's ceilings are measured (or read from the user's cache) and one step's work is counted.
    With `pace`, this is one of several ranks, which all run the same number of steps. `on_overrun` is called if the
    first step exceeds the experiment's time budget; see `proftrack.capture.budget`.
    The user's code runs in this process and thread. Raises UsageError (the GPU is missing, the workload rejects a
    parameter, `output` already has traces), WorkloadError (the user's code raised), BudgetError (the measurement cannot
    finish within its budget), CaptureError (the profiler cannot run or recorded no complete cycle). Ctrl-C propagates.
    The profiler is stopped and the workload closed in every case.
    """
    started = time.time_ns()
    refuse_running_profiler()
    build = workload.load(experiment)
    device, notes = open_device(experiment.device)
    rank = pace.rank if pace is not None else None
    folder = trace_folder(output, experiment, rank)
    bench = ready(device, notes, progress, calibrate=calibrate)
    # The guard starts only after the first step: autotuning may use a profiler while it compiles.
    opening = opened(build, experiment, bench, progress, pace=pace, on_overrun=on_overrun)
    with opening as subject, no_other_profiler(experiment):
        timed = time_alone(subject, progress, pace)
        recorded = profiled(subject, folder, timed.agreed_step_us, progress, rank)
    captured, left = result(subject, timed, recorded, started), subject.seconds_left()
    del subject, opening  # and with them the workload's memory, which a second one needs
    if pace is not None:
        return graph_names.skipped(captured, graph_names.SEVERAL_RANKS)
    return graph_names.from_workload(captured, device, folder, progress, seconds_left=left)


def trace_folder(output: Path, experiment: Experiment, rank: int | None = None) -> Path:
    """Create `output`/trace. Raises UsageError if it cannot be created or already has these traces."""
    folder = output / TRACES
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created ({error.strerror})", "choose another output folder") from error
    for cycle in range(experiment.schedule.repeat):
        target = folder / file_name(experiment.name, cycle + 1, rank)
        if target.exists():
            raise UsageError(f"{target}: already exists, from another run", "choose another output folder")
    return folder
