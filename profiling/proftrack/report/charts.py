"""Charts as coordinates: what report.html draws as SVG. Every number is a position in the chart's own units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

WIDTH, HEIGHT = 640.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 24.0, 10.0, 40.0


class Tick(Struct, frozen=True):
    """A mark of an axis."""

    at: float
    label: str


class Shape(Struct, frozen=True, kw_only=True):
    """A piece of a chart; which of the numbers count depends on `kind` (path, rect, circle, line, text)."""

    kind: str
    style: str
    """CSS class."""
    path: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    text: str = ""
    """Shown by a text, and as the hint of other shapes."""


class Chart(Struct, frozen=True, kw_only=True):
    """Axes and shapes."""

    summary: str
    """What a person who cannot see it should know."""
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    shapes: list[Shape]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


class Scale(Struct, frozen=True):
    """Values to positions: `low` at `first`, `high` at `last`; logarithmic where that is asked for."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value, rounded to what a screen can show; outside values stay at the edge."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(v) for v in (max(value, self.low), low, high))
        share = (value - low) / (high - low) if high > low else 0.0
        return round(self.first + min(max(share, 0.0), 1.0) * (self.last - self.first), 1)


def x_scale(low: float, high: float, *, log: bool = False) -> Scale:
    """Over the width that the axes leave."""
    return Scale(low, high, _LEFT, WIDTH - _RIGHT, log)


def y_scale(low: float, high: float, *, height: float = HEIGHT, log: bool = False) -> Scale:
    """Over the height that the axes leave, upwards."""
    return Scale(low, high, height - _BOTTOM, _TOP, log)


def round_ticks(high: float, most: int = 5) -> list[float]:
    """0 and up to `most` more values of 1, 2 or 5 times a power of ten, the last one at `high` or behind it."""
    if not high > 0:
        return [0.0, 1.0]
    rough = high / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`; of many every second or third."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    skip = max(1, math.ceil((last - first + 1) / 7))
    return [10.0**power for power in range(first, last + 1, skip)]


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def steps_path(xs: Sequence[float], ys: Sequence[float], base: float) -> str:
    """A filled staircase: level ys[i] from xs[i] to xs[i + 1]."""
    points = [(xs[0], base)]
    for i, y in enumerate(ys):
        points += [(xs[i], y), (xs[i + 1], y)]
    return polyline([*points, (xs[-1], base)]) + "Z"
