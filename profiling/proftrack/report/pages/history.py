"""A history as a page, as plots and as CSV: the changes in each series, then its runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

from proftrack.compare.history import NEWEST, Change, History, RunPoint, Series, levels, newest
from proftrack.compare.results import CommitRange, Different
from proftrack.errors import ProftrackError, UsageError
from proftrack.report import plots
from proftrack.report.charts import Axis, Chart, Dot, Line, Mark, Tick, round_ticks
from proftrack.report.document import SUB, Block, Document, Figure, Items, Lead, Table
from proftrack.text import changes as as_changes
from proftrack.text import counted, figure, moment

_HASH = 10
_SHOWN, _LABELS = 5, 8
_MOST_PLOTS = 6
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_GATE = {"pass": "pass", "fail": "FAIL", "inconclusive": "?"}


def page(history: History) -> Document:
    """All series: their changes first, then their runs."""
    blocks: list[Block] = [Lead(_lead(history)), Items("Not shown", _left_out(history))]
    for series in history.series:
        blocks += [
            Lead(_series_title(series)),
            *_plot(series),
            Items("Changes", _changes(series.changes)),
            _runs(series),
        ]
    return Document(f"proftrack history: {history.experiment}", blocks)


def _lead(history: History) -> str:
    runs = sum(len(series.runs) for series in history.series)
    changes = sum(len(series.changes) for series in history.series)
    metrics = " and ".join(sorted({series.metric for series in history.series}))
    return (
        f"{history.experiment}: {counted(runs, 'run')} in {counted(len(history.series), 'series', 'series')}, "
        f"{counted(changes, 'change')} ({metrics}, and counts), ordered by {history.ordered_by}"
    )


def _left_out(history: History) -> list[str]:
    if not history.left_out:
        return []
    only, them = "", "it" if history.left_out == 1 else "them"
    if history.untracked_only:
        only = f" ({history.untracked_only} only because of untracked files: commit them, or add them to .gitignore)"
    return [f"{counted(history.left_out, 'run')} with uncommitted changes{only}; --dirty shows {them}"]


def _series_title(series: Series) -> str:
    plotted = f"; the plot shows the newest {NEWEST:,}" if len(series.runs) > NEWEST else ""
    return f"{series.title}: {counted(len(series.runs), 'run')} (fingerprint {series.fingerprint}){plotted}"


def _plot(series: Series) -> list[Figure]:
    chart = chart_of(series)
    return [Figure(chart, f"{series.metric} over the runs")] if chart else []


def _changes(changes: Sequence[Change]) -> list[str]:
    """One item for each pair of neighbouring runs: what changed between them, then the commits."""
    lines: list[str] = []
    for _, group in groupby(changes, key=lambda change: (change.before.run_id, change.after.run_id)):
        neighbours = list(group)
        first = neighbours[0]
        lines.append(f"{_between(first)}: {'; '.join(_sentence(change) for change in neighbours)}")
        lines += [*_commit_lines(first.commits), *_environment_lines(first.environment)]
    return lines


def _sentence(change: Change) -> str:
    point = change.point
    bounds = (point.interval.low, point.interval.high) if point.interval is not None else ()
    size, *interval = as_changes(point.ratio, *bounds) if point.ratio is not None else ("",)
    if interval:
        size += f", 95 % interval {' to '.join(interval)}"
    values = f"{figure(change.metric, point.before)} -> {figure(change.metric, point.after)}"
    return f"{change.metric} {values}{f' ({size})' if size else ''}"


def _between(change: Change) -> str:
    before, after = change.before, change.after
    if before.commit and before.commit == after.commit:
        return f"between two runs of commit {before.commit[:_HASH]} (the code is the same: see what else differs)"
    return f"between {_where(before)} and {_where(after)}"


def _where(run: RunPoint) -> str:
    return f"commit {run.commit[:_HASH]}" if run.commit else f"run {run.run_id}"


def _commit_lines(span: CommitRange | None) -> list[str]:
    if span is None or not span.known:
        return []
    lines = [f"{SUB}{commit.hash[:_HASH]} {commit.subject}" for commit in span.commits[:_SHOWN]]
    more = len(span.commits) - _SHOWN + span.more
    return lines + ([f"{SUB}and {counted(more, 'more commit')}"] if more > 0 else [])


def _environment_lines(differences: Sequence[Different] | None) -> list[str]:
    if not differences:
        return []
    shown = [f"{each.name} {each.before or '-'} -> {each.after or '-'}" for each in differences[:_SHOWN]]
    return [f"{SUB}also different: {'; '.join(shown)}"]


def _runs(series: Series) -> Table:
    """The runs. The gate's outcome has a column only if there was a gate, the regime only if it varies."""
    metric = series.metric
    changed = {change.after.run_id for change in series.changes}
    gated = any(run.gate for run in series.runs)
    varied = len({run.regime for run in series.runs}) > 1
    counts = [("launches", "launches_per_step")] if metric != "launches_per_step" else []
    shown = [(metric, metric), *(pair for pair in counts if any(pair[1] in run.metrics for run in series.runs))]
    rows = [
        (
            (run.commit or "-")[:_HASH] + (" +" if run.dirty else ""),
            moment(run.started_ms * 1_000_000).removesuffix(" UTC"),
            *([run.regime] if varied else []),
            *([_GATE.get(run.gate, "-")] if gated else []),
            "<-" if run.run_id in changed else "",
            *(figure(name, run.metrics.get(name)) for _, name in shown),
            run.run_id,
        )
        for run in reversed(series.runs)
    ]
    words = ("commit", "started (UTC)", *(["regime"] if varied else []), *(["gate"] if gated else []), "")
    heads = (*words, *(label for label, _ in shown), "run")
    return Table("Runs, newest first (<- changed)", heads, rows, numbers=len(words), most=25, folded=False)


# ---- plots -----------------------------------------------------------------------------------------------------------


def write_png(history: History, path: Path) -> None:
    """Write one PNG, for chat and for MLflow's image view, with the plots of the first series below each other.

    Raises ProftrackError without matplotlib, UsageError if the file cannot be written.
    """
    if not plots.available():
        raise ProftrackError(
            "--format png needs matplotlib, which is not installed", "install it, or use --format html"
        )
    charts = [chart for series in history.series if (chart := chart_of(series)) is not None]
    try:
        plots.write(charts[:_MOST_PLOTS], path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})", "name another file with -o") from error


def chart_of(series: Series) -> Chart | None:
    """The metric over the newest runs, its levels, and a line where it changed; None if no run has the metric."""
    series, metric = newest(series), series.metric
    points = [(index, run, run.metrics[metric]) for index, run in enumerate(series.runs) if metric in run.metrics]
    if not points:
        return None
    ticks = round_ticks(max(value for _, _, value in points) * 1.05)
    marks: list[Mark] = [
        Line(style="level", points=[(first - 0.5, level), (last - 0.5, level)]) for first, last, level in levels(series)
    ]
    marks += [
        Dot(style="one-run", x=index, y=value, radius=3.5, hint=_hint(run, metric, value))
        for index, run, value in points
    ]
    marks += [_change_line(series, change, ticks[-1]) for change in series.changes]
    every = math.ceil(len(series.runs) / _LABELS)
    return Chart(
        summary=f"{metric} over {len(points)} runs, {len(series.changes)} changes",
        title=series.title,
        x=Axis(
            label="runs in order, by commit",
            low=-0.5,
            high=len(series.runs) - 0.5,
            ticks=[Tick(i, (run.commit or run.run_id)[:7]) for i, run in enumerate(series.runs) if i % every == 0],
        ),
        y=Axis(label=metric, low=0.0, high=ticks[-1], ticks=[Tick(value, figure(metric, value)) for value in ticks]),
        marks=marks,
    )


def _hint(run: RunPoint, metric: str, value: float) -> str:
    commit = f"commit {run.commit[:_HASH]}, " if run.commit else ""
    return f"{figure(metric, value)}, {commit}{moment(run.started_ms * 1_000_000)}, run {run.run_id}"


def _change_line(series: Series, change: Change, high: float) -> Line:
    at = next(i for i, run in enumerate(series.runs) if run.run_id == change.after.run_id) - 0.5
    return Line(style="change", points=[(at, 0.0), (at, high)], hint=f"{_between(change)}: {_sentence(change)}")


# ---- CSV, for a spreadsheet ------------------------------------------------------------------------------------------


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV: text that looks like a formula is quoted, times are ISO 8601."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0].keys())
    for row in rows:
        writer.writerow([_cell(name, value) for name, value in row.items()])
    return out.getvalue()


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name == "started":
        return datetime.fromtimestamp(value / 1000, timezone.utc).isoformat(timespec="seconds")
    if isinstance(value, str):
        text = " ".join(value.split())
        return f"'{text}" if value.startswith(_FORMULA) or text.startswith(_FORMULA) else text
    return str(value).lower() if isinstance(value, bool) else value
