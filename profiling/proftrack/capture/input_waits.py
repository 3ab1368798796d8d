"""How long steps wait for their data, measured without the profiler.

While steps are timed, each call that gets the next batch from a DataLoader, or starts its iterator, is timed in the
thread that runs the steps; so is what the program marks with `proftrack.loading`. That adds under a microsecond a call.

    step |--next(loader)--|launch launch launch| step ...
          --- waited ---
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

from proftrack.record.figures import LOADING_REGION

_Item = TypeVar("_Item")


class InputWaits:
    """Adds up what one thread waits for data: the one that makes it, while it is entered.

    A loader that gets its data from another one counts once. `clock` returns monotonic nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.calls = 0
        """Number of waits so far."""
        self.batches_ahead = 0
        """How many batches the loaders that were waited for may have had ready, the most."""
        self._clock = clock
        self._thread = threading.get_ident()
        self._inside = False
        self._waited_ns = self._told_ns = 0
        self._open = contextlib.ExitStack()
        self._last: Any = None

    def __enter__(self) -> InputWaits:
        from proftrack.capture import compat

        self._open.enter_context(compat.around_each_batch(self._around))
        _entered.append(self)
        self._open.callback(_entered.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._last = None
        self._open.close()

    def lap_us(self) -> float:
        """The time waited since the last call, in microseconds."""
        lap, self._told_ns = self._waited_ns - self._told_ns, self._waited_ns
        return lap / 1e3

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which the thread waits for data."""
        if not self._counts:
            yield
            return
        self._inside = True
        begin = self._clock()
        try:
            yield
        finally:
            self._add(begin)

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """A context in which no wait counts."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    @property
    def _counts(self) -> bool:
        return not self._inside and threading.get_ident() == self._thread

    def _add(self, begin: int) -> None:
        self._waited_ns += self._clock() - begin
        self.calls += 1
        self._inside = False

    def _look_at(self, loader: Any) -> None:
        from proftrack.capture import compat

        self._last = loader
        self.batches_ahead = max(self.batches_ahead, compat.batches_ahead(loader))

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, timed. Without `waiting`, which would triple its cost."""

        @functools.wraps(call)
        def timed(loader: Any) -> Any:
            if not self._counts:
                return call(loader)
            if loader is not self._last:
                self._look_at(loader)
            self._inside = True
            begin = self._clock()
            try:
                return call(loader)
            finally:
                self._add(begin)

        return timed


_entered: list[InputWaits] = []
"""Those that are counting; the last one gets what the program marks."""


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """A context in which the program gets data: counted while steps are timed, a region while they are recorded."""
    from proftrack.capture import compat

    with contextlib.ExitStack() as stack:
        if _entered:
            stack.enter_context(_entered[-1].waiting())
        if compat.profiler_is_on():
            from torch.profiler import record_function

            stack.enter_context(record_function(LOADING_REGION))
        yield


_END = object()


class _Batches(Generic[_Item]):
    """Any iterable; getting its next item is marked. Its own attributes stay in reach."""

    def __init__(self, batches: Iterable[_Item]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[_Item]:
        with _marked():
            return _Batches(iter(self._batches))

    def __next__(self) -> _Item:
        with _marked():
            item = next(self._batches, _END)  # type: ignore[call-overload]  # it is an iterator if this is called
        if item is _END:
            raise StopIteration
        return item  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # not set yet: this is being copied
            raise AttributeError(name)
        return getattr(self._batches, name)


@overload
def loading() -> AbstractContextManager[None]: ...


@overload
def loading(batches: Iterable[_Item]) -> _Batches[_Item]: ...


def loading(batches: Iterable[_Item] | None = None) -> AbstractContextManager[None] | _Batches[_Item]:
    """Mark where a program waits for its data, if that is not a DataLoader, whose waits are known.

        for batch in proftrack.loading(pipeline):     any iterable: getting the next item is a wait
        with proftrack.loading():                     or whatever runs in here
            batch = queue.get()

    The time that a step waits there is measured without the profiler, and the verdict rests on it; in a trace, it is a
    region. If nothing is being measured, this does nothing.
    """
    return _marked() if batches is None else _Batches(batches)
