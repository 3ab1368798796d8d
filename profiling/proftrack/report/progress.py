"""What a capture is doing, for whoever waits: a bar for each phase on a terminal, a line for each in a log.

Each shows how long it has taken and, once `expect` was told, about how much is left in all. A phase that is not timed
(`live`) is redrawn by a thread; nothing else is drawn but by `phase` and `advance`, since a thread would take the
interpreter's lock from the steps that are being timed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from proftrack.threads import beside

if TYPE_CHECKING:
    from proftrack.capture.measurement import Progress

_REDRAW_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Iterator[None]:
        """Do nothing around the phase."""
        yield

    def expect(self, seconds: float) -> None:
        """Do nothing."""

    def advance(self, amount: int = 1) -> None:
        """Do nothing."""


class Lines:
    """One line for each phase when it is over: its name and how long it took. A long one is announced."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._end = _End()

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Iterator[None]:
        """Write the line; a phase that raised is said to have failed."""
        begin = time.perf_counter()
        ending = "failed after "
        with contextlib.ExitStack() as stack:
            if live:
                stack.enter_context(beside(lambda over: self._announce(text, over)))
            try:
                yield
                ending = ""
            finally:
                stack.close()
                left = "" if ending else self._end.text()
                self._print(f"{text:<28} {ending}{time.perf_counter() - begin:.1f} s{left and f', {left}'}")

    def expect(self, seconds: float) -> None:
        """Lines from now on say what is left."""
        self._end.set(seconds)

    def _announce(self, text: str, over: threading.Event) -> None:
        if not over.wait(_PATIENCE_SECONDS):
            self._print(f"{text} ...")

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the run
            print(f"proftrack: {line}", file=self._stream, flush=True)

    def advance(self, amount: int = 1) -> None:
        """Do nothing."""


class Bars:
    """A bar for each phase on a terminal."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._bars = Progress(
            SpinnerColumn(finished_text="[green]\u2713"),
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.elapsed:.1f} s{task.fields[left]}"),
            console=console or Console(stderr=True),
            auto_refresh=False,
        )
        self._task: Any = None
        self._pending = 0
        self._drawn = 0.0
        self._end = _End()

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Iterator[None]:
        """Show the phase while it runs, and leave its bar full and its time behind it."""
        with self._bars:
            task = self._bars.add_task(text, total=total, left=self._left())
            self._task, self._pending = task, 0
            self._bars.refresh()
            try:
                with beside(self._redraw) if live else contextlib.nullcontext():
                    yield
                self._bars.update(task, left="")
                self._bars.update(task, total=total or 1, completed=total or 1)
            except BaseException:
                self._bars.update(task, description=f"{text} failed")
                raise
            finally:
                self._task = None
                self._bars.refresh()
        self._bars.remove_task(task)

    def expect(self, seconds: float) -> None:
        """Bars from now on show what is left."""
        self._end.set(seconds)

    def _left(self) -> str:
        text = self._end.text()
        return f" ({text})" if text else ""

    def _redraw(self, over: threading.Event) -> None:
        while not over.wait(_REDRAW_SECONDS):
            self._bars.refresh()

    def advance(self, amount: int = 1) -> None:
        """Redraw, at most ten times a second."""
        self._pending += amount
        now = time.perf_counter()
        if self._task is None or now - self._drawn < _REDRAW_SECONDS:
            return
        self._bars.update(self._task, advance=self._pending, left=self._left())
        self._bars.refresh()
        self._pending, self._drawn = 0, now


class _End:
    """When all of it is expected to be over."""

    def __init__(self) -> None:
        self._at: float | None = None

    def set(self, seconds: float) -> None:
        self._at = time.perf_counter() + seconds

    def text(self) -> str:
        """`about 12 s left`; nothing where it is not known, or less than a second."""
        left = (self._at or 0.0) - time.perf_counter()
        return f"about {left:.0f} s left" if left >= 1 else ""


def progress() -> Progress:
    """What fits stderr: bars on a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say on stderr what is done and for how long already, once it has taken two seconds.

    On a terminal the line is redrawn and goes away at the end; elsewhere there is one line. Not for what is timed: a
    thread draws it.
    """
    with beside(lambda over: _tell(text, over)):
        yield


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
