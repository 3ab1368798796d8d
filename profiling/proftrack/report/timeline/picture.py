"""plots/lanes.png: the timeline of the busiest step as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proftrack.report import palette, plots
from proftrack.report.timeline.bars import Bars, bars
from proftrack.report.timeline.lanes import STYLES, Lanes
from proftrack.text import plain, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_PX = 20
_MOST_ARROWS = 60
_ARROW = {
    "arrowstyle": "-|>", "color": palette.SOFT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6,
}  # fmt: skip


def write(lanes: Lanes, title: str, path: Path) -> None:
    """Draw the busiest step, or the recording. Raises OSError if the file cannot be written."""
    with plots.quiet():
        plots.save(_drawn(lanes, title), path)


def _drawn(lanes: Lanes, title: str) -> Figure:
    low, high = lanes.focus
    rows = sum(group.rows for group in lanes.groups)
    figure = plots.new_figure(_ROW_PX * (rows + len(lanes.groups)) + 110)
    axes = figure.add_subplot()
    unit, name = _unit((high - low) / 1000)
    top = {}
    at = 0.0
    for group in lanes.groups:
        at += 1
        axes.text(0, at - 0.15, group.label, va="bottom", ha="left", fontsize=8, color=palette.SOFT)
        for i in range(group.rows):
            top[group.first + i] = at + i
        at += group.rows
    drawn = bars(lanes, low, high, plots.WIDTH_PX - 40)
    _draw_bars(axes, drawn, top, unit)
    _draw_names(axes, drawn, lanes, top, unit)
    _draw_arrows(axes, lanes, top, unit)
    axes.set(xlim=(0, (high - low) / 1000 / unit), ylim=(at + 0.3, 0), yticks=[])
    axes.set_xlabel(f"time ({name})", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    plots.entitle(axes, f"{title}: {lanes.step or 'the recording'}")
    _legend(axes, sorted({STYLES[s] for s in drawn.style.tolist()}, key=STYLES.index))
    return figure


def _unit(span_us: float) -> tuple[float, str]:
    """Microseconds in a unit that fits the axis, and its name."""
    return (1e6, "s") if span_us >= 1e6 else (1e3, "ms") if span_us >= 1e3 else (1.0, "us")


def _draw_bars(axes: Axes, drawn: Bars, top: dict[int, float], unit: float) -> None:
    from matplotlib.collections import PolyCollection

    left, right = drawn.left_us / unit, (drawn.left_us + drawn.width_us) / unit
    bottom = np.array([top[row] for row in drawn.row.tolist()]) + 0.94 - drawn.base * 0.88
    upper = bottom - drawn.height * 0.88
    corners = np.stack([left, bottom, right, bottom, right, upper, left, upper], axis=1).reshape(-1, 4, 2)
    colors = [palette.color(STYLES[s]) for s in drawn.style.tolist()]
    axes.add_collection(PolyCollection(list(corners), facecolors=colors, linewidths=0), autolim=False)


def _draw_names(axes: Axes, drawn: Bars, lanes: Lanes, top: dict[int, float], unit: float) -> None:
    per_px = (lanes.focus[1] - lanes.focus[0]) / 1000 / (plots.WIDTH_PX - 40)
    for i in np.flatnonzero(drawn.width_us > 40 * per_px).tolist():
        style = STYLES[drawn.style[i]]
        if drawn.name[i] < 0 and not style.startswith("idle-"):
            continue
        name = short_name(lanes.names[drawn.name[i]]) if drawn.name[i] >= 0 else style.removeprefix("idle-")
        text = plain(name, max(int(drawn.width_us[i] / per_px / 5.6), 4))
        color = "white" if style in palette.ON_DARK else "#111111"
        at = (drawn.left_us[i] + 3 * per_px) / unit
        axes.text(at, top[int(drawn.row[i])] + 0.52, text, va="center", fontsize=7.5, color=color, clip_on=True)


def _draw_arrows(axes: Axes, lanes: Lanes, top: dict[int, float], unit: float) -> None:
    """Arrows from launches to the work they launched, unless there are too many."""
    marks, (low, high) = lanes.marks, lanes.focus
    call, work, called = lanes.links
    seen = np.flatnonzero((marks.start[work] < high) & (marks.start[work] >= low) & (called >= low))
    if len(seen) > _MOST_ARROWS:
        return
    for i in seen.tolist():
        start = ((called[i] - low) / 1000 / unit, top[int(marks.row[call[i]])] + 0.94)
        end = ((marks.start[work[i]] - low) / 1000 / unit, top[int(marks.row[work[i]])] + 0.06)
        axes.annotate("", xy=end, xytext=start, arrowprops=_ARROW)


def _legend(axes: Axes, styles: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=palette.color(s), label=s.replace("idle-", "idle: ")) for s in styles]
    axes.figure.legend(handles=patches, loc="outside lower center", ncols=7, fontsize=7.5, frameon=False)
