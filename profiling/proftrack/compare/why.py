"""What differs: how often things happen per step, how much of the GPU is used, and what runs on the host."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from proftrack.compare.match import status_of_calls
from proftrack.compare.parts import host_name
from proftrack.compare.results import Count, Counted, HostRow
from proftrack.record import Record
from proftrack.record.counters import LEAST_USE
from proftrack.trace.categories import is_allocator_call, is_mark, is_wait

LAUNCHES, KERNELS, WAITS, ALLOCATIONS = "launches", "kernels", "waits for the GPU", "device allocator calls"
MOST_HOST_ROWS = 40
_ENERGY: dict[Literal["energy_per_step_joules", "power_watts"], str] = {
    "energy_per_step_joules": "energy_joules_per_step",
    "power_watts": "power_watts",
}
"""Name of a figure in MLflow and in a comparison -> its field in a record."""
_READS_BACK = re.compile(r"::(?:item|_local_scalar_dense|is_nonzero|nonzero|masked_select|_?unique\d*|equal|tolist)$")


def counts(before: Record, after: Record) -> list[Count]:
    """How often things happen per step, if both records know. Only waits and allocator calls of every step count.

    A record knows these only for all steps together, which says nothing of the typical ones if others are left out.
    """
    out = []
    if before.totals.gpu_events and after.totals.gpu_events and before.typical_steps and after.typical_steps:
        for name, field in ((LAUNCHES, "launches"), (KERNELS, "kernels")):
            a = [getattr(step, field) for step in before.typical_steps]
            b = [getattr(step, field) for step in after.typical_steps]
            if None in a or None in b:
                continue
            varies = len(set(a)) > 1 or len(set(b)) > 1
            out.append(Count(name=name, before=sum(a) / len(a), after=sum(b) / len(b), varies=varies))
        if not before.window.outlier_steps and not after.window.outlier_steps:
            for name, belongs in ((WAITS, is_wait), (ALLOCATIONS, is_allocator_call)):
                out.append(Count(name=name, before=_each_step(before, belongs), after=_each_step(after, belongs)))
    return out


def _each_step(record: Record, belongs: Callable[[str], bool]) -> float:
    """Calls that every step makes, which excludes what the profiler adds once per trace."""
    steps = max(record.window.steps, 1)
    return float(sum(op.calls // steps for op in record.ops if belongs(op.name)))


def counters(before: Record, after: Record) -> list[Counted]:
    """Use of the units of the GPU, the most used one first; then energy and power. What neither run has is left out.

    So is a unit whose use is a share of what is reachable in one run and of its peak in the other.
    """
    used, uses = before.utilizations, after.utilizations
    rows = []
    for unit in dict.fromkeys([*used, *uses]):
        of = {side.counters.of(unit) for side in (before, after) if side.counters and unit in side.utilizations}
        if len(of) == 1:
            rows.append(Counted(metric=unit, before=used.get(unit), after=uses.get(unit), of=of.pop()))
    rows = [row for row in rows if row.largest >= LEAST_USE]
    rows.sort(key=lambda row: -row.largest)
    for metric, field in _ENERGY.items():
        a, b = (getattr(side.counters, field, None) for side in (before, after))
        if a is not None or b is not None:
            rows.append(Counted(metric=metric, before=a, after=b))
    return rows


def host_rows(before: Record, after: Record) -> list[HostRow]:
    """Host rows that were added, are gone, or are called more or less often; largest change of self CPU time first."""
    old, new = _host(before), _host(after)
    rows = []
    for name in old.keys() | new.keys():
        calls_a, self_a = old.get(name, (0.0, 0.0))
        calls_b, self_b = new.get(name, (0.0, 0.0))
        if not calls_a or not calls_b:
            status = "gone" if calls_a else "added"
        else:
            status = status_of_calls(calls_a, calls_b, self_a / calls_a, self_b / calls_b)
        if status in ("added", "gone", "more calls", "fewer calls"):
            row = HostRow(
                status=status,  # type: ignore[arg-type]
                name=name,
                calls_before=calls_a,
                calls_after=calls_b,
                self_before_us=self_a,
                self_after_us=self_b,
            )
            rows.append(row)
    rows.sort(key=lambda row: (-abs(row.self_after_us - row.self_before_us), row.name))
    return rows[:MOST_HOST_ROWS]


def _host(record: Record) -> dict[str, tuple[float, float]]:
    """Name -> calls and self CPU time per step, without what not every step calls (profiler, teardown)."""
    steps = max(record.window.steps, 1)
    figures: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for op in record.ops:
        name = host_name(op.name)
        calls, time = figures[name]
        more = 0 if is_mark(op.name) else op.calls
        figures[name] = (calls + more, time + op.self_cpu_time_us)
    return {name: (calls / steps, time / steps) for name, (calls, time) in figures.items() if calls >= steps}


def reads_back(rows: list[HostRow]) -> str | None:
    """The added operator that fetches a value from the GPU, such as aten::item; else an added wait; else None."""
    added = [row.name for row in rows if row.status in ("added", "more calls")]
    readers = [name for name in added if _READS_BACK.search(name)]
    if readers:
        return min(readers, key=lambda name: (name.endswith("_local_scalar_dense"), name))
    return next((name for name in added if is_wait(name)), None)
