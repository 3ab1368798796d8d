"""The largest kernels of a step, replayed one by one under Nsight Compute: what one launch moves, and what it uses.

    this process   ... profiled | memory released | waits, at most timing.ncu_seconds
    ncu                                           | starts the process below, replays its launches, prints a table
    replayed_step                                 | builds the workload again, runs it warm, then the one step

Nothing here ends a run: what cannot be replayed is a sentence in the result.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

import proftrack
from proftrack import process
from proftrack.capture import ncu
from proftrack.capture.device import open_device
from proftrack.capture.replayed_step import Request, State, as_plain
from proftrack.errors import UsageError
from proftrack.experiment import Experiment
from proftrack.record.counters import Replay
from proftrack.text import counted

REPLAY_SHARE = 0.4
"""Share of the time that launches are selected for; the rest is for building, the first step, and printing."""
_STOP_SHARE = 0.8
"""Share of the time after which the step is interrupted."""
_ROOT = Path(proftrack.__file__).resolve().parents[1]
_CODE = "import sys; sys.path.append(sys.argv[1]); from proftrack.capture.replayed_step import main; main()"
_END_SHARE = 0.95
"""Share of the time after which the step's process ends, whatever it is doing."""


class Replayed(Struct, frozen=True, kw_only=True):
    """The replayed launches in their order, and how that went."""

    launches: list[ncu.Launch]
    about: Replay
    complete: bool
    """Whether replaying went on to the step's end, so that every selected launch is there."""


class _Ended(Struct):
    """How one call of ncu ended."""

    output: ncu.Output
    state: State
    code: int | None
    """None: killed when its time was up."""


def refuse_impossible(experiment: Experiment) -> None:
    """Raise UsageError if kernels are to be replayed, but there is no GPU or no Nsight Compute to do it."""
    if experiment.timing.counters != "ncu":
        return
    if experiment.device == "cpu":
        raise UsageError("counters=ncu replays the kernels of a GPU, and device=cpu", "leave one of the two out")
    device, _ = open_device(experiment.device)
    if not device.is_gpu:
        raise UsageError("counters=ncu replays the kernels of a GPU, and torch finds none here", "leave it out")
    if _is_rocm():
        raise UsageError(f"counters=ncu needs a GPU by NVIDIA, and this is {device.name}", "leave it out")
    if ncu.find_ncu() is None:
        raise UsageError(
            "counters=ncu: Nsight Compute was not found, neither on the PATH nor in /usr/local/cuda/bin",
            f"install it (it comes with the CUDA toolkit), or name its ncu in {ncu.VARIABLE}",
        )


def _is_rocm() -> bool:
    import torch

    return torch.version.hip is not None


def replay(experiment: Experiment, selection: ncu.Selection) -> Replayed:
    """Replay what is selected of one warm step of the experiment. Takes at most timing.ncu_seconds."""
    try:
        executable = ncu.find_ncu()
    except UsageError as error:
        return _failed("Nsight Compute", 0.0, error.problem, error.remedy)
    if executable is None:
        return _failed("Nsight Compute", 0.0, "Nsight Compute was not found", f"name its ncu in {ncu.VARIABLE}")
    tool = ncu.title(executable)
    if not selection.kernels:
        return _failed(tool, 0.0, "the trace has no kernels", None)
    _release_memory()
    started, seconds = time.time(), experiment.timing.ncu_seconds
    try:
        with tempfile.TemporaryDirectory(prefix="proftrack-ncu-") as folder:
            ended = _ended(executable, experiment, selection, Path(folder), started)
    except OSError as error:
        return _failed(tool, 0.0, f"{error.filename or executable}: {error.strerror}", None)
    launches, took = ended.output.launches, time.time() - started
    why = _why_not_all(ended, seconds)
    if not launches:
        return _failed(tool, took, *(why or (_NOTHING, None)))
    problem = why and f"Only {counted(len(launches), 'launch')} could be replayed: {_sentence(*why)}"
    about = Replay(tool=tool, launches=len(launches), seconds=round(took, 3), problem=problem)
    return Replayed(launches=launches, about=about, complete=problem is None)


def _failed(tool: str, seconds: float, problem: str, remedy: str | None) -> Replayed:
    about = Replay(
        tool=tool, seconds=round(seconds, 3), problem=f"No kernel was replayed: {_sentence(problem, remedy)}"
    )
    return Replayed(launches=[], about=about, complete=False)


def _sentence(problem: str, remedy: str | None) -> str:
    return f"{problem}; {remedy}." if remedy else f"{problem}."


_NOTHING = "the step launched none of the largest kernels of the trace when it was run again"


def _why_not_all(ended: _Ended, seconds: float) -> tuple[str, str | None] | None:
    """Problem and remedy if replaying did not go on to the step's end."""
    state, limit = ended.state, f"{seconds:g} s (timing.ncu_seconds)"
    known, said = ncu.explained(ended.output.messages), ncu.quoted(ended.output.messages)
    if known is not None:
        return known
    if not state.done and state.error is not None:
        return f"the workload failed in a process of its own ({state.error})", None
    if not state.done and (ended.code is None or state.stopped):
        return f"there were only {limit} to {state.stage}", "allow more with --ncu_seconds"
    if said is None and not state.done:
        said = f"Nsight Compute ended with exit code {ended.code}, when it was to {state.stage}"
    return None if said is None else (said, None)


def _release_memory() -> None:
    """Give back what the workload no longer uses: the other process needs as much."""
    gc.collect()
    device, _ = open_device("auto")
    device.release_memory()


# ---- one call of ncu -------------------------------------------------------------------------------------------------


def _ended(executable: Path, experiment: Experiment, selection: ncu.Selection, folder: Path, started: float) -> _Ended:
    """Call ncu, again without the metrics that this GPU turns out not to have."""
    metrics = list(ncu.METRICS)
    while True:
        ended = _call(executable, experiment, selection, metrics, folder, started)
        unknown = ncu.unknown_metrics(ended.output, metrics)
        if not unknown or ended.output.launches:
            return ended
        metrics = [metric for metric in metrics if metric not in unknown]


def _call(
    executable: Path,
    experiment: Experiment,
    selection: ncu.Selection,
    metrics: Sequence[str],
    folder: Path,
    started: float,
) -> _Ended:
    seconds = experiment.timing.ncu_seconds
    asked, log, printed = folder / "request.json", folder / "ncu.log", folder / "printed.txt"
    request = Request(
        experiment=as_plain(experiment),
        state=folder / "state.json",
        parent=process.this_process(),
        started=started,
        stop_at=started + _STOP_SHARE * seconds,
        end_at=started + _END_SHARE * seconds,
    )
    asked.write_bytes(msgspec.json.encode(request, enc_hook=str))
    for left in (log, request.state):
        left.unlink(missing_ok=True)
    program = [sys.executable, "-c", _CODE, str(_ROOT), str(asked)]
    line = ncu.command(executable, program, log=log, selection=selection, metrics=metrics)
    with printed.open("wb") as file, _running(line, file.fileno()) as running:
        try:
            code: int | None = running.wait(max(0.0, started + seconds - time.time()))
        except subprocess.TimeoutExpired:
            code = None
    # Before it has read its options, ncu prints where the program does.
    text = "\n".join(_text(path) for path in (log, printed) if path == log or not log.exists())
    return _Ended(ncu.parse(text), _state(request.state), code)


@contextlib.contextmanager
def _running(line: Sequence[str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command; if it has not ended when the block ends, kill it with everything that it has started."""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_RUN_ID"}
    running = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment, **ncu.ENVIRONMENT},
        start_new_session=True,  # Ctrl-C in the terminal must reach only this process, which ends the others
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            _kill(running)


def _kill(running: subprocess.Popen[bytes]) -> None:
    started = []
    with contextlib.suppress(psutil.Error):  # whatever left the group, too
        started = psutil.Process(running.pid).children(recursive=True)
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.kill()
    for each in started:
        with contextlib.suppress(psutil.Error):
            each.kill()
    running.wait()


def _state(path: Path) -> State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return State()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
