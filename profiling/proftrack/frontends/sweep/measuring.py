"""Measure points in as few processes as possible without disturbing the timing.

No point is timed in a process that has profiled, or while another process works.

    timer     |-- n=64 --|-- n=512 --|                              |-- n=256 --|
    profiler                          |-- n=64 --|-- n=512 --|                   |-- n=256 --|
    writers                                       |-- 64 --|   |-- 512 --|                    |-- 256 --|
                                      every point of a batch was timed before    a further batch (bisection)

All processes start once, at the same time, and stay alive. Profiling slows whatever runs later in the same process, so
the timer never profiles, and a point that bisection requests later is timed like the first ones. Only one process works
at a time, with one exception: on a GPU the writers, which need only the CPU, write points while the next ones are
profiled.

Points that compile or capture graphs get a process of their own; with `--isolate` all points do.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from proftrack import record as records
from proftrack.errors import ProftrackError
from proftrack.experiment import Experiment
from proftrack.frontends.batch.worker import Worker
from proftrack.frontends.sweep import stages
from proftrack.frontends.sweep.stages import (
    Captured,
    Done,
    PointSpec,
    Start,
    Started,
    Timings,
    ToMeasure,
    ToProfile,
    ToTime,
    ToWrite,
)
from proftrack.record import Record
from proftrack.rundir.layout import RECORD
from proftrack.text import counted

_MOST_WRITERS = 4
_CORES_PER_WRITER = 4
_COMPANIONS = 1
"""Of timer and profiler each one holds the GPU, idle, while the other works."""
_UNCOMPILED = (None, "", "none", "eager", False)


class Request(Struct, frozen=True, kw_only=True):
    """A request to measure one point."""

    key: str
    experiment: Experiment
    spec: PointSpec
    folder: Path
    """Its run folder; an existing one is replaced."""
    log: Path
    """The file that its processes print to."""
    text: str
    """The point in progress messages: `n=64 (1 of 7)`."""


class Measured(Struct, frozen=True, kw_only=True):
    """The result of a request: a record or an error."""

    request: Request
    record: Record | None = None
    error: str | None = None
    seconds: float = 0.0
    """Time spent on this point; includes the start of its process if it had its own."""


class Measuring:
    """The processes of one sweep. As a context manager it always ends them on exit; it may be entered twice."""

    def __init__(self, experiment: Experiment, *, isolate: bool, phase: Callable[[str], Any]) -> None:
        """`experiment` is the first point's; `isolate` gives each point a process of its own."""
        self._phase = phase
        self._isolate = isolate
        self._timer = _Role(stages.start, Start(experiment.device, calibrate=False))
        self._profiler = _Role(stages.start, Start(experiment.device, calibrate=True))
        writing = Start(experiment.device, calibrate=False)
        count = max(1, min(_MOST_WRITERS, (os.cpu_count() or 1) // _CORES_PER_WRITER))
        self._writers = [_Role(stages.start_writing, writing) for _ in range(count)]
        self._roles = (self._timer, self._profiler, *self._writers)

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begin(self, experiment: Experiment) -> None:
        """Start the processes that points like this one share, so that they are ready when needed."""
        if not self._needs_own_process(experiment):
            for role in self._roles:
                role.begin()

    def measure(self, requests: Sequence[Request]) -> Iterator[Measured]:
        """Yield each point when it is done and its run folder is complete. A failed point does not affect others."""
        for request in requests:
            shutil.rmtree(request.folder, ignore_errors=True)  # left by an interrupted point
        timed: list[tuple[Request, Timings, float]] = []
        isolated = []
        for request in requests:
            if self._needs_own_process(request.experiment):
                isolated.append(request)
                continue
            begin = time.monotonic()
            try:
                timings = self._timings(request)
            except ProftrackError as error:
                yield Measured(request=request, error=str(error), seconds=time.monotonic() - begin)
                continue
            if timings.own_process:
                # The experiment's other points will need one too, so they are not tried in a shared process.
                self._isolate = True
                isolated.append(request)
            else:
                timed.append((request, timings, time.monotonic() - begin))
        yield from self._profiled(timed)
        if isolated:
            self._end()  # free their memory for these points
        for request in isolated:
            yield self._isolated(request)

    # ---- shared processes

    def _timings(self, request: Request) -> Timings:
        self._ready()
        with self._phase(f"{request.text}: timing"):
            asked = ToTime(request.spec, companions=_COMPANIONS)
            return self._timer.worker.call(stages.time_point, asked, Timings, request.log)

    def _profiled(self, timed: Sequence[tuple[Request, Timings, float]]) -> Iterator[Measured]:
        waiting = list(timed)
        writing: deque[_Writing] = deque()
        while waiting:
            request, timings, seconds = waiting.pop(0)
            begin = time.monotonic() - seconds
            try:
                captured = self._captured(request, timings)
                if waiting and self._profiler.is_gpu:
                    self._send(waiting[0][0], waiting[0][1])
                if len(writing) == len(self._writers):
                    yield self._received(writing.popleft())
                writing.append(self._write(request, captured, begin, busy=[point.role for point in writing]))
            except ProftrackError as error:
                yield Measured(request=request, error=str(error), seconds=time.monotonic() - begin)
            while writing and not (waiting and self._profiler.is_gpu):
                yield self._received(writing.popleft())

    def _send(self, request: Request, timings: Timings) -> None:
        """Tell the profiler to start on a point."""
        self._profiler.begun = request
        asked = ToProfile(request.spec, request.folder, timings, companions=_COMPANIONS)
        self._profiler.worker.send(stages.profile_point, asked, request.log)

    def _captured(self, request: Request, timings: Timings) -> Captured:
        self._ready()
        with self._phase(f"{request.text}: profiling"):
            if self._profiler.begun is not request:
                self._send(request, timings)
            self._profiler.begun = None
            return self._profiler.worker.receive(Captured)

    def _write(self, request: Request, captured: Captured, begin: float, busy: Sequence[_Role]) -> _Writing:
        """Tell a writer that is not busy to write the point's folder."""
        self._ready()
        role = next(writer for writer in self._writers if writer not in busy)
        role.worker.send(stages.write_point, ToWrite(request.folder, captured), request.log)
        return _Writing(request, role, begin)

    def _received(self, writing: _Writing) -> Measured:
        """Wait until the writer has finished the point."""
        try:
            writing.role.worker.receive(Done)
            record = records.load(writing.request.folder / RECORD)
        except ProftrackError as error:
            return Measured(request=writing.request, error=str(error), seconds=time.monotonic() - writing.begin)
        return Measured(request=writing.request, record=record, seconds=time.monotonic() - writing.begin)

    def _ready(self) -> None:
        """Wait until all processes have started: a start would disturb a process that is already working.

        Raises ProftrackError if one cannot start; it is not tried again.
        """
        missing = [role for role in self._roles if not role.is_ready]
        if missing:
            with self._phase(f"starting {counted(len(missing), 'process', 'processes')}"):
                for role in missing:
                    role.begin()
                for role in missing:
                    role.await_ready()

    # ---- one process per point

    def _needs_own_process(self, experiment: Experiment) -> bool:
        return self._isolate or experiment.params.get("compile") not in _UNCOMPILED

    def _isolated(self, request: Request) -> Measured:
        begin = time.monotonic()
        worker = Worker()
        try:
            with self._phase(request.text):
                worker.call(stages.measure_point, ToMeasure(request.spec, request.folder), Done, request.log)
            record = records.load(request.folder / RECORD)
        except ProftrackError as error:
            return Measured(request=request, error=str(error), seconds=time.monotonic() - begin)
        finally:
            worker.end()
        return Measured(request=request, record=record, seconds=time.monotonic() - begin)

    def _end(self) -> None:
        for role in self._roles:
            role.ask_to_end()
        for role in self._roles:
            role.end()


class _Writing(NamedTuple):
    """A point that a writer is working on."""

    request: Request
    role: _Role
    begin: float
    """When work on it began, on the monotonic clock."""


class _Role:
    """One process of the sweep and its task; if the process dies, another takes its place."""

    def __init__(self, function: Callable[[Start], Started], start: Start) -> None:
        self._function, self._start = function, start
        self._worker: Worker | None = None
        self._answered = False
        self._failure: str | None = None
        self.is_gpu = False
        self.begun: Request | None = None
        """The point that it was sent ahead of time."""

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    @property
    def is_ready(self) -> bool:
        """Whether its process can take a call."""
        return self._worker is not None and self._worker.is_usable and self._answered

    def begin(self) -> None:
        """Start a process if there is none. Raises ProftrackError if an earlier one could not start."""
        if self._failure is not None:
            raise ProftrackError(self._failure)
        if self._worker is not None and self._worker.is_usable:
            return
        self._worker, self._answered, self.begun = Worker(), False, None
        self._worker.send(self._function, self._start)

    def await_ready(self) -> None:
        """Wait until it has loaded what it needs. Raises ProftrackError if it fails to."""
        if self._answered:
            return
        try:
            self.is_gpu = self.worker.receive(Started).is_gpu
        except ProftrackError as error:
            self._failure = str(error)
            self.end()
            raise
        self._answered = True

    def ask_to_end(self) -> None:
        if self._worker is not None:
            self._worker.ask_to_end()

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker, self._answered, self.begun = None, False, None
