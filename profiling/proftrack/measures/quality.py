"""Quality flags: properties of a trace that change what its figures mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from proftrack.measures.compiling import compilations, compiling_steps, number_of
from proftrack.measures.evaluation import steps_with_evaluation
from proftrack.measures.intervals import union, union_by_group
from proftrack.measures.typical import Outlier, step_times
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.record.figures import Flag, FlagCode
from proftrack.text import counted, listed, short_time
from proftrack.trace.categories import Kind, is_step
from proftrack.trace.table import NONE, Bools, Ints

FLAGS: dict[FlagCode, str] = {
    "no_steps": "The trace has no ProfilerStep rows: figures cover the whole recording, and none is per step.",
    "partial_window": "The trace lacks part of the last step's work: that step's figures are too small.",
    "fewer_steps": "The loop ended before its schedule did: figures rest on fewer steps than requested.",
    "several_processes": "One file holds steps of several processes: their times are mixed; record them separately.",
    "cold_start": "CUDA, a library or a kernel was loaded while recording: that happens once, and later steps lack it.",
    "outlier_steps": "Some steps are not like the others (start-up, compilation, evaluation, empty, or once much "
    "longer): T, B and the causes leave them out, totals include them.",
    "uneven_steps": "The recorded steps differ widely: their mean represents none of them.",
    "launches_without_gpu_work": "Some launch calls have no recorded GPU work: busy time may be too small.",
    "gpu_not_measured": "The host launched GPU work but none was recorded: the GPU was not measured, rather than idle.",
    "work_before_window": "Work of earlier steps was still running when recording began: it counts in totals only.",
    "gpu_before_launch": "Some GPU work starts before its launch call: the two clocks differ by at least that much.",
    "overlapping_on_stream": "GPU work overlaps on one stream: sums exceed busy time by the overlap.",
    "impossible_durations": "Some GPU work ends after work that its stream started later, which is impossible: it "
    "counts as busy only until the next work starts.",
    "gpu_work_without_launch": "Some GPU work has no recorded launch: it counts in totals, but in no step or operator.",
    "invalid_timestamps": "Some events have impossible timestamps: they count, but not towards busy or idle time.",
    "duplicate_rows": "Some events appear in the file twice: they count once.",
    "repaired_json": "The file is not valid JSON and was repaired where that required no guessing: other programs may "
    "reject it, `proftrack open` shows a mended copy.",
    "partial_file": "The file is broken and was read only in part: every total is too small.",
    "under_recorded_graphs": "Graph replays have few or no recorded kernels: the GPU did more than the trace shows.",
    "recompiled_in_window": "Compilation or autotuning ran during the recorded steps: later steps cost less.",
    "slow_under_profiler": "GPU busy time B exceeds the unprofiled step time T: work ran slower under the profiler.",
    "roofline_above_busy": "Roofline time R exceeds busy time B and is left out: the ceilings are too low for this "
    "step. One that only reads may be faster than the copy that measures the bandwidth.",
    "gpu_throttled": "The GPU was throttled while steps were timed: with better cooling or power it is faster.",
    "clocks_low": "The GPU's clock was below 90 % of its maximum while steps were timed.",
    "gpu_shared": "Other processes used the GPU while steps were timed: the program alone may be faster.",
    "work_not_counted": "The trace does not tell the FLOPs and bytes of part of the GPU's work: its kernels have no "
    "roofline of their own.",
    "other_threads": "Threads started by the program did work that was not recorded: their work is missing.",
    "batches_ready": "The timed steps used no more batches than the data loader may have had ready before them: "
    "whether it keeps up with them for longer is not known.",
    "evaluation_in_steps": "Some recorded steps contain evaluation, or other work that is no part of a step.",
    "no_region": "The steps have no record_function region: host time cannot be attributed to parts of the program.",
}
"""Every flag and its effect on the figures."""

OVERLAP_NS = 2
"""Consecutive rows of one stream may overlap this much by rounding."""
UNEVEN = 3.0
"""A step this many times the median, or the median this many times a step, is a different kind of step."""
UNEVEN_HOST_NS = 2_000_000
"""A host interval that exceeds the median by less than this is only the profiler starting up in the first step."""
FEW_JOINED = 0.5

MOST_NAMED = 4
"""Steps that a sentence names; the others are counted."""


def flag(code: FlagCode, count: int, detail: str = "") -> Flag:
    """A flag with its sentence, followed by the details of this trace."""
    return Flag(code=code, count=count, message=FLAGS[code] + (f" {detail}" if detail else ""))


def flags(view: View, windows: Windows | None, outliers: Sequence[Outlier] = ()) -> list[Flag]:
    """All flags that a trace alone can raise, in the order of FLAGS."""
    raised = [f for group in (_file, _gpu, _clocks, _host) for f in group(view, windows)]
    raised += [*_steps(view, windows, outliers), *_outliers(view, windows, outliers)]
    order = list(FLAGS)
    return sorted(raised, key=lambda f: order.index(f.code))


def _file(view: View, _: Windows | None) -> Iterator[Flag]:
    notes = view.table.notes
    if notes.repaired:
        yield flag("repaired_json", notes.repaired, f"First repair: {notes.repaired_example}.")
    if notes.partial:
        yield flag("partial_file", notes.skipped, f"{notes.partial}.")
    if notes.duplicates:
        yield flag("duplicate_rows", notes.duplicates)
    invalid = int((~view.table.valid).sum())
    if invalid:
        gpu = int((~view.table.valid & view.table.gpu_work).sum())
        yield flag("invalid_timestamps", invalid, f"GPU work among them: {gpu}.")


def _steps(view: View, windows: Windows | None, outliers: Sequence[Outlier]) -> Iterator[Flag]:
    steps = view.steps
    cold = any(outlier.cold for outlier in outliers) or (len(steps) < 2 and len(view.links.gpu) > 0)
    if cold or (windows is not None and _starts_up(view, windows)):
        yield from _cold_start(view)
    if windows is not None and (windows.leaked or windows.unrecorded):
        detail = "" if windows.leaked else "The trace does not show it, but the first work waited in a queue."
        yield flag("work_before_window", max(windows.leaked, 1), detail)
    if not len(steps):
        yield flag("no_steps", 1)
        return
    processes = {view.table.threads[thread][0] for thread in set(steps.thread.tolist())}
    if len(processes) > 1:
        yield flag("several_processes", len(processes), f"Processes {', '.join(sorted(processes)[:4])}.")
    typical = np.ones(len(steps), dtype=bool)
    typical[[outlier.step for outlier in outliers]] = False
    if typical.sum() > 1:
        yield from _uneven(view, typical)
    yield from _evaluation(view, outliers)


def _uneven(view: View, typical: Bools) -> Iterator[Flag]:
    """Whether steps differ widely after outliers were left out."""
    cuda = np.zeros(len(view.steps), dtype=np.int64)
    own = view.owned.step != NONE
    np.add.at(cuda, view.owned.step[own], view.table.dur[view.links.gpu[own]])
    cuda, host = cuda[typical], (view.steps.end - view.steps.start)[typical]
    median = float(np.median(host))
    uneven = (host > UNEVEN * median) & (host > median + UNEVEN_HOST_NS)
    uneven |= (cuda * UNEVEN < np.median(cuda)) | (cuda > UNEVEN * np.median(cuda))
    if uneven.any():
        spans = f"Host time {host.min() / 1000:.1f} to {host.max() / 1000:.1f} us"
        if cuda.any():
            spans += f", GPU time {cuda.min() / 1000:.1f} to {cuda.max() / 1000:.1f} us"
        yield flag("uneven_steps", int(uneven.sum()), f"{spans}.")


def _outliers(view: View, windows: Windows | None, outliers: Sequence[Outlier]) -> Iterator[Flag]:
    if windows is None or not outliers:
        return
    length = step_times(view, windows).length
    shown = [
        f"{view.steps.name[o.step]} takes {short_time(length[o.step] / 1000)}{f' ({o.why})' if o.why else ''}"
        for o in outliers[:MOST_NAMED]
    ]
    more = f", and {len(outliers) - MOST_NAMED} more" if len(outliers) > MOST_NAMED else ""
    mean = short_time(float(length.mean()) / 1000)
    yield flag("outlier_steps", len(outliers), f"{', '.join(shown)}{more}; over all steps, the mean is {mean}.")


def _starts_up(view: View, windows: Windows) -> bool:
    """Whether start-up takes time of the typical steps, which T then leaves out."""
    table, calls = view.table, view.start_up
    inside = windows.typical.covered_within(table.ts[calls], table.end[calls])
    return len(view.links.gpu) > 0 and bool((inside * 2 > table.dur[calls]).any())


def _cold_start(view: View) -> Iterator[Flag]:
    table, calls = view.table, view.start_up
    if len(calls):
        spent = union(table.ts[calls], table.end[calls]).length  # a runtime call may go through a driver call
        longest = table.names[table.name[calls[int(np.argmax(table.dur[calls]))]]]
        yield flag("cold_start", len(calls), f"{short_time(spent / 1000)}, the longest call is {longest}.")


def _gpu(view: View, _: Windows | None) -> Iterator[Flag]:
    links, steps = view.links, view.steps
    telling = ~links.set_calls  # that a memory set has no work says nothing: the traces of an H100 have none for any
    if telling.any() and not len(links.gpu):
        yield flag("gpu_not_measured", len(links.calls))
        return
    if (operators := view.table.notes.operators_on_gpu) and not len(links.gpu):
        detail = "The file is of torch's old autograd profiler, which records no kernels: use torch.profiler."
        yield flag("gpu_not_measured", operators, detail)
        return
    graphs, silent = links.graph_calls, (links.caused == 0)[telling]
    if graphs.any() and (few := _under_recorded(view)):
        yield flag("under_recorded_graphs", few, f"Affected: {few} of {int(graphs.sum())} replays.")
    if unjoined := int((silent & ~graphs[telling]).sum()):
        calls = "launch calls, memory sets left out" if links.set_calls.any() else "launch calls"
        yield flag("launches_without_gpu_work", unjoined, f"Affected: {unjoined} of {len(silent)} {calls}.")
    if len(steps) > 1 and silent.any():
        in_last = steps.containing(view.table.ts[links.calls[telling]]) == len(steps) - 1
        counted = in_last.any() and not in_last.all()
        if counted and silent[in_last].mean() > FEW_JOINED and silent[~in_last].mean() < FEW_JOINED:
            yield flag("partial_window", int((silent & in_last).sum()))
    lost = int((links.launch == NONE).sum())
    if lost:
        yield flag("gpu_work_without_launch", lost, f"Affected: {lost} of {len(links.gpu)} GPU events.")


def _under_recorded(view: View) -> int:
    """Number of graph replays with no kernel, or with under half as many as the fullest replay of the same graph."""
    links = view.links
    graphs = np.flatnonzero(links.graph_calls)
    caused, graph = links.caused[graphs], _graph_of_replay(view, links.calls[graphs])
    most = np.zeros(int(graph.max()) + 1, dtype=np.int64)
    np.maximum.at(most, graph, caused)
    return int(((caused == 0) | (caused * 2 < most[graph])).sum())


def _graph_of_replay(view: View, replays: Ints) -> Ints:
    """The graph that each call replays: by place in the step if all steps replay equally many, else by first kernel."""
    table, links, steps = view.table, view.links, view.steps
    step = steps.containing(table.ts[replays])
    per_step = np.bincount(step[step != NONE], minlength=max(len(steps), 1))
    if len(steps) > 1 and (step != NONE).all() and (per_step == per_step[0]).all():
        place = np.empty(len(replays), dtype=np.int64)
        place[np.argsort(table.ts[replays], kind="stable")] = np.arange(len(replays)) % per_step[0]
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
        yield flag("gpu_before_launch", int((ahead > 0).sum()), f"At most {int(ahead.max()) / 1000:.1f} us early.")
    usable = owned.usable
    cut = view.table.end[links.gpu] - owned.end
    if cut.any():
        yield flag("impossible_durations", int((cut > 0).sum()), f"Cut off: {short_time(int(cut.sum()) / 1000)}.")
    lane, start, end = table.lane[links.gpu[usable]], owned.start[usable], owned.end[usable]
    count = sum(_overlaps(start[lane == one], end[lane == one]) for one in np.unique(lane).tolist())
    if count:
        covered = union_by_group(lane.astype(np.int64), start, end, len(table.lanes))
        overlap_ns = int((end - start).sum() - covered.sum())
        yield flag("overlapping_on_stream", count, f"Total overlap: {overlap_ns / 1000:.1f} us.")


def _overlaps(start: Ints, end: Ints) -> int:
    """How many of one stream's rows start while an earlier one is still running."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    return int((np.minimum(reach[:-1], end[order][1:]) - start[1:] > OVERLAP_NS).sum())


def _host(view: View, _: Windows | None) -> Iterator[Flag]:
    table, steps = view.table, view.steps
    if not len(steps):
        return
    inside = table.valid & (table.ts >= steps.start[0]) & (table.ts < steps.end.max())
    yield from _recompiled(view)
    annotated = table.of_kind(Kind.ANNOTATION) & ~table.named(is_step)
    if not (inside & annotated).any():
        yield flag("no_region", 1)


def _recompiled(view: View) -> Iterator[Flag]:
    table, steps, forest = view.table, view.steps, view.forest
    graphs, tuned = number_of(compilations(table, steps, forest))
    if graphs or tuned:
        parts = [counted(graphs, "compilation")] * bool(graphs) + [counted(tuned, "autotuning run")] * bool(tuned)
        time = compiling_steps(table, steps, forest)
        took = f"{short_time(int(time.sum()) / 1000)}, in {_steps_in_words(steps.number[time > 0])}"
        yield flag("recompiled_in_window", graphs + tuned, f"{' and '.join(parts)}, {took}.")


def _evaluation(view: View, outliers: Sequence[Outlier]) -> Iterator[Flag]:
    steps = view.steps
    held = steps_with_evaluation(view.table, steps, view.forest)
    if not held.any():
        return
    time = steps.end - steps.start
    takes = f"at most {short_time(int(time[held].max()) / 1000)}"
    beside = "" if held.all() else f", beside {short_time(float(np.median(time[~held])) / 1000)} without it"
    left_out = set(np.flatnonzero(held).tolist()) <= {outlier.step for outlier in outliers}
    so = f"A step's figures {'leave such steps out' if left_out else 'include it'}"
    where = _steps_in_words(steps.number[held])
    yield flag("evaluation_in_steps", int(held.sum()), f"In {where}: {takes}{beside}. {so}.")


def _steps_in_words(numbers: Ints) -> str:
    """step 12; steps 2, 3 and 5; steps 2, 3, 4, 5 and 12 more."""
    different = list(dict.fromkeys(numbers.tolist()))
    if len(different) == 1:
        return f"step {different[0]}"
    named = [str(number) for number in different[:MOST_NAMED]]
    more = [f"{len(different) - MOST_NAMED} more"] if len(different) > MOST_NAMED else []
    return f"steps {listed([*named, *more])}"
