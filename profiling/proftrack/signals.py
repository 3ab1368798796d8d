"""Signals and the parent's death as an exception in the main thread, so that a run always gets its final status.

    SIGTERM, SIGINT, SIGHUP ─┐
    the parent ended ────────┼─> an exception in the main thread ──> the run ends as KILLED, or FAILED after `abort`
    abort(error) ────────────┘          │
                                        ├─ not raised within STUCK_S (native code)  ─┐
                                        └─ not finished within GRACE_S              ─┴─> `last_resort`, then exit

Python runs signal handlers only in the main thread and between two bytecodes: a step of minutes, a hung kernel or a
long compilation would keep a signal waiting. Therefore a thread also reads the signal's byte from the wakeup
descriptor, and ends the process if the main thread cannot.
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

from proftrack.errors import ProftrackError
from proftrack.process import Watched

STUCK_S = 0.5
GRACE_S = 10.0
_POLL_S = 0.5
_POLL_SIGNALLED_S = 0.1
_PR_SET_PDEATHSIG = 1
PARENT_EXIT = "parent exit"
_WATCHED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal, or the end of the process that started this one. `except Exception` in a workload does not catch it."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        """SIGTERM, SIGINT, SIGHUP or `parent exit`."""
        self.exit_code = exit_code


class Aborted(BaseException):
    """Carries an error of `abort` out of the block. An `except Exception` in a workload does not catch it either."""

    def __init__(self, error: ProftrackError) -> None:
        super().__init__(str(error))
        self.error = error
        """The error that leaves the block."""


class Interrupts:
    """Inside this context, signals raise Interrupted in the main thread; leaving it restores the handlers.

    The end of `parent` counts as an interruption too. If the main thread cannot raise the exception, or has not
    finished GRACE_S later, another thread calls `last_resort` with it, and the process exits.
    Outside the main thread signals are left alone; signals that the caller ignores (nohup) always are.
    """

    def __init__(
        self, last_resort: Callable[[BaseException], None] = lambda _: None, parent: Watched | None = None
    ) -> None:
        self._last_resort = last_resort
        self._parent = parent
        self._error: BaseException | None = None
        """The exception that ends the block."""
        self._aborted: ProftrackError | None = None
        """The error that `abort` was called with."""
        self._is_ending = False
        """Whether the main thread has begun to end this block, or one within it."""
        self._raised = False
        self._shields = 0
        self._last_signal = int(signal.SIGTERM)
        """The last signal that the thread has seen."""
        self._late_signal: int | None = None
        """A signal that came after the block was over."""
        self._sent_by_us = False
        """Whether the thread has sent the signal itself."""
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._done = threading.Event()
        self._owner = 0
        self._reader, self._writer = socket.socketpair()
        self._old_wakeup_fd = -1
        self._thread = threading.Thread(target=self._watch, name="proftrack-signals", daemon=True)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._owner = os.getpid()
        for number in _WATCHED:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._old_handlers[number] = signal.signal(number, self._handle)
        self._writer.setblocking(False)
        self._old_wakeup_fd = signal.set_wakeup_fd(-1)
        self.listen()
        if self._parent is not None:
            _die_with_parent(signal.SIGTERM)
        _entered.append(self)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._shields += 1  # the block is over: nothing may interrupt it now
        self._done.set()
        if self._owner == os.getpid():
            # Stop the thread first: a signal that it is about to send must reach our handler, not the caller's.
            self._writer.send(b"\0")
            self._thread.join(2 * _POLL_S)
            _entered.remove(self)
            self.restore()
            if self._parent is not None:
                _die_with_parent(0)
        self._writer.close()
        self._reader.close()
        if self._late_signal is not None:
            signal.raise_signal(self._late_signal)  # for the handlers outside of the block
        if isinstance(error, Aborted):
            raise error.error from None

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Defer interruptions: one that comes during the block is raised at its end."""
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
            self._late_signal = None if self._sent_by_us else number
            return
        if self._error is None:
            parent_is_gone = self._parent is not None and self._parent.is_gone()
            reason = PARENT_EXIT if parent_is_gone else signal.Signals(number).name
            self._error = Aborted(self._aborted) if self._aborted else Interrupted(reason, 128 + number)
        # The thread of the outermost block gets the signals' bytes; the handlers are those of the innermost block.
        for each in _entered:
            each._is_ending = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._error is not None and not self._raised and self._shields == 0:
            self._raised = True
            raise self._error

    def abort(self, error: ProftrackError) -> None:
        """Raise `error` in the main thread; callable from any other thread."""
        self._aborted = error
        os.kill(self._owner, signal.SIGTERM)

    def _watch(self) -> None:
        """The thread: checks the parent, and ends the process if the main thread cannot."""
        signalled_at: float | None = None
        while not self._done.is_set():
            # Without a parent to check, this thread sleeps: it must not disturb the steps that are being timed.
            timeout = _POLL_SIGNALLED_S if signalled_at else _POLL_S if self._parent else None
            self._reader.settimeout(timeout)
            if self._received() and signalled_at is None:
                signalled_at = time.monotonic()
            if signalled_at is None and self._parent is not None and self._parent.is_gone():
                signalled_at = time.monotonic()
                self._sent_by_us = True
                os.kill(self._owner, signal.SIGTERM)
            grace = GRACE_S if self._is_ending else STUCK_S
            if signalled_at is not None and time.monotonic() - signalled_at > grace:
                self._give_up()

    def _received(self) -> bool:
        with contextlib.suppress(OSError):  # a timeout is one
            numbers = [number for number in self._reader.recv(64) if number in self._old_handlers]
            self._last_signal = numbers[0] if numbers else self._last_signal
            return bool(numbers)
        return False

    def _give_up(self) -> None:
        error: BaseException = Interrupted(signal.Signals(self._last_signal).name, 128 + self._last_signal)
        for each in _entered:
            error = each._aborted or each._error or error
        ending = threading.Thread(target=self._end, args=(error,), daemon=True)
        ending.start()
        ending.join(GRACE_S)
        if not self._done.is_set():
            os._exit(getattr(error, "exit_code", 1))

    def _end(self, error: BaseException) -> None:
        for each in reversed(_entered):
            each._last_resort(error)
        for farewell in reversed(_farewells):
            farewell(error)

    def listen(self) -> None:
        """Send the signals' bytes to the thread, unless the caller has an event loop that needs them."""
        free = self._old_wakeup_fd == -1
        signal.set_wakeup_fd(self._writer.fileno() if free else self._old_wakeup_fd, warn_on_full_buffer=False)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup_fd)


def abort(error: ProftrackError) -> bool:
    """End the innermost block of Interrupts with `error`; to be called from a thread other than the main one.

    If the main thread is in native code, the process ends. Returns False, without effect, outside of any block.
    """
    if not _entered:
        return False
    _entered[-1].abort(error)
    return True


@contextlib.contextmanager
def guarded(end: Callable[[BaseException | None], None], watched: Watched | None = None) -> Iterator[Interrupts]:
    """Interrupts for the block. Always calls `end`, with the error that ended the block or with None.

    `watched` is notified of an error first; if it has failed itself, its failure replaces the error that it caused
    here. `end` is shielded from interruptions.
    """

    def last_resort(error: BaseException) -> None:
        end((watched.failure() if watched else None) or error)

    with Interrupts(last_resort, watched) as interrupts:
        try:
            yield interrupts
        except BaseException as error:
            failure: ProftrackError | None = None
            with interrupts.shield():
                if watched is not None:
                    watched.fail(error)
                    failure = watched.failure()
                end(failure or (error.error if isinstance(error, Aborted) else error))
            if failure is not None and failure is not error:
                raise failure from error
            raise
        with interrupts.shield():
            end(None)


@contextlib.contextmanager
def farewell(say: Callable[[BaseException], None]) -> Iterator[None]:
    """Call `say` if the process ends inside the block without its main thread; see Interrupts."""
    _farewells.append(say)
    try:
        yield
    finally:
        _farewells.remove(say)


_farewells: list[Callable[[BaseException], None]] = []


def _die_with_parent(number: int) -> None:
    """Ask Linux to send `number` when the parent ends (0: stop that). With a shell in between, polling detects it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


# The contexts entered and not yet left, outermost first. A forked child (a DataLoader's worker) leaves all of them at
# once: it handles its own signals, and none of their bytes may reach the parent's thread, even before this cleanup.
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
