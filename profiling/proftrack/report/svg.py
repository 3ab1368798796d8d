"""A chart as the shapes of an SVG, with values converted to positions in the picture. The template writes the SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from proftrack.report.charts import Axis, Band, Box, Chart, Dot, Line, Mark, Stairs, Words

WIDTH = 640.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, WIDTH - 24.0, 10.0, 40.0
_POINT, _LINE_HEIGHT = 2.5, 12.0


class At(Struct, frozen=True):
    """A tick's place along its axis, and its label."""

    at: float
    label: str


class Shape(Struct, frozen=True, kw_only=True):
    """A shape; `kind` (path, rect, circle, text) determines which numbers it uses."""

    kind: str
    style: str
    """CSS class."""
    path: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    text: str = ""
    """The content of a text, the tooltip of any other shape."""


class Drawing(Struct, frozen=True, kw_only=True):
    """A chart with everything at its position."""

    summary: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_label: str
    y_label: str
    x_ticks: list[At]
    y_ticks: list[At]
    shapes: list[Shape]


class _Places:
    """Converts values to positions, rounded to what a screen can show."""

    def __init__(self, chart: Chart) -> None:
        self._x, self._y = chart.x, chart.y
        self.bottom = chart.height - BOTTOM

    def x(self, value: float) -> float:
        return round(LEFT + self._x.share(value) * (RIGHT - LEFT), 1)

    def y(self, value: float) -> float:
        return round(self.bottom + self._y.share(value) * (TOP - self.bottom), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):g} {self.y(y):g}" for x, y in points)


def draw(chart: Chart) -> Drawing:
    """The chart's shapes, from back to front."""
    places = _Places(chart)
    return Drawing(
        summary=chart.summary,
        width=WIDTH,
        height=chart.height,
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=places.bottom,
        x_label=_titled(chart.x),
        y_label=_titled(chart.y),
        x_ticks=[At(places.x(tick.value), tick.label) for tick in chart.x.ticks],
        y_ticks=[At(places.y(tick.value), tick.label) for tick in chart.y.ticks],
        shapes=[shape for mark in chart.marks for shape in _shapes(mark, places)],
    )


def _titled(axis: Axis) -> str:
    return f"{axis.label} (log)" if axis.log else axis.label


def _shapes(mark: Mark, places: _Places) -> Iterator[Shape]:
    if isinstance(mark, Line):
        yield Shape(kind="path", style=mark.style, path=places.path(mark.points), text=mark.hint)
        for x, y in mark.points if mark.points_style else ():
            yield Shape(kind="circle", style=mark.points_style, x=places.x(x), y=places.y(y), width=_POINT)
    elif isinstance(mark, Box):
        yield _rect(
            mark.style, places.x(mark.left), places.x(mark.right), places.y(mark.high), places.y(mark.low), mark.hint
        )
        lines = mark.text.splitlines()
        x, y = places.x((mark.left + mark.right) / 2), places.y((mark.low + mark.high) / 2)
        for i, line in enumerate(lines):
            yield _text("c-mid", x, y + 4 + _LINE_HEIGHT * (i - (len(lines) - 1) / 2), line)
    elif isinstance(mark, Dot):
        x, y = places.x(mark.x), places.y(mark.y)
        yield Shape(kind="circle", style=mark.style, x=x, y=y, width=mark.radius, text=mark.hint)
        if mark.text:
            yield _text("c-mid", x, y - mark.radius - 3, mark.text)
    elif isinstance(mark, Stairs):
        yield Shape(kind="path", style=mark.style, path=_stairs(mark, places))
    elif isinstance(mark, Band):
        yield _rect(mark.style, places.x(mark.left), places.x(mark.right), TOP, places.bottom, "")
    else:
        yield _words(mark, places)


def _rect(style: str, left: float, right: float, top: float, bottom: float, hint: str) -> Shape:
    return Shape(kind="rect", style=style, x=left, y=top, width=right - left, height=bottom - top, text=hint)


def _text(style: str, x: float, y: float, text: str) -> Shape:
    return Shape(kind="text", style=style, x=x, y=y, text=text)


def _words(mark: Words, places: _Places) -> Shape:
    style = {"start": "c-start", "middle": "c-mid", "end": "c-end"}[mark.anchor]
    return _text(style, places.x(mark.x) + mark.dx, places.y(mark.y) + mark.dy, mark.text)


def _stairs(mark: Stairs, places: _Places) -> str:
    """A closed outline for each stretch without a gap."""
    parts = []
    for has_level, stretch in groupby(range(len(mark.levels)), key=lambda i: mark.levels[i] is not None):
        at = list(stretch)
        if not has_level:
            continue
        outline = f"M{places.x(mark.edges[at[0]]):g} {places.bottom:g}"
        for i in at:
            outline += f"V{places.y(mark.levels[i] or 0.0):g}H{places.x(mark.edges[i + 1]):g}"
        parts.append(f"{outline}V{places.bottom:g}Z")
    return "".join(parts)
