"""Step times over a parameter as charts: T and B above, their ratio u below, on the same axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from proftrack.report import plots
from proftrack.report.charts import Axis, Band, Chart, Key, Line, Mark, Tick, log_ticks
from proftrack.report.palette import CURVES
from proftrack.text import duration, plain

_LOG_FROM = 8.0
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""
_ROOM = 1.15
"""Factor by which a log axis extends beyond its first and last value."""
_TIMES_HEIGHT, _FRACTIONS_HEIGHT = 230.0, 150.0
_THRESHOLDS = (0.5, 0.8)
_FRACTIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class Curve(Struct, kw_only=True):
    """One series of points: the parameter's values, and T, B and u there (None: unknown)."""

    name: str
    x: list[float]
    time_us: list[float | None]
    busy_us: list[float | None]
    fraction: list[float | None]


def charts(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    ticks: Sequence[tuple[float, str]],
    numeric: bool,
    span: tuple[float, float] | None = None,
) -> list[Chart]:
    """The chart of times and that of fractions; `span` shades where the regime changes.

    Curves beyond the number of colours are left out.
    """
    curves = curves[: len(CURVES)]
    x = _x_axis(x_label, ticks, numeric=numeric)
    shade: list[Mark] = [Band(style="crossing", left=span[0], right=span[1])] if span is not None else []
    levels = [Line(style="threshold", points=[(x.low, level), (x.high, level)]) for level in _THRESHOLDS]
    fractions = [mark for i, curve in enumerate(curves) for mark in _lines(f"curve-{i}", i, curve.x, curve.fraction)]
    highest = max([1.05, *(u for curve in curves for u in curve.fraction if u is not None)])
    return [
        Chart(
            summary=f"Step time T and busy time B over {x_label}",
            title=title,
            x=x,
            y=_time_axis(curves),
            marks=[*shade, *_times(curves)],
            key=_key(curves),
            height=_TIMES_HEIGHT,
        ),
        Chart(
            summary=f"Busy fraction u over {x_label}",
            x=x,
            y=Axis(label="u = B / T", low=0, high=highest, ticks=[Tick(u, f"{u:g}") for u in _FRACTIONS]),
            marks=[*shade, *levels, *fractions],
            height=_FRACTIONS_HEIGHT,
        ),
    ]


def write(path: Path, curves: Sequence[Curve], **options: Any) -> bool:
    """Draw `charts(curves, **options)` as a PNG; False without matplotlib. Raises OSError if it cannot be written."""
    if plots.available():
        plots.write(charts(curves, **options), path)
        return True
    return False


def _x_axis(label: str, ticks: Sequence[tuple[float, str]], *, numeric: bool) -> Axis:
    values = [at for at, _ in ticks] or [0.0]
    low, high = min(values), max(values)
    marks = [Tick(at, plain(text, 14)) for at, text in ticks]
    if numeric and low > 0 and high / low >= _LOG_FROM:
        return Axis(label=label, low=low / _ROOM, high=high * _ROOM, ticks=marks, log=True)
    room = 0.04 * (high - low) or 0.5
    return Axis(label=label, low=low - room, high=high + room, ticks=marks)


def _time_axis(curves: Sequence[Curve]) -> Axis:
    times = [us for curve in curves for us in (*curve.time_us, *curve.busy_us) if us] or [1.0]
    low, high = min(times) / _ROOM, max(times) * _ROOM
    return Axis(
        label="per step", low=low, high=high, ticks=[Tick(us, duration(us)) for us in log_ticks(low, high)], log=True
    )


def _times(curves: Sequence[Curve]) -> Iterator[Line]:
    for i, curve in enumerate(curves):
        yield from _lines(f"curve-{i}", i, curve.x, curve.time_us)
        color = _busy_color(i, curves)
        yield from _lines(f"curve-{color}-busy", color, curve.x, curve.busy_us)


def _busy_color(i: int, curves: Sequence[Curve]) -> int:
    """A single curve's B has its own colour; with several curves, B has the colour of its T."""
    return 1 if len(curves) == 1 else i


def _lines(style: str, color: int, xs: Sequence[float], ys: Sequence[float | None]) -> Iterator[Line]:
    """A line for each stretch of known points."""
    points = list(zip(xs, ys, strict=True))
    for has_value, stretch in groupby(points, key=lambda point: point[1] is not None):
        if has_value:
            yield Line(style=style, points=[(x, y or 0.0) for x, y in stretch], points_style=f"point-{color}")


def _key(curves: Sequence[Curve]) -> list[Key]:
    key = []
    for i, curve in enumerate(curves):
        name = "" if len(curves) == 1 else f", {plain(curve.name, 40)}"
        key += [Key(f"curve-{i}", f"T step time{name}")]
        key += [Key(f"curve-{_busy_color(i, curves)}-busy", f"B busy{name}")]
    return key
