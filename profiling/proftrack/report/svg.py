"""A chart as the shapes of an SVG, with values converted to positions in the picture. The template writes the SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from proftrack.report.charts import Band, Box, Chart, Dot, Line, Mark, Stairs, Words

WIDTH = 640.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, WIDTH - 24.0, 10.0, 40.0
_POINT, _LINE_HEIGHT = 2.5, 12.0
_CHAR, _GAP = 6.2, 10.0
"""Room for a character of a tick's label, and beside it."""


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


class Drawing:
    """A chart with its values as positions, rounded to what a screen can show."""

    width, right, top = WIDTH, RIGHT, TOP

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.left = max([LEFT, *(_GAP + _CHAR * len(tick.label) for tick in chart.y.ticks)])
        self.bottom = chart.height - BOTTOM

    def x(self, value: float) -> float:
        """The position of a value of the x axis."""
        return round(self.left + self.chart.x.share(value) * (RIGHT - self.left), 1)

    def y(self, value: float) -> float:
        """The position of a value of the y axis."""
        return round(self.bottom + self.chart.y.share(value) * (TOP - self.bottom), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Straight lines through the points."""
        return "M" + "L".join(f"{self.x(x):g} {self.y(y):g}" for x, y in points)

    @property
    def shapes(self) -> list[Shape]:
        """From back to front."""
        return [shape for mark in self.chart.marks for shape in _shapes(mark, self)]


def _shapes(mark: Mark, drawing: Drawing) -> Iterator[Shape]:
    if isinstance(mark, Line):
        yield Shape(kind="path", style=mark.style, path=drawing.path(mark.points), text=mark.hint)
        for x, y in mark.points if mark.points_style else ():
            yield Shape(kind="circle", style=mark.points_style, x=drawing.x(x), y=drawing.y(y), width=_POINT)
    elif isinstance(mark, Box):
        yield _rect(
            mark.style,
            drawing.x(mark.left),
            drawing.x(mark.right),
            drawing.y(mark.high),
            drawing.y(mark.low),
            mark.hint,
        )
        lines = mark.text.splitlines()
        x, y = drawing.x((mark.left + mark.right) / 2), drawing.y((mark.low + mark.high) / 2)
        for i, line in enumerate(lines):
            yield _text("c-mid", x, y + 4 + _LINE_HEIGHT * (i - (len(lines) - 1) / 2), line)
    elif isinstance(mark, Dot):
        x, y = drawing.x(mark.x), drawing.y(mark.y)
        yield Shape(kind="circle", style=mark.style, x=x, y=y, width=mark.radius, text=mark.hint)
        if mark.text:
            yield _text("c-mid", x, y - mark.radius - 3, mark.text)
    elif isinstance(mark, Stairs):
        yield Shape(kind="path", style=mark.style, path=_stairs(mark, drawing))
    elif isinstance(mark, Band):
        yield _rect(mark.style, drawing.x(mark.left), drawing.x(mark.right), TOP, drawing.bottom, "")
    else:
        yield _words(mark, drawing)


def _rect(style: str, left: float, right: float, top: float, bottom: float, hint: str) -> Shape:
    return Shape(kind="rect", style=style, x=left, y=top, width=right - left, height=bottom - top, text=hint)


def _text(style: str, x: float, y: float, text: str) -> Shape:
    return Shape(kind="text", style=style, x=x, y=y, text=text)


def _words(mark: Words, drawing: Drawing) -> Shape:
    style = {"start": "c-start", "middle": "c-mid", "end": "c-end"}[mark.anchor]
    return _text(style, drawing.x(mark.x) + mark.dx, drawing.y(mark.y) + mark.dy, mark.text)


def _stairs(mark: Stairs, drawing: Drawing) -> str:
    """A closed outline for each stretch without a gap."""
    parts = []
    for has_level, stretch in groupby(range(len(mark.levels)), key=lambda i: mark.levels[i] is not None):
        at = list(stretch)
        if not has_level:
            continue
        outline = f"M{drawing.x(mark.edges[at[0]]):g} {drawing.bottom:g}"
        for i in at:
            outline += f"V{drawing.y(mark.levels[i] or 0.0):g}H{drawing.x(mark.edges[i + 1]):g}"
        parts.append(f"{outline}V{drawing.bottom:g}Z")
    return "".join(parts)
