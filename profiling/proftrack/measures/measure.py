"""The figures of one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs

from proftrack.measures import idle, limits, quality, tables, work
from proftrack.measures import sites as launch_sites
from proftrack.measures.captures import THIS_TRACE, Captures, captures_in
from proftrack.measures.collectives import collectives
from proftrack.measures.compiling import compiling_steps
from proftrack.measures.counted import Counted, counted
from proftrack.measures.graphs import replays
from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.loading import Loading, loading
from proftrack.measures.modules import modules
from proftrack.measures.origins import Origins, origins
from proftrack.measures.owners import find_owners
from proftrack.measures.single import Single, single
from proftrack.measures.typical import Outlier, find_outliers, step_times, without_outliers
from proftrack.measures.unseen import without_unseen_queue
from proftrack.measures.view import View, view
from proftrack.measures.waits import Wait, delays_until, waiting_calls, waits
from proftrack.measures.window import Windows, busy, find_windows
from proftrack.measures.work_owners import work_owners
from proftrack.record.ceilings import Ceilings
from proftrack.record.figures import (
    CpuWork,
    Device,
    Flag,
    Idle,
    Kernel,
    Launch,
    Limit,
    Op,
    Region,
    Site,
    Split,
    Step,
    Totals,
    TraceWork,
    Window,
    launches_per_step,
)
from proftrack.record.modules import Graph, Module
from proftrack.record.ranks import Collective
from proftrack.trace.categories import Kind, is_allocator_call, is_graph_launch, is_module, is_step
from proftrack.trace.table import NONE, Bools, EventTable


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The figures of a trace, or of several cycles of one run. Times in microseconds."""

    window: Window
    totals: Totals
    per_step: list[Step]
    ops: list[Op]
    kernels: list[Kernel]
    regions: list[Region]
    idle: Idle
    split: Split | None
    launch: Launch | None
    devices: list[Device]
    flags: list[Flag]
    typical_us: float | None
    """The device window without outlier steps."""
    busy_us: float | None
    """Union of GPU work in it: B times the number of typical steps."""
    busy_by_limit_us: dict[Limit, float]
    """The same by what limits the work; kernels hide copies and collectives that run at the same time."""
    counted: Counted = field(default_factory=Counted)
    """The part of that in work whose FLOPs and bytes are known."""
    impossible_us: float = 0.0
    """Time cut off that device's work because its stream rules it out (`serial.possible_ends`)."""
    memory_sets: int = 0
    """How many of the launches set memory: whether they have work in a trace says nothing."""
    unseen_queue_us: float = 0.0
    """By how much the steps may take longer: with steps, the time cut off the device window's start because a queue
    that is not in the trace seems to have filled it; without, the host's own time beyond the typical time."""
    single: Single | None = None
    """The part of the typical time that only one step shows."""
    compiling_us: float = 0.0
    """Compilation and autotuning during the typical steps."""
    waits_over_gpu_us: float
    """Host waits inside the steps that overlap GPU work: the part of T that H leaves out."""
    waits: list[Wait] = field(default_factory=list)
    """The same waits by call and operator."""
    loading: Loading | None = None
    """How long the typical steps spent getting their data in calls that are timed without the profiler, too."""
    host_rows: int = 0
    """Host rows recorded in the window, including Python functions."""
    work: TraceWork | None = None
    """None if no shapes were recorded."""
    whole_us: dict[str, float] = field(default_factory=dict)
    """Time of each operator with all that it calls, on the GPU; on the CPU if there is no GPU work."""
    launched_us: dict[str, float] = field(default_factory=dict)
    """Time of kernels that the host launched, or captured, without an operator, by name."""
    replayed_us: float = 0.0
    """Time of kernels that CUDA graphs launched whose captures are not known, so that they have no operators."""
    named_us: float = 0.0
    """Time of those whose captures are known; their operators are in `sites`, `kernels`, `work` and `whole_us`."""
    cpu: CpuWork | None = None
    """Only for a trace without GPU work, and only with ceilings."""
    other_us: dict[str, float] = field(default_factory=dict)
    """Time of rows of unknown categories (another accelerator's, for example), by the file's category name."""
    sites: list[Site] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    """The CUDA graphs that the trace replays, the largest first."""

    @property
    def steps(self) -> int:
        """Recorded steps."""
        return self.window.steps

    @property
    def ops_in_steps(self) -> list[Op]:
        """The operators and regions without the rows of the steps themselves, and without modules' calls."""
        return [op for op in self.ops if not is_step(op.name) and not is_module(op.name)]

    @property
    def gpu_busy_per_step_us(self) -> float | None:
        """B. Without steps, the whole recording counts as one step."""
        return self._per_step(self.busy_us)

    @property
    def step_time_profiled_us(self) -> float | None:
        """The typical time divided by its steps; without steps, the whole recording."""
        return self._per_step(self.typical_us)

    @property
    def step_time_all_steps_us(self) -> float | None:
        """The same with the outliers; None if there are none."""
        whole = self.window.device_duration_us
        return round(whole / self.steps, 3) if whole is not None and self.window.outlier_steps else None

    @property
    def per(self) -> str:
        """How to word a figure "per step": a trace without steps counts as one step."""
        return "per step" if self.steps else "in total"

    @property
    def launches_per_step(self) -> float | None:
        """Launches inside the typical steps; without steps, all. None if it is not known which calls are launches."""
        if not self.per_step:
            return None if self.totals.launches is None else float(self.totals.launches)
        return launches_per_step([step for step in self.per_step if step.outlier is None])

    @property
    def allocator_calls(self) -> list[Op]:
        """Calls that allocate or free device or pinned memory."""
        return [op for op in self.ops if is_allocator_call(op.name)]

    @property
    def replays_graphs(self) -> bool:
        """Whether any call replays a graph."""
        return any(is_graph_launch(op.name) for op in self.ops)

    @property
    def own_share(self) -> float:
        """Share of the GPU events that were launched inside the steps."""
        own = sum(step.gpu_events for step in self.per_step)
        return own / self.totals.gpu_events if self.per_step and self.totals.gpu_events else 1.0

    def _per_step(self, total_us: float | None) -> float | None:
        """The mean per step, rounded to the nanosecond, which is the trace's resolution."""
        return None if total_us is None else round(total_us / self.window.typical_steps, 3)


def measure(table: EventTable, ceilings: Ceilings | None = None, captured: Sequence[Captures] = ()) -> Measures:
    """All figures of one trace; with `ceilings`, also each kernel's limit and distance from its roofline.

    `captured`: traces that hold the captures of the graphs that this one replays (`recorded_captures`), besides itself.
    """
    seen = view(table)
    replayed = replays(table, seen.links, [captures_in(THIS_TRACE, table, seen.forest, seen.links), *captured])
    windows = find_windows(table, seen.links, seen.steps, seen.owned, seen.on_device)
    placed = windows is not None and _placed(seen, windows)
    outliers: list[Outlier] = []
    if windows is not None and placed and len(seen.steps):
        outliers = find_outliers(seen, windows)
        windows = without_outliers(seen, windows, outliers)
    elif windows is not None and placed:
        windows = without_unseen_queue(seen, windows)
    found = origins(seen, replayed.matches)
    operators = work.without_sparse(table, seen.links.gpu, found.owner, work.operator_costs(found))
    costs = work.gpu_costs(table, seen.links.gpu, found.owner, operators, ceilings)
    classes = limits.classes_of(seen, found, costs)
    gpu = _gpu_part(seen, windows, classes, outliers)
    shapes = len(found.signatures) > 0 and len(seen.forest.rows) > 0
    owned = work.Owned(seen.links.gpu, found.owner, operators, costs)
    outside = work.outside_operators(table, seen.links, found)
    typical = launch_sites.typical_work(seen, windows if placed else None)
    owners = work_owners(seen, found, find_owners(table, seen.forest))
    own = (seen.owned.step != NONE) & ~np.isin(seen.owned.step, [outlier.step for outlier in outliers])
    return Measures(
        window=_window(seen, windows),
        typical_us=windows.typical.length / 1000 if windows and _comparable(seen, windows) else None,
        totals=_totals(seen, windows),
        per_step=_with_outliers(
            tables.per_step(table, seen.forest, seen.links, seen.steps, seen.owned), seen, windows, outliers
        ),
        ops=tables.operators(table, seen.forest, seen.links, found.host),
        kernels=tables.gpu_work(table, seen.links, classes, costs),
        sites=launch_sites.sites(seen, found, typical, owners),
        modules=modules(seen, found, owners, typical, [outlier.step for outlier in outliers]),
        regions=tables.regions(table, seen.links),
        launch=tables.launch_figures(table, seen.links, seen.owned),
        devices=tables.devices(table, seen.links, seen.owned, windows.low, windows.high) if windows else [],
        flags=quality.flags(seen, windows, outliers),
        host_rows=_host_rows(seen, windows),
        impossible_us=_impossible_ns(seen) / 1000,
        memory_sets=int(seen.links.set_calls.sum()),
        counted=counted(seen, windows, classes, gpu["busy_by_limit_us"], owned, ceilings)
        if windows and placed
        else Counted(),
        unseen_queue_us=windows.unseen / 1000 if windows else 0.0,
        other_us=_others(table),
        collectives=collectives(seen),
        compiling_us=_compiling(seen, outliers),
        work=work.trace_work(table, found, owned, own) if shapes else None,
        whole_us=_whole_times(seen, found),
        launched_us=outside.launched_us,
        replayed_us=outside.replayed_us,
        named_us=outside.named_us,
        graphs=replayed.graphs,
        cpu=work.cpu_work(work.cpu_calls(table, seen.forest, operators), ceilings)
        if ceilings and not len(seen.links.gpu)
        else None,
        **gpu,
    )


def _gpu_part(
    seen: View, windows: Windows | None, classes: dict[Limit, Bools], outliers: list[Outlier]
) -> dict[str, Any]:
    """The figures that need GPU work and a window."""
    if windows is None or not _placed(seen, windows):
        return {
            "idle": Idle(by_cause_us_per_step={}, largest=[]),
            "split": None,
            "busy_us": None,
            "busy_by_limit_us": {},
            "waits_over_gpu_us": 0.0,
            "loading": loading(seen, windows) if windows is not None else None,
        }
    busy_time, gaps = windows.during_steps(seen.on_device), idle.find_gaps(seen, windows)
    return {
        "idle": idle.summarize(seen, gaps, windows),
        "single": single(seen, windows, gaps, [outlier.step for outlier in outliers]),
        "split": limits.split(seen, windows, classes),
        "busy_us": busy_time.length / 1000,
        "busy_by_limit_us": limits.by_limit(seen, windows, classes),
        "waits_over_gpu_us": _waits_over_gpu(seen, busy_time),
        "loading": loading(seen, windows, busy_time),
        "waits": waits(seen, busy_time, [outlier.step for outlier in outliers]),
    }


def _with_outliers(steps: list[Step], seen: View, windows: Windows | None, outliers: list[Outlier]) -> list[Step]:
    """The steps with their times on the device, and what filled the outliers."""
    if windows is None or not steps or not _placed(seen, windows):
        return steps
    why = {outlier.step: outlier.why for outlier in outliers}
    lengths = step_times(seen, windows).length.tolist()
    return [
        structs.replace(step, device_us=length / 1000, outlier=why.get(i))
        for i, (step, length) in enumerate(zip(steps, lengths, strict=True))
    ]


def _placed(seen: View, windows: Windows | None) -> bool:
    """Whether any GPU work can be placed in the window. If not, the GPU does not count as idle either.

    No work can be placed if all work of the steps is outside the window, as when the clocks of host and GPU differ, or
    if none of it has a length.
    """
    if windows is None or not len(seen.links.gpu) or not windows.device_duration:
        return False
    for owned in (seen.on_device, seen.owned):
        own = owned.usable & (owned.step != NONE)
        if own.any():
            return busy(owned, own).clipped(windows.low, windows.high).length > 0
    return True


def _comparable(seen: View, windows: Windows) -> bool:
    """Whether the steps' times mean anything: not if there is GPU work but none of it can be placed in them."""
    return windows.device_duration > 0 and (not len(seen.links.gpu) or _placed(seen, windows))


def _compiling(seen: View, outliers: list[Outlier]) -> float:
    time = compiling_steps(seen.table, seen.steps, seen.forest)
    time[[outlier.step for outlier in outliers]] = 0
    return int(time.sum()) / 1000


def _whole_times(seen: View, found: Origins) -> dict[str, float]:
    """Time of each operator with all that it calls, also where it was captured: on the GPU; on the CPU without one."""
    table, forest, gpu = seen.table, seen.forest, seen.links.gpu
    if not len(gpu):
        return tables.whole_times(table, forest, table.dur[forest.rows])
    sums = Counter(tables.whole_times(table, forest, tables.time_below(forest, found.host, table.dur[gpu])))
    for part in found.captured:
        inside = part.source.forest
        sums.update(
            tables.whole_times(
                part.source.table, inside, tables.time_below(inside, part.owner, table.dur[gpu[part.work]])
            )
        )
    return dict(sums)


def _others(table: EventTable) -> dict[str, float]:
    rows = np.flatnonzero(table.of_kind(Kind.OTHER))
    sums = np.bincount(table.category[rows], weights=table.dur[rows], minlength=len(table.categories))
    return {name: us / 1000 for name, us in zip(table.categories, sums.tolist(), strict=True) if us}


def _host_rows(seen: View, windows: Windows | None) -> int:
    if windows is None:
        return 0
    table = seen.table
    inside = windows.typical.overlapping(table.ts, table.ts + 1)
    return int((idle.recorded_on_host(table) & inside).sum())


def _impossible_ns(seen: View) -> int:
    cut = seen.table.end[seen.links.gpu] - seen.on_device.end
    return int(cut[seen.on_device.usable].sum())


def _window(seen: View, windows: Windows | None) -> Window:
    return Window(
        steps=len(seen.steps),
        step_names=seen.steps.name,
        duration_us=windows.duration / 1000 if windows else None,
        device_duration_us=windows.device_duration / 1000 if windows and _comparable(seen, windows) else None,
        outlier_steps=len(seen.steps) - windows.typical_steps if windows else 0,
    )


def _totals(seen: View, windows: Windows | None) -> Totals:
    table, links = seen.table, seen.links
    total_ns = int(table.dur[links.gpu].sum())
    busy_ns = busy(seen.on_device).clipped(windows.low, windows.high).length if windows else 0
    measured = _placed(seen, windows)
    duration = windows.duration if windows else 0
    return Totals(
        self_cpu_time_total_us=int(seen.forest.self_ns.sum()) / 1000 if len(seen.forest.rows) else None,
        self_cuda_time_total_us=total_ns / 1000 if len(links.gpu) else None,
        gpu_busy_us=busy_ns / 1000 if measured else None,
        gpu_idle_us=(duration - busy_ns) / 1000 if measured else None,
        gpu_busy_fraction_profiled=round(busy_ns / duration, 5) if measured else None,
        gpu_events=len(links.gpu),
        kernels=int((table.kind[links.gpu] == Kind.KERNEL).sum()),
        launches=len(links.calls) if links.counted else None,
        gpu_events_without_launch=int((links.launch == NONE).sum()),
    )


def _waits_over_gpu(seen: View, gpu_busy: Intervals) -> float:
    """Microseconds that launching threads spent waiting while the GPU worked, where that delays a later launch.

    With steps, from the first one's start: a wait at the end of a step delays the next, and the last one's own end.
    """
    table, steps = seen.table, seen.steps
    waits = np.flatnonzero(
        waiting_calls(table, seen.links) & np.isin(table.thread, np.unique(table.thread[seen.links.calls]))
    )
    low = int(steps.start[0]) if len(steps) else 0
    delaying = union(table.ts[waits], table.end[waits]).clipped(low, delays_until(seen))
    return intersection(delaying, gpu_busy).length / 1000
