"""The process that Nsight Compute watches: builds the workload, runs it warm, and has one step replayed.

    build | first step | warm steps |S| one step: each selected launch is run many times over |S|
                                     ^ cudaProfilerStart                                       ^ cudaProfilerStop

It uses no profiler of torch: two cannot have the GPU's counters. When its time is up the step is interrupted, and if it
does not end by that (backward is one call), the process ends: ncu prints what was replayed until then. Calling
cudaProfilerStop from another thread does not end replaying (2025.3).
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from proftrack import process
from proftrack.capture.device import open_device
from proftrack.errors import ProftrackError
from proftrack.experiment import Experiment, workload
from proftrack.process import Process
from proftrack.threads import beside

WARM_STEPS = 4
"""After the first: torch.compile's CUDA graphs take a warm-up run and a recording before they replay."""
_WARM_SHARE = 0.5
"""Share of the time after which no more warm steps begin."""
_POLL_S = 0.5
_REPLAYING = "replay a step"


class Request(Struct, frozen=True, kw_only=True):
    """What the process is to do. Times in seconds of the epoch."""

    experiment: dict[str, Any]
    """In plain types."""
    state: Path
    """The file that it keeps its State in."""
    parent: Process
    started: float
    stop_at: float
    """When the step is interrupted."""
    end_at: float
    """When the process ends in any case."""


class State(Struct):
    """How far the process has come."""

    stage: str = "start Python"
    """What it is doing, in the infinitive."""
    done: bool = False
    stopped: bool = False
    """Whether the time was up before it was done."""
    error: str | None = None


def as_plain(experiment: Experiment) -> dict[str, Any]:
    """The experiment in plain types, for a Request."""
    plain: dict[str, Any] = msgspec.to_builtins(experiment, enc_hook=str)
    return plain


def main() -> None:
    """Do what the request in the file `sys.argv[2]` says; exits with 1 if that fails."""
    request = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Request, dec_hook=_path)
    state = State()
    try:
        with beside(lambda over: _watch(request, state, over)):
            experiment = msgspec.convert(request.experiment, Experiment, dec_hook=_path)
            _replay(experiment, request, state)
    except ProftrackError as error:
        state.error = str(error)
        _note(request, state)
        sys.exit(1)
    except KeyboardInterrupt:
        if not state.stopped:
            raise


def _replay(experiment: Experiment, request: Request, state: State) -> None:
    from torch.cuda import profiler

    def at(stage: str) -> None:
        state.stage = stage
        _note(request, state)

    at("build the workload")
    build = workload.load(experiment)
    device, _ = open_device("cuda")
    with workload.open_step(build, device.torch_device, experiment.params) as step:
        with workload.failing(f"{experiment.name}: the step, under Nsight Compute,"):
            at("run the first step")
            step()
            device.synchronize()
            at("run the warm steps")
            latest = request.started + _WARM_SHARE * (request.stop_at - request.started)
            for _ in range(WARM_STEPS):
                step()
                device.synchronize()
                if time.time() > latest:
                    break
            at(_REPLAYING)
            profiler.start()
            step()
            device.synchronize()
            profiler.stop()
        state.done = True
        at("close the workload")


def _watch(request: Request, state: State, over: threading.Event) -> None:
    """Run in a thread: interrupt the step when the time is up; end the process at the very end, or with its parent."""
    here = process.this_process()
    while not over.wait(_POLL_S):
        if time.time() >= request.end_at or process.is_dead(request.parent, here):
            os._exit(1)
        if time.time() >= request.stop_at and not (state.stopped or state.done):
            state.stopped = True
            _note(request, state)
            if state.stage != _REPLAYING:
                os._exit(1)  # nothing would be replayed in what is left
            _thread.interrupt_main()


def _note(request: Request, state: State) -> None:
    part = request.state.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(state))
    part.replace(request.state)


def _path(kind: type, value: Any) -> Any:
    return kind(value)
