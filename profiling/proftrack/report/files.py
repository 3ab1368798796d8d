"""The report's files of a run folder: report.html and plots/*.png."""

from __future__ import annotations

import sys
from collections.abc import Container
from pathlib import Path

from proftrack.record import Record
from proftrack.report import html, plots
from proftrack.report.scene import scene
from proftrack.trace.table import EventTable

REPORT = "report.html"
PLOTS = "plots"


def write(record: Record, tables: list[EventTable], folder: Path, *, without: Container[str] = ()) -> None:
    """Write them beside the record, save REPORT or PLOTS where they are in `without`. Raises OSError where the disk
    refuses.

    What was measured is worth more than its pictures: a defect here is told on stderr and ends nothing, and
    `proftrack report FOLDER` makes them again.
    """
    try:
        seen = scene(tables, record.kernels)
        if REPORT not in without:
            (folder / REPORT).write_text(html.render(record, seen), encoding="utf-8")
        if PLOTS not in without and plots.available():
            plots.write(record, seen, folder / PLOTS)
    except OSError:
        raise
    except Exception as error:
        text = f"{folder / REPORT}: could not be made ({type(error).__name__}: {error}); the run itself is whole"
        print(f"proftrack: {text}", file=sys.stderr)
