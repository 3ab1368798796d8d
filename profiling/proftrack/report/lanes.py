"""The timeline of a trace's busiest step: which rows there are, what is drawn in them, and what belongs together.

host    operators, nested by depth    |---------- aten::matmul ----------|
                                        |------- aten::mm -------|
        runtime calls                             |launch|
GPU     a row for each stream                        \\->|== kernel ==|
        idle, by cause                |///////////////////|
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.events.categories import CALL_KINDS, Kind, is_launch, is_wait
from proftrack.events.table import NONE, Bools, Ints
from proftrack.measures.idle import CAUSES, Gaps
from proftrack.measures.nesting import Forest
from proftrack.measures.results import Kernel
from proftrack.measures.view import View
from proftrack.measures.window import Windows, busy
from proftrack.report.thinning import Marks, thin
from proftrack.report.units import duration

BUDGET = 9000
"""Marks in one picture: what a browser draws at once, and some 300 KB of the file."""
CLOSE_UP = 1500
"""Marks in the stretch that is never thinned."""
MOST_THREADS = 6
MOST_STREAMS = 10
DEEPEST = 16

LIMITS = ("arithmetic", "bandwidth", "latency", "transfer", "communication", "unknown")
STYLES = ("region", "operator", "call", "launch", "wait", *LIMITS, *(f"idle-{cause}" for cause in CAUSES))
"""What a mark is, for its colour."""
_GPU = STYLES.index(LIMITS[0])
_IDLE = STYLES.index("idle-" + CAUSES[0])


class Group(NamedTuple):
    """Rows of the picture that belong together."""

    label: str
    kind: str
    """operators, calls, gpu or idle."""
    first: int
    """Its first row."""
    rows: int


class Links(NamedTuple):
    """From launch calls to the work that they launched."""

    call: Ints
    """Index of the call's mark."""
    work: Ints
    """Index of the mark of the GPU work."""
    called: Ints
    """When the call ended."""


class Lanes(NamedTuple):
    """One picture. Times in nanoseconds on the event table's clock."""

    step: str | None
    """Name of the busiest step; None where the trace has no steps."""
    low: int
    high: int
    focus: tuple[int, int]
    """The busiest step's stretch, its GPU work included."""
    close_up: tuple[int, int] | None
    """A stretch that is not thinned, where the rest is."""
    groups: list[Group]
    marks: Marks
    links: Links
    names: list[str]
    steps: list[tuple[str, int, int]]
    notes: list[str]
    """What the picture leaves out."""


class _Rows(NamedTuple):
    """Marks on their way into the picture, and the groups of rows that they are in."""

    marks: list[Marks]
    groups: list[Group]

    @property
    def next(self) -> int:
        return sum(group.rows for group in self.groups)


def lanes(seen: View, windows: Windows, gaps: Gaps | None, kernels: list[Kernel]) -> Lanes | None:
    """The picture of the busiest step, or of all recorded steps where they are few events; None without events."""
    focus, step = _focus(seen, windows)
    low, high = _everything(seen, windows)
    if _events_between(seen, low, high) > BUDGET:
        low, high = focus
    own = seen.owned.step == step if (low, high) == focus and step != NONE else seen.owned.step != NONE
    notes: list[str] = []
    rows = _Rows([], [])
    _host(seen, low, high, rows, notes)
    _gpu(seen, low, high, own, kernels, rows, notes)
    if gaps is not None:
        _idle(gaps, low, high, rows)
    if not rows.marks:
        return None
    marks = Marks._make(np.concatenate(columns) for columns in zip(*rows.marks, strict=True))
    marks = marks.take(np.lexsort((marks.start, marks.row)))
    return _picture(seen, marks, rows.groups, (low, high), focus, step, notes)


def _picture(
    seen: View,
    marks: Marks,
    groups: list[Group],
    span: tuple[int, int],
    focus: tuple[int, int],
    step: int,
    notes: list[str],
) -> Lanes:
    low, high = span
    close_up = _close_up(marks, seen) if len(marks.row) > BUDGET else None
    keep = np.zeros(len(marks.row), dtype=bool)
    if close_up is not None:
        keep = (marks.start < close_up[1]) & (marks.start + marks.dur > close_up[0])
    thinned = thin(marks, BUDGET, keep, high - low)
    if thinned.resolution_ns:
        notes.insert(0, _thinning_note(len(marks.row), len(thinned.marks.row), thinned.resolution_ns))
    return Lanes(
        step=seen.steps.name[step] if step != NONE else None,
        low=low,
        high=high,
        focus=focus,
        close_up=close_up,
        groups=groups,
        marks=thinned.marks,
        links=_links(seen, marks, thinned.place),
        names=seen.table.names,
        steps=[
            (name, int(start), int(end))
            for name, start, end in zip(seen.steps.name, seen.steps.start, seen.steps.end, strict=True)
            if start < high and end > low
        ],
        notes=notes,
    )


def _thinning_note(events: int, marks: int, resolution_ns: int) -> str:
    return (
        f"{events:,} events are drawn as {marks:,} marks: neighbours shorter than {duration(resolution_ns / 1000)} are "
        "one hatched mark that says how many they are. The close-up is drawn in full."
    )


# ---- which stretch ---------------------------------------------------------------------------------------------------


def _focus(seen: View, windows: Windows) -> tuple[tuple[int, int], int]:
    """The step with most GPU work of its own (the longest where there is none), to the end of that work."""
    steps, owned = seen.steps, seen.on_device
    if not len(steps):
        return (windows.low, windows.high), NONE
    own = owned.usable & (owned.step != NONE)
    work = np.bincount(owned.step[own], weights=(owned.end - owned.start)[own], minlength=len(steps))
    step = int(np.argmax(work if work.any() else steps.end - steps.start))
    mine = own & (owned.step == step)
    return (int(steps.start[step]), max([int(steps.end[step]), *owned.end[mine].tolist()])), step


def _everything(seen: View, windows: Windows) -> tuple[int, int]:
    """The window, and the waits that begin right behind it: the last steps' work is waited for there."""
    table = seen.table
    slack = windows.duration // 4
    behind = (
        table.of_kind(*CALL_KINDS)
        & table.valid
        & table.named(is_wait)
        & (table.ts >= windows.low)
        & (table.ts < windows.high + slack)
    )
    return windows.low, int(max([windows.high, *table.end[behind].tolist()]))


def _events_between(seen: View, low: int, high: int) -> int:
    table = seen.table
    return int(((table.host | table.gpu_work) & table.valid & (table.ts < high) & (table.end > low)).sum())


def _close_up(marks: Marks, seen: View) -> tuple[int, int]:
    """A stretch around the middle of the GPU's work (of all, where there is none) that holds CLOSE_UP marks."""
    on_gpu = (marks.style >= _GPU) & (marks.style < _IDLE)
    times = marks.start[on_gpu] if on_gpu.any() else marks.start
    middle = int(np.median(times))
    short = np.sort(np.abs(marks.start - middle))
    reach = int(short[min(CLOSE_UP, len(short) - 1)])
    return middle - reach, middle + reach


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _host(seen: View, low: int, high: int, rows: _Rows, notes: list[str]) -> None:
    """Operators and regions by depth, and below them the runtime and driver calls, for each thread."""
    table, forest = seen.table, seen.forest
    at = np.flatnonzero((forest.start < high) & (forest.end > low))
    events = forest.rows[at]
    is_call = table.of_kind(*CALL_KINDS)[forest.rows]
    depth, call_depth = _depths(forest, is_call, at)
    here = is_call[at]
    level = np.where(here, call_depth, depth)
    busy_permille = _busy_during(seen, events)
    style = _host_styles(seen, events)
    threads = _threads(seen, events)
    _note_left_out(notes, "threads", len(np.unique(table.thread[events])), len(threads))
    _note_left_out(notes, "rows (nested deeper than that)", int((level >= DEEPEST).sum()) + DEEPEST, DEEPEST)
    for thread in threads:
        mine = (table.thread[events] == thread) & (level < DEEPEST)
        for kind, wanted in (("operators", mine & ~here), ("calls", mine & here)):
            if not wanted.any():
                continue
            name = f"Host thread {table.threads[thread][1]}"
            first = rows.next
            label = f"{name}: operators and regions" if kind == "operators" else f"{name}: runtime calls"
            rows.groups.append(Group(label, kind, first, int(level[wanted].max()) + 1))
            rows.marks.append(
                Marks(
                    row=first + level[wanted],
                    start=table.ts[events[wanted]],
                    dur=table.dur[events[wanted]],
                    style=style[wanted],
                    name=table.name[events[wanted]].astype(np.int64),
                    self_ns=forest.self_ns[at[wanted]],
                    own=np.ones(int(wanted.sum()), dtype=bool),
                    busy_permille=busy_permille[wanted],
                    event=events[wanted],
                    events=np.ones(int(wanted.sum()), dtype=np.int64),
                )
            )


def _depths(forest: Forest, is_call: Bools, at: Ints) -> tuple[Ints, Ints]:
    """How many operators, and how many calls, each of the positions `at` runs in."""
    depth, call_depth = np.zeros(len(at), dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    above = forest.parent[at]
    for _ in range(2 * DEEPEST):
        inside = np.flatnonzero(above != NONE)
        if not len(inside):
            break
        in_call = is_call[above[inside]]
        depth[inside] += ~in_call
        call_depth[inside] += in_call
        above[inside] = forest.parent[above[inside]]
    return depth, call_depth


def _threads(seen: View, events: Ints) -> list[int]:
    """The steps' thread first, then those with most rows."""
    unique, count = np.unique(seen.table.thread[events], return_counts=True)
    first = set(seen.steps.thread.tolist())
    order = sorted(zip(unique.tolist(), count.tolist(), strict=True), key=lambda t: (t[0] not in first, -t[1]))
    return [thread for thread, _ in order[:MOST_THREADS]]


def _host_styles(seen: View, events: Ints) -> Ints:
    table = seen.table
    is_call = table.of_kind(*CALL_KINDS)[events]
    style = np.full(len(events), STYLES.index("operator"), dtype=np.int64)
    style[table.of_kind(Kind.ANNOTATION)[events]] = STYLES.index("region")
    style[is_call] = STYLES.index("call")
    style[is_call & table.named(is_launch)[events]] = STYLES.index("launch")
    style[is_call & table.named(is_wait)[events]] = STYLES.index("wait")
    return style


def _busy_during(seen: View, events: Ints) -> Ints:
    """For waits, the share of each in which the GPU worked, in thousandths; NONE elsewhere."""
    table = seen.table
    out = np.full(len(events), NONE, dtype=np.int64)
    waits = np.flatnonzero(table.of_kind(*CALL_KINDS)[events] & table.named(is_wait)[events])
    rows = events[waits]
    if len(rows) and len(seen.links.gpu):
        worked = busy(seen.on_device).covered_within(table.ts[rows], table.end[rows])
        out[waits] = worked * 1000 // np.maximum(table.dur[rows], 1)
    return out


def _gpu(seen: View, low: int, high: int, own: Bools, kernels: list[Kernel], rows: _Rows, notes: list[str]) -> None:
    """A row for each stream of each device."""
    table, gpu = seen.table, seen.links.gpu
    here = np.flatnonzero(table.valid[gpu] & (table.ts[gpu] < high) & (table.end[gpu] > low))
    limit = {kernel.name: kernel.limit for kernel in kernels}
    style_of = np.array([_GPU + LIMITS.index(limit.get(name, "unknown")) for name in table.names] or [_GPU])
    lanes_here, count = np.unique(table.lane[gpu[here]], return_counts=True)
    busiest = lanes_here[np.argsort(-count, kind="stable")][:MOST_STREAMS]
    _note_left_out(notes, "streams", len(lanes_here), len(busiest))
    for lane in np.sort(busiest).tolist():
        mine = here[table.lane[gpu[here]] == lane]
        events = gpu[mine]
        device, stream = table.lanes[lane]
        first = rows.next
        rows.groups.append(Group(f"GPU {device}, stream {stream}", "gpu", first, 1))
        nothing = np.full(len(events), NONE, dtype=np.int64)
        rows.marks.append(
            Marks(
                row=np.full(len(events), first, dtype=np.int64),
                start=table.ts[events],
                dur=table.dur[events],
                style=style_of[table.name[events]],
                name=table.name[events].astype(np.int64),
                self_ns=nothing,
                own=own[mine],
                busy_permille=nothing,
                event=events,
                events=np.ones(len(events), dtype=np.int64),
            )
        )


def _idle(gaps: Gaps, low: int, high: int, rows: _Rows) -> None:
    """The device's idle gaps, in a row of their own."""
    here = np.flatnonzero((gaps.start < high) & (gaps.end > low))
    if not len(here):
        return
    first = rows.next
    rows.groups.append(Group("GPU idle, by cause", "idle", first, 1))
    start, nothing = np.maximum(gaps.start[here], low), np.full(len(here), NONE, dtype=np.int64)
    rows.marks.append(
        Marks(
            row=np.full(len(here), first, dtype=np.int64),
            start=start,
            dur=np.minimum(gaps.end[here], high) - start,
            style=_IDLE + gaps.cause[here].astype(np.int64),
            name=nothing,
            self_ns=nothing,
            own=np.ones(len(here), dtype=bool),
            busy_permille=nothing,
            event=nothing,
            events=np.ones(len(here), dtype=np.int64),
        )
    )


def _links(seen: View, marks: Marks, index: Ints) -> Links:
    """`marks` and the mark that stands for each of them now -> links between the latter."""
    table = seen.table
    position = np.full(len(table), NONE, dtype=np.int64)
    named = marks.event != NONE
    position[marks.event[named]] = index[named]
    launch = np.full(len(table), NONE, dtype=np.int64)
    launch[seen.links.gpu] = seen.links.launch
    on_gpu = named & (marks.style >= _GPU)
    work = np.flatnonzero(on_gpu & (np.where(on_gpu, launch[marks.event], NONE) != NONE))
    call_event = launch[marks.event[work]]
    call = position[call_event]
    work_mark = index[work]
    both = np.flatnonzero(call != NONE)
    both = both[np.unique(work_mark[both], return_index=True)[1]]
    return Links(call[both], work_mark[both], table.end[call_event[both]])


def _note_left_out(notes: list[str], what: str, there: int, shown: int) -> None:
    if there > shown:
        notes.append(f"{there - shown} more {what} are not shown.")
