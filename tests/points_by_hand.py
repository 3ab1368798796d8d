"""Points of a sweep without processes: made by a function of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from proftrack.errors import ProftrackError
from proftrack.frontends.sweep.measuring import Asked, Measured
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

        def measure(self, asked: Sequence[Asked]) -> Iterator[Measured]:
            for each in asked:
                try:
                    record = measure(each.where.overrides, each.folder, each.log)
                except ProftrackError as error:
                    yield Measured(asked=each, error=str(error))
                else:
                    yield Measured(asked=each, record=record)

    return ByHand
