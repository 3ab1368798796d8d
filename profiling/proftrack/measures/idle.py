"""Why the device was idle: every gap in the device window gets one cause."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.links import Links
from proftrack.measures.view import View
from proftrack.measures.window import Ownership, Windows, busy
from proftrack.record.figures import IDLE_CAUSES, Idle, IdleCause, IdleGap
from proftrack.trace.categories import CALL_KINDS, Kind, is_allocator_call, is_wait
from proftrack.trace.table import NONE, Bools, EventTable, Ints

HOST_STRETCH_NS = 1_000_000
"""Within a gap, longer stretches without launching operators or runtime calls count as the host's own work; shorter
ones are the Python between launches."""
LARGEST = 10

CAUSES = IDLE_CAUSES
"""dispatch: the host was launching, but too slowly. host: it did something that launches nothing. input: it waited for
the data loader. synchronization: it had been waiting for the GPU, which drained the queue. allocator: it allocated or
freed device memory. profiler: the profiler requested or flushed a buffer. queued: the work was launched in time; the
delay is the device's. unknown: no launch was recorded."""

LOADING = re.compile(
    r"enumerate\(DataLoader\)|DataLoaderIter|dataloader.*__next__"
    r"|(?<![a-z])(?:fetch|next|load|get)_?(?:batch|data)(?:es)?(?![a-z]|_?(?:size|norm|parallel))"
    r"|\[pl\]\[profile\].*(?:train_dataloader_next|dataloader)|prefetcher",
    re.IGNORECASE,
)
"""Names of regions in which a program fetches its data."""


_TORCH_LAUNCHES = re.compile(r"^Optimizer\.(?:step|zero_grad)#")
"""Regions that torch itself records and that only launch work: their Python is dispatch, which a fused optimizer or a
graph removes, not the user's own work."""


def _is_module_loading(name: str) -> bool:
    """Whether the driver loads code on its first call: not the profiler's work, though shown among its rows."""
    return "Loading" in name


def is_input(name: str) -> bool:
    """Whether a host row of this name fetches data for the model."""
    return LOADING.search(name) is not None


class Gaps(NamedTuple):
    """The idle gaps of the device window."""

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int8]
    """Index into CAUSES."""
    launch: Ints
    """Row of the call that launched the work that ended the gap, or NONE."""

    def by_cause(self) -> dict[IdleCause, int]:
        """Nanoseconds for each cause that occurs."""
        lengths = np.bincount(self.cause, weights=(self.end - self.start), minlength=len(CAUSES))
        return {c: round(v) for c, v in zip(CAUSES, lengths.tolist(), strict=True) if v > 0}


class Host(NamedTuple):
    """What the launching threads did, as unions of intervals."""

    not_launching: Intervals
    """The window outside operators that launch and outside runtime and driver calls."""
    input: Intervals
    allocator: Intervals
    waits: Intervals
    """Synchronizations and blocking copies."""
    profiler: Intervals
    """The profiler's own work, on whatever thread it is shown."""


def find_gaps(view: View, windows: Windows) -> Gaps:
    """Each gap with its cause, judged by the call that launched the work that ended it."""
    table, steps = view.table, view.steps
    gaps = busy(view.on_device).gaps(windows.device_low, windows.device_high)
    launch = _next_launch(table, view.links, view.on_device, gaps)
    cause = np.full(len(gaps.start), CAUSES.index("unknown"), dtype=np.int8)
    thread = np.where(launch == NONE, NONE, table.thread[launch])
    operators = _launching_operators(view)
    for one in np.unique(thread[thread != NONE]).tolist():
        mine = np.flatnonzero(thread == one)
        host = host_activity(view, {int(one), *steps.thread.tolist()}, operators, windows)
        called = table.end[launch[mine]]
        cause[mine] = _causes(host, gaps.start[mine], gaps.end[mine], called)
    return Gaps(gaps.start, gaps.end, cause, launch)


def _next_launch(table: EventTable, links: Links, owned: Ownership, gaps: Intervals) -> Ints:
    """For each gap, the launch call of the work that starts where it ends; of several, the earliest call."""
    called = np.where(links.launch == NONE, 0, table.end[links.launch])
    order = np.lexsort((called, links.launch == NONE, owned.start))
    order = order[owned.usable[order] & (owned.end > owned.start)[order]]
    starts = owned.start[order]
    index = np.searchsorted(starts, gaps.end, side="left")
    hit = index < len(starts)
    hit[hit] = starts[index[hit]] == gaps.end[hit]
    launch = np.full(len(gaps.end), NONE, dtype=np.int64)
    launch[hit] = links.launch[order[index[hit]]]
    return launch


def host_activity(view: View, threads: set[int], operators: Bools, windows: Windows) -> Host:
    """What these threads did; `operators` masks the operators that launch.

    The main thread counts along with a backward thread, which may be waiting for it.
    """
    table = view.table
    here = table.valid & np.isin(table.thread, list(threads))

    def joined(mask: Bools) -> Intervals:
        return union(table.ts[mask], table.end[mask])

    calls = here & table.of_kind(*CALL_KINDS)
    launching = joined(calls | (here & operators))
    return Host(
        not_launching=launching.gaps(windows.low, windows.high),
        input=joined(here & table.of_kind(Kind.CPU_OP, Kind.ANNOTATION) & table.named(is_input)),
        allocator=joined(calls & table.named(is_allocator_call)),
        waits=joined(calls & table.named(is_wait)),
        profiler=joined(table.valid & table.of_kind(Kind.OVERHEAD) & ~table.named(_is_module_loading)),
    )


def _launching_operators(view: View) -> Bools:
    """Operators that contain a launch call; of the annotations, only those in which torch itself launches."""
    table, forest = view.table, view.forest
    is_call = np.zeros(len(table), dtype=np.int64)
    is_call[view.links.launching] = 1
    launches = forest.subtree_sums(is_call[forest.rows]) if len(forest.rows) else is_call[:0]
    mask = np.zeros(len(table), dtype=bool)
    mask[forest.rows[launches > 0]] = True
    operators = (
        table.of_kind(Kind.CPU_OP) & ~table.named(is_input) & ~table.named(lambda n: n.startswith("ProfilerStep"))
    )
    return mask & (operators | table.named(lambda n: _TORCH_LAUNCHES.match(n) is not None))


def _causes(host: Host, start: Ints, end: Ints, called: Ints) -> npt.NDArray[np.int8]:
    """Causes of gaps [start, end) whose next work was launched by a call that ended at `called`."""
    until = np.clip(called, start, end)  # after the call the host has done its part
    length = until - start
    waiting_for_data = host.input.covered_within(start, until)
    profiler = host.profiler.covered_within(start, until)
    shares = {
        "input": waiting_for_data,
        "profiler": profiler,
        "host": np.maximum(_long_stretches(host.not_launching, start, until) - waiting_for_data - profiler, 0),
        "allocator": host.allocator.covered_within(start, until),
        "synchronization": np.minimum(_waited(host.waits, start), length),
    }
    cause = np.full(len(start), CAUSES.index("dispatch"), dtype=np.int8)
    largest = length // 2
    for name, amount in shares.items():
        wins = (amount > 0) & (amount >= largest)
        cause[wins] = CAUSES.index(name)
        largest = np.where(wins, amount, largest)
    cause[called <= start] = CAUSES.index("queued")
    return cause


def _waited(waits: Intervals, start: Ints) -> Ints:
    """How long the host had been waiting when each gap began: it could have launched that much earlier."""
    if not len(waits.start):
        return np.zeros(len(start), dtype=np.int64)
    index = np.searchsorted(waits.start, start, side="right") - 1
    during = (index >= 0) & (waits.end[np.maximum(index, 0)] >= start)
    return np.asarray(np.where(during, start - waits.start[np.maximum(index, 0)], 0), dtype=np.int64)


def _long_stretches(quiet: Intervals, start: Ints, until: Ints) -> Ints:
    """For each disjoint [start, until), the length of the long pieces of `quiet` within it."""
    pieces = intersection(quiet, union(start, until)).longer_than(HOST_STRETCH_NS)
    return pieces.covered_within(start, until)


def summarize(view: View, gaps: Gaps, windows: Windows) -> Idle:
    """Idle time per step by cause (the total if there are no steps), and the largest gaps with what the host did."""
    per_step = max(len(view.steps), 1)
    rows = np.bincount(gaps.cause, weights=_rows_within(view, gaps), minlength=len(CAUSES))
    order = np.argsort(gaps.start - gaps.end, kind="stable")[:LARGEST]
    return Idle(
        by_cause_us_per_step={c: round(ns / 1000 / per_step, 3) for c, ns in gaps.by_cause().items()},
        rows_by_cause_per_step={c: n / per_step for c, n in zip(CAUSES, rows.tolist(), strict=True) if n},
        largest=[
            IdleGap(
                start_us=(int(gaps.start[i]) - windows.device_low) / 1000,
                duration_us=int(gaps.end[i] - gaps.start[i]) / 1000,
                cause=CAUSES[gaps.cause[i]],
                during=_during(view.table, int(gaps.launch[i]), int(gaps.start[i]), int(gaps.end[i])),
            )
            for i in order.tolist()
        ],
    )


def _rows_within(view: View, gaps: Gaps) -> Ints:
    """For each gap, how many host rows were recorded in it before the launch that ended it."""
    starts = np.sort(view.table.ts[recorded_on_host(view.table)])
    until = np.where(gaps.launch == NONE, gaps.end, np.minimum(view.table.end[gaps.launch], gaps.end))
    counts = np.searchsorted(starts, np.maximum(until, gaps.start)) - np.searchsorted(starts, gaps.start)
    return np.asarray(counts, dtype=np.int64)


def recorded_on_host(table: EventTable) -> Bools:
    """Mask of the rows that cost the host time to record."""
    return table.valid & (table.host | table.of_kind(Kind.PYTHON))


def _during(table: EventTable, launch: int, start: int, end: int) -> str:
    """The host row that best describes [start, end) on the thread that launched next."""
    if launch == NONE:
        return "unknown host activity (no launch was recorded)"
    end = max(min(end, int(table.end[launch])), start)
    rows = np.flatnonzero(
        (table.thread == table.thread[launch]) & recorded_on_host(table) & (table.ts < end) & (table.end > start)
    )
    if not len(rows):
        return "unrecorded host activity"
    low, high = np.maximum(table.ts[rows], start), np.minimum(table.end[rows], end)
    length = high - low
    # The innermost row that fills at least half says the most; the widest one is only the step.
    fills = length * 2 >= end - start
    recorded = np.where(table.ev_idx[rows] == NONE, np.iinfo(np.int64).max, table.ev_idx[rows])
    order = np.lexsort((-recorded, -table.ts[rows], table.dur[rows], np.where(fills, 0, -length), ~fills))
    return str(table.names[table.name[rows[order[0]]]])
