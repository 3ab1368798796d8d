"""The report's files of a run folder: report.html and plots/*.png."""

from __future__ import annotations

import sys
from collections.abc import Container
from pathlib import Path

import msgspec

from proftrack.record import Record
from proftrack.report import figures, html, plots
from proftrack.report.events import EventDetails, details
from proftrack.report.pages import run
from proftrack.report.pages.environment import title
from proftrack.report.timeline import picture
from proftrack.rundir.layout import PLOTS, REPORT
from proftrack.trace.table import EventTable

_TITLE = 70


def write(record: Record, tables: list[EventTable], folder: Path, *, without: Container[str] = ()) -> None:
    """Write them beside the record, save REPORT or PLOTS where they are in `without`. Raises OSError where the disk
    refuses.

    What was measured is worth more than its pictures: a defect here is told on stderr and ends nothing, and
    `proftrack report FOLDER` makes them again.
    """
    try:
        seen = details(tables, record.kernels)
        if REPORT not in without:
            (folder / REPORT).write_text(html.render(run.report(record, seen)), encoding="utf-8")
        if PLOTS not in without and plots.available():
            pictures(record, seen, folder / PLOTS)
    except OSError:
        raise
    except Exception as error:
        text = f"{folder / REPORT}: could not be made ({type(error).__name__}: {error}); the run itself is whole"
        print(f"proftrack: {text}", file=sys.stderr)


def pictures(record: Record, seen: EventDetails | None, folder: Path) -> list[Path]:
    """Draw those that the record has figures for into `folder`, with matplotlib; returns their paths.

    Raises OSError where the disk refuses.
    """
    about, written = title(record)[:_TITLE], []
    if seen is not None and seen.lanes is not None:
        written.append(folder / "lanes.png")
        picture.write(seen.lanes, about, written[-1])
    charts = {
        "split": figures.window_chart(record),
        "roofline": figures.roofline_chart(record),
        "steps": figures.steps_chart(record),
    }
    for name, chart in charts.items():
        if chart is not None:
            written.append(folder / f"{name}.png")
            plots.write([msgspec.structs.replace(chart, title=f"{about}: {chart.title}")], written[-1])
    return written
