"""What limits GPU work, and how busy time divides among the limits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from proftrack.measures import tables
from proftrack.measures.intervals import Intervals, union
from proftrack.measures.kernels import CAN_BE_SMALL, limit_of_kind, limit_of_operator
from proftrack.measures.origins import Origins
from proftrack.measures.view import View
from proftrack.measures.window import Windows, busy
from proftrack.measures.work import GpuCosts
from proftrack.record.figures import LIMITS, Limit, Split
from proftrack.trace.categories import Kind
from proftrack.trace.codes import distinct
from proftrack.trace.table import NONE, Bools, Ints

FAR_FROM_ROOFLINE = 0.25
"""A kernel with a small grid that still reaches this share of its roofline is not limited by latency."""
STREAMING_INTENSITY = 8.0
"""FLOPs per byte: below this every GPU since 2016 waits for its memory (their float32 ridges begin at about 14)."""
EXPOSED: tuple[Limit, ...] = ("communication", "transfer")
"""What counts only where no kernel hides it."""


def classes_of(seen: View, found: Origins, costs: GpuCosts) -> dict[Limit, Bools]:
    """What limits each row of `links.gpu`, as a mask for each limit that occurs.

    Judged by arithmetic intensity against the ridge if the operator's cost and the ceilings are known, else by the
    kind that the row's name (or its operator's) indicates. A kernel with a grid that leaves most of the GPU empty is
    limited by latency, unless it is near its roofline anyway.
    """
    limit = _by_name(seen, found)
    computes = np.isin(limit, [LIMITS.index(name) for name in CAN_BE_SMALL])
    with np.errstate(invalid="ignore", divide="ignore"):
        near = costs.roofline_us * 1000 >= FAR_FROM_ROOFLINE * np.maximum(seen.table.dur[seen.links.gpu], 1)
        streams = (costs.flops > 0) & (costs.flops < STREAMING_INTENSITY * costs.bytes)
    judged = computes & costs.known & ~np.isnan(costs.arithmetic_us) & ~np.isnan(costs.bandwidth_us)
    arithmetic, bandwidth = LIMITS.index("arithmetic"), LIMITS.index("bandwidth")
    limit = np.where(computes & costs.known & streams, bandwidth, limit)
    limit = np.where(judged, np.where(costs.arithmetic_us >= costs.bandwidth_us, arithmetic, bandwidth), limit)
    small = tables.is_small(seen.table, seen.links.gpu) & computes & ~(judged & near)
    limit = np.where(small, LIMITS.index("latency"), limit)
    return {LIMITS[code]: limit == code for code in np.flatnonzero(np.bincount(limit)).tolist()}


def _by_name(seen: View, found: Origins) -> Ints:
    """Limit (in LIMITS) of each row of `links.gpu` by its own name, else by the name of its operator."""
    table, gpu = seen.table, seen.links.gpu
    codes = table.name[gpu].astype(np.int64) * len(Kind) + table.kind[gpu]
    unique, group = distinct(codes, len(table.names) * len(Kind))
    names = [limit_of_kind(tables.kind_of_work(table.names[c // len(Kind)], c % len(Kind))) for c in unique.tolist()]
    limit: Ints = np.array([LIMITS.index(name) for name in names], dtype=np.int64)[group]
    unknown = np.flatnonzero((limit == LIMITS.index("unknown")) & (found.owner != NONE))
    operators, which = distinct(found.row_name[found.owner[unknown]], len(found.names))
    by_operator = [limit_of_operator(found.names[o]) for o in operators.tolist()]
    limit[unknown] = np.array([LIMITS.index(name) for name in by_operator], dtype=np.int64)[which]
    return limit


def by_limit(seen: View, windows: Windows, classes: dict[Limit, Bools]) -> dict[Limit, float]:
    """The typical steps' busy time by limit: kernels first, then exposed collectives, then exposed copies."""
    out: dict[Limit, float] = {}
    compute = [c for c in classes if c not in EXPOSED]
    covered = _clip(seen, classes, compute, windows)
    sums = {c: clip_sum(seen, classes[c], windows) for c in compute}
    total = sum(sums.values())
    for name in compute:  # overlapping kernels share the time of their overlap
        out[name] = covered.length / 1000 * (sums[name] / total) if total else 0.0
    for name in EXPOSED:
        if name in classes:
            both = _joined(covered, _clip(seen, classes, [name], windows))
            out[name] = (both.length - covered.length) / 1000
            covered = both
    return {k: v for k, v in out.items() if v > 0}


def _clip(seen: View, classes: dict[Limit, Bools], names: Iterable[Limit], windows: Windows) -> Intervals:
    mask = np.zeros(len(seen.links.gpu), dtype=bool)
    for name in names:
        mask |= classes[name]
    return windows.during_steps(seen.on_device, mask)


def clip_sum(seen: View, mask: Bools, windows: Windows) -> int:
    """Nanoseconds of this work in the typical steps; what overlaps counts twice."""
    keep = mask & seen.on_device.usable
    return int(windows.typical.covered_within(seen.on_device.start[keep], seen.on_device.end[keep]).sum())


def _joined(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end]))


def split(seen: View, windows: Windows, classes: dict[Limit, Bools]) -> Split:
    """Compute, then communication and copies where nothing before them hides them, then idle."""
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
