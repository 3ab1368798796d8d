"""Quality flags: what about a trace changes the meaning of its figures."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from proftrack.measures.intervals import union_by_group
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.record.figures import Flag, FlagCode
from proftrack.trace.categories import Kind
from proftrack.trace.table import NONE, Ints

FLAGS: dict[FlagCode, str] = {
    "no_steps": "No ProfilerStep rows: the figures are about the whole recording, and none is per step.",
    "partial_window": "The last step's work is not all in the trace: its figures are too small.",
    "fewer_steps": "The loop ended before its schedule: the figures rest on fewer steps than were asked for.",
    "several_processes": "Steps of several processes in one file: their times are mixed up; record each apart.",
    "uneven_steps": "The recorded steps differ much: a mean over them describes none of them.",
    "launches_without_gpu_work": "Launch calls without recorded GPU work: busy time may be too small.",
    "gpu_not_measured": "The host launched GPU work and none was recorded: the GPU was not measured, not idle.",
    "work_before_window": "Work of earlier steps still ran when recording began: only totals hold it, not the steps.",
    "gpu_before_launch": "GPU work that starts before its launch call: the two clocks differ by as much or more.",
    "overlapping_on_stream": "GPU work overlaps on one stream: sums exceed busy time by the overlap.",
    "gpu_work_without_launch": "GPU work whose launch was not recorded: counted in totals, in no step and no operator.",
    "invalid_timestamps": "Rows with times that cannot be: counted, but left out of busy and idle time.",
    "repaired_json": "The file was not valid JSON and was mended where that needed no guess.",
    "partial_file": "The file is broken and was read in part: every total is too small.",
    "under_recorded_graphs": "Graph replays with few or no recorded kernels: the GPU did more than the trace shows.",
    "recompiled_in_window": "Compilation or autotuning ran in the recorded steps: a later step costs less.",
    "slow_under_profiler": "GPU busy time exceeds the unprofiled step time: the work ran slower under the profiler.",
    "roofline_above_busy": "The roofline time exceeds the busy time: the ceilings were measured too low, R is out.",
    "gpu_throttled": "The GPU was throttled while steps were timed: a cooler or better fed one is faster.",
    "clocks_low": "The GPU's clock was under nine tenths of its maximum while steps were timed.",
    "gpu_shared": "Other processes used the GPU while steps were timed: times may be longer than the program's own.",
    "work_not_counted": "A part of the GPU's work has no known FLOPs or bytes: rooflines of its kernels are missing.",
    "other_threads": "Threads that the program starts worked and were not recorded: their work is missing.",
    "no_region": "No record_function region in the steps: host time cannot be assigned to parts of the program.",
}
"""Every flag and what it does to the figures."""

OVERLAP_NS = 2
"""Rows of one stream may touch by rounding."""
UNEVEN = 3.0
"""A step this many times the median (or the median that many times a step) is another kind of step."""
UNEVEN_HOST_NS = 2_000_000
"""Under this more than the median, a host interval is only the profiler's own start in the first step."""
FEW_JOINED = 0.5

_COMPILING = re.compile(
    r"compile_inner|compile_fx|backend_compile|inductor_compile|dynamo_timed|\bcompile_file\b|nvrtcCompile|autotun"
    r"|benchmark_all_configs|async_compile|(?:cuda|cu|hip)(?:Module|Library)Load(?:Data|DataEx|FromFile|FatBinary)?\b|create_aot_dispatcher",
    re.IGNORECASE,
)


def flag(code: FlagCode, count: int, detail: str = "") -> Flag:
    """A flag with its sentence, and what is special about this trace behind it."""
    return Flag(code=code, count=count, message=FLAGS[code] + (f" {detail}" if detail else ""))


def flags(view: View, windows: Windows | None) -> list[Flag]:
    """All flags that a trace by itself can raise, in the order of FLAGS."""
    raised = [f for group in (_file, _steps, _gpu, _clocks, _host) for f in group(view, windows)]
    order = list(FLAGS)
    return sorted(raised, key=lambda f: order.index(f.code))


def _file(view: View, _: Windows | None) -> Iterator[Flag]:
    notes = view.table.notes
    if notes.repaired:
        yield flag("repaired_json", notes.repaired, f"First: {notes.repaired_example}.")
    if notes.partial:
        yield flag("partial_file", notes.skipped, f"{notes.partial}.")
    invalid = int((~view.table.valid).sum())
    if invalid:
        gpu = int((~view.table.valid & view.table.gpu_work).sum())
        yield flag("invalid_timestamps", invalid, f"{gpu} of them GPU work.")


def _steps(view: View, windows: Windows | None) -> Iterator[Flag]:
    steps = view.steps
    if not len(steps):
        yield flag("no_steps", 1)
        return
    processes = {view.table.threads[thread][0] for thread in set(steps.thread.tolist())}
    if len(processes) > 1:
        yield flag("several_processes", len(processes), f"Processes {', '.join(sorted(processes)[:4])}.")
    if len(steps) > 1:
        cuda = np.zeros(len(steps), dtype=np.int64)
        own = view.owned.step != NONE
        np.add.at(cuda, view.owned.step[own], view.table.dur[view.links.gpu[own]])
        host = steps.end - steps.start
        median = float(np.median(host))
        uneven = (host > UNEVEN * median) & (host > median + UNEVEN_HOST_NS)
        uneven |= (cuda * UNEVEN < np.median(cuda)) | (cuda > UNEVEN * np.median(cuda))
        if uneven.any():
            spans = f"Host time {host.min() / 1000:.1f} to {host.max() / 1000:.1f} us"
            if cuda.any():
                spans += f", GPU time {cuda.min() / 1000:.1f} to {cuda.max() / 1000:.1f} us"
            yield flag("uneven_steps", int(uneven.sum()), f"{spans}.")
    if windows is not None and (windows.leaked or windows.unrecorded):
        detail = "" if windows.leaked else "It is not in the trace: a queue was ahead of the first own work."
        yield flag("work_before_window", max(windows.leaked, 1), detail)


def _gpu(view: View, _: Windows | None) -> Iterator[Flag]:
    links, steps = view.links, view.steps
    if len(links.calls) and not len(links.gpu):
        yield flag("gpu_not_measured", len(links.calls))
        return
    silent = links.caused == 0
    graphs = links.graph_calls
    if graphs.any() and (few := _under_recorded(view)):
        yield flag("under_recorded_graphs", few, f"Of {int(graphs.sum())} replays.")
    if (silent & ~graphs).any():
        yield flag("launches_without_gpu_work", int((silent & ~graphs).sum()), f"Of {len(links.calls)} launch calls.")
    if len(steps) > 1 and silent.any():
        in_last = steps.containing(view.table.ts[links.calls]) == len(steps) - 1
        counted = in_last.any() and not in_last.all()
        if counted and silent[in_last].mean() > FEW_JOINED and silent[~in_last].mean() < FEW_JOINED:
            yield flag("partial_window", int((silent & in_last).sum()))
    lost = int((links.launch == NONE).sum())
    if lost:
        yield flag("gpu_work_without_launch", lost, f"Of {len(links.gpu)}.")


def _under_recorded(view: View) -> int:
    """Graph replays with no kernel, or under half as many as the fullest replay of the same graph."""
    links = view.links
    graphs = np.flatnonzero(links.graph_calls)
    caused, graph = links.caused[graphs], _graph_of_replay(view, links.calls[graphs])
    most = np.zeros(int(graph.max()) + 1, dtype=np.int64)
    np.maximum.at(most, graph, caused)
    return int(((caused == 0) | (caused * 2 < most[graph])).sum())


def _graph_of_replay(view: View, replays: Ints) -> Ints:
    """Which graph each call replays: its place in the step where all steps replay as many, else its first kernel."""
    table, links, steps = view.table, view.links, view.steps
    step = steps.containing(table.ts[replays])
    each = np.bincount(step[step != NONE], minlength=max(len(steps), 1))
    if len(steps) > 1 and (step != NONE).all() and (each == each[0]).all():
        place = np.empty(len(replays), dtype=np.int64)
        place[np.argsort(table.ts[replays], kind="stable")] = np.arange(len(replays)) % each[0]
        return place
    first = np.zeros(len(replays), dtype=np.int64)
    work = np.flatnonzero(np.isin(links.launch, replays))
    work = work[np.argsort(-table.ts[links.gpu[work]], kind="stable")]  # the first is written last
    order = np.argsort(replays)
    first[order[np.searchsorted(replays[order], links.launch[work])]] = table.name[links.gpu[work]] + 1
    return first


def _clocks(view: View, _: Windows | None) -> Iterator[Flag]:
    table, links, owned = view.table, view.links, view.owned
    joined = (links.launch != NONE) & owned.usable
    ahead = table.ts[links.launch[joined]] - owned.start[joined]
    if (ahead > 0).any():
        yield flag("gpu_before_launch", int((ahead > 0).sum()), f"By {int(ahead.max()) / 1000:.1f} us at most.")
    usable = owned.usable
    lane, start, end = table.lane[links.gpu[usable]], owned.start[usable], owned.end[usable]
    count = sum(_overlaps(start[lane == one], end[lane == one]) for one in np.unique(lane).tolist())
    if count:
        by = int((end - start).sum() - union_by_group(lane.astype(np.int64), start, end, len(table.lanes)).sum())
        yield flag("overlapping_on_stream", count, f"By {by / 1000:.1f} us in all.")


def _overlaps(start: Ints, end: Ints) -> int:
    """How many of one stream's rows start while an earlier one still runs."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    return int((np.minimum(reach[:-1], end[order][1:]) - start[1:] > OVERLAP_NS).sum())


def _host(view: View, _: Windows | None) -> Iterator[Flag]:
    table, steps = view.table, view.steps
    if not len(steps):
        return
    inside = table.valid & (table.ts >= steps.start[0]) & (table.ts < steps.end.max())
    compiling = int((inside & table.host & table.named(lambda n: _COMPILING.search(n) is not None)).sum())
    if compiling:
        yield flag("recompiled_in_window", compiling)
    annotated = table.of_kind(Kind.ANNOTATION) & ~table.named(lambda n: n.startswith("ProfilerStep"))
    if not (inside & annotated).any():
        yield flag("no_region", 1)
