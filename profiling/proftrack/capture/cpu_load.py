"""What used the CPUs while steps were timed: the difference of two readings, before and after the blocks."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from proftrack.record.timing import Load
from proftrack.threads import usable_cpus

_TASKS = Path("/proc/self/task")
_TICK_NS = 10_000_000
"""How far one thread's counter may lag behind the process's."""
_SHORTEST_NS = 200_000_000
"""The system counts the CPU time of other processes in ticks of 10 ms: over a shorter time they mean nothing."""


class Task(NamedTuple):
    """One thread of this process so far, in nanoseconds."""

    ran: int
    waited: int | None
    """Time spent ready to run but without a core; None if the system does not count it."""


class Reading(NamedTuple):
    """The counters at one moment, in nanoseconds."""

    wall: int
    process: int
    thread: int
    busy: int | None
    """Time of all processes on the cores that this one may use, and time that a hypervisor took from them."""
    cores: int
    own_id: int
    python_ids: frozenset[int]
    """Other threads that Python code started."""
    tasks: dict[int, Task]


def read_load() -> Reading:
    """Read all counters: about a millisecond on a machine with many threads."""
    cores = usable_cpus()
    current = threading.current_thread()
    started = (t for t in threading.enumerate() if t is not current and not isinstance(t, threading._DummyThread))
    return Reading(
        wall=time.perf_counter_ns(),
        process=time.process_time_ns(),
        thread=time.thread_time_ns(),
        busy=_busy(cores),
        cores=len(cores),
        own_id=threading.get_native_id(),
        python_ids=frozenset(t.native_id for t in started if t.native_id is not None),
        tasks=_tasks(),
    )


def load_between(before: Reading, after: Reading) -> Load:
    """The load from one reading to the next."""
    wall, process = after.wall - before.wall, after.process - before.process
    others = None
    if before.busy is not None and after.busy is not None and wall >= _SHORTEST_NS:
        others = max(after.busy - before.busy - process, 0)
    return Load(
        wall_us=wall / 1e3,
        cores=after.cores,
        thread_us=(after.thread - before.thread) / 1e3,
        process_us=process / 1e3,
        python_threads_us=_python_threads(before, after, process) / 1e3,
        thread_waited_us=_waited(before, after, {after.own_id}),
        waited_us=_waited(before, after, set(after.tasks)),
        others_us=None if others is None else others / 1e3,
    )


def _python_threads(before: Reading, after: Reading, process: int) -> int:
    """CPU time of the other threads that Python started, and of threads that ended in between.

    The workers of BLAS, OpenMP, oneDNN and autograd are not Python's, and live as long as the process.
    """
    if not after.tasks:
        return 0
    ran = {tid: task.ran - before.tasks.get(tid, Task(0, 0)).ran for tid, task in after.tasks.items()}
    ended = process - sum(ran.values()) - _TICK_NS * len(ran)
    return sum(ran.get(tid, 0) for tid in before.python_ids | after.python_ids) + max(ended, 0)


def _waited(before: Reading, after: Reading, tids: set[int]) -> float | None:
    """The longest time that one of these threads waited for a core, in microseconds."""
    waits = [
        now - then
        for tid in tids & set(before.tasks) & set(after.tasks)
        if (now := after.tasks[tid].waited) is not None and (then := before.tasks[tid].waited) is not None
    ]
    return max(waits) / 1e3 if waits else None


def _tasks() -> dict[int, Task]:
    """The threads of this process: on Linux from the scheduler, in nanoseconds; elsewhere in ticks, without waits."""
    tasks: dict[int, Task] = {}
    with contextlib.suppress(OSError):
        for folder in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
                ran, waited, _ = (folder / "schedstat").read_text().split()
                tasks[int(folder.name)] = Task(int(ran), int(waited))
    if tasks:
        return tasks
    with contextlib.suppress(psutil.Error, OSError):
        return {t.id: Task(int((t.user_time + t.system_time) * 1e9), None) for t in psutil.Process().threads()}
    return {}


def _busy(cores: set[int]) -> int | None:
    """Busy nanoseconds of these cores since the machine started; None if the system does not report them."""
    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError, psutil.Error):
        return None
    if any(core >= len(times) for core in cores):
        return None
    fields = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
    busy = sum(getattr(times[core], name, 0.0) for core in cores for name in fields)
    return int(busy * 1e9) or None
