"""The report files in a run folder: report.html and plots/*.png."""

from __future__ import annotations

import sys
from collections.abc import Container
from pathlib import Path

import msgspec

from proftrack.record import Record
from proftrack.report import figures, html, plots
from proftrack.report.events import EventDetails, details
from proftrack.report.pages import full
from proftrack.report.pages.environment import title
from proftrack.report.timeline import picture
from proftrack.rundir.layout import PLOTS, REPORT
from proftrack.trace.table import EventTable

_TITLE = 70


def write(record: Record, tables: list[EventTable], folder: Path, *, without: Container[str] = ()) -> None:
    """Write report.html and the plots beside the record, except REPORT or PLOTS if `without` has them.

    The measurements matter more than their pictures: a bug here is reported on stderr and does not fail the run;
    `proftrack report FOLDER` writes the files again. Raises OSError if they cannot be written.
    """
    try:
        events = details(tables, record.kernels)
        if REPORT not in without:
            (folder / REPORT).write_text(html.render(full.report(record, events)), encoding="utf-8")
        if PLOTS not in without and plots.available():
            pictures(record, events, folder / PLOTS)
    except OSError:
        raise
    except Exception as error:
        text = f"{folder / REPORT}: could not be made ({type(error).__name__}: {error}); the run itself is complete"
        print(f"proftrack: {text}", file=sys.stderr)


def pictures(record: Record, events: EventDetails | None, folder: Path) -> list[Path]:
    """Draw the plots that the record has figures for into `folder`, with matplotlib; returns their paths.

    Raises OSError if they cannot be written.
    """
    about, written = title(record)[:_TITLE], []
    if events is not None and events.lanes is not None:
        written.append(folder / "lanes.png")
        picture.write(events.lanes, about, written[-1])
    charts = {
        "split": figures.window_chart(record),
        "modules": figures.modules_chart(record),
        "counters": figures.counters_chart(record),
        "roofline": figures.roofline_chart(record),
        "steps": figures.steps_chart(record),
    }
    for name, chart in charts.items():
        if chart is not None:
            written.append(folder / f"{name}.png")
            plots.write([msgspec.structs.replace(chart, title=f"{about}: {chart.title}")], written[-1])
    return written
