"""The timeline of a trace's busiest typical step: its stretch, its marks, and the links from launches to work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.idle import Gaps
from proftrack.measures.typical import find_outliers
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.record.figures import Kernel
from proftrack.report.timeline import rows as timeline_rows
from proftrack.report.timeline.rows import GPU_STYLE, IDLE_STYLE, STYLES, Group, Rows
from proftrack.report.timeline.thinning import Marks, thin
from proftrack.text import duration
from proftrack.trace.categories import CALL_KINDS, is_wait
from proftrack.trace.table import NONE, Ints

__all__ = ["STYLES", "Group", "Lanes", "Links", "lanes"]

BUDGET = 9000
"""Marks in one picture: what a browser can draw at once, about 300 KB of the file."""
CLOSE_UP = 1500
"""Marks in the stretch that is never thinned."""


class Links(NamedTuple):
    """Links from launch calls to the work that they launched."""

    call: Ints
    """Index of the call's mark."""
    work: Ints
    """Index of the mark of the GPU work."""
    called: Ints
    """When the call ended."""


class Lanes(NamedTuple):
    """One picture. Times in nanoseconds on the event table's clock."""

    step: str | None
    """Name of the busiest typical step; None if the trace has no steps."""
    low: int
    high: int
    focus: tuple[int, int]
    """The stretch of that step, including its GPU work."""
    close_up: tuple[int, int] | None
    """A stretch that is not thinned, if the rest is; else None."""
    groups: list[Group]
    marks: Marks
    links: Links
    names: list[str]
    steps: list[tuple[str, int, int]]
    notes: list[str]
    """Sentences about what the picture leaves out."""


class Busiest(NamedTuple):
    """A step to look at."""

    step: int
    """Index among the recorded steps; NONE without steps."""
    work: int
    """Nanoseconds of GPU work of its own."""


def busiest(seen: View, windows: Windows) -> Busiest:
    """The typical step with the most GPU work of its own; without any, the longest one."""
    steps, owned = seen.steps, seen.on_device
    if not len(steps):
        return Busiest(NONE, 0)
    own = owned.usable & (owned.step != NONE)
    work = np.bincount(owned.step[own], weights=(owned.end - owned.start)[own], minlength=len(steps))
    length = work if work.any() else (steps.end - steps.start).astype(float)
    length[[outlier.step for outlier in find_outliers(seen, windows)]] = -1
    step = int(np.argmax(length))
    return Busiest(step, int(work[step]))


def lanes(seen: View, windows: Windows, step: int, gaps: Gaps | None, kernels: list[Kernel]) -> Lanes | None:
    """The picture of this step, or of all recorded steps if they have few events; None without events."""
    focus = _stretch(seen, windows, step)
    low, high = _everything(seen, windows)
    if _events_between(seen, low, high) > BUDGET:
        low, high = focus
    one = (low, high) == focus and step != NONE
    rows = Rows(low, high)
    timeline_rows.host(seen, rows)
    timeline_rows.gpu(seen, seen.owned.step == step if one else seen.owned.step != NONE, kernels, rows)
    if gaps is not None:
        timeline_rows.idle(gaps, rows)
    marks = rows.marks()
    return None if marks is None else _picture(seen, rows, marks, focus, step)


def _picture(seen: View, rows: Rows, marks: Marks, focus: tuple[int, int], step: int) -> Lanes:
    close_up = _close_up(marks) if len(marks.row) > BUDGET else None
    keep = np.zeros(len(marks.row), dtype=bool)
    if close_up is not None:
        keep = (marks.start < close_up[1]) & (marks.start + marks.dur > close_up[0])
    thinned = thin(marks, BUDGET, keep, rows.high - rows.low)
    notes = list(rows.notes)
    if thinned.resolution_ns:
        notes.insert(0, _thinning_note(len(marks.row), len(thinned.marks.row), thinned.resolution_ns))
    steps = zip(seen.steps.name, seen.steps.start.tolist(), seen.steps.end.tolist(), strict=True)
    return Lanes(
        step=seen.steps.name[step] if step != NONE else None,
        low=rows.low,
        high=rows.high,
        focus=focus,
        close_up=close_up,
        groups=rows.groups,
        marks=thinned.marks,
        links=_links(seen, marks, thinned.place),
        names=seen.table.names,
        steps=[(name, start, end) for name, start, end in steps if start < rows.high and end > rows.low],
        notes=notes,
    )


def _thinning_note(events: int, marks: int, resolution_ns: int) -> str:
    return (
        f"{events:,} events are drawn as {marks:,} marks: neighbours shorter than {duration(resolution_ns / 1000)} are "
        "merged into one hatched mark, which shows their number. The close-up is drawn in full."
    )


# ---- which stretch ---------------------------------------------------------------------------------------------------


def _stretch(seen: View, windows: Windows, step: int) -> tuple[int, int]:
    """The step, to the end of its own GPU work; without steps, the window."""
    if step == NONE:
        return windows.low, windows.high
    steps, owned = seen.steps, seen.on_device
    mine = owned.usable & (owned.step == step)
    return int(steps.start[step]), int(np.max(owned.end[mine], initial=steps.end[step]))


def _everything(seen: View, windows: Windows) -> tuple[int, int]:
    """The window plus the waits that start right after it, since they wait for the last steps' work."""
    table = seen.table
    slack = windows.duration // 4
    after = (
        table.of_kind(*CALL_KINDS)
        & table.valid
        & table.named(is_wait)
        & (table.ts >= windows.low)
        & (table.ts < windows.high + slack)
    )
    return windows.low, int(max([windows.high, *table.end[after].tolist()]))


def _events_between(seen: View, low: int, high: int) -> int:
    table = seen.table
    return int(((table.host | table.gpu_work) & table.valid & (table.ts < high) & (table.end > low)).sum())


def _close_up(marks: Marks) -> tuple[int, int]:
    """A stretch of CLOSE_UP marks around the middle of the GPU's work (without any, of all marks)."""
    on_gpu = (marks.style >= GPU_STYLE) & (marks.style < IDLE_STYLE)
    middle = int(np.median(marks.start[on_gpu] if on_gpu.any() else marks.start))
    distance = np.sort(np.abs(marks.start - middle))
    reach = int(distance[min(CLOSE_UP, len(distance) - 1)])
    return middle - reach, middle + reach


def _links(seen: View, marks: Marks, place: Ints) -> Links:
    """Links between thinned marks; `place` maps each of `marks` to its thinned mark."""
    table = seen.table
    position = np.full(len(table), NONE, dtype=np.int64)
    drawn = marks.event != NONE
    position[marks.event[drawn]] = place[drawn]
    launch = np.full(len(table), NONE, dtype=np.int64)
    launch[seen.links.gpu] = seen.links.launch
    work = np.flatnonzero(drawn & (marks.style >= GPU_STYLE))
    work = work[launch[marks.event[work]] != NONE]
    called = launch[marks.event[work]]
    call, mark = position[called], place[work]
    both = np.flatnonzero(call != NONE)
    both = both[np.unique(mark[both], return_index=True)[1]]  # several links into one mark: keep the first
    return Links(call[both], mark[both], table.end[called[both]])
