"""Signals and the parent's death as an exception in the main thread, so that a run always gets its last status.

    SIGTERM, SIGINT, SIGHUP ─┐
    the parent ended ────────┼─> an exception in the main thread ──> the run ends as KILLED, or FAILED after `abort`
    abort(error) ────────────┘          │
                                        ├─ not raised within STUCK_S (native code)  ─┐
                                        └─ not over within GRACE_S                  ─┴─> `last_resort`, then exit

Python runs its handlers in the main thread between two bytecodes only: a step of minutes, a hung kernel or a long
compilation would keep a signal waiting. Therefore a thread reads the signal's byte from the wakeup descriptor as well,
and ends the process where the main thread cannot.
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
    """A signal, or the end of the process that started this one. No `except Exception` of a workload swallows it."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        """SIGTERM, SIGINT, SIGHUP or `parent exit`."""
        self.exit_code = exit_code


class Aborted(BaseException):
    """An error of `abort` on its way out of the block. No `except Exception` of a workload swallows it either."""

    def __init__(self, error: ProftrackError) -> None:
        super().__init__(str(error))
        self.error = error
        """What leaves the block."""


class Interrupts:
    """While this context is entered, signals raise Interrupted in the main thread; leaving it restores the handlers.

    `parent`: whose end counts as an interruption too. `last_resort` is called with what is to be raised, in another
    thread, where the main thread cannot raise it, or has not come to an end GRACE_S later; the process then exits.
    Outside the main thread signals are left alone, and so are those that the caller ignores (nohup).
    """

    def __init__(
        self, last_resort: Callable[[BaseException], None] = lambda _: None, parent: Watched | None = None
    ) -> None:
        self._last_resort = last_resort
        self._parent = parent
        self._error: BaseException | None = None
        """What ends the block."""
        self._aborted: ProftrackError | None = None
        """What `abort` was given."""
        self._heard = False
        """Whether the main thread has begun to end this block, or one within it."""
        self._raised = False
        self._shields = 0
        self._number = int(signal.SIGTERM)
        """Of the last signal that the thread has seen."""
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
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
        if isinstance(error, Aborted):
            raise error.error from None

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
        if self._error is None:
            by_parent = self._parent is not None and self._parent.is_gone()
            reason = PARENT_EXIT if by_parent else signal.Signals(number).name
            self._error = Aborted(self._aborted) if self._aborted else Interrupted(reason, 128 + number)
        # The bytes of signals go to the outermost block's thread, the handlers are those of the innermost.
        for each in _entered:
            each._heard = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._error is not None and not self._raised and self._shields == 0:
            self._raised = True
            raise self._error

    def abort(self, error: ProftrackError) -> None:
        """Raise `error` in the main thread, from any other."""
        self._aborted = error
        os.kill(self._owner, signal.SIGTERM)

    def _watch(self) -> None:
        """The thread: looks at the parent, and ends the process where the main thread cannot."""
        signalled_at: float | None = None
        while not self._done.is_set():
            # Without a parent to look at, this thread sleeps: it takes nothing from the steps that are being timed.
            waiting = _POLL_SIGNALLED_S if signalled_at else _POLL_S if self._parent else None
            self._reader.settimeout(waiting)
            if self._received() and signalled_at is None:
                signalled_at = time.monotonic()
            if signalled_at is None and self._parent is not None and self._parent.is_gone():
                signalled_at = time.monotonic()
                self._told = True
                os.kill(self._owner, signal.SIGTERM)
            grace = GRACE_S if self._heard else STUCK_S
            if signalled_at is not None and time.monotonic() - signalled_at > grace:
                self._give_up()

    def _received(self) -> bool:
        with contextlib.suppress(OSError):  # a timeout is one
            numbers = [number for number in self._reader.recv(64) if number in self._before]
            self._number = numbers[0] if numbers else self._number
            return bool(numbers)
        return False

    def _give_up(self) -> None:
        error: BaseException = Interrupted(signal.Signals(self._number).name, 128 + self._number)
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
        """Have the bytes of signals sent to the thread, unless an event loop of the caller's lives on them."""
        free = self._fd_before == -1
        signal.set_wakeup_fd(self._writer.fileno() if free else self._fd_before, warn_on_full_buffer=False)

    def restore(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)


def abort(error: ProftrackError) -> bool:
    """End what runs in the innermost block of Interrupts with `error`, from another thread than the main one.

    Where the main thread is in native code, the process ends. False where no block is entered: nothing happens then.
    """
    if not _entered:
        return False
    _entered[-1].abort(error)
    return True


@contextlib.contextmanager
def guarded(end: Callable[[BaseException | None], None], watched: Watched | None = None) -> Iterator[Interrupts]:
    """Interrupts for the block, and `end` called with what ended it, None where nothing did, whatever happens.

    Those that are `watched` hear of an error first; where one of them has failed itself, its failure takes the place of
    what came of it here. No interruption cuts `end` in two.
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
    """Have `say` called where the process ends inside the block without the main thread; see Interrupts."""
    _farewells.append(say)
    try:
        yield
    finally:
        _farewells.remove(say)


_farewells: list[Callable[[BaseException], None]] = []


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
