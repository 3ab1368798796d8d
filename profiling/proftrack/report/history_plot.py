"""A history as a PNG, for chat and for MLflow's image view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.compare.history import History, Series, levels, newest
from proftrack.errors import ProftrackError, UsageError
from proftrack.report import plots
from proftrack.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_IN, _HEIGHT_IN, _DPI = 8.0, 2.8, 100
_MOST_SERIES = 6
_BLUE, _GREEN, _RED = "#0072b2", "#009e73", "#d55e00"


def write(history: History, path: Path) -> None:
    """Write the picture: one panel a series, with levels and a line at each change.

    Raises ProftrackError without matplotlib, UsageError where the file cannot be written.
    """
    if not plots.available():
        raise ProftrackError("--format png needs matplotlib, which is not installed; use --format html, or install it")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = history.series[:_MOST_SERIES]
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN * len(shown)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for number, series in enumerate(shown, start=1):
        _panel(figure.add_subplot(len(shown), 1, number), series)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); name another file with -o") from error


def _panel(axes: Axes, series: Series) -> None:
    series, metric = newest(series), series.metric
    known = [(index, run.metrics[metric]) for index, run in enumerate(series.runs) if metric in run.metrics]
    axes.plot([index for index, _ in known], [value for _, value in known], "o", color=_BLUE, markersize=4)
    for first, last, level in levels(series):
        axes.hlines(level, first - 0.5, last - 0.5, color=_GREEN, linewidth=2)
    places = {run.run_id: index for index, run in enumerate(series.runs)}
    for change in series.changes:
        axes.axvline(places[change.after.run_id] - 0.5, color=_RED, linestyle="--", linewidth=1.5)
    every = max(1, len(series.runs) // 10)
    ticks = range(0, len(series.runs), every)
    axes.set_xticks(list(ticks), [(series.runs[i].commit or series.runs[i].run_id)[:7] for i in ticks], fontsize=7)
    axes.set_ylim(0, 1.1 * max((value for _, value in known), default=1.0) or 1.0)
    axes.set_ylabel(metric, parse_math=False)
    axes.set_title(plain(series.title, 90), fontsize=9, parse_math=False)
