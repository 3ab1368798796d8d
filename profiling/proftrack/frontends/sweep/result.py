"""sweep.json, the source of the sweep's table, plot and parent run. Times in microseconds per step."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from proftrack.frontends.batch.result import Figures


class Point(Figures, kw_only=True):
    """The figures of one point, and where they come from."""

    key: str
    label: str
    values: dict[str, Any]
    """The values of the swept parameters."""
    found_by: Literal["grid", "bisection"] = "grid"
    source: Literal["measured", "earlier"] = "measured"
    """earlier: reused from an earlier sweep."""
    seconds: float | None = None
    """Time spent on measuring it; includes the start of its process if it had its own."""


class Crossover(Struct, kw_only=True):
    """Where B reaches half of T along one parameter."""

    param: str
    low: float
    """The crossover is between `low` and `high`."""
    high: float
    estimate: float
    """From interpolating u between the two, on a log scale."""
    low_regime: str
    high_regime: str
    tolerance: float
    """The search stops when high / low is at most this."""
    runs: int
    """Points measured (or reused) to find it, including those of the grid."""


class Sweep(Struct, kw_only=True):
    """sweep.json."""

    schema_version: int = 1
    experiment: str
    title: str
    device: str
    axes: dict[str, list[Any]]
    fixed: dict[str, Any]
    """The other parameters, the same at all points."""
    points: list[Point] = []
    crossover: Crossover | None = None
    """None if it was not requested, not found, or left open by inconclusive points; the remarks say which."""
    remarks: list[str] = []

    @property
    def failed(self) -> list[Point]:
        """Points that could not be measured."""
        return [point for point in self.points if point.error is not None]

    @property
    def inconclusive(self) -> list[Point]:
        """Points whose figures give no verdict."""
        return [point for point in self.ordered() if point.is_inconclusive]

    @property
    def param(self) -> str | None:
        """The swept parameter if there is only one, else None."""
        return next(iter(self.axes)) if len(self.axes) == 1 else None

    def ordered(self) -> list[Point]:
        """The points, sorted by value along a single numeric parameter, else in the order of the request."""
        param = self.param
        if param is not None and all(is_number(point.values[param]) for point in self.points):
            return sorted(self.points, key=lambda point: float(point.values[param]))
        return list(self.points)


def is_number(value: Any) -> bool:
    """Whether a parameter's value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
