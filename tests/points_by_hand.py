"""Points of a sweep without processes: made by a function of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from proftrack.errors import ProftrackError
from proftrack.frontends.sweep.measuring import Measured, Request
from proftrack.record import Record


def by_hand(measure: Callable[[dict[str, str], Path, Path], Record]) -> type:
    """Stands in for sweep's `Measuring`: points are made by a function of overrides, folder and log."""

    class ByHand:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> ByHand:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def begin(self, _: object) -> None:
            pass

        def measure(self, requests: Sequence[Request]) -> Iterator[Measured]:
            for request in requests:
                try:
                    record = measure(request.spec.overrides, request.folder, request.log)
                except ProftrackError as error:
                    yield Measured(request=request, error=str(error))
                else:
                    yield Measured(request=request, record=record)

    return ByHand
