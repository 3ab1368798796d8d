"""Charts as PNG, for MLflow's image view and for chat: 800 pixels wide, with the same axes, marks and colours as HTML.

Only this module and timeline/picture.py use matplotlib, and neither imports it at module level.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proftrack.report import palette
from proftrack.report.charts import Band, Box, Chart, Dot, Key, Line, Mark, Stairs
from proftrack.report.svg import WIDTH
from proftrack.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PX = 800
DPI = 100
_SCALE = WIDTH_PX / WIDTH
_POINTS = _SCALE * 72 / DPI
"""Printer's points in a unit of a chart."""
_MARGIN_PX, _KEY_ROW_PX, _KEY_COLUMNS = 40, 22, 2
_KEY_BELOW_PX = 44
_SMALL, _WORDS, _LABELS = 7.5, 8.0, 9.0
_ABOUT_PICTURES = (r"Glyph \d+ .*missing from", "constrained_layout not applied")
_drawing: ContextVar[bool] = ContextVar("proftrack_drawing", default=False)


def available() -> bool:
    """Whether matplotlib is installed; without it only the PNGs are missing."""
    return importlib.util.find_spec("matplotlib") is not None


def load() -> None:
    """Import matplotlib, if installed, ahead of the first chart."""
    if available():
        importlib.import_module("matplotlib.backends.backend_agg")
        importlib.import_module("matplotlib.figure")


def write(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts below each other. Raises OSError if the file cannot be written."""
    with quiet():
        save(_drawn(charts), path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, creating its folder. Raises OSError if the file cannot be written."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar in a name is no formula
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence matplotlib about fonts and layout for what this thread draws in the block.

    Charts may be drawn inside a training, whose threads keep their warnings, loggers and rcParams. What stays are a
    filter on the logger of fonts that lets other threads through, and two warning filters for messages about a picture.
    """
    for message in _ABOUT_PICTURES:
        warnings.filterwarnings("ignore", message, UserWarning)
    logging.getLogger("matplotlib.font_manager").addFilter(_unless_drawing)
    token = _drawing.set(True)
    try:
        yield
    finally:
        _drawing.reset(token)


def _unless_drawing(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL or not _drawing.get()


def new_figure(height_px: float) -> Figure:
    """An empty figure of this height."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / DPI, height_px / DPI), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def entitle(axes: Axes, title: str) -> None:
    """Write a title above the axes."""
    axes.set_title(plain(title, 110), fontsize=10, loc="left")


# ---- a chart ---------------------------------------------------------------------------------------------------------


def _drawn(charts: Sequence[Chart]) -> Figure:
    keys = [_key(chart) for chart in charts]
    heights = [
        chart.height * _SCALE + _MARGIN_PX + _KEY_ROW_PX * -(-len(key) // _KEY_COLUMNS)
        for chart, key in zip(charts, keys, strict=True)
    ]
    figure = new_figure(sum(heights))
    panels = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, chart, key in zip(panels, charts, keys, strict=True):
        _axes(axes, chart)
        for order, mark in enumerate(chart.marks, start=2):
            _mark(axes, mark, order)
        _legend(axes, chart, key)
    return figure


def _axes(axes: Axes, chart: Chart) -> None:
    for axis, line, limits in ((chart.x, axes.xaxis, axes.set_xlim), (chart.y, axes.yaxis, axes.set_ylim)):
        if axis.log:
            (axes.set_xscale if axis is chart.x else axes.set_yscale)("log")
        limits(axis.low, axis.high)
        line.set_ticks([tick.value for tick in axis.ticks], [plain(tick.label, 24) for tick in axis.ticks])
        line.set_ticks([], minor=True)
    axes.set_xlabel(plain(chart.x.label, 60), fontsize=_LABELS)
    axes.set_ylabel(plain(chart.y.label, 60), fontsize=_LABELS)
    axes.tick_params(labelsize=_WORDS, length=3)
    if chart.y.grid:
        axes.grid(axis="y", color=palette.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    entitle(axes, chart.title)


def _mark(axes: Axes, mark: Mark, order: int) -> None:
    if isinstance(mark, Line):
        xs, ys = zip(*mark.points, strict=True)
        axes.plot(xs, ys, zorder=order, clip_on=False, **_stroke(mark.style))
        if mark.points_style:
            axes.plot(xs, ys, "o", color=palette.color(mark.points_style), markersize=4, zorder=order, clip_on=False)
    elif isinstance(mark, Box):
        _box(axes, mark, order)
    elif isinstance(mark, Dot):
        _dot(axes, mark, order)
    elif isinstance(mark, Stairs):
        levels = [float("nan") if level is None else level for level in mark.levels]
        axes.stairs(levels, mark.edges, fill=True, zorder=order, **_fill(mark.style))
    elif isinstance(mark, Band):
        axes.axvspan(mark.left, mark.right, linewidth=0, zorder=order, **_fill(mark.style))
    else:
        at = {"xytext": (mark.dx * _POINTS, -mark.dy * _POINTS), "textcoords": "offset points"}
        ha = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
        axes.annotate(plain(mark.text, 80), (mark.x, mark.y), ha=ha, fontsize=_WORDS, zorder=order, **at)  # type: ignore[arg-type]


def _box(axes: Axes, mark: Box, order: int) -> None:
    from matplotlib.patches import Rectangle

    width, height = mark.right - mark.left, mark.high - mark.low
    axes.add_patch(Rectangle((mark.left, mark.low), width, height, linewidth=0, zorder=order, **_fill(mark.style)))
    if mark.text:
        color = "white" if mark.style in palette.ON_DARK else "#111111"
        at = (mark.left + width / 2, mark.low + height / 2)
        axes.text(*at, mark.text, ha="center", va="center", fontsize=_WORDS, color=color, zorder=order)


def _dot(axes: Axes, mark: Dot, order: int) -> None:
    size = (2 * mark.radius * _POINTS) ** 2
    axes.scatter(mark.x, mark.y, s=size, edgecolors="#444444", linewidths=0.6, zorder=order, **_fill(mark.style, 0.85))
    if mark.text:
        above = (0, (mark.radius + 3) * _POINTS)
        place = {"xytext": above, "textcoords": "offset points", "ha": "center", "zorder": order}
        axes.annotate(mark.text, (mark.x, mark.y), fontsize=_WORDS, **place)  # type: ignore[arg-type]


def _stroke(style: str) -> dict[str, Any]:
    line = palette.STROKES[style]
    dash = (0, [part / line.width for part in line.dash]) if line.dash else "-"
    return {"color": palette.color(style), "linewidth": line.width, "linestyle": dash}


def _fill(style: str, alpha: float = 1.0) -> dict[str, Any]:
    return {"color": palette.color(style), "alpha": palette.SHEER.get(style, alpha)}


# ---- the key ---------------------------------------------------------------------------------------------------------


def _key(chart: Chart) -> list[Key]:
    """The meaning of the colours, and the names of the dots, since a PNG has no table beside it."""
    return [*chart.key, *(Key(mark.style, mark.name) for mark in chart.marks if isinstance(mark, Dot) and mark.name)]


def _legend(axes: Axes, chart: Chart, key: list[Key]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not key:
        return
    handles = [
        Line2D([], [], **_stroke(entry.style)) if entry.style in palette.STROKES else Patch(**_fill(entry.style))
        for entry in key
    ]
    axes.legend(
        handles,
        [plain(entry.label, 70) for entry in key],
        loc="upper center",
        bbox_to_anchor=(0.5, -_KEY_BELOW_PX / (chart.height * _SCALE)),
        ncols=_KEY_COLUMNS,
        fontsize=_SMALL,
        frameon=False,
    )
