"""Measures points in as few processes as is sound: nothing is timed in a process that has profiled, nor beside another.

    timer     |-- n=64 --|-- n=512 --|                              |-- n=256 --|
    profiler                          |-- n=64 --|-- n=512 --|                   |-- n=256 --|
    keepers                                       |-- 64 --|   |-- 512 --|                    |-- 256 --|
                                      every point of a batch was timed before    a further batch (bisection)

They start once, at the same time, and stay: profiling slows what comes after it in its process, so the timer never
profiles, and a point that bisection asks for later is timed as the first ones were. Only one of them is at work, but
that on a GPU the keepers, which need the CPU alone, write points while the next ones are profiled.

A process of its own is for points that compile or capture graphs, and for all with `--isolate`.
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
    Start,
    Started,
    Timings,
    ToKeep,
    ToMeasure,
    ToProfile,
    ToTime,
    Where,
)
from proftrack.record import Record
from proftrack.rundir.layout import RECORD
from proftrack.text import counted

_MOST_KEEPERS = 4
_CORES_PER_KEEPER = 4
_UNCOMPILED = (None, "", "none", "eager", False)


class Asked(Struct, frozen=True, kw_only=True):
    """A point to measure."""

    key: str
    experiment: Experiment
    where: Where
    folder: Path
    """Its run folder, which is made anew."""
    log: Path
    """Gets what its processes print."""
    text: str
    """The point for people: `n=64 (1 of 7)`."""


class Measured(Struct, frozen=True, kw_only=True):
    """What came of a point."""

    asked: Asked
    record: Record | None = None
    error: str | None = None
    seconds: float = 0.0
    """What it took by itself; in a process of its own with that one's start."""


class Measuring:
    """The processes of one sweep. A context: leaving it ends them, whatever happens; it may be entered twice."""

    def __init__(self, experiment: Experiment, *, isolate: bool, phase: Callable[[str], Any]) -> None:
        """`experiment` is the first point's; `isolate` gives each point a process of its own."""
        self._phase = phase
        self._isolate = isolate
        self._timer = _Role(stages.start, Start(experiment.device, calibrate=False))
        self._profiler = _Role(stages.start, Start(experiment.device, calibrate=True))
        keeping = Start(experiment.device, calibrate=False)
        count = max(1, min(_MOST_KEEPERS, (os.cpu_count() or 1) // _CORES_PER_KEEPER))
        self._keepers = [_Role(stages.start_keeping, keeping) for _ in range(count)]
        self._roles = (self._timer, self._profiler, *self._keepers)

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begin(self, experiment: Experiment) -> None:
        """Start the processes that points like this one share, so that they are ready when they are needed."""
        if not self._needs_own(experiment):
            for role in self._roles:
                role.begin()

    def measure(self, asked: Sequence[Asked]) -> Iterator[Measured]:
        """The points as they are done, their run folders whole. One that fails, or dies, loses no other."""
        for each in asked:
            shutil.rmtree(each.folder, ignore_errors=True)  # what a point that was interrupted has left
        timed: list[tuple[Asked, Timings, float]] = []
        own = []
        for each in asked:
            if self._needs_own(each.experiment):
                own.append(each)
                continue
            begin = time.monotonic()
            try:
                timings = self._timings(each)
            except ProftrackError as error:
                yield Measured(asked=each, error=str(error), seconds=time.monotonic() - begin)
                continue
            if timings.own_process:
                # What one point does, the others of the experiment do as well: they are not tried in vain.
                self._isolate = True
                own.append(each)
            else:
                timed.append((each, timings, time.monotonic() - begin))
        yield from self._profiled(timed)
        if own:
            self._end()  # their memory is the point's
        for each in own:
            yield self._isolated(each)

    # ---- shared processes

    def _timings(self, asked: Asked) -> Timings:
        self._ready()
        with self._phase(f"{asked.text}: timing"):
            return self._timer.worker.call(stages.time_point, ToTime(asked.where, companions=1), Timings, asked.log)

    def _profiled(self, timed: Sequence[tuple[Asked, Timings, float]]) -> Iterator[Measured]:
        waiting = list(timed)
        kept: deque[_Kept] = deque()
        while waiting:
            each, timings, seconds = waiting.pop(0)
            begin = time.monotonic() - seconds
            try:
                captured = self._captured(each, timings)
                if waiting and self._profiler.is_gpu:
                    self._send(waiting[0][0], waiting[0][1])
                if len(kept) == len(self._keepers):
                    yield self._received(kept.popleft())
                kept.append(self._keep(each, captured, begin, busy=[each.role for each in kept]))
            except ProftrackError as error:
                yield Measured(asked=each, error=str(error), seconds=time.monotonic() - begin)
            while kept and not (waiting and self._profiler.is_gpu):
                yield self._received(kept.popleft())

    def _send(self, asked: Asked, timings: Timings) -> None:
        """Have the profiler begin a point."""
        self._profiler.begun = asked
        self._profiler.worker.send(stages.profile_point, ToProfile(asked.where, asked.folder, timings), asked.log)

    def _captured(self, asked: Asked, timings: Timings) -> Captured:
        self._ready()
        with self._phase(f"{asked.text}: profiling"):
            if self._profiler.begun is not asked:
                self._send(asked, timings)
            self._profiler.begun = None
            return self._profiler.worker.receive(Captured)

    def _keep(self, asked: Asked, captured: Captured, begin: float, busy: Sequence[_Role]) -> _Kept:
        """Have a keeper that is not busy write the point's folder."""
        self._ready()
        role = next(keeper for keeper in self._keepers if keeper not in busy)
        role.worker.send(stages.keep_point, ToKeep(asked.folder, captured), asked.log)
        return _Kept(asked, role, begin)

    def _received(self, kept: _Kept) -> Measured:
        """The point of a keeper that may be at it still."""
        try:
            kept.role.worker.receive(Done)
            record = records.load(kept.asked.folder / RECORD)
        except ProftrackError as error:
            return Measured(asked=kept.asked, error=str(error), seconds=time.monotonic() - kept.begin)
        return Measured(asked=kept.asked, record=record, seconds=time.monotonic() - kept.begin)

    def _ready(self) -> None:
        """All are there before one is at work: their start would be in its way.

        Raises ProftrackError where one cannot start; it is not tried again.
        """
        missing = [role for role in self._roles if not role.is_ready]
        if missing:
            with self._phase(f"start {counted(len(missing), 'process', 'processes')}"):
                for role in missing:
                    role.begin()
                for role in missing:
                    role.await_ready()

    # ---- a process a point

    def _needs_own(self, experiment: Experiment) -> bool:
        return self._isolate or experiment.params.get("compile") not in _UNCOMPILED

    def _isolated(self, asked: Asked) -> Measured:
        begin = time.monotonic()
        worker = Worker()
        try:
            with self._phase(asked.text):
                worker.call(stages.measure_point, ToMeasure(asked.where, asked.folder), Done, asked.log)
            record = records.load(asked.folder / RECORD)
        except ProftrackError as error:
            return Measured(asked=asked, error=str(error), seconds=time.monotonic() - begin)
        finally:
            worker.end()
        return Measured(asked=asked, record=record, seconds=time.monotonic() - begin)

    def _end(self) -> None:
        for role in self._roles:
            role.ask_to_end()
        for role in self._roles:
            role.end()


class _Kept(NamedTuple):
    """A point that a keeper is at."""

    asked: Asked
    role: _Role
    begin: float
    """When it was begun, on the monotonic clock."""


class _Role:
    """What one process of the sweep is for; another takes its place where it dies."""

    def __init__(self, function: Callable[[Start], Started], start: Start) -> None:
        self._function, self._start = function, start
        self._worker: Worker | None = None
        self._answered = False
        self._failure: str | None = None
        self.is_gpu = False
        self.begun: Asked | None = None
        """The point that it was sent ahead of its turn."""

    @property
    def worker(self) -> Worker:
        """Its process."""
        assert self._worker is not None
        return self._worker

    @property
    def is_ready(self) -> bool:
        """Whether its process may be asked."""
        return self._worker is not None and self._worker.is_usable and self._answered

    def begin(self) -> None:
        """Start a process where there is none. Raises ProftrackError where one could not start before."""
        if self._failure is not None:
            raise ProftrackError(self._failure)
        if self._worker is not None and self._worker.is_usable:
            return
        self._worker, self._answered, self.begun = Worker(), False, None
        self._worker.send(self._function, self._start)

    def await_ready(self) -> None:
        """Wait until it has loaded what it needs. Raises ProftrackError where it cannot."""
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
        """Have it end soon."""
        if self._worker is not None:
            self._worker.ask_to_end()

    def end(self) -> None:
        """End it."""
        if self._worker is not None:
            self._worker.end()
        self._worker, self._answered, self.begun = None, False, None
