"""Which process a run belongs to, and whether that process is still alive.

The next start closes a run that a dead process left RUNNING, but never the run of a live one. A pid alone cannot tell
the two apart: pids are reused, mean another process in another container, and mean nothing after a reboot. So a run
carries the pid with the start time of its process, and the boot and the pid namespace that the pid belongs to.
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
    """Identifies a process. Identifiers of the machine are hashed, because other people read the tags."""

    host: str
    pid: int
    started: str
    """Start time: kernel ticks since boot on Linux (unaffected by clock changes), epoch seconds elsewhere."""
    boot: str = ""
    namespace: str = ""
    machine: str = ""
    """Empty if the machine cannot be distinguished from a clone of it, such as in a container."""


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
    """Whether `process` is certainly dead, seen from `here`. In doubt, False.

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
    """Whether `process` is certainly alive, seen from `here`. In doubt, False; is_dead may then be False too."""
    comparable = bool(here.boot) and (process.boot, process.namespace) == (here.boot, here.namespace)
    return comparable and bool(process.started) and _start_mark(process.pid) == process.started


class Watched(Protocol):
    """What a run depends on besides its own process: checked twice a second while the run is open."""

    def is_gone(self) -> bool:
        """Whether the run must end now."""

    def fail(self, error: BaseException) -> None:
        """Be notified of the error that ends the run in this process."""

    def failure(self) -> ProftrackError | None:
        """The error elsewhere, if that is why this process is being ended: the run is then FAILED, not KILLED."""


class Parent:
    """The parent processes up to the first that is not a shell: `mlflow run`, with or without bash in between."""

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
        """Nothing to do: the parents see the exit code."""

    def failure(self) -> ProftrackError | None:
        """None: the end of a parent is an interruption, not an error."""
        return None

    def is_gone(self) -> bool:
        """Whether one of the parents has ended since this object was created."""
        return os.getppid() != self._pid or any(_start_mark(pid) != mark for pid, mark in self._above)


def _start_mark(pid: int) -> str | None:
    """When `pid` started, comparable between processes; None if there is no such process or it is a zombie."""
    if platform.system() == "Linux":
        # The command may contain spaces and parentheses, so count the fields from the last parenthesis.
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
    """The user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # In a container, the user id may not be in the passwd file.
        return "unknown"
