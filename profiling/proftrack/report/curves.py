"""Step times over a parameter as a PNG: T and B above, their ratio u below, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack.report import plots
from proftrack.text import duration, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_IN, _HEIGHT_IN, _DPI = 8.0, 5.2, 100
# Okabe and Ito: told apart by people who do not see red or green.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LOG_FROM = 8.0
"""Values that are so many times apart are shown on a log axis."""


class Curve(Struct, kw_only=True):
    """One series of points: where it lies along the parameter, T, B and u there (None: not known)."""

    name: str
    x: list[float]
    time_us: list[float | None]
    busy_us: list[float | None]
    fraction: list[float | None]


def write(
    path: Path,
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    ticks: Sequence[tuple[float, str]],
    numeric: bool,
    span: tuple[float, float] | None = None,
) -> bool:
    """Draw the curves; `span` shades where the regime changes. False where matplotlib is not installed.

    Raises OSError where the disk refuses.
    """
    if not plots.available():
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    FigureCanvasAgg(figure)
    times, fractions = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for curve, color in zip(curves, _COLORS, strict=False):
        _draw(times, curve, color, alone=len(curves) == 1)
        fractions.plot(curve.x, _known(curve.fraction), "o-", color=color, label=curve.name or None)
    _axes(times, fractions, ticks, numeric=numeric)
    times.set_title(plain(title, 90), fontsize=10, loc="left", parse_math=False)
    fractions.set_xlabel(plain(x_label, 60), parse_math=False)
    if span is not None:
        for axes in (times, fractions):
            axes.axvspan(*span, color="#e69f00", alpha=0.25, linewidth=0)
    if len(curves) > 1:
        fractions.legend(fontsize=7, frameon=False)
    times.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with plots.quiet():
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    return True


def _draw(axes: Axes, curve: Curve, color: str, *, alone: bool) -> None:
    name = "" if alone else f", {plain(curve.name, 40)}"
    axes.plot(curve.x, _known(curve.time_us), "o-", color=color, label=f"T step time{name}")
    second = _COLORS[1] if alone else color
    axes.plot(curve.x, _known(curve.busy_us), "s--", color=second, label=f"B busy{name}", markerfacecolor="white")


def _axes(times: Axes, fractions: Axes, ticks: Sequence[tuple[float, str]], *, numeric: bool) -> None:
    values = [at for at, _ in ticks]
    if numeric and values and min(values) > 0 and max(values) / min(values) >= _LOG_FROM:
        times.set_xscale("log", base=2)
    fractions.set_xticks(values, [plain(text, 14) for _, text in ticks], fontsize=8, parse_math=False)
    fractions.minorticks_off()
    times.set_yscale("log")
    times.set_ylabel("a step")
    times.yaxis.set_major_formatter(lambda us, _: duration(us))
    times.yaxis.set_minor_formatter(lambda us, _: "")
    fractions.set_ylim(0, max(1.05, *fractions.get_ylim()))
    fractions.set_ylabel("u = B / T")
    for level in (0.5, 0.8):
        fractions.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
    for axes in (times, fractions):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)


def _known(values: Sequence[float | None]) -> list[float]:
    """What is not known leaves a gap."""
    return [float("nan") if value is None else value for value in values]
