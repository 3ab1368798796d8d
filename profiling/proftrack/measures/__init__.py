"""From an event table to figures: plain functions, no I/O.

`measure` gives the figures of one trace, `combine` those of a run's several cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from proftrack.events.categories import CALL_KINDS, Kind, is_wait
from proftrack.events.table import NONE, Bools, EventTable
from proftrack.measures import idle, quality, tables
from proftrack.measures.intervals import EMPTY, Intervals, intersection, union
from proftrack.measures.kernels import CAN_BE_SMALL, limit_of_kind
from proftrack.measures.results import (
    Device,
    Flag,
    Idle,
    Kernel,
    Launch,
    Op,
    Region,
    Split,
    Step,
    Totals,
    Window,
)
from proftrack.measures.view import View, view
from proftrack.measures.window import Windows, busy, find_windows

__all__ = ["Measures", "combine", "measure"]


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
    busy_in_device_window_us: float | None
    """Union of GPU work in the device window; B times the steps."""
    busy_by_limit_us: dict[str, float]
    """The same by what limits the work; kernels hide copies and collectives that run beside them."""
    waits_over_gpu_us: float
    """Host waits inside the steps that overlap GPU work: what H leaves out of T."""
    gpu_launching_threads: int

    @property
    def steps(self) -> int:
        """Recorded steps."""
        return self.window.steps

    @property
    def gpu_busy_per_step_us(self) -> float | None:
        """B. Without steps: the whole recording counts as one."""
        return self._per_step(self.busy_in_device_window_us)

    @property
    def step_time_profiled_us(self) -> float | None:
        """Device window over its steps; without steps, the whole recording."""
        return self._per_step(self.window.device_duration_us)

    def _per_step(self, total_us: float | None) -> float | None:
        """A step's share, to the nanosecond: finer than that the trace is not."""
        return None if total_us is None else round(total_us / max(self.steps, 1), 3)


def measure(table: EventTable) -> Measures:
    """All figures of one trace."""
    seen = view(table)
    windows = find_windows(table, seen.links, seen.steps, seen.on_device)
    has_gpu = len(seen.links.gpu) > 0
    total_ns = int(table.dur[seen.links.gpu].sum())
    classes = _classes(seen)
    gaps = idle.find_gaps(seen, windows) if windows and has_gpu else None
    in_device_window = busy(seen.on_device).clipped(windows.device_low, windows.device_high) if windows else EMPTY
    return Measures(
        window=_window(seen, windows),
        totals=_totals(seen, windows, total_ns),
        per_step=tables.per_step(table, seen.links, seen.steps, seen.owned),
        ops=tables.operators(table, seen.forest, seen.links),
        kernels=tables.gpu_work(table, seen.links, total_ns),
        regions=tables.regions(table, seen.links),
        idle=idle.summarize(seen, gaps, windows) if gaps and windows else Idle(by_cause_us_per_step={}, largest=[]),
        split=_split(seen, windows, classes) if windows and has_gpu else None,
        launch=tables.launch_figures(table, seen.links, seen.owned),
        devices=tables.devices(table, seen.links, seen.owned, windows.low, windows.high) if windows else [],
        flags=quality.flags(seen, windows),
        busy_in_device_window_us=in_device_window.length / 1000 if windows and has_gpu else None,
        busy_by_limit_us=_by_limit(seen, windows, classes) if windows and has_gpu else {},
        waits_over_gpu_us=_waits_over_gpu(seen, in_device_window),
        gpu_launching_threads=len(np.unique(table.thread[seen.links.calls])),
    )


def _window(seen: View, windows: Windows | None) -> Window:
    return Window(
        steps=len(seen.steps),
        step_names=seen.steps.name,
        duration_us=windows.duration / 1000 if windows else None,
        device_duration_us=windows.device_duration / 1000 if windows else None,
    )


def _totals(seen: View, windows: Windows | None, total_ns: int) -> Totals:
    table, links = seen.table, seen.links
    measured = windows is not None and len(links.gpu) > 0
    busy_ns = busy(seen.on_device).clipped(windows.low, windows.high).length if windows else 0
    duration = windows.duration if windows else 0
    return Totals(
        self_cpu_time_total_us=int(seen.forest.self_ns.sum()) / 1000,
        self_cuda_time_total_us=total_ns / 1000 if len(links.gpu) else None,
        gpu_busy_us=busy_ns / 1000 if measured else None,
        gpu_idle_us=(duration - busy_ns) / 1000 if measured else None,
        gpu_busy_fraction_profiled=round(busy_ns / duration, 5) if measured and duration else None,
        gpu_events=len(links.gpu),
        kernels=int((table.kind[links.gpu] == Kind.KERNEL).sum()),
        launches=len(links.calls),
        gpu_events_without_launch=int((links.launch == NONE).sum()),
    )


def _classes(seen: View) -> dict[str, Bools]:
    """What limits each row of `links.gpu`, as a mask for each limit that occurs."""
    table, gpu = seen.table, seen.links.gpu
    codes = table.name[gpu].astype(np.int64) * len(Kind) + table.kind[gpu]
    unique, group = np.unique(codes, return_inverse=True)
    limits = [limit_of_kind(tables.kind_of_work(table.names[c // len(Kind)], c % len(Kind))) for c in unique.tolist()]
    small = tables.is_small(table, gpu) & np.array([limit in CAN_BE_SMALL for limit in limits], dtype=bool)[group]
    masks = {}
    for limit in {*limits, "latency"}:
        of_limit = np.array([found == limit for found in limits], dtype=bool)[group]
        mask = small if limit == "latency" else of_limit & ~small
        if mask.any():
            masks[limit] = mask
    return masks


def _by_limit(seen: View, windows: Windows, classes: dict[str, Bools]) -> dict[str, float]:
    """Busy time of the device window by limit, adding up to it: kernels first, then collectives, then copies."""
    out: dict[str, float] = {}
    covered = EMPTY
    compute = [c for c in classes if c not in ("communication", "transfer")]
    joint = _clip(seen, classes, compute, windows)
    sums = {c: _clip_sum(seen, classes[c], windows) for c in compute}
    whole = sum(sums.values())
    for name in compute:  # kernels that overlap share the time they overlap in
        out[name] = joint.length / 1000 * (sums[name] / whole) if whole else 0.0
    covered = joint
    for name in ("communication", "transfer"):
        if name in classes:
            both = _joined(covered, _clip(seen, classes, [name], windows))
            out[name] = (both.length - covered.length) / 1000
            covered = both
    return {k: v for k, v in out.items() if v > 0}


def _clip(seen: View, classes: dict[str, Bools], names: Iterable[str], windows: Windows) -> Intervals:
    mask = np.zeros(len(seen.links.gpu), dtype=bool)
    for name in names:
        mask |= classes[name]
    return busy(seen.on_device, mask).clipped(windows.device_low, windows.device_high)


def _clip_sum(seen: View, mask: Bools, windows: Windows) -> int:
    keep = mask & seen.on_device.usable
    start = np.maximum(seen.on_device.start[keep], windows.device_low)
    end = np.minimum(seen.on_device.end[keep], windows.device_high)
    return int(np.maximum(end - start, 0).sum())


def _joined(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end]))


def _split(seen: View, windows: Windows, classes: dict[str, Bools]) -> Split:
    """Compute, then communication and copies as far as nothing above hides them, then idle."""
    table, gpu = seen.table, seen.links.gpu
    communicates = classes.get("communication", np.zeros(len(gpu), dtype=bool))
    kernel = table.kind[gpu] == Kind.KERNEL
    low, high = windows.low, windows.high
    compute = busy(seen.on_device, kernel & ~communicates).clipped(low, high)
    with_communication = _joined(compute, busy(seen.on_device, communicates).clipped(low, high))
    everything = busy(seen.on_device).clipped(low, high)
    return Split(
        compute_us=compute.length / 1000,
        exposed_communication_us=(with_communication.length - compute.length) / 1000,
        exposed_copy_us=(everything.length - with_communication.length) / 1000,
        idle_us=(windows.duration - everything.length) / 1000,
    )


def _waits_over_gpu(seen: View, gpu_busy: Intervals) -> float:
    """Time that launching threads spent waiting inside the steps while the GPU worked, in microseconds."""
    table, steps = seen.table, seen.steps
    waits = np.flatnonzero(
        table.of_kind(*CALL_KINDS)
        & table.valid
        & table.named(is_wait)
        & np.isin(table.thread, np.unique(table.thread[seen.links.calls]))
    )
    if len(steps):
        waits = waits[steps.containing(table.ts[waits]) != NONE]
    return intersection(union(table.ts[waits], table.end[waits]), gpu_busy).length / 1000


# -- several cycles of one run

_T = TypeVar("_T")
_K = TypeVar("_K")


def combine(parts: list[Measures]) -> Measures:
    """Figures over several cycles: sums, and means weighted by their steps. One cycle is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    steps = sum(p.steps for p in parts)
    return Measures(
        window=Window(
            steps=steps,
            step_names=[n for p in parts for n in p.window.step_names],
            duration_us=_sum(p.window.duration_us for p in parts),
            device_duration_us=_sum(p.window.device_duration_us for p in parts),
            cycles=len(parts),
        ),
        totals=_combined_totals(parts),
        per_step=[s for p in parts for s in p.per_step],
        ops=_merged([o for p in parts for o in p.ops], lambda o: (o.name, o.category), _merge_ops),
        kernels=_combined_kernels(parts),
        regions=_merged([r for p in parts for r in p.regions], lambda r: r.name, _merge_regions),
        idle=_combined_idle(parts, steps),
        split=_combined_split(parts),
        launch=_combined_launch(parts),
        devices=_merged([d for p in parts for d in p.devices], lambda d: d.device, _merge_devices),
        flags=_merged([f for p in parts for f in p.flags], lambda f: f.code, _merge_flags),
        busy_in_device_window_us=_sum(p.busy_in_device_window_us for p in parts),
        busy_by_limit_us=dict(sum((Counter(p.busy_by_limit_us) for p in parts), Counter())),
        waits_over_gpu_us=sum(p.waits_over_gpu_us for p in parts),
        gpu_launching_threads=max(p.gpu_launching_threads for p in parts),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _merged(items: list[_T], key: Callable[[_T], object], merge: Callable[[list[_T]], _T]) -> list[_T]:
    groups: dict[object, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [merge(group) for group in groups.values()]


def _combined_totals(parts: list[Measures]) -> Totals:
    totals = [p.totals for p in parts]
    busy_us = _sum(t.gpu_busy_us for t in totals)
    duration = _sum(p.window.duration_us for p in parts)
    return Totals(
        self_cpu_time_total_us=sum(t.self_cpu_time_total_us for t in totals),
        self_cuda_time_total_us=_sum(t.self_cuda_time_total_us for t in totals),
        gpu_busy_us=busy_us,
        gpu_idle_us=_sum(t.gpu_idle_us for t in totals),
        gpu_busy_fraction_profiled=round(busy_us / duration, 5) if busy_us is not None and duration else None,
        gpu_events=sum(t.gpu_events for t in totals),
        kernels=sum(t.kernels for t in totals),
        launches=sum(t.launches for t in totals),
        gpu_events_without_launch=sum(t.gpu_events_without_launch for t in totals),
    )


def _merge_ops(ops: list[Op]) -> Op:
    return Op(
        name=ops[0].name,
        category=ops[0].category,
        calls=sum(o.calls for o in ops),
        self_cpu_time_us=sum(o.self_cpu_time_us for o in ops),
        cpu_time_us=sum(o.cpu_time_us for o in ops),
        self_cuda_time_us=sum(o.self_cuda_time_us for o in ops),
        cuda_time_us=sum(o.cuda_time_us for o in ops),
    )


def _combined_kernels(parts: list[Measures]) -> list[Kernel]:
    total = _sum(p.totals.self_cuda_time_total_us for p in parts) or 0.0

    def merge(group: list[Kernel]) -> Kernel:
        time, calls = sum(k.total_us for k in group), sum(k.calls for k in group)
        small = sum(k.small_us for k in group)
        sizes = [k.bytes for k in group if k.bytes is not None]
        return Kernel(
            name=group[0].name,
            kind=group[0].kind,
            calls=calls,
            total_us=time,
            mean_us=time / calls,
            min_us=min(k.min_us for k in group),
            max_us=max(k.max_us for k in group),
            share=time / total if total else 0.0,
            limit="latency" if small * 2 > time else limit_of_kind(group[0].kind),
            blocks=max(group, key=lambda k: k.total_us).blocks,
            small_us=small,
            bytes=sum(sizes) if sizes else None,
        )

    merged = _merged([k for p in parts for k in p.kernels], lambda k: (k.name, k.kind), merge)
    return sorted(merged, key=lambda k: (-k.total_us, k.name))


def _merge_regions(group: list[Region]) -> Region:
    return Region(
        name=group[0].name,
        calls=sum(r.calls for r in group),
        cpu_time_us=sum(r.cpu_time_us for r in group),
        gpu_busy_us=_sum(r.gpu_busy_us for r in group),
        launches=sum(r.launches for r in group),
    )


def _combined_idle(parts: list[Measures], steps: int) -> Idle:
    causes: Counter[str] = Counter()
    for part in parts:
        for cause, us in part.idle.by_cause_us_per_step.items():
            causes[cause] += us * max(part.steps, 1)  # type: ignore[assignment]  # Counter's values may be floats
    largest = sorted((g for p in parts for g in p.idle.largest), key=lambda g: -g.duration_us)
    return Idle(
        by_cause_us_per_step={c: us / max(steps, 1) for c, us in causes.items()}, largest=largest[: idle.LARGEST]
    )


def _combined_split(parts: list[Measures]) -> Split | None:
    splits = [p.split for p in parts if p.split is not None]
    if not splits:
        return None
    return Split(
        compute_us=sum(s.compute_us for s in splits),
        exposed_communication_us=sum(s.exposed_communication_us for s in splits),
        exposed_copy_us=sum(s.exposed_copy_us for s in splits),
        idle_us=sum(s.idle_us for s in splits),
    )


def _combined_launch(parts: list[Measures]) -> Launch | None:
    """Medians of the cycles' own figures; the deepest queue of any."""
    known = [p.launch for p in parts if p.launch is not None]
    if not known:
        return None

    def middle(values: Iterable[float | None]) -> float | None:
        present = [v for v in values if v is not None]
        return float(np.median(present)) if present else None

    return Launch(
        delay_median_us=middle(k.delay_median_us for k in known),
        delay_p95_us=middle(k.delay_p95_us for k in known),
        queue_depth_max=max((k.queue_depth_max for k in known if k.queue_depth_max is not None), default=None),
        launch_call_mean_us=middle(k.launch_call_mean_us for k in known),
    )


def _merge_devices(group: list[Device]) -> Device:
    return Device(
        device=group[0].device,
        name=group[0].name,
        gpu_events=sum(d.gpu_events for d in group),
        kernels=sum(d.kernels for d in group),
        streams=max(d.streams for d in group),
        self_cuda_time_total_us=sum(d.self_cuda_time_total_us for d in group),
        gpu_busy_us=sum(d.gpu_busy_us for d in group),
    )


def _merge_flags(group: list[Flag]) -> Flag:
    return Flag(code=group[0].code, count=sum(f.count for f in group), message=group[0].message)
