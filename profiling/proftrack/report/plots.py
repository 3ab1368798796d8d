"""plots/*.png: the pictures of a report for MLflow's image view and for chat. The only part that imports matplotlib.

800 pixels wide, units on the axes, colours that people who do not see red or green can tell apart (Okabe and Ito).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proftrack.record import Record
from proftrack.report import sections
from proftrack.report.bars import Bars, bars
from proftrack.report.figures import plotted, rate, roofs
from proftrack.report.lanes import STYLES, Lanes
from proftrack.report.scene import Scene
from proftrack.text import duration, percent, plain, scaled, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PX = 800
_DPI = 100
_COLORS = {
    "region": "#a3a9b3",
    "operator": "#56b4e9",
    "call": "#f7d794",
    "launch": "#e69f00",
    "wait": "#cc79a7",
    "compute": "#0072b2",
    "arithmetic": "#0072b2",
    "bandwidth": "#009e73",
    "latency": "#f0e442",
    "transfer": "#d55e00",
    "communication": "#7b62b8",
    "unknown": "#a3a9b3",
    "idle": "#d5d9df",
    "idle-dispatch": "#e69f00",
    "idle-host": "#a6761d",
    "idle-input": "#d55e00",
    "idle-synchronization": "#cc79a7",
    "idle-allocator": "#66c2a5",
    "idle-profiler": "#a3a9b3",
    "idle-queued": "#a3a9b3",
    "idle-unknown": "#a3a9b3",
}
_ON_DARK = ("arithmetic", "compute", "communication")
_ROW_PX = 20
_MOST_ARROWS = 60
_ARROW = {"arrowstyle": "-|>", "color": "#535b66", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}


def available() -> bool:
    """Whether matplotlib is installed; without it there are no pictures, and nothing else is missing."""
    return importlib.util.find_spec("matplotlib") is not None


def load() -> None:
    """Import matplotlib, where it is installed, ahead of the first picture."""
    if available():
        importlib.import_module("matplotlib.backends.backend_agg")
        importlib.import_module("matplotlib.figure")


def write(record: Record, scene: Scene | None, folder: Path) -> list[Path]:
    """Write those pictures that the record has figures for into `folder`; returns their paths.

    Raises OSError where the disk refuses.
    """
    lanes = scene.lanes if scene else None
    drawn: dict[str, Callable[[], Figure | None]] = {
        "lanes": lambda: _lanes(record, lanes) if lanes else None,
        "split": lambda: _split(record),
        "roofline": lambda: _roofline(record),
        "steps": lambda: _steps(record),
    }
    written = []
    with quiet():
        for name, draw in drawn.items():
            figure = draw()
            if figure is not None:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / f"{name}.png", dpi=_DPI, metadata={"Software": None})
                written.append(folder / f"{name}.png")
    return written


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Names in a trace are no mathematics, and may have characters that no font at hand knows: both are no news."""
    import matplotlib

    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False, "font.size": 9}):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _figure(height_px: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / _DPI, height_px / _DPI), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _titled(axes: Axes, record: Record, what: str) -> None:
    axes.set_title(f"{sections.title(record)[:70]}: {what}", fontsize=10, loc="left")


# ---- lanes -----------------------------------------------------------------------------------------------------------


def _lanes(record: Record, lanes: Lanes) -> Figure:
    low, high = lanes.focus
    rows = sum(group.rows for group in lanes.groups)
    figure, axes = _figure(_ROW_PX * (rows + len(lanes.groups)) + 110)
    unit, name = _unit((high - low) / 1000)
    top = {}
    at = 0.0
    for group in lanes.groups:
        at += 1
        axes.text(0, at - 0.15, group.label, va="bottom", ha="left", fontsize=8, color="#535b66")
        for i in range(group.rows):
            top[group.first + i] = at + i
        at += group.rows
    drawn = bars(lanes, low, high, WIDTH_PX - 40)
    _draw_bars(axes, drawn, top, unit)
    _draw_names(axes, drawn, lanes, top, unit)
    _draw_arrows(axes, lanes, top, unit)
    axes.set(xlim=(0, (high - low) / 1000 / unit), ylim=(at + 0.3, 0), xlabel=f"time ({name})", yticks=[])
    axes.spines["left"].set_visible(False)
    _titled(axes, record, lanes.step or "the recording")
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
    colors = [_COLORS[STYLES[s]] for s in drawn.style.tolist()]
    axes.add_collection(PolyCollection(list(corners), facecolors=colors, linewidths=0), autolim=False)


def _draw_names(axes: Axes, drawn: Bars, lanes: Lanes, top: dict[int, float], unit: float) -> None:
    per_px = (lanes.focus[1] - lanes.focus[0]) / 1000 / (WIDTH_PX - 40)
    for i in np.flatnonzero(drawn.width_us > 40 * per_px).tolist():
        style = STYLES[drawn.style[i]]
        if drawn.name[i] < 0 and not style.startswith("idle-"):
            continue
        name = short_name(lanes.names[drawn.name[i]]) if drawn.name[i] >= 0 else style.removeprefix("idle-")
        text = plain(name, max(int(drawn.width_us[i] / per_px / 5.6), 4))
        color = "white" if style in _ON_DARK else "#111111"
        at = (drawn.left_us[i] + 3 * per_px) / unit
        axes.text(at, top[int(drawn.row[i])] + 0.52, text, va="center", fontsize=7.5, color=color, clip_on=True)


def _draw_arrows(axes: Axes, lanes: Lanes, top: dict[int, float], unit: float) -> None:
    """From launches to what they launched, where those are few."""
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

    patches = [Patch(color=_COLORS[s], label=s.replace("idle-", "idle: ")) for s in styles]
    axes.figure.legend(handles=patches, loc="outside lower center", ncols=7, fontsize=7.5, frameon=False)


# ---- split, roofline, steps ------------------------------------------------------------------------------------------


def _split(record: Record) -> Figure | None:
    split, idle = sections.split_parts(record), sections.idle_parts(record)
    if not split:
        return None
    figure, axes = _figure(200 if idle else 140)
    for at, parts in enumerate([split, *([idle] if idle else [])]):
        for part in parts:
            axes.barh(at, part.share, left=part.start, color=_COLORS[part.key], height=0.6)
            if part.share >= 14:
                name = part.label.partition(":")[0]
                text = f"{name}\n{duration(part.us)}, {percent(part.share / 100)}"
                color = "white" if part.key in _ON_DARK else "#111111"
                axes.text(part.start + part.share / 2, at, text, ha="center", va="center", fontsize=8, color=color)
    axes.set(xlim=(0, 100), xlabel="share (%)", ylim=(1.6 if idle else 0.6, -0.6))
    axes.set_yticks([0, 1] if idle else [0], ["window", "idle a step\nby cause"] if idle else ["window"])
    _titled(axes, record, f"window of {duration(record.window.duration_us)}")
    return figure


def _roofline(record: Record) -> Figure | None:
    ceilings, kernels = record.ceilings, plotted(record.kernels)
    if ceilings is None or not kernels:
        return None
    figure, axes = _figure(460)
    ridges = {dtype: flops / ceilings.bytes_per_s for dtype, flops in roofs(record).items()}
    intensities = [k.intensity or 0.0 for _, k in kernels]
    low, high = min([*intensities, *ridges.values()]) / 3, max([*intensities, *ridges.values()]) * 10
    for dtype, ridge in ridges.items():
        flops = ridge * ceilings.bytes_per_s
        axes.plot([low, ridge, high], [low * ceilings.bytes_per_s, flops, flops], color="#16191d", linewidth=1.2)
        axes.text(ridge * 0.8, flops, f"{dtype} {scaled(flops, 'FLOP/s')}", ha="right", va="center", fontsize=8)
    for rank, kernel in kernels[:8]:
        at = (kernel.intensity or 0.0, rate(kernel))
        label = f"{rank} {plain(short_name(kernel.name), 44)}, {percent(kernel.share)}"
        color = _COLORS[kernel.limit]
        axes.scatter(*at, s=30 + 500 * kernel.share, color=color, alpha=0.85, edgecolors="#444444", label=label)
        axes.annotate(str(rank), at, (9, -14), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOPs a byte", ylabel="FLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: scaled(value, "").strip())
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, frameon=False, markerscale=0.6)
    axes.grid(color="#e3e6ea", linewidth=0.6)
    axes.set_axisbelow(True)
    _titled(axes, record, f"roofline of {plain(ceilings.device, 40)}, memory {scaled(ceilings.bytes_per_s, 'B/s')}")
    return figure


def _steps(record: Record) -> Figure | None:
    steps = record.per_step
    if not steps:
        return None
    figure, axes = _figure(320)
    host, gpu = np.array([s.host_us for s in steps]), np.array([s.self_cuda_time_us or 0.0 for s in steps])
    t, b = record.step_time_us, record.times.gpu_busy_per_step_us
    unit, name = _unit(max([float(host.max()), float(gpu.max()), t or 0.0]))
    at = np.arange(len(steps))
    axes.bar(at - 0.2, host / unit, 0.38, color=_COLORS["operator"], label="host interval, profiler included")
    axes.bar(at + 0.2, gpu / unit, 0.38, color=_COLORS["compute"], label="GPU time of what it launched")
    for label, us, line in (("T", t, "--"), ("B", b, ":")):
        if us:
            axes.axhline(us / unit, color="#16191d", linestyle=line, label=f"{label} {duration(us)}")
    every = max(1, len(steps) // 20)
    axes.set_xticks(at[::every], [str(s.step) for s in steps[::every]])
    axes.set(xlabel="recorded step (ProfilerStep number)", ylabel=f"time ({name})", ylim=(0, None))
    axes.margins(y=0.25)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
    _titled(axes, record, "recorded steps")
    return figure
