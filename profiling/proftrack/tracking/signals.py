"""Signals and the parent's death as an exception in the main thread, so that a run always gets its last status.

    SIGTERM, SIGINT, SIGHUP ─┐
                             ├─> Interrupted in the main thread ──> the run ends as KILLED
    the parent ended ────────┘          │
                                        └─ not within GRACE_S (stuck in native code): `last_resort`, then exit

Python runs its handlers in the main thread between two bytecodes only: a hung kernel or a long compilation would keep a
signal waiting for ever. Therefore a thread reads the signal's byte from the wakeup descriptor as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from proftrack.tracking.process import Watched

GRACE_S = 10.0
_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1
PARENT_EXIT = "parent exit"
_WATCHED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal, or the end of the process that started this one. No `except Exception` of a workload swallows it."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        """SIGTERM, SIGINT, SIGHUP or `parent exit`."""
        self.exit_code = exit_code


class Interrupts:
    """While this context is entered, signals raise Interrupted in the main thread; leaving it restores the handlers.

    `parent`: whose end counts as an interruption too. `last_resort` is called with the reason, in another thread, when
    the main thread has not come back GRACE_S after an interruption; the process then exits. Outside the main thread
    signals are left alone, and so are those that the caller ignores (nohup).
    """

    def __init__(self, last_resort: Callable[[str], None] = lambda _: None, parent: Watched | None = None) -> None:
        self._last_resort = last_resort
        self._parent = parent
        self._reason: str | None = None
        self._code = 1
        self._raised = False
        self._shields = 0
        self._late: int | None = None
        """A signal that came when the block was over already."""
        self._told = False
        """Whether the thread has sent one."""
        self._before: dict[signal.Signals, Any] = {}
        self._done = threading.Event()
        self._owner = 0
        self._reader, self._writer = socket.socketpair()
        self._fd_before = -1
        self._thread = threading.Thread(target=self._watch, name="proftrack-signals", daemon=True)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._owner = os.getpid()
        for number in _WATCHED:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._handle)
        self._writer.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(-1)
        self.listen()
        if self._parent is not None:
            _die_with_parent(signal.SIGTERM)
        _entered.append(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._shields += 1  # the block is over: nothing can end it any more
        self._done.set()
        if self._owner == os.getpid():
            # The thread first: a signal that it is about to send must find our handler and not the caller's.
            self._writer.send(b"\0")
            self._thread.join(2 * _POLL_S)
            _entered.remove(self)
            self.restore()
            if self._parent is not None:
                _die_with_parent(0)
        self._writer.close()
        self._reader.close()
        if self._late is not None:
            signal.raise_signal(self._late)  # for whoever handles it outside of the block

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """A stretch that no interruption cuts in two; one that comes meanwhile is raised at its end."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        self._raise_if_due()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        if self._done.is_set():
            self._late = None if self._told else number
            return
        if self._reason is None:
            by_parent = self._parent is not None and self._parent.is_gone()
            self._reason = PARENT_EXIT if by_parent else signal.Signals(number).name
            self._code = 128 + number
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._reason is not None and not self._raised and self._shields == 0:
            self._raised = True
            raise Interrupted(self._reason, self._code)

    def _watch(self) -> None:
        """The thread: looks at the parent, and ends the process where the main thread cannot."""
        signalled_at: float | None = None
        while not self._done.is_set():
            # Without a parent to look at, this thread sleeps: it takes nothing from the steps that are being timed.
            self._reader.settimeout(_POLL_S if self._parent or signalled_at else None)
            if self._received() and signalled_at is None:
                signalled_at = time.monotonic()
            if signalled_at is None and self._parent is not None and self._parent.is_gone():
                signalled_at = time.monotonic()
                self._told = True
                os.kill(self._owner, signal.SIGTERM)
            if signalled_at is not None and time.monotonic() - signalled_at > GRACE_S:
                self._give_up()

    def _received(self) -> bool:
        with contextlib.suppress(OSError):  # a timeout is one
            numbers = self._reader.recv(64)
            return any(number in numbers for number in self._before)
        return False

    def _give_up(self) -> None:
        reason, code = self._reason or "SIGTERM", self._code if self._reason else 143
        ending = threading.Thread(target=self._last_resort, args=(reason,), daemon=True)
        ending.start()
        ending.join(GRACE_S)
        if not self._done.is_set():
            os._exit(code)

    def listen(self) -> None:
        """Have the bytes of signals sent to the thread, unless an event loop of the caller's lives on them."""
        free = self._fd_before == -1
        signal.set_wakeup_fd(self._writer.fileno() if free else self._fd_before, warn_on_full_buffer=False)

    def restore(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)


def _die_with_parent(number: int) -> None:
    """Ask Linux to send `number` when the parent ends (0: no longer). A shell between us and it is polled instead."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


# Those entered and not yet left, outermost first. A forked child (a DataLoader's worker) leaves all of them at once:
# its signals are its own, and no byte of them may reach the parent's thread, not even before this cleanup.
_entered: list[Interrupts] = []


def _before_fork() -> None:
    if _entered:
        with contextlib.suppress(ValueError):  # a fork in another thread
            signal.set_wakeup_fd(-1)


def _after_fork_in_parent() -> None:
    if _entered:
        with contextlib.suppress(ValueError):
            _entered[-1].listen()


def _after_fork_in_child() -> None:
    for interrupts in reversed(_entered):
        with contextlib.suppress(ValueError, OSError):
            interrupts.restore()
    _entered.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
