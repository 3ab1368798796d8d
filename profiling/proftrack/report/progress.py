"""What a capture is doing, for whoever waits: a bar for each phase on a terminal, a line for each in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, Protocol

_REDRAW_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0


class Progress(Protocol):
    """Phases, one after the other; `advance` says that some more of the present one is done."""

    def phase(self, text: str, total: int | None = None) -> contextlib.AbstractContextManager[None]:
        """A stretch of work, of `total` parts where that is known."""

    def advance(self, amount: int = 1) -> None:
        """`amount` more parts are done. Cheap: it is called between steps that are timed."""


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None) -> Iterator[None]:
        """Do nothing around the phase."""
        yield

    def advance(self, amount: int = 1) -> None:
        """Do nothing."""


class Lines:
    """One line for each phase when it is over: its name and how long it took."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None) -> Iterator[None]:
        """Write the line; a phase that raised is said to have failed."""
        begin = time.perf_counter()
        ending = "failed after "
        try:
            yield
            ending = ""
        finally:
            with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the run
                print(
                    f"proftrack: {text:<28} {ending}{time.perf_counter() - begin:.1f} s", file=self._stream, flush=True
                )

    def advance(self, amount: int = 1) -> None:
        """Do nothing."""


class Bars:
    """A bar for each phase on a terminal.

    Nothing is drawn but by `phase` and `advance`: a thread that redraws on its own would take the interpreter's lock
    from the steps that are being timed.
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._bars = Progress(
            SpinnerColumn(finished_text="[green]\u2713"),
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.elapsed:.1f} s"),
            console=console or Console(stderr=True),
            auto_refresh=False,
        )
        self._task: Any = None
        self._pending = 0
        self._drawn = 0.0

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None) -> Iterator[None]:
        """Show the phase while it runs, and leave its bar full and its time behind it."""
        with self._bars:
            task = self._bars.add_task(text, total=total)
            self._task, self._pending = task, 0
            self._bars.refresh()
            try:
                yield
                self._bars.update(task, total=total or 1, completed=total or 1)
            except BaseException:
                self._bars.update(task, description=f"{text} failed")
                raise
            finally:
                self._task = None
                self._bars.refresh()
        self._bars.remove_task(task)

    def advance(self, amount: int = 1) -> None:
        """Redraw, at most ten times a second."""
        self._pending += amount
        now = time.perf_counter()
        if self._task is None or now - self._drawn < _REDRAW_SECONDS:
            return
        self._bars.advance(self._task, self._pending)
        self._bars.refresh()
        self._pending, self._drawn = 0, now


def progress() -> Progress:
    """What fits stderr: bars on a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say on stderr what is done and for how long already, once it has taken two seconds.

    On a terminal the line is redrawn and goes away at the end; elsewhere there is one line. Not for what is timed: a
    thread draws it.
    """
    over = threading.Event()
    thread = threading.Thread(target=_tell, args=(text, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tell(text: str, over: threading.Event) -> None:
    begin, live = time.perf_counter(), sys.stderr.isatty()
    if over.wait(_PATIENCE_SECONDS):
        return
    with contextlib.suppress(OSError, ValueError):  # a closed stream must not matter
        if not live:
            print(f"proftrack: {text} ...", file=sys.stderr, flush=True)
            return
        while not over.wait(_REDRAW_SECONDS):
            print(f"\r{text} {time.perf_counter() - begin:.1f} s ", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
