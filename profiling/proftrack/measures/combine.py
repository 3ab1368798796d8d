"""Combines the figures of a run's cycles: sums, and means weighted by steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, structs

from proftrack.measures import idle, modules, occupancy, sites
from proftrack.measures.loading import Loading
from proftrack.measures.measure import Measures
from proftrack.measures.quality import FLAGS
from proftrack.measures.single import Single
from proftrack.measures.waits import Wait
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
    Stream,
    Totals,
    TraceWork,
)
from proftrack.record.modules import Graph

_Figures = TypeVar("_Figures", bound=Struct)
_Key = TypeVar("_Key", bound=str)


def combine(parts: list[Measures]) -> Measures:
    """Figures over several cycles: sums, and means weighted by steps. A single cycle is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    return Measures(
        window=_added([p.window for p in parts], step_names=[n for p in parts for n in p.window.step_names]),
        totals=_combined_totals(parts),
        per_step=[s for p in parts for s in p.per_step],
        ops=_combined_ops(parts),
        kernels=_combined_kernels(parts),
        sites=sites.merged(s for p in parts for s in p.sites),
        modules=modules.merged((m for p in parts for m in p.modules), len(parts)),
        regions=_combined_regions([r for p in parts for r in p.regions]),
        idle=_combined_idle([(p.idle, p.window.typical_steps) for p in parts]),
        split=_added_if_any([p.split for p in parts if p.split is not None]),
        launch=_combined_launch(parts),
        devices=_combined_devices(parts),
        flags=_combined_flags(parts),
        typical_us=_sum(p.typical_us for p in parts),
        busy_us=_sum(p.busy_us for p in parts),
        other_us=_sum_by_key(p.other_us for p in parts),
        impossible_us=sum(p.impossible_us for p in parts),
        memory_sets=sum(p.memory_sets for p in parts),
        unseen_queue_us=sum(p.unseen_queue_us for p in parts),
        busy_by_limit_us=_sum_by_key(p.busy_by_limit_us for p in parts),
        counted=_added([p.counted for p in parts]),
        waits_over_gpu_us=sum(p.waits_over_gpu_us for p in parts),
        waits=_combined_waits(parts),
        loading=_combined_loading(parts),
        single=_longest_step(parts),
        compiling_us=sum(p.compiling_us for p in parts),
        host_rows=sum(p.host_rows for p in parts),
        collectives=[c for p in parts for c in p.collectives],
        work=_combined_work(parts),
        whole_us=_sum_by_key(p.whole_us for p in parts),
        launched_us=_sum_by_key(p.launched_us for p in parts),
        replayed_us=sum(p.replayed_us for p in parts),
        named_us=sum(p.named_us for p in parts),
        graphs=_combined_graphs(p.graphs for p in parts),
        cpu=_combined_cpu(parts),
    )


# ---- how figures are joined ------------------------------------------------------------------------------------------


def _added(items: list[_Figures], **own: Any) -> _Figures:
    """One of several alike: fields in `own` are set, other figures are summed, texts are the first one's.

    None is left out of a sum; mappings are summed by key.
    """
    joined = {
        name: _sum_of([getattr(item, name) for item in items]) for name in items[0].__struct_fields__ if name not in own
    }
    return type(items[0])(**joined, **own)


def _added_if_any(items: list[_Figures], **own: Any) -> _Figures | None:
    return _added(items, **own) if items else None


def _sum_of(values: list[Any]) -> Any:
    if isinstance(values[0], str):
        return values[0]
    return _sum_by_key(values) if isinstance(values[0], dict) else _sum(values)


def _sum(values: Iterable[float | None]) -> Any:
    present = [v for v in values if v is not None]
    return sum(present) if present else None


def _sum_if_all(values: Iterable[Any]) -> Any:
    """The sum; None if any value is None."""
    summands = list(values)
    return None if None in summands else sum(summands)


def _sum_by_key(values: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    return dict(sum((Counter(value) for value in values), Counter()))


def _grouped(items: Iterable[_Figures], *names: str) -> list[list[_Figures]]:
    """Items grouped by equal values of these fields, in order of first occurrence."""
    groups: dict[object, list[_Figures]] = {}
    key = attrgetter(*names)
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


# ---- sections --------------------------------------------------------------------------------------------------------


def _longest_step(parts: list[Measures]) -> Single | None:
    """Cycles of one step each show its end several times."""
    steps = [p.single for p in parts if p.single is not None and p.single.step is not None]
    return max(steps, key=lambda step: step.time_us, default=None)


def _combined_work(parts: list[Measures]) -> TraceWork | None:
    works = [p.work for p in parts if p.work is not None]
    uncounted = list(dict.fromkeys(name for work in works for name in work.uncounted))[:5]
    return _added_if_any(works, uncounted=uncounted)


def _combined_cpu(parts: list[Measures]) -> CpuWork | None:
    works = [p.cpu for p in parts if p.cpu is not None]
    return _added_if_any(works, threads=max((w.threads for w in works), default=1))


def _combined_totals(parts: list[Measures]) -> Totals:
    totals = [p.totals for p in parts]
    busy_us = _sum(t.gpu_busy_us for t in totals)
    duration = _sum(p.window.duration_us for p in parts)
    fraction = round(busy_us / duration, 5) if busy_us is not None and duration else None
    return _added(totals, gpu_busy_fraction_profiled=fraction)


def _combined_ops(parts: list[Measures]) -> list[Op]:
    merged = [_added(group) for group in _grouped((o for p in parts for o in p.ops), "name", "category")]
    return sorted(merged, key=lambda o: (-o.self_cuda_time_us, -o.self_cpu_time_us, o.name))


def _combined_kernels(parts: list[Measures]) -> list[Kernel]:
    total = _sum(p.totals.self_cuda_time_total_us for p in parts) or 0.0
    merged = [_merged_kernel(group, total) for group in _grouped((k for p in parts for k in p.kernels), "name", "kind")]
    return sorted(merged, key=lambda k: (-k.total_us, k.name))


def _merged_kernel(group: list[Kernel], total: float) -> Kernel:
    time, largest = sum(k.total_us for k in group), max(group, key=lambda k: k.total_us)
    return _added(
        group,
        mean_us=time / sum(k.calls for k in group),
        min_us=min(k.min_us for k in group),
        max_us=max(k.max_us for k in group),
        share=time / total if total else 0.0,
        limit=largest.limit,
        blocks=largest.blocks,
        flops=_sum_if_all(k.flops for k in group),
        bytes=_sum_if_all(k.bytes for k in group),
        roofline_us=_sum_if_all(k.roofline_us for k in group),
        occupancy=occupancy.combined([k.occupancy for k in group if k.occupancy is not None]),
    )


def _combined_regions(regions: list[Region]) -> list[Region]:
    merged = [_added(group) for group in _grouped(regions, "name")]
    return sorted(merged, key=lambda r: (-r.cpu_time_us, r.name))


def _combined_graphs(cycles: Iterable[list[Graph]]) -> list[Graph]:
    """Each cycle's n-th largest graph of one size, named by one capture or refused for one reason, is the same."""
    groups: dict[object, list[Graph]] = {}
    for graphs in cycles:
        earlier: Counter[object] = Counter()
        for graph in graphs:
            key = (graph.kernels, graph.named, graph.problem, graph.capture)
            groups.setdefault((key, earlier[key]), []).append(graph)
            earlier[key] += 1
    merged = [
        structs.replace(group[0], replays=sum(g.replays for g in group), total_us=sum(g.total_us for g in group))
        for group in groups.values()
    ]
    return sorted(merged, key=lambda g: -g.total_us)


def _combined_waits(parts: list[Measures]) -> list[Wait]:
    groups = _grouped((w for p in parts for w in p.waits), "call", "operator")
    merged = [_added(group) for group in groups]
    return sorted(merged, key=lambda w: -w.over_gpu_us)


def _combined_loading(parts: list[Measures]) -> Loading | None:
    found = [p.loading for p in parts if p.loading is not None]
    others = [(p.loading.other_idle if p.loading is not None else p.idle, p.window.typical_steps) for p in parts]
    return _added_if_any(
        found,
        workers=any(each.workers for each in found),
        in_process=any(each.in_process for each in found),
        other_idle=_combined_idle(others),
    )


def _combined_idle(cycles: list[tuple[Idle, int]]) -> Idle:
    """The means over the cycles, each with its number of steps."""
    steps = sum(count for _, count in cycles)
    causes: Counter[IdleCause] = Counter()
    rows: Counter[IdleCause] = Counter()
    for part, count in cycles:
        for cause, us in part.by_cause_us_per_step.items():
            causes[cause] += us * count  # type: ignore[assignment]  # Counter may hold floats
        for cause, recorded in part.rows_by_cause_per_step.items():
            rows[cause] += recorded * count  # type: ignore[assignment]
    largest = sorted((gap for part, _ in cycles for gap in part.largest), key=lambda gap: -gap.duration_us)
    return Idle(
        by_cause_us_per_step={c: us / steps for c, us in causes.items()},
        largest=largest[: idle.LARGEST],
        rows_by_cause_per_step={c: n / steps for c, n in rows.items()},
    )


def _combined_launch(parts: list[Measures]) -> Launch | None:
    """Medians of the cycles' figures; the deepest queue of any cycle."""
    launches = [p.launch for p in parts if p.launch is not None]
    if not launches:
        return None

    def middle(values: Iterable[float | None]) -> float | None:
        present = [v for v in values if v is not None]
        return float(np.median(present)) if present else None

    return Launch(
        delay_median_us=middle(launch.delay_median_us for launch in launches),
        delay_p95_us=middle(launch.delay_p95_us for launch in launches),
        queue_depth_max=max((x.queue_depth_max for x in launches if x.queue_depth_max is not None), default=None),
        launch_call_mean_us=middle(launch.launch_call_mean_us for launch in launches),
        interval_median_us=middle(launch.interval_median_us for launch in launches),
        streams=[
            _merged_stream(group) for group in _grouped((s for x in launches for s in x.streams), "device", "stream")
        ],
    )


def _merged_stream(group: list[Stream]) -> Stream:
    return _added(
        group,
        device=group[0].device,
        delay_median_us=round(float(np.median([s.delay_median_us for s in group])), 3),
        delay_p95_us=max(s.delay_p95_us for s in group),
        queue_depth_max=max(s.queue_depth_max for s in group),
    )


def _combined_devices(parts: list[Measures]) -> list[Device]:
    merged = [
        _added(group, device=group[0].device, name=group[0].name, streams=max(d.streams for d in group))
        for group in _grouped((d for p in parts for d in p.devices), "device")
    ]
    return sorted(merged, key=lambda d: (-d.gpu_busy_us, d.device))


def _combined_flags(parts: list[Measures]) -> list[Flag]:
    merged = [_merged_flag(group) for group in _grouped((f for p in parts for f in p.flags), "code")]
    return sorted(merged, key=lambda f: list(FLAGS).index(f.code))


def _merged_flag(group: list[Flag]) -> Flag:
    """The flag's sentence, followed by each cycle's details."""
    code = group[0].code
    details = dict.fromkeys(f.message.removeprefix(FLAGS[code]).strip() for f in group)
    return _added(group, message=" ".join([FLAGS[code], *(d for d in details if d)]))
