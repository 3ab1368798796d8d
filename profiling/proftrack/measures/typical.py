"""Which recorded steps are typical: a step's figures leave out long steps that do not recur.

GPU  |- step 2 -|- step 3 -|------------ step 4 ------------|- step 5 -|      a recompilation in step 4
     |<-------->|<-------->|                                |<-------->|      typical time

The first step with its start-up, a recompilation or an evaluation says nothing about the steps that a program repeats
for hours. Long steps that recur (the optimizer's after several micro-steps, prefill among decode) are part of it and
stay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.compiling import compiling_steps
from proftrack.measures.evaluation import evaluation_steps
from proftrack.measures.intervals import union
from proftrack.measures.view import View
from proftrack.measures.waits import profilers_own
from proftrack.measures.window import Windows
from proftrack.text import short_time
from proftrack.trace.categories import CALL_KINDS, Kind, is_step, is_wait
from proftrack.trace.table import NONE, Bools, EventTable, Ints

LONG = 3.0
"""A step this many times the median is not like the others."""
ALIKE = 2.0
"""Long steps whose times differ by less than this factor are taken for one kind of step, which recurs."""
COMPILING = 0.1
"""A step that spends this share on compilation is of another kind than those that do not compile."""
EVALUATION = "evaluation"
STUB = 0.1
"""A last step in which nothing runs is none if it takes at most this share of the others' median on the host."""
FEWEST = 3
"""With fewer steps, none of them says which is the usual one."""


class StepTimes(NamedTuple):
    """Each step's part of the device window: from the end of the step before it to its own end. Nanoseconds."""

    start: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        """How long each step took on the device."""
        return self.end - self.start


class Outlier(NamedTuple):
    """A step that the figures of a step leave out."""

    step: int
    """Index among the recorded steps."""
    why: str
    """What filled it; empty if nothing stands out."""
    cold: bool = False
    """It holds the program's start-up."""


def step_times(seen: View, windows: Windows) -> StepTimes:
    """The device window divided among the steps.

    A step ends with its own GPU work or with its host interval, whichever is later, and never before the step before
    it.
    """
    steps, owned = seen.steps, seen.on_device
    end = steps.end.copy()
    own = owned.usable & (owned.step != NONE)
    np.maximum.at(end, owned.step[own], owned.end[own])
    end = np.maximum(np.maximum.accumulate(end), windows.device_low)
    return StepTimes(np.concatenate([[windows.device_low], end[:-1]]).astype(np.int64), end)


def find_outliers(seen: View, windows: Windows) -> list[Outlier]:
    """The steps to leave out, in order; never all of them."""
    times = step_times(seen, windows)
    known = _known(seen, times)
    unexplained = np.ones(len(times.start), dtype=bool)
    unexplained[[outlier.step for outlier in known]] = False
    if not unexplained.any():
        return []
    rest = np.flatnonzero(unexplained)
    lonely = rest[_lonely((times.length - _of_profiler(seen, times))[rest])]
    lonely = lonely[~_updates(seen)[lonely]]
    unknown = [Outlier(i, _filled_by(seen, int(times.start[i]), int(times.end[i]))) for i in lonely.tolist()]
    return sorted([*known, *unknown])


def without_outliers(seen: View, windows: Windows, outliers: list[Outlier]) -> Windows:
    """The windows, whose typical time leaves these steps out."""
    if not outliers:
        return windows
    times = step_times(seen, windows)
    keep = np.ones(len(times.start), dtype=bool)
    keep[[outlier.step for outlier in outliers]] = False
    return windows._replace(typical=union(times.start[keep], times.end[keep]), typical_steps=int(keep.sum()))


def _of_profiler(seen: View, times: StepTimes) -> Ints:
    """How long the profiler itself held up each step: that makes no step another kind."""
    own = profilers_own(seen.table)
    held_up = union(seen.table.ts[own], seen.table.end[own]).covered_within(times.start, times.end)
    return np.minimum(held_up, times.length)


def _lonely(length: Ints) -> Bools:
    """Which of these times are far above the median and unlike any other."""
    if len(length) < FEWEST:
        return np.zeros(len(length), dtype=bool)
    long = np.flatnonzero(length > LONG * float(np.median(length)))
    ordered = long[np.argsort(length[long], kind="stable")]
    alike = length[ordered][1:] < ALIKE * length[ordered][:-1]
    recurs = np.concatenate([alike, [False]]) | np.concatenate([[False], alike])
    lonely = np.zeros(len(length), dtype=bool)
    lonely[ordered[~recurs[: len(ordered)]]] = True
    return lonely


def _updates(seen: View) -> Bools:
    """Which steps update the model while most others do not.

    With gradient accumulation such a step comes again, though it may have been recorded once.
    """
    table, steps = seen.table, seen.steps
    rows = table.valid & table.of_kind(Kind.ANNOTATION) & table.named(lambda name: name.startswith("Optimizer.step#"))
    step = steps.containing(table.ts[rows])
    updates = np.zeros(len(steps), dtype=bool)
    updates[step[step != NONE]] = True
    return updates if updates.sum() * 2 < len(steps) else np.zeros(len(steps), dtype=bool)


def _known(seen: View, times: StepTimes) -> list[Outlier]:
    """Steps of another kind, whatever their length: of several reasons, the first counts."""
    table, steps, forest = seen.table, seen.steps, seen.forest
    outliers = {outlier.step: outlier for outlier in _cold_start(seen)}
    compiling = compiling_steps(table, steps, forest)
    for step in np.flatnonzero(compiling > COMPILING * times.length).tolist():
        outliers.setdefault(step, Outlier(step, f"compilation, {short_time(int(compiling[step]) / 1000)}"))
    for step in np.flatnonzero(evaluation_steps(table, steps, forest)).tolist():
        outliers.setdefault(step, Outlier(step, EVALUATION))
    if _ends_empty(seen):
        outliers.setdefault(len(steps) - 1, Outlier(len(steps) - 1, "nothing: recording ended"))
    return list(outliers.values())


def _ends_empty(seen: View) -> bool:
    """Whether nothing runs in the last of at least three steps, a short one, though the one before it launches work.

    `prof.step()` at the end of a loop begins a step; if the loop then ends, that step is none of the program's.
    """
    table, steps, step = seen.table, seen.steps, seen.owned.step
    length = steps.end - steps.start
    if len(steps) < FEWEST or not (step == len(steps) - 2).any() or length[-1] > STUB * np.median(length[:-1]):
        return False
    runs = table.valid & table.of_kind(Kind.CPU_OP, *CALL_KINDS)
    return not (runs & (table.ts >= steps.start[-1]) & (table.ts < steps.end[-1])).any()


def _cold_start(seen: View) -> list[Outlier]:
    """The first step, if it holds start-up calls and the others do not."""
    table = seen.table
    calls = seen.start_up
    step = seen.steps.containing(table.ts[calls])
    waited = np.bincount(step[step != NONE], minlength=len(seen.steps))
    if not waited[0] or len(waited) < 2 or np.count_nonzero(waited[1:]) * 2 >= len(waited) - 1:
        return []
    first = calls[step == 0]
    longest = int(first[np.argmax(table.dur[first])])
    return [Outlier(0, f"start-up, {_name(table, longest)} {short_time(table.dur[longest] / 1000)}", cold=True)]


def _filled_by(seen: View, low: int, high: int) -> str:
    """The name of what fills over half of [low, high); empty if nothing does.

    One piece of GPU work, else the innermost host row of the steps' threads that does more than wait, else all GPU work
    of one name.
    """
    table, owned = seen.table, seen.on_device
    gpu = np.where(owned.usable, np.minimum(owned.end, high) - np.maximum(owned.start, low), 0)
    if len(gpu) and int(gpu.max()) * 2 > high - low:
        return _name(table, int(seen.links.gpu[int(np.argmax(gpu))]))
    host = table.valid & (table.host | table.of_kind(Kind.PYTHON)) & np.isin(table.thread, np.unique(seen.steps.thread))
    rows = np.flatnonzero(host & (table.ts < high) & (table.end > low) & ~table.named(_says_nothing))
    fills = np.minimum(table.end[rows], high) - np.maximum(table.ts[rows], low)
    rows = rows[fills * 2 > high - low]
    if len(rows):
        return _name(table, int(rows[np.argmin(table.dur[rows])]))
    sums = np.bincount(table.name[seen.links.gpu], weights=np.maximum(gpu, 0), minlength=1)
    return str(table.names[int(np.argmax(sums))][:120]) if sums.max() * 2 > high - low else ""


def _says_nothing(name: str) -> bool:
    """Whether a host row of this name does not tell what a step did: it is the step, or waits for the GPU."""
    return is_step(name) or is_wait(name) or name in ("aten::item", "aten::_local_scalar_dense")


def _name(table: EventTable, row: int) -> str:
    return str(table.names[table.name[row]][:120])
