"""Find where the regime changes along one parameter, by bisection between two points on a log scale.

u = B / T tells on which side a point is: below a half the host limits the step, from a half on the device does. u may
rise unevenly (kernels change with the size); the search finds one place where u passes a half.

An inconclusive point is on neither side. If one is between the nearest two conclusive points, no place is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from proftrack.errors import ProftrackError, UsageError
from proftrack.frontends.sweep.result import Crossover, Point, is_number
from proftrack.text import listed

HALF = 0.5
TOLERANCE = 1.25
_MOST_RUNS = 30
_MOST_LABELS = 6
MEASURE_BETTER = "close other programs and measure again with --fresh, or for longer with -P min_seconds=2"
_ROUNDING = 1.08
"""A midpoint may differ from the exact one by this factor, to be a rounder number."""


class Bracket(NamedTuple):
    """Two neighbouring points with u on either side of a half."""

    low: Point
    high: Point


def brackets(points: Sequence[Point], param: str) -> list[Bracket]:
    """The pairs of neighbours between which u passes a half; inconclusive points are ignored."""
    clear = [point for point in _sorted(points, param) if not point.is_inconclusive]
    return [Bracket(a, b) for a, b in pairwise(clear) if _side(a) != _side(b)]


def search(
    points: Sequence[Point], param: str, measure: Callable[[Any], Point], *, tolerance: float = TOLERANCE
) -> Crossover:
    """Bisect until the two sides are within a factor of `tolerance`; `measure` gives the point at a value.

    Raises ProftrackError if u does not pass a half between any two points, or if inconclusive points are in between;
    UsageError if the parameter's values are not numbers.
    """
    if not all(is_number(point.values[param]) for point in points):
        raise UsageError(
            f"--find-crossover needs numbers, and some values of {param} are not", "sweep another parameter"
        )
    crossings = brackets(points, param)
    if not crossings:
        raise _no_bracket(points, param)
    low, high = bracket = crossings[0]
    doubtful = [p for p in _sorted(points, param) if p.is_inconclusive and _is_inside(p, bracket, param)]
    if doubtful:
        raise _left_open(bracket, doubtful, param)
    runs = len(points)
    while (middle := between(low.values[param], high.values[param], tolerance)) is not None and runs < _MOST_RUNS:
        point = measure(middle)
        runs += 1
        if point.busy_fraction is None:
            raise ProftrackError(f"the crossover was not found: {param}={middle} could not be measured ({point.error})")
        if point.is_inconclusive:
            raise _left_open(Bracket(low, high), [point], param)
        low, high = (point, high) if _side(point) == _side(low) else (low, point)
    return Crossover(
        param=param,
        low=float(low.values[param]),
        high=float(high.values[param]),
        estimate=_interpolated(low, high, param),
        low_regime=low.regime,
        high_regime=high.regime,
        tolerance=tolerance,
        runs=runs,
    )


def between(low: Any, high: Any, tolerance: float) -> Any | None:
    """The value to measure next: the geometric mean; None if low and high are close enough.

    For whole numbers, the roundest one near it (with the most factors of two): hardware works in tiles, and an odd size
    behaves differently from the even sizes beside it.
    """
    if low > 0 and high / low <= tolerance:
        return None
    middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
    if not isinstance(low, int):
        return middle if low < middle < high else None
    candidates = [n for n in range(math.ceil(middle / _ROUNDING), math.floor(middle * _ROUNDING) + 1) if low < n < high]
    candidates = candidates or [n for n in (round(middle), math.floor(middle), math.ceil(middle)) if low < n < high]
    return max(candidates, key=lambda n: (n & -n, -abs(n - middle)), default=None)


def _side(point: Point) -> bool:
    fraction = point.busy_fraction
    return fraction is not None and fraction >= HALF


def _interpolated(low: Point, high: Point, param: str) -> float:
    a, b = float(low.values[param]), float(high.values[param])
    u, v = low.busy_fraction or 0.0, high.busy_fraction or 0.0
    share = (HALF - u) / (v - u) if v != u else 0.5
    return a * (b / a) ** share if a > 0 else a + (b - a) * share


def _sorted(points: Sequence[Point], param: str) -> list[Point]:
    measured = (point for point in points if point.busy_fraction is not None)
    return sorted(measured, key=lambda point: float(point.values[param]))


def _is_inside(point: Point, bracket: Bracket, param: str) -> bool:
    low, value, high = (float(p.values[param]) for p in (bracket.low, point, bracket.high))
    return low < value < high


def _left_open(bracket: Bracket, between: Sequence[Point], param: str) -> ProftrackError:
    low, high = bracket.low.values[param], bracket.high.values[param]
    are = "is" if len(between) == 1 else "are"
    return ProftrackError(
        f"crossover not located: B reaches half of T somewhere between {param}={low} and {param}={high}, "
        f"but {_labels(between)} between them {are} inconclusive",
        MEASURE_BETTER,
    )


def _labels(points: Sequence[Point]) -> str:
    shown = [point.label for point in points[:_MOST_LABELS]]
    more = [f"{len(points) - _MOST_LABELS} more"] if len(points) > _MOST_LABELS else []
    return listed([*shown, *more])


def _no_bracket(points: Sequence[Point], param: str) -> ProftrackError:
    clear = [point for point in _sorted(points, param) if not point.is_inconclusive]
    doubtful = [point for point in _sorted(points, param) if point.is_inconclusive]
    if doubtful:
        are = "is" if len(doubtful) == 1 else "are"
        problem = f"crossover not located: {_labels(doubtful)} {are} inconclusive"
        return ProftrackError(problem, MEASURE_BETTER)
    if not clear:
        return ProftrackError("no crossover: B and T are not known at any point")
    values = [point.values[param] for point in clear]
    word = "above" if _side(clear[0]) else "below"
    return ProftrackError(
        f"no crossover between {param}={min(values)} and {param}={max(values)}: B is {word} half of T at every point",
        "sweep a wider range",
    )
