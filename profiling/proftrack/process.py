"""Which process a run belongs to, and whether that process still lives.

A run that a dead process left RUNNING is closed by the next start; a live one's never. A pid alone cannot tell the
two apart: it is used again, it means another process in another container, and it means nothing after a reboot. So a
run carries the pid with its start mark, and the boot and the pid namespace in which it was true.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import platform
import socket
import uuid
from pathlib import Path
from typing import Protocol

import psutil
from msgspec import Struct

from proftrack.errors import ProftrackError

# PROC_PID_INIT_INO: the number of the first pid namespace, the same on every Linux; containers have others.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish", "cmd.exe", "powershell.exe", "pwsh"})


class Process(Struct, frozen=True, kw_only=True):
    """What makes a process the same process. Identifiers of the machine are hashed: tags are read by others."""

    host: str
    pid: int
    started: str
    """Kernel ticks since boot on Linux (they do not move with the clock), epoch seconds elsewhere."""
    boot: str = ""
    namespace: str = ""
    machine: str = ""
    """Empty where the machine cannot be told from a clone of it, such as in a container."""


def this_process() -> Process:
    """The process that runs this code."""
    namespace = _pid_namespace()
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=_start_mark(os.getpid()) or "",
        boot=_hash(_read("/proc/sys/kernel/random/boot_id")),
        namespace=namespace,
        machine=_machine() if namespace in ("", _INITIAL_PID_NAMESPACE) else "",
    )


def is_dead(process: Process, here: Process) -> bool:
    """Whether `process` surely runs no more, seen from `here`. In doubt it lives.

    | boot           | pid namespace | machine        | dead when                               |
    |----------------|---------------|----------------|-----------------------------------------|
    | the same       | the same      | any            | no such pid, or one that started later  |
    | the same       | another       | any            | never: another container cannot be seen |
    | another        | any           | known, same    | always: the machine has rebooted        |
    | unknown (both) | any           | known, same    | no such pid, or one that started later  |
    | else           | any           | any            | never                                   |
    """
    same_machine = bool(here.machine) and process.machine == here.machine
    if process.boot != here.boot:
        return same_machine and bool(process.boot and here.boot)
    if process.namespace != here.namespace:
        return False
    if not here.boot and not same_machine:
        return False
    return _start_mark(process.pid) != process.started


def is_alive(process: Process, here: Process) -> bool:
    """Whether `process` surely runs, seen from `here`. In doubt it does not; both this and is_dead may be False."""
    comparable = bool(here.boot) and (process.boot, process.namespace) == (here.boot, here.namespace)
    return comparable and bool(process.started) and _start_mark(process.pid) == process.started


class Watched(Protocol):
    """What a run depends on beside its own process: looked at twice a second while it is open."""

    def is_gone(self) -> bool:
        """Whether the run must end now."""

    def fail(self, error: BaseException) -> None:
        """Hear what ends the run in this process."""

    def failure(self) -> ProftrackError | None:
        """What went wrong elsewhere, if that is why this process is being ended: the run is FAILED then, not KILLED."""


class Parent:
    """The processes above this one up to the first that is no shell: `mlflow run`, with bash in between or not."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._above: list[tuple[int, str]] = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process().parents():
                mark = _start_mark(process.pid)
                if mark is None:
                    break
                self._above.append((process.pid, mark))
                if process.name().lower() not in _SHELLS:
                    break

    def fail(self, error: BaseException) -> None:
        """They learn it from the exit code."""

    def failure(self) -> ProftrackError | None:
        """Their end is an interruption, and nothing that went wrong here."""
        return None

    def is_gone(self) -> bool:
        """Whether one of them has ended since this object was made."""
        return os.getppid() != self._pid or any(_start_mark(pid) != mark for pid, mark in self._above)


def _start_mark(pid: int) -> str | None:
    """When `pid` started, comparable between processes; None where there is no such process or it is a zombie."""
    if platform.system() == "Linux":
        # The command may hold spaces and brackets: the fields are counted from the last one.
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(round(process.create_time()))
    except psutil.Error:
        return None


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _machine() -> str:
    identifier = _read("/etc/machine-id") or platform.system()
    return _hash(f"{identifier} {socket.gethostname()} {uuid.getnode()}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container's user id that no passwd file knows.
        return "unknown"
