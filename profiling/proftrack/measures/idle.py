"""Why the device was idle: each gap in the device window, divided where its launch call returned, and its cause.

host  [launches]|--something else--[launch]
GPU   ==work====|      the host's cause    |   queued   |==next work==
              start                      called        end
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.intervals import EMPTY, Intervals, intersection, union
from proftrack.measures.view import View
from proftrack.measures.waits import delays_until, profilers_own, waiting_calls
from proftrack.measures.window import QUEUE_DELAY_NS, Windows, busy
from proftrack.record.figures import IDLE_CAUSES, LOADING_REGION, Idle, IdleCause, IdleGap
from proftrack.trace.categories import CALL_KINDS, Kind, is_allocator_call, is_step
from proftrack.trace.table import NONE, Bools, EventTable, Ints

HOST_STRETCH_NS = 1_000_000
"""Within a gap, longer stretches without launching operators or runtime calls count as the host's own work; shorter
ones are the Python between launches."""
STALL_NS = 20_000_000
"""Operators that launch take micro- to milliseconds between their calls. One that calls nothing for longer loads a
library, compiles, or computes on the CPU: no graph or fusion removes that."""
LAUNCH_LATENCY_NS = QUEUE_DELAY_NS
"""Work launched into an empty queue starts 2 to 10 us after its call on NVIDIA GPUs, and a little later on others. A
launch ahead of the GPU would have hidden that, so up to here it is part of what a late launch costs. Beyond, the device
had another reason not to start, and nothing after the call is the host's doing."""
WAIT_OVERHEAD_NS = 100_000
"""A call that waits takes some ten microseconds by itself: a blocking copy prepares it, a synchronization returns some
time after the work that it waited for. One that lasts longer while the device does nothing waits for another device, or
for work that was not recorded."""
LARGEST = 10

CAUSES = IDLE_CAUSES
"""dispatch: the host was launching, but too slowly. host: it did something that launches nothing. input: it waited for
the data loader. synchronization: it had been waiting for the GPU, which drained the queue. allocator: it allocated or
freed device memory. profiler: the profiler requested or flushed a buffer. queued: the work had been launched, or the
host waited for a device that did nothing; the delay is the device's. startup: a context, a library or a kernel was
loaded, which happens once. unknown: no launch was recorded."""

LOADING = re.compile(
    rf"^{LOADING_REGION}$|enumerate\(DataLoader\)|DataLoaderIter|dataloader.*__next__"
    r"|(?<![a-z])(?:fetch|next|load|get)_?(?:batch|data)(?:es)?(?![a-z]|_?(?:size|norm|parallel))"
    r"|\[pl\]\[profile\].*(?:train_dataloader_next|dataloader)|prefetcher",
    re.IGNORECASE,
)
"""Names of regions in which a program fetches its data."""


_TORCH_LAUNCHES = re.compile(r"^Optimizer\.(?:step|zero_grad)#")
"""Regions that torch itself records and that only launch work: their Python is dispatch, which a fused optimizer or a
graph removes, not the user's own work."""


def is_input(name: str) -> bool:
    """Whether a host row of this name fetches data for the model."""
    return LOADING.search(name) is not None


class Gaps(NamedTuple):
    """The idle gaps of the device window; a divided one is two, one behind the other."""

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int8]
    """Index into CAUSES."""
    launch: Ints
    """Row of the call that launched the work that ended the gap, or NONE."""
    thread: Ints
    """The thread that made that call; for a gap that no work ended, the one that runs the steps; or NONE."""

    def within(self, time: Intervals) -> Gaps:
        """The parts of the gaps that lie in these intervals."""
        first = np.searchsorted(time.end, self.start, side="right")
        count = np.maximum(np.searchsorted(time.start, self.end, side="left") - first, 0)
        gap = np.repeat(np.arange(len(first)), count)
        piece = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count - first, count)
        start, end = np.maximum(self.start[gap], time.start[piece]), np.minimum(self.end[gap], time.end[piece])
        return Gaps(start, end, self.cause[gap], self.launch[gap], self.thread[gap])

    def by_cause(self) -> dict[IdleCause, int]:
        """Nanoseconds for each cause that occurs."""
        lengths = np.bincount(self.cause, weights=(self.end - self.start), minlength=len(CAUSES))
        return {c: round(v) for c, v in zip(CAUSES, lengths.tolist(), strict=True) if v > 0}


class Host(NamedTuple):
    """What the launching threads did, as unions of intervals."""

    not_launching: Intervals
    """The window outside operators that launch and outside runtime and driver calls; and where such operators stall."""
    input: Intervals
    allocator: Intervals
    waits: Intervals
    """Synchronizations and blocking copies."""
    delaying: Intervals
    """Those of them that delay a launch."""
    profiler: Intervals
    """The profiler's own work, on whatever thread it is shown."""
    startup: Intervals
    """Calls that load something."""


class _Next(NamedTuple):
    """What ended each gap."""

    launch: Ints
    """See Gaps."""
    called: Ints
    """When the host had done its part: that call returned, or was only waiting. For a gap that no launched work ended,
    its end."""
    thread: Ints
    """See Gaps."""


def find_gaps(view: View, windows: Windows) -> Gaps:
    """Each gap of the device window with its cause."""
    return explained(view, windows, busy(view.on_device).gaps(windows.device_low, windows.device_high))


def explained(view: View, windows: Windows, gaps: Intervals) -> Gaps:
    """Any idle gaps of a device that did something, divided where the host had done its part; each part has a cause.

    A gap that no work ended (behind the last work, or cut off by the caller) is all the host's.
    """
    table, start, end = view.table, gaps.start, gaps.end
    waiting = waiting_calls(table, view.links)
    launch, called, thread = _next(view, waiting, gaps)
    until = np.where(end - called <= LAUNCH_LATENCY_NS, end, called)
    until = np.where(called <= start, start, until)
    cause = np.full(len(start), CAUSES.index("unknown"), dtype=np.int8)
    operators, loading = _launching_operators(view), _loading(view)
    for one in np.unique(thread[thread != NONE]).tolist():
        mine = np.flatnonzero(thread == one)
        host = host_activity(view, {int(one), *view.steps.thread.tolist()}, operators, waiting, loading, windows)
        cause[mine] = _causes(host, start[mine], np.minimum(called, until)[mine])
    late, queued = np.flatnonzero(until > start), np.flatnonzero(end > until)
    gap = np.concatenate([late, queued])
    order = np.argsort(np.concatenate([start[late], until[queued]]), kind="stable")
    cause = np.concatenate([cause[late], np.full(len(queued), CAUSES.index("queued"), dtype=np.int8)])
    return Gaps(
        np.concatenate([start[late], until[queued]])[order],
        np.concatenate([until[late], end[queued]])[order],
        cause[order],
        launch[gap[order]],
        thread[gap[order]],
    )


def _next(view: View, waiting: Bools, gaps: Intervals) -> _Next:
    """What ended each gap; of works that start at once, the one that was launched first."""
    table, links, work = view.table, view.links, view.on_device
    order = np.lexsort((table.end[links.launch], links.launch == NONE, work.start))
    order = order[work.usable[order] & (work.end > work.start)[order]]
    index = np.searchsorted(work.start[order], gaps.end, side="left")
    first = np.append(order, 0)[index]
    ended = np.append(work.start[order], NONE)[index] == gaps.end
    launch = np.where(ended, links.launch[first], NONE)
    began, returned = table.ts[launch], table.end[launch]
    waits = np.where(began <= gaps.start, began, np.minimum(began + WAIT_OVERHEAD_NS, returned))
    called = np.where(launch == NONE, gaps.end, np.where(waiting[launch], waits, returned))
    thread = np.where(launch == NONE, NONE, table.thread[launch]).astype(np.int64)
    thread[~ended] = _running_thread(view)
    return _Next(launch, called, thread)


def _running_thread(view: View) -> int:
    """The thread that runs the steps; without steps, the one that launched last; NONE if nothing was launched."""
    if len(view.steps):
        return int(view.steps.thread[-1])
    calls = view.links.calls
    return int(view.table.thread[calls[np.argmax(view.table.ts[calls])]]) if len(calls) else NONE


def host_activity(
    view: View, threads: set[int], operators: Bools, waiting: Bools, loading: Bools, windows: Windows
) -> Host:
    """What these threads did. The masks: operators that launch, calls that wait, and calls that load something.

    The main thread counts along with a backward thread, which may be waiting for it.
    """
    table = view.table
    here = table.valid & np.isin(table.thread, list(threads))

    def joined(mask: Bools) -> Intervals:
        return union(table.ts[mask], table.end[mask])

    calls = here & table.of_kind(*CALL_KINDS)
    launching, waits = joined(calls | (here & operators)), joined(here & waiting)
    outside, stalled = launching.gaps(windows.low, windows.high), _stalled(view, here, calls | operators)
    return Host(
        not_launching=union(np.append(outside.start, stalled.start), np.append(outside.end, stalled.end)),
        input=joined(here & table.of_kind(Kind.CPU_OP, Kind.ANNOTATION) & table.named(is_input)),
        allocator=joined(calls & table.named(is_allocator_call) & ~loading),
        waits=waits,
        delaying=waits.clipped(windows.low, delays_until(view)),
        profiler=joined(profilers_own(table)),
        startup=joined(here & loading),
    )


def _stalled(view: View, here: Bools, launching: Bools) -> Intervals:
    """Where a launching operator of these threads calls nothing for a long time, and no other thread launches."""
    table = view.table
    forest = view.forest.without(table.of_kind(Kind.MODULE)[view.forest.rows])
    mine = launching & here & table.of_kind(Kind.CPU_OP)
    at = np.flatnonzero((forest.self_ns > STALL_NS) & mine[forest.rows])
    if not len(at):
        return EMPTY
    operator, inside = forest.rows[at], forest.rows[np.isin(forest.parent, at)]
    others = np.flatnonzero(launching & here & ~np.isin(table.thread, table.thread[operator]))
    busy = np.concatenate([inside, others])
    low, high = int(table.ts[operator].min()), int(table.end[operator].max())
    quiet = union(table.ts[busy], table.end[busy]).gaps(low, high)
    return intersection(union(table.ts[operator], table.end[operator]), quiet).longer_than(STALL_NS)


def _launching_operators(view: View) -> Bools:
    """Operators that contain a launch call; of the annotations, only those in which torch itself launches."""
    table, forest = view.table, view.forest
    is_call = np.zeros(len(table), dtype=np.int64)
    is_call[view.links.launching] = 1
    launches = forest.subtree_sums(is_call[forest.rows]) if len(forest.rows) else is_call[:0]
    mask = np.zeros(len(table), dtype=bool)
    mask[forest.rows[launches > 0]] = True
    operators = table.of_kind(Kind.CPU_OP) & ~table.named(is_input) & ~table.named(is_step)
    return mask & (operators | table.named(lambda n: _TORCH_LAUNCHES.match(n) is not None))


def _loading(view: View) -> Bools:
    """Mask of the calls that start something up."""
    mask = np.zeros(len(view.table), dtype=bool)
    mask[view.start_up] = True
    return mask


def _causes(host: Host, start: Ints, until: Ints) -> npt.NDArray[np.int8]:
    """Causes of gaps by what the host did in [start, until): at `until`, it had done its part."""
    until = np.maximum(until, start)
    length = until - start
    waiting_for_data = host.input.covered_within(start, until)
    profiler = host.profiler.covered_within(start, until)
    shares = {
        "input": waiting_for_data,
        "profiler": profiler,
        "host": np.maximum(
            _long_stretches(host.not_launching, start, until, HOST_STRETCH_NS) - waiting_for_data - profiler, 0
        ),
        "allocator": np.minimum(host.allocator.covered_within(start, until) + _since(host.allocator, start), length),
        "queued": _long_stretches(host.waits, start, until, WAIT_OVERHEAD_NS),
        "synchronization": np.minimum(_since(host.delaying, start), length),
        "startup": host.startup.covered_within(start, until),
    }
    cause = np.full(len(start), CAUSES.index("dispatch"), dtype=np.int8)
    largest = length // 2
    for name, amount in shares.items():
        wins = (amount > 0) & (amount >= largest)
        cause[wins] = CAUSES.index(name)
        largest = np.where(wins, amount, largest)
    return cause


def _since(calls: Intervals, start: Ints) -> Ints:
    """How long the host had been in such a call when each gap began: it could have launched that much earlier."""
    if not len(calls.start):
        return np.zeros(len(start), dtype=np.int64)
    index = np.searchsorted(calls.start, start, side="right") - 1
    during = (index >= 0) & (calls.end[np.maximum(index, 0)] >= start)
    return np.asarray(np.where(during, start - calls.start[np.maximum(index, 0)], 0), dtype=np.int64)


def _long_stretches(intervals: Intervals, start: Ints, until: Ints, length: int) -> Ints:
    """For each disjoint [start, until), the length of the pieces of `intervals` within it that are longer than this."""
    pieces = intersection(intervals, union(start, until)).longer_than(length)
    return pieces.covered_within(start, until)


def summarize(view: View, gaps: Gaps, windows: Windows) -> Idle:
    """Idle time per typical step by cause (the total if there are no steps), and its largest gaps."""
    gaps = gaps.within(windows.typical)
    per_step = max(windows.typical_steps, 1)
    rows = np.bincount(gaps.cause, weights=_rows_within(view, gaps), minlength=len(CAUSES))
    order = np.argsort(gaps.start - gaps.end, kind="stable")[:LARGEST]
    telling = recorded_on_host(view.table) & ~view.table.named(is_step)  # a step says nothing about what is in it
    return Idle(
        by_cause_us_per_step={c: round(ns / 1000 / per_step, 3) for c, ns in gaps.by_cause().items()},
        rows_by_cause_per_step={c: n / per_step for c, n in zip(CAUSES, rows.tolist(), strict=True) if n},
        largest=[
            IdleGap(
                start_us=(int(gaps.start[i]) - windows.device_low) / 1000,
                duration_us=int(gaps.end[i] - gaps.start[i]) / 1000,
                cause=CAUSES[gaps.cause[i]],
                during=_during(view.table, telling, int(gaps.thread[i]), int(gaps.start[i]), int(gaps.end[i])),
            )
            for i in order.tolist()
        ],
    )


def _rows_within(view: View, gaps: Gaps) -> Ints:
    """For each gap, how many host rows that delayed its end were recorded in it."""
    starts = np.sort(view.table.ts[recorded_on_host(view.table)], kind="stable")  # fast, as files are nearly in order
    until = np.where(gaps.launch == NONE, gaps.end, np.minimum(view.table.end[gaps.launch], gaps.end))
    until = np.where(gaps.cause == CAUSES.index("queued"), gaps.start, until)
    counts = np.searchsorted(starts, np.maximum(until, gaps.start)) - np.searchsorted(starts, gaps.start)
    return np.asarray(counts, dtype=np.int64)


def recorded_on_host(table: EventTable) -> Bools:
    """Mask of the rows that cost the host time to record."""
    return table.valid & (table.host | table.of_kind(Kind.PYTHON))


def _during(table: EventTable, telling: Bools, thread: int, start: int, end: int) -> str:
    """What the thread did in most of [start, end): the innermost telling row that fills half of it, if one does."""
    if thread == NONE:
        return "unknown host activity (no launch was recorded)"
    rows = np.flatnonzero((table.thread == thread) & telling & (table.ts < end) & (table.end > start))
    low, high = np.maximum(table.ts[rows], start), np.minimum(table.end[rows], end)
    filling = rows[(high - low) * 2 >= end - start]
    if not len(filling):
        return "many short calls" if union(low, high).length * 2 >= end - start else "unrecorded host activity"
    recorded = np.where(table.ev_idx[filling] == NONE, np.iinfo(np.int64).max, table.ev_idx[filling])
    order = np.lexsort((-recorded, -table.ts[filling], table.dur[filling]))
    return str(table.names[table.name[filling[order[0]]]])
