"""A child process that runs functions for this one: calls go in and answers come out, one JSON document per line.

    parent  --{"function": "module:name", "log": ..., "argument": ...}-->  worker
            <--{"value": ...} or {"error": ..., "spent": ...}------------

A worker runs one call at a time. Output of the called code goes to the call's log, never into the answers. If the
worker dies (a crash, the kernel's OOM killer, `sys.exit` in a workload), the current call fails. If the parent ends,
the worker's requests end, and so does the worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

import proftrack
from proftrack.errors import ProftrackError
from proftrack.experiment.workload import first_line
from proftrack.signals import Aborted, Interrupts, abort, farewell

R = TypeVar("R")

GRACE_S = 0.7
"""How long a worker may take to close its workload when it is told to end; then it is killed."""
_POLL_S = 0.5
_ROOT = Path(proftrack.__file__).resolve().parents[1]
_CODE = "import sys; sys.path.append(sys.argv[1]); from proftrack.frontends.batch.worker import serve; serve()"


class Spent(ProftrackError):
    """Raised by a called function: the call failed and the process cannot be used again (a CUDA error persists)."""


class _Call(Struct):
    function: str
    log: str
    argument: msgspec.Raw


class _Answer(Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    spent: bool = False


# ---- the parent's side -----------------------------------------------------------------------------------------------


class Worker:
    """A process that calls functions of this package (or of any module that it can import)."""

    def __init__(self) -> None:
        """Start the process, without waiting until it is ready for its first call."""
        self._early = tempfile.TemporaryFile()  # noqa: SIM115  # what it prints outside of calls
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._early,
            # Ctrl-C in the terminal must reach only the parent, which ends its workers.
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "MLFLOW_RUN_ID"},
        )
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="proftrack-answers", daemon=True).start()
        self._log: tuple[Path | None, int] = (None, 0)
        self._asked_to_end: float | None = None
        self.is_usable = True
        """False once it has died, is spent, or was told to end."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, function: Callable[[Any], R], argument: Struct, returns: type[R], log: Path | None = None) -> R:
        """`send`, then `receive`."""
        self.send(function, argument, log)
        return self.receive(returns)

    def send(self, function: Callable[[Any], Any], argument: Struct, log: Path | None = None) -> None:
        """Start a call; what the process prints during it is appended to `log`."""
        name = f"{function.__module__}:{function.__qualname__}"
        call = _Call(name, str(log.absolute()) if log else "", msgspec.Raw(_encoded(argument)))
        self._log = (log, log.stat().st_size if log is not None and log.exists() else 0)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a dead worker; `receive` reports how it died
            self._process.stdin.write(_encoded(call) + b"\n")
            self._process.stdin.flush()

    def receive(self, returns: type[R]) -> R:
        """The call's answer. Raises ProftrackError with the call's error, or with how the process died."""
        answer = self._answer()
        if answer is None:
            self.is_usable = False
            problem = self._how_it_died()
            self.end()
            raise ProftrackError(problem)
        if answer.spent:
            self.end()
        if answer.error is not None:
            raise ProftrackError(answer.error)
        return msgspec.json.decode(answer.value, type=returns, dec_hook=_decoded)

    def ask_to_end(self) -> None:
        """Tell it to close its workload and end; `end` waits for that."""
        self.is_usable = False
        if self._asked_to_end is None and self._process.poll() is None:
            self._process.terminate()
            self._asked_to_end = time.monotonic()

    def end(self) -> None:
        """End it, with all that it has started, at most GRACE_S after it was first told to end."""
        self.ask_to_end()
        if self._asked_to_end is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, self._asked_to_end + GRACE_S - time.monotonic()))
        _kill(self._process)
        self._process.wait()
        for stream in (self._process.stdin, self._early):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self) -> None:
        """Run in a thread: queue the answers, then None when no more can come."""
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(None)

    def _answer(self) -> _Answer | None:
        while True:
            try:
                line = self._answers.get(timeout=_POLL_S)
            except queue.Empty:
                # A child that the worker forked may outlive it and keep the pipe open, so that the answers never end.
                if self._process.poll() is None:
                    continue
                line = None
            return None if line is None else msgspec.json.decode(line, type=_Answer)

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        code = self._process.poll()
        if code is None:
            ended = "the process closed its output pipe"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            killed = ", perhaps because memory ran out" if name == "SIGKILL" else ""
            ended = f"the process was ended by {name}{killed}"
        else:
            ended = f"the process ended with exit code {code}"
        last = self._last_line()
        return ended + (f": {last}" if last else "")

    def _last_line(self) -> str:
        """The last line that it printed in this call, as a hint for people; it is not parsed."""
        log, begin = self._log
        try:
            if log is not None:
                with log.open("rb") as file:
                    file.seek(begin)
                    text = file.read()
            else:
                self._early.seek(0)
                text = self._early.read()
        except OSError:
            return ""
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; if it leads a session, kill everything in that session."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


# ---- the worker's side -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer calls until there are no more."""
    # Move the pipes to other descriptors, so that user code neither reads requests nor prints into the answers.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as devnull:
        os.dup2(devnull.fileno(), 0)
    os.dup2(2, 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, calls), name="proftrack-requests", daemon=True).start()
    early = os.dup(2)

    def give_up(error: BaseException) -> None:
        """Report the error of the current call when the process must end while it is in native code."""
        if isinstance(error, ProftrackError):
            answers.write(_encoded(_Answer(error=str(error), spent=True)) + b"\n")
            answers.flush()

    try:
        with Interrupts(), farewell(give_up):
            while True:
                line = calls.get()
                answer = _answered(msgspec.json.decode(line, type=_Call), early)
                answers.write(_encoded(answer) + b"\n")
                answers.flush()
    except KeyboardInterrupt:
        sys.exit(130)


def is_out_of_memory(error: ProftrackError) -> bool:
    """Whether a workload failed because it did not get the memory that it asked for."""
    return "out of memory" in str(error).lower() or "OutOfMemory" in str(error)


def end_call(error: ProftrackError) -> None:
    """End the worker's current call, from another thread; the process is spent afterwards."""
    abort(Spent(str(error)))


def _listen(requests: IO[bytes], calls: queue.SimpleQueue[bytes]) -> None:
    """Run in a thread, asleep while anything is timed: queue requests; kill the worker when the parent has ended."""
    for line in requests:
        calls.put(line)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # including what the workload has started
    os._exit(1)


def _answered(call: _Call, early: int) -> _Answer:
    _print_to(call.log, early)
    try:
        module, _, name = call.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        (argument_type, *_) = get_type_hints(function).values()
        value = function(msgspec.json.decode(call.argument, type=argument_type, dec_hook=_decoded))
        return _Answer(value=msgspec.Raw(_encoded(value)))
    except ProftrackError as error:
        return _Answer(error=str(error), spent=isinstance(error, Spent))
    except Aborted as error:
        return _Answer(error=str(error), spent=True)
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {first_line(error)}"
        return _Answer(error=f"{problem} (a bug in proftrack; the log has the traceback)", spent=True)
    finally:
        _print_to("", early)


def _print_to(log: str, early: int) -> None:
    """Append stdout and stderr to the file `log`; if it is empty, restore them to where they were."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    target = early
    if log:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(target, 1)
    os.dup2(target, 2)
    if log:
        os.close(target)


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_path_as_text)


def _path_as_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decoded(kind: type, value: Any) -> Any:
    return kind(value)
