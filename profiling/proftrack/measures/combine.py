"""The figures of a run's several cycles: sums, and means weighted by their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from proftrack.measures import idle, sites
from proftrack.measures.measure import Measures
from proftrack.measures.quality import FLAGS
from proftrack.record.figures import (
    CpuWork,
    Device,
    Flag,
    Idle,
    IdleCause,
    Kernel,
    Launch,
    Op,
    Region,
    Split,
    Stream,
    Totals,
    TraceWork,
    Window,
)

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
        ops=_combined_ops(parts),
        kernels=_combined_kernels(parts),
        sites=sites.merged(s for p in parts for s in p.sites),
        regions=_combined_regions(p.regions for p in parts),
        idle=_combined_idle(parts, steps),
        split=_combined_split(parts),
        launch=_combined_launch(parts),
        devices=_combined_devices(parts),
        flags=_combined_flags(parts),
        busy_in_device_window_us=_sum(p.busy_in_device_window_us for p in parts),
        other_us=dict(sum((Counter(p.other_us) for p in parts), Counter())),
        unseen_queue_us=sum(p.unseen_queue_us for p in parts),
        busy_by_limit_us=dict(sum((Counter(p.busy_by_limit_us) for p in parts), Counter())),
        waits_over_gpu_us=sum(p.waits_over_gpu_us for p in parts),
        host_rows=sum(p.host_rows for p in parts),
        collectives=[c for p in parts for c in p.collectives],
        modules=_combined_regions(p.modules for p in parts),
        work=_combined_work(parts),
        cpu=_combined_cpu(parts),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _sum_if_all(values: Iterable[Any]) -> Any:
    """The sum, None where one of them is not known."""
    known = list(values)
    return None if None in known else sum(known)


def _combined_work(parts: list[Measures]) -> TraceWork | None:
    known = [p.work for p in parts if p.work is not None]
    if not known:
        return None
    return TraceWork(
        flops_by_dtype=dict(sum((Counter(w.flops_by_dtype) for w in known), Counter())),
        uncounted_us=sum(w.uncounted_us for w in known),
        uncounted=list(dict.fromkeys(name for w in known for name in w.uncounted))[:5],
    )


def _combined_cpu(parts: list[Measures]) -> CpuWork | None:
    known = [p.cpu for p in parts if p.cpu is not None]
    if not known:
        return None
    return CpuWork(
        operators=sum(c.operators for c in known),
        operators_us=sum(c.operators_us for c in known),
        working_us=dict(sum((Counter(c.working_us) for c in known), Counter())),
        least_working_us=dict(sum((Counter(c.least_working_us) for c in known), Counter())),
        threads=max(c.threads for c in known),
    )


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


def _combined_ops(parts: list[Measures]) -> list[Op]:
    merged = _merged([o for p in parts for o in p.ops], lambda o: (o.name, o.category), _merge_ops)
    return sorted(merged, key=lambda o: (-o.self_cuda_time_us, -o.self_cpu_time_us, o.name))


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
        return Kernel(
            name=group[0].name,
            kind=group[0].kind,
            calls=calls,
            total_us=time,
            mean_us=time / calls,
            min_us=min(k.min_us for k in group),
            max_us=max(k.max_us for k in group),
            share=time / total if total else 0.0,
            limit=max(group, key=lambda k: k.total_us).limit,
            blocks=max(group, key=lambda k: k.total_us).blocks,
            small_us=small,
            flops=_sum_if_all(k.flops for k in group),
            bytes=_sum_if_all(k.bytes for k in group),
            roofline_us=_sum_if_all(k.roofline_us for k in group),
        )

    merged = _merged([k for p in parts for k in p.kernels], lambda k: (k.name, k.kind), merge)
    return sorted(merged, key=lambda k: (-k.total_us, k.name))


def _combined_regions(parts: Iterable[list[Region]]) -> list[Region]:
    merged = _merged([r for regions in parts for r in regions], lambda r: r.name, _merge_regions)
    return sorted(merged, key=lambda r: (-r.cpu_time_us, r.name))


def _merge_regions(group: list[Region]) -> Region:
    return Region(
        name=group[0].name,
        calls=sum(r.calls for r in group),
        cpu_time_us=sum(r.cpu_time_us for r in group),
        gpu_busy_us=_sum(r.gpu_busy_us for r in group),
        launches=sum(r.launches for r in group),
    )


def _combined_idle(parts: list[Measures], steps: int) -> Idle:
    causes: Counter[IdleCause] = Counter()
    rows: Counter[IdleCause] = Counter()
    for part in parts:
        for cause, us in part.idle.by_cause_us_per_step.items():
            causes[cause] += us * max(part.steps, 1)  # type: ignore[assignment]  # Counter's values may be floats
        for cause, count in part.idle.rows_by_cause_per_step.items():
            rows[cause] += count * max(part.steps, 1)  # type: ignore[assignment]
    largest = sorted((g for p in parts for g in p.idle.largest), key=lambda g: -g.duration_us)
    return Idle(
        by_cause_us_per_step={c: us / max(steps, 1) for c, us in causes.items()},
        largest=largest[: idle.LARGEST],
        rows_by_cause_per_step={c: n / max(steps, 1) for c, n in rows.items()},
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
        interval_median_us=middle(k.interval_median_us for k in known),
        streams=_merged([s for k in known for s in k.streams], lambda s: (s.device, s.stream), _merge_streams),
    )


def _merge_streams(group: list[Stream]) -> Stream:
    return Stream(
        device=group[0].device,
        stream=group[0].stream,
        gpu_events=sum(s.gpu_events for s in group),
        busy_us=sum(s.busy_us for s in group),
        delay_median_us=round(float(np.median([s.delay_median_us for s in group])), 3),
        delay_p95_us=max(s.delay_p95_us for s in group),
        queue_depth_max=max(s.queue_depth_max for s in group),
    )


def _combined_devices(parts: list[Measures]) -> list[Device]:
    merged = _merged([d for p in parts for d in p.devices], lambda d: d.device, _merge_devices)
    return sorted(merged, key=lambda d: (-d.gpu_busy_us, d.device))


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


def _combined_flags(parts: list[Measures]) -> list[Flag]:
    merged = _merged([f for p in parts for f in p.flags], lambda f: f.code, _merge_flags)
    return sorted(merged, key=lambda f: list(FLAGS).index(f.code))


def _merge_flags(group: list[Flag]) -> Flag:
    """The sentence, and what each cycle has to say beside it."""
    code = group[0].code
    details = dict.fromkeys(f.message.removeprefix(FLAGS[code]).strip() for f in group)
    message = " ".join([FLAGS[code], *(d for d in details if d)])
    return Flag(code=code, count=sum(f.count for f in group), message=message)
