"""A chart as data: axes, and marks in the units of the axes. svg.py draws it for HTML, plots.py as PNG."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

HEIGHT = 210.0


class Tick(Struct, frozen=True):
    """A tick of an axis."""

    value: float
    label: str


class Axis(Struct, frozen=True, kw_only=True):
    """From `low` to `high`; values outside are drawn at the edge."""

    label: str
    low: float
    high: float
    ticks: list[Tick]
    log: bool = False
    grid: bool = True
    """Whether there is a line at each tick; of the y axis only."""

    def share(self, value: float) -> float:
        """Position of a value between low (0) and high (1)."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(v) for v in (max(value, self.low), low, high))
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


# ---- marks: `style` is one of the palette's ------------------------------------------------------------------------


class Line(Struct, frozen=True, kw_only=True):
    """Straight lines through points."""

    style: str
    points: list[tuple[float, float]]
    hint: str = ""
    """Tooltip."""
    points_style: str = ""
    """Fill of its points; empty: points are not drawn."""


class Box(Struct, frozen=True, kw_only=True):
    """A rectangle with text in the middle."""

    style: str
    left: float
    right: float
    low: float
    high: float
    hint: str = ""
    text: str = ""


class Dot(Struct, frozen=True, kw_only=True):
    """A circle with text above it."""

    style: str
    x: float
    y: float
    radius: float
    """In units of the picture, which is 640 units wide."""
    hint: str = ""
    text: str = ""
    name: str = ""
    """Name in the key of a PNG, which has no table beside it."""


class Stairs(Struct, frozen=True, kw_only=True):
    """Filled from the x axis up to levels[i] between edges[i] and edges[i + 1]; None leaves a gap."""

    style: str
    edges: list[float]
    levels: list[float | None]


class Band(Struct, frozen=True, kw_only=True):
    """A stretch of the x axis, shaded over the whole height."""

    style: str
    left: float
    right: float


class Words(Struct, frozen=True, kw_only=True):
    """Text near a point: `dx` to its right and `dy` below it, in units of the picture."""

    text: str
    x: float
    y: float
    anchor: Literal["start", "middle", "end"] = "start"
    dx: float = 0.0
    dy: float = 0.0


Mark = Line | Box | Dot | Stairs | Band | Words


class Key(Struct, frozen=True):
    """What a style stands for."""

    style: str
    label: str


class Chart(Struct, frozen=True, kw_only=True):
    """Axes, marks on them, and what the colours mean."""

    summary: str
    """Description for screen readers."""
    title: str = ""
    """Shown above a PNG; pages have their own headings."""
    x: Axis
    y: Axis
    marks: list[Mark]
    key: list[Key] = []
    height: float = HEIGHT


# ---- ticks ---------------------------------------------------------------------------------------------------------


def round_ticks(high: float, most: int = 5) -> list[float]:
    """0 and up to `most` multiples of 1, 2 or 5 times a power of ten, the last one at or above `high`."""
    if not high > 0:
        return [0.0, 1.0]
    rough = high / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`; every second or third of them if there are many."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    skip = max(1, math.ceil((last - first + 1) / 7))
    return [10.0**power for power in range(first, last + 1, skip)]


def log_ticks(low: float, high: float) -> list[float]:
    """`decades`, plus 2 and 5 times each if there are fewer than three."""
    powers_of_ten = decades(low, high)
    if len(powers_of_ten) >= 3:
        return powers_of_ten
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**power for power in powers for m in (1, 2, 5) if low * 0.999 <= m * 10.0**power <= high * 1.001]
