"""Progress of a capture: one bar per phase on a terminal, one line per phase in a log.

Each shows how long the phase has taken and, after `expect`, roughly how much time is left overall. A thread redraws
phases in which no step is timed (`live`). Everything else is drawn only by `phase` and `advance`, since a thread would
take the interpreter's lock from the steps being timed.
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
    """Progress that shows nothing."""

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Iterator[None]:
        """See Progress."""
        yield

    def expect(self, seconds: float) -> None:
        """See Progress."""

    def advance(self, amount: int = 1) -> None:
        """See Progress."""


class Lines:
    """One line per finished phase: its name and duration. Long `live` phases are also announced when they start."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._end = _End()

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Iterator[None]:
        """Print the line; if the phase raises, the line says that it failed."""
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
        """From now on, lines also show the time left."""
        self._end.set(seconds)

    def _announce(self, text: str, over: threading.Event) -> None:
        if not over.wait(_PATIENCE_SECONDS):
            self._print(f"{text} ...")

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the run
            print(f"proftrack: {line}", file=self._stream, flush=True)

    def advance(self, amount: int = 1) -> None:
        """Lines show whole phases only."""


class Bars:
    """One bar per phase on a terminal."""

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
        """Show the phase while it runs; at its end, leave a full bar and its duration."""
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
        """From now on, bars also show the time left."""
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
    """When all phases are expected to be over."""

    def __init__(self) -> None:
        self._at: float | None = None

    def set(self, seconds: float) -> None:
        self._at = time.perf_counter() + seconds

    def text(self) -> str:
        """`about 12 s left`; empty if unknown or less than a second."""
        left = (self._at or 0.0) - time.perf_counter()
        return f"about {left:.0f} s left" if left >= 1 else ""


def progress() -> Progress:
    """Progress on stderr: bars on a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """After two seconds, say on stderr what is going on and for how long already.

    On a terminal the line is redrawn and removed at the end; elsewhere one line is printed. Not for timed code, since a
    thread draws it.
    """
    with beside(lambda over: _show_waiting(text, over)):
        yield


def _show_waiting(text: str, over: threading.Event) -> None:
    begin, live = time.perf_counter(), sys.stderr.isatty()
    if over.wait(_PATIENCE_SECONDS):
        return
    with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the run
        if not live:
            print(f"proftrack: {text} ...", file=sys.stderr, flush=True)
            return
        while not over.wait(_REDRAW_SECONDS):
            print(f"\r{text} {time.perf_counter() - begin:.1f} s ", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
