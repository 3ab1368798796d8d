"""The rows of the timeline and the marks in them, before thinning.

host    operators, nested by depth    |---------- aten::matmul ----------|
                                        |------- aten::mm -------|
        runtime calls                             |launch|
GPU     a row for each stream                        \\->|== kernel ==|
        idle, by cause                |///////////////////|
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from proftrack.measures.idle import CAUSES, Gaps
from proftrack.measures.nesting import Forest
from proftrack.measures.view import View
from proftrack.measures.window import busy
from proftrack.record.figures import Kernel
from proftrack.report.timeline.thinning import Marks
from proftrack.trace.categories import CALL_KINDS, Kind, is_launch, is_wait
from proftrack.trace.table import NONE, Bools, Ints

MOST_THREADS = 6
MOST_STREAMS = 10
DEEPEST = 16

LIMITS = ("arithmetic", "bandwidth", "latency", "transfer", "communication", "unknown")
STYLES = ("region", "operator", "call", "launch", "wait", *LIMITS, *(f"idle-{cause}" for cause in CAUSES))
"""Kinds of marks, which determine their colours."""
GPU_STYLE = STYLES.index(LIMITS[0])
"""First style of GPU work; the styles of idle gaps follow."""
IDLE_STYLE = STYLES.index("idle-" + CAUSES[0])


class Group(NamedTuple):
    """Rows of the picture that belong together."""

    label: str
    kind: str
    """operators, calls, gpu or idle."""
    first: int
    """Its first row."""
    rows: int


class Rows:
    """Collects the marks of [low, high), the groups of rows they belong to, and notes on what is left out."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.groups: list[Group] = []
        self.notes: list[str] = []
        self._marks: list[Marks] = []

    def add(self, label: str, kind: str, level: Ints, **columns: Any) -> None:
        """Add a group with these marks, each `level` rows below its first; columns not given get default values."""
        first, count = sum(group.rows for group in self.groups), len(level)
        self.groups.append(Group(label, kind, first, int(level.max()) + 1))
        none = np.full(count, NONE, dtype=np.int64)
        defaults = {"name": none, "self_ns": none, "own": np.ones(count, dtype=bool)}
        defaults |= {"busy_permille": none, "event": none}
        ones = np.ones(count, dtype=np.int64)
        self._marks.append(Marks(row=first + level, events=ones, **{**defaults, **columns}))

    def marks(self) -> Marks | None:
        """All marks in order; None if there are none."""
        if not self._marks:
            return None
        joined = Marks._make(np.concatenate(columns) for columns in zip(*self._marks, strict=True))
        return joined.take(np.lexsort((joined.start, joined.row)))

    def overlap(self, start: Ints, end: Ints) -> Ints:
        """Indices of those that are in the picture, at least in part."""
        return np.flatnonzero((start < self.high) & (end > self.low))

    def note_left_out(self, what: str, count: int) -> None:
        """Note that `count` more of something are not shown."""
        if count > 0:
            self.notes.append(f"{count} more {what} are not shown.")


# ---- host ------------------------------------------------------------------------------------------------------------


def host(seen: View, rows: Rows) -> None:
    """Operators and regions by depth, and below them the runtime and driver calls, for each thread."""
    table, forest = seen.table, seen.forest
    at = rows.overlap(forest.start, forest.end)
    events = forest.rows[at]
    is_call = table.of_kind(*CALL_KINDS)[forest.rows]
    depth, call_depth = _depths(forest, is_call, at)
    level = np.where(is_call[at], call_depth, depth)
    waited, style = _busy_during(seen, events), _styles(seen, events)
    threads = _threads(seen, events)
    rows.note_left_out("threads", len(np.unique(table.thread[events])) - len(threads))
    rows.note_left_out("rows (nested too deeply)", int((level >= DEEPEST).sum()))
    for thread in threads:
        mine = (table.thread[events] == thread) & (level < DEEPEST)
        name = f"Host thread {table.threads[thread][1]}"
        for kind, label, wanted in (
            ("operators", f"{name}: operators and regions", mine & ~is_call[at]),
            ("calls", f"{name}: runtime calls", mine & is_call[at]),
        ):
            if wanted.any():
                rows.add(
                    label,
                    kind,
                    level[wanted],
                    start=table.ts[events[wanted]],
                    dur=table.dur[events[wanted]],
                    style=style[wanted],
                    name=table.name[events[wanted]].astype(np.int64),
                    self_ns=forest.self_ns[at[wanted]],
                    busy_permille=waited[wanted],
                    event=events[wanted],
                )


def _depths(forest: Forest, is_call: Bools, at: Ints) -> tuple[Ints, Ints]:
    """How many operators and how many calls each of the positions `at` is nested in, up to the depth shown."""
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
    """The steps' thread first, then the threads with the most rows."""
    unique, count = np.unique(seen.table.thread[events], return_counts=True)
    first = set(seen.steps.thread.tolist())
    order = sorted(zip(unique.tolist(), count.tolist(), strict=True), key=lambda t: (t[0] not in first, -t[1]))
    return [thread for thread, _ in order[:MOST_THREADS]]


def _styles(seen: View, events: Ints) -> Ints:
    table = seen.table
    is_call = table.of_kind(*CALL_KINDS)[events]
    style = np.full(len(events), STYLES.index("operator"), dtype=np.int64)
    style[table.of_kind(Kind.ANNOTATION, Kind.MODULE)[events]] = STYLES.index("region")
    style[is_call] = STYLES.index("call")
    style[is_call & table.named(is_launch)[events]] = STYLES.index("launch")
    style[is_call & table.named(is_wait)[events]] = STYLES.index("wait")
    return style


def _busy_during(seen: View, events: Ints) -> Ints:
    """For waits, the share of each in which the GPU was busy, in thousandths; NONE elsewhere."""
    table = seen.table
    out = np.full(len(events), NONE, dtype=np.int64)
    waits = np.flatnonzero(table.of_kind(*CALL_KINDS)[events] & table.named(is_wait)[events])
    rows = events[waits]
    if len(rows) and len(seen.links.gpu):
        worked = busy(seen.on_device).covered_within(table.ts[rows], table.end[rows])
        out[waits] = worked * 1000 // np.maximum(table.dur[rows], 1)
    return out


# ---- GPU -------------------------------------------------------------------------------------------------------------


def gpu(seen: View, own: Bools, kernels: list[Kernel], rows: Rows) -> None:
    """A row for each stream of each device; `own`: the work that belongs to the steps shown."""
    table, work = seen.table, seen.links.gpu
    here = rows.overlap(table.ts[work], table.end[work])
    here = here[table.valid[work[here]]]
    limit = {kernel.name: kernel.limit for kernel in kernels}
    style_of = np.array([GPU_STYLE + LIMITS.index(limit.get(name, "unknown")) for name in table.names] or [GPU_STYLE])
    lanes, count = np.unique(table.lane[work[here]], return_counts=True)
    busiest = np.sort(lanes[np.argsort(-count, kind="stable")][:MOST_STREAMS])
    rows.note_left_out("streams", len(lanes) - len(busiest))
    for lane in busiest.tolist():
        mine = here[table.lane[work[here]] == lane]
        events = work[mine]
        device, stream = table.lanes[lane]
        rows.add(
            f"GPU {device}, stream {stream}",
            "gpu",
            np.zeros(len(events), dtype=np.int64),
            start=table.ts[events],
            dur=table.dur[events],
            style=style_of[table.name[events]],
            name=table.name[events].astype(np.int64),
            own=own[mine],
            event=events,
        )


def idle(gaps: Gaps, rows: Rows) -> None:
    """The device's idle gaps, in a row of their own."""
    here = rows.overlap(gaps.start, gaps.end)
    if len(here):
        start = np.maximum(gaps.start[here], rows.low)
        rows.add(
            "GPU idle, by cause",
            "idle",
            np.zeros(len(here), dtype=np.int64),
            start=start,
            dur=np.minimum(gaps.end[here], rows.high) - start,
            style=IDLE_STYLE + gaps.cause[here].astype(np.int64),
        )
