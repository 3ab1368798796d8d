"""The tables of a record: operators, GPU work, steps, regions, devices."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from proftrack.measures.intervals import Intervals, union, union_by_group
from proftrack.measures.kernels import kind_of_copy, kind_of_kernel
from proftrack.measures.links import Links
from proftrack.measures.nesting import Forest
from proftrack.measures.occupancy import occupancies
from proftrack.measures.window import Ownership, Steps
from proftrack.measures.work import GpuCosts
from proftrack.record.figures import Device, Kernel, KernelKind, Launch, Limit, Op, Region, Step, Stream
from proftrack.trace.categories import Kind, is_step
from proftrack.trace.codes import distinct
from proftrack.trace.table import NONE, Bools, EventTable, Ints

SMALL_GRID = 0.5
"""A grid with fewer blocks than this share of the multiprocessors leaves most of the GPU empty. (Persistent kernels
launch about one block per multiprocessor and fill the GPU.)"""


def _sums(group: npt.NDArray[np.integer], values: Ints, count: int) -> Ints:
    """Exact integer sums by group."""
    out = np.zeros(count, dtype=np.int64)
    np.add.at(out, group, values)
    return out


def operators(table: EventTable, forest: Forest, links: Links, owner: Ints) -> list[Op]:
    """All host rows by name and category, largest self CUDA time first, then largest self CPU time.

    `owner`: from `links.launching_row`.
    """
    gpu_ns = np.zeros(len(forest.rows), dtype=np.int64)
    np.add.at(gpu_ns, owner[owner != NONE], table.dur[links.gpu][owner != NONE])
    total_gpu = forest.subtree_sums(gpu_ns) if len(gpu_ns) else gpu_ns
    rows = forest.rows
    codes = table.name[rows].astype(np.int64) * len(table.categories) + table.category[rows]
    unique, group = distinct(codes, len(table.names) * len(table.categories))
    count = len(unique)
    columns = zip(
        unique.tolist(),
        np.bincount(group, minlength=count).tolist(),
        _sums(group, forest.self_ns, count).tolist(),
        _sums(group, table.dur[rows], count).tolist(),
        _sums(group, gpu_ns, count).tolist(),
        _sums(group, total_gpu, count).tolist(),
        strict=True,
    )
    ops = [
        Op(
            name=table.names[code // len(table.categories)],
            category=table.categories[code % len(table.categories)],
            calls=calls,
            self_cpu_time_us=self_cpu / 1000,
            cpu_time_us=cpu / 1000,
            self_cuda_time_us=self_cuda / 1000,
            cuda_time_us=cuda / 1000,
        )
        for code, calls, self_cpu, cpu, self_cuda, cuda in columns
    ]
    return sorted(ops, key=lambda op: (-op.self_cuda_time_us, -op.self_cpu_time_us, op.name))


def whole_times(table: EventTable, forest: Forest, time: Ints) -> dict[str, float]:
    """Microseconds of each operator, from the `time` of each row of the forest with all that it calls.

    An operator that calls itself counts once, so that no time counts twice for one name.
    """
    rows = forest.rows
    if not len(rows):
        return {}
    parent = forest.nearest(forest.parent, ~table.of_kind(Kind.MODULE)[rows])
    nested = (parent != NONE) & (table.name[rows[np.maximum(parent, 0)]] == table.name[rows])
    outer = table.of_kind(Kind.CPU_OP)[rows] & ~nested
    unique, group = distinct(table.name[rows[outer]].astype(np.int64), len(table.names))
    sums = _sums(group, time[outer], len(unique))
    return {table.names[name]: ns / 1000 for name, ns in zip(unique.tolist(), sums.tolist(), strict=True)}


def time_below(forest: Forest, owner: Ints, time: Ints) -> Ints:
    """For each row of the forest, the `time` of the GPU work that it or what it calls launched (`owner`)."""
    own = np.zeros(len(forest.rows), dtype=np.int64)
    np.add.at(own, owner[owner != NONE], time[owner != NONE])
    return forest.subtree_sums(own) if len(own) else own


def gpu_work(table: EventTable, links: Links, limit: dict[Limit, Bools], costs: GpuCosts) -> list[Kernel]:
    """All GPU work by name, largest total time first."""
    gpu = links.gpu
    if not len(gpu):
        return []
    codes = table.name[gpu].astype(np.int64) * len(Kind) + table.kind[gpu]
    unique, group = distinct(codes, len(table.names) * len(Kind))
    count = len(unique)
    dur, total_ns = table.dur[gpu], int(table.dur[gpu].sum())
    calls = np.bincount(group, minlength=count)
    total = _sums(group, dur, count)
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(low, group, dur)
    np.maximum.at(high, group, dur)
    small = _sums(group, np.where(is_small(table, gpu), dur, 0), count)
    longest = np.full(count, NONE, dtype=np.int64)
    order = np.argsort(dur, kind="stable")
    longest[group[order]] = table.blocks[gpu][order]
    work = _work_by_group(table, gpu, group, count, costs)
    occupied = occupancies(table, gpu, group, count)
    names = list(limit)
    largest = np.argmax([_sums(group, np.where(limit[name], dur, 0), count) for name in names], axis=0)
    kernels = []
    for i, code in enumerate(unique.tolist()):
        name = table.names[code // len(Kind)]
        kernels.append(
            Kernel(
                name=name,
                kind=kind_of_work(name, code % len(Kind)),
                calls=int(calls[i]),
                total_us=int(total[i]) / 1000,
                mean_us=round(int(total[i]) / 1000 / int(calls[i]), 3),
                min_us=int(low[i]) / 1000,
                max_us=int(high[i]) / 1000,
                share=round(int(total[i]) / total_ns, 5) if total_ns else 0.0,
                limit=names[int(largest[i])] if total[i] else "unknown",
                blocks=int(longest[i]) if longest[i] != NONE else None,
                small_us=int(small[i]) / 1000,
                occupancy=occupied[i],
                **work[i],
            )
        )
    return sorted(kernels, key=lambda k: (-k.total_us, k.name))


def _work_by_group(
    table: EventTable, gpu: Ints, group: npt.NDArray[np.integer], count: int, costs: GpuCosts
) -> list[dict[str, Any]]:
    """FLOPs, bytes and roofline time of each kernel name, if every launch of it could be counted."""
    counted = np.bincount(group, weights=costs.known, minlength=count) == np.bincount(group, minlength=count)
    flops = np.bincount(group, weights=costs.flops, minlength=count)
    size = np.bincount(group, weights=costs.bytes, minlength=count)
    least = np.bincount(group, weights=np.nan_to_num(costs.roofline_us, nan=np.inf), minlength=count)
    moved = _sums(group, np.maximum(table.size[gpu], 0), count)
    out: list[dict[str, Any]] = []
    for i in range(count):
        known = bool(counted[i])
        out.append(
            {
                "flops": round(float(flops[i])) if known else None,
                "bytes": round(float(size[i])) if known else int(moved[i]) or None,
                "roofline_us": round(float(least[i]), 3) if known and np.isfinite(least[i]) else None,
            }
        )
    return out


def kind_of_work(name: str, kind: int) -> KernelKind:
    """The kind of a piece of GPU work, from its name and its row's kind."""
    if kind == Kind.MEMSET:
        return "memset"
    return kind_of_copy(name) if kind == Kind.MEMCPY else kind_of_kernel(name)


def is_small(table: EventTable, gpu: Ints) -> npt.NDArray[np.bool_]:
    """Mask of the kernels with a grid that leaves more than half of the device's multiprocessors empty."""
    sms = {d: (table.meta.device(d) or {}).get("numSms") for d in np.unique(table.device[gpu]).tolist()}
    limit = np.zeros(len(gpu))
    for device, count in sms.items():
        if isinstance(count, int):
            limit[table.device[gpu] == device] = count * SMALL_GRID
    blocks = table.blocks[gpu]
    return np.asarray((table.kind[gpu] == Kind.KERNEL) & (blocks != NONE) & (blocks < limit))


def per_step(table: EventTable, forest: Forest, links: Links, steps: Steps, owned: Ownership) -> list[Step]:
    """Each recorded step with the GPU work that it launched."""
    count = len(steps)
    if not count:
        return []
    own = owned.step != NONE
    step, rows = owned.step[own], links.gpu[own]
    cuda = _sums(step, table.dur[rows], count)
    events = np.bincount(step, minlength=count)
    kernels = np.bincount(step[table.kind[rows] == Kind.KERNEL], minlength=count)
    called = steps.containing(table.ts[links.calls])
    launches = np.bincount(called[called != NONE], minlength=count)
    measured = len(links.gpu) > 0
    running = steps.containing(table.ts[forest.rows])
    self_cpu = _sums(running[running != NONE], forest.self_ns[running != NONE], count)
    return [
        Step(
            step=int(steps.number[i]),
            host_us=int(steps.end[i] - steps.start[i]) / 1000,
            self_cpu_time_us=int(self_cpu[i]) / 1000,
            self_cuda_time_us=int(cuda[i]) / 1000 if measured else None,
            gpu_events=int(events[i]),
            kernels=int(kernels[i]),
            launches=int(launches[i]) if links.counted else None,
        )
        for i in range(count)
    ]


_COMPILED = re.compile(
    r"^(?:Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|## Call CompiledFxGraph"
    r"|AOTDispatcher Runtime Wrapper|CompiledFunction(?:Backward)?$)"
)
MOST_SPANS = 500
"""How many regions, modules or streams are kept, the largest first."""


def regions(table: EventTable, links: Links) -> list[Region]:
    """record_function regions by name, and those that torch.compile marks: compiled regions, guards, graph calls."""
    is_region = table.of_kind(Kind.ANNOTATION) & ~table.named(is_step)
    compiled = table.of_kind(Kind.CPU_OP) & table.named(lambda n: _COMPILED.match(n) is not None)
    return _spans(table, links, is_region | compiled)


def _spans(table: EventTable, links: Links, mask: Bools) -> list[Region]:
    """Host intervals by name, with the GPU work launched during them (by any thread: backward runs on its own)."""
    rows = np.flatnonzero(mask & table.valid)
    if not len(rows):
        return []
    unique, group = np.unique(table.name[rows], return_inverse=True)
    count = len(unique)
    launched = np.flatnonzero((links.launch != NONE) & table.valid[links.gpu])
    launched = launched[np.argsort(table.ts[links.launch[launched]], kind="stable")]
    times, called = table.ts[links.launch[launched]], np.sort(table.ts[links.calls])
    order = np.argsort(group, kind="stable")
    busy, launches = [], []
    for mine in np.split(rows[order], np.cumsum(np.bincount(group, minlength=count))[:-1]):
        during = union(table.ts[mine], table.end[mine])  # if a region is nested in itself, each launch counts once
        work = launched[_within(times, during)]
        busy.append(union(table.ts[links.gpu[work]], links.end[work]).length)
        launches.append(len(_within(called, during)))
    host = _sums(group, table.dur[rows], count)
    out = [
        Region(
            name=table.names[unique[i]],
            calls=int(n),
            cpu_time_us=int(host[i]) / 1000,
            gpu_busy_us=int(busy[i]) / 1000 if len(links.gpu) else None,
            launches=int(launches[i]) if links.counted else None,
        )
        for i, n in enumerate(np.bincount(group, minlength=count).tolist())
    ]
    return sorted(out, key=lambda r: (-r.cpu_time_us, r.name))[:MOST_SPANS]


def _within(times: Ints, during: Intervals) -> Ints:
    """Indices of the sorted `times` that are inside one of the intervals [start, end)."""
    low, high = np.searchsorted(times, during.start), np.searchsorted(times, during.end)
    count = high - low
    return np.repeat(low - (np.cumsum(count) - count), count) + np.arange(count.sum())


def devices(table: EventTable, links: Links, owned: Ownership, low: int, high: int) -> list[Device]:
    """Each device's figures, busiest first; `gpu_busy_us` is the busy time within [low, high)."""
    ids = table.device[links.gpu]
    unique, group = np.unique(ids, return_inverse=True)
    start, end = np.maximum(owned.start, low), np.minimum(owned.end, high)
    end = np.where(owned.usable, end, start)
    busy = union_by_group(group.astype(np.int64), start, end, len(unique))
    total = _sums(group, table.dur[links.gpu], len(unique))
    out = [
        Device(
            device=int(d),
            name=(table.meta.device(int(d)) or {}).get("name") or None,
            gpu_events=int((group == i).sum()),
            kernels=int(((group == i) & (table.kind[links.gpu] == Kind.KERNEL)).sum()),
            streams=len(np.unique(table.lane[links.gpu][group == i])),
            self_cuda_time_total_us=int(total[i]) / 1000,
            gpu_busy_us=int(busy[i]) / 1000,
        )
        for i, d in enumerate(unique.tolist())
    ]
    return sorted(out, key=lambda d: (-d.gpu_busy_us, d.device))


def launch_figures(table: EventTable, links: Links, owned: Ownership) -> Launch | None:
    """Launch delay (GPU start minus the launch call's end, at least 0) and queue depth, over work with a launch."""
    joined = np.flatnonzero((links.launch != NONE) & owned.usable)
    if not len(joined):
        return None
    called, started = table.end[links.launch[joined]], owned.start[joined]
    delay = np.maximum(started - called, 0)
    call_time = table.dur[links.calls]
    return Launch(
        delay_median_us=float(np.median(delay)) / 1000,
        delay_p95_us=float(np.percentile(delay, 95)) / 1000,
        queue_depth_max=_deepest_queue(table.lane[links.gpu[joined]], called, np.maximum(started, called)),
        launch_call_mean_us=float(call_time.mean()) / 1000 if len(call_time) else None,
        interval_median_us=_interval(table, links),
        streams=_streams(table, links, joined, called, np.maximum(started, called)),
    )


def _interval(table: EventTable, links: Links) -> float | None:
    """Median time from one launch call's start to the next on the same thread; None if no thread has two calls."""
    order = np.lexsort((table.ts[links.calls], table.thread[links.calls]))
    calls = links.calls[order]
    same = table.thread[calls][1:] == table.thread[calls][:-1]
    between = np.diff(table.ts[calls])[same]
    return float(np.median(between)) / 1000 if len(between) else None


def _streams(table: EventTable, links: Links, work: Ints, called: Ints, started: Ints) -> list[Stream]:
    """Figures of each stream that ran this `work` (places in `links.gpu`), of the busiest MOST_SPANS at most."""
    gpu = links.gpu[work]
    lanes, group = np.unique(table.lane[gpu], return_inverse=True)
    busy = union_by_group(group.astype(np.int64), table.ts[gpu], links.end[work], len(lanes))
    out = []
    busiest_first = sorted(range(len(lanes)), key=lambda i: (-busy[i], table.lanes[lanes[i]]))
    for i in busiest_first[:MOST_SPANS]:
        mine = group == i
        delay = (started - called)[mine] / 1000
        device, stream = table.lanes[lanes[i]]
        out.append(
            Stream(
                device=device,
                stream=stream,
                gpu_events=int(mine.sum()),
                busy_us=int(busy[i]) / 1000,
                delay_median_us=round(float(np.median(delay)), 3),
                delay_p95_us=round(float(np.percentile(delay, 95)), 3),
                queue_depth_max=_deepest_queue(table.lane[gpu][mine], called[mine], started[mine]),
            )
        )
    return out


def _deepest_queue(lane: npt.NDArray[np.int32], called: Ints, started: Ints) -> int:
    """The most work that had been launched to one stream and not yet started."""
    lanes = np.concatenate([lane, lane])
    times = np.concatenate([called, started])
    change = np.concatenate([np.ones(len(called), dtype=np.int64), -np.ones(len(started), dtype=np.int64)])
    order = np.lexsort((change, times, lanes))  # starts before calls at the same time: no queues of zero duration
    return int(np.cumsum(change[order]).max())
