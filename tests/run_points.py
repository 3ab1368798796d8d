"""Points of a history, made by hand."""

from __future__ import annotations

from proftrack.compare.history import RunPoint


def run_point(number: int, **metrics: float) -> RunPoint:
    """A run of its own commit, the number giving its id, commit and start."""
    return RunPoint(
        run_id=f"{number:032x}",
        name="x",
        started_ms=number,
        commit=f"{number:040x}",
        branch="main",
        dirty=False,
        regime="",
        gate="",
        metrics=metrics,
    )
