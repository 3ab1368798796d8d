"""What a sweep found: sweep.json, and what its table, plot and parent run are made of. Times in microseconds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from proftrack.frontends.batch.result import Figures


class Point(Figures, kw_only=True):
    """One point."""

    key: str
    label: str
    values: dict[str, Any]
    """Of the swept parameters."""
    found_by: Literal["grid", "bisection"] = "grid"
    source: Literal["measured", "earlier"] = "measured"
    """earlier: taken over from a sweep before."""
    seconds: float | None = None
    """What measuring it took, with the start of its process where it had one of its own."""


class Crossover(Struct, kw_only=True):
    """Where B reaches half of T along one parameter."""

    param: str
    low: float
    """Between these two values it does."""
    high: float
    estimate: float
    """By interpolating u between the two, on a log scale."""
    low_regime: str
    high_regime: str
    tolerance: float
    """What high / low was to come to."""
    runs: int
    """Points that were measured (or taken over) for it, those of the grid included."""


class Sweep(Struct, kw_only=True):
    """sweep.json."""

    schema_version: int = 1
    experiment: str
    title: str
    device: str
    axes: dict[str, list[Any]]
    fixed: dict[str, Any]
    """The other parameters, which all points share."""
    points: list[Point] = []
    crossover: Crossover | None = None
    """None where it was not asked for, not found, or where inconclusive points leave it open: the remarks say which."""
    remarks: list[str] = []

    @property
    def failed(self) -> list[Point]:
        """Points that could not be measured."""
        return [point for point in self.points if point.error is not None]

    @property
    def inconclusive(self) -> list[Point]:
        """Points whose figures carry no verdict."""
        return [point for point in self.ordered() if point.is_inconclusive]

    @property
    def param(self) -> str | None:
        """The swept parameter, if there is but one."""
        return next(iter(self.axes)) if len(self.axes) == 1 else None

    def ordered(self) -> list[Point]:
        """Points in order of their values; along one parameter of numbers by size, else as they were asked for."""
        param = self.param
        if param is not None and all(is_number(point.values[param]) for point in self.points):
            return sorted(self.points, key=lambda point: float(point.values[param]))
        return list(self.points)


def is_number(value: Any) -> bool:
    """Whether a parameter's value has a size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def load(path: Path) -> Sweep:
    """Read sweep.json. Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Sweep)
