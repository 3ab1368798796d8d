"""Arithmetic and memory traffic of GPU work, from the input shapes of the operators that launched it."""

from __future__ import annotations

import re
import statistics
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.costs import Cost, cost_of
from proftrack.measures.intervals import union
from proftrack.measures.kernels import kind_of_kernel
from proftrack.measures.links import Links
from proftrack.measures.nesting import Forest
from proftrack.measures.origins import Origins
from proftrack.record.ceilings import PARALLEL, Ceilings
from proftrack.record.figures import CpuCalls, CpuTrace, CpuWork, Limit, TraceWork
from proftrack.trace.categories import Kind
from proftrack.trace.codes import distinct
from proftrack.trace.table import NONE, Bools, EventTable, Ints

Floats = npt.NDArray[np.float64]


class OperatorCosts(NamedTuple):
    """Costs of operators; all columns are parallel to the rows of `Origins`."""

    known: Bools
    flops: Floats
    bytes: Floats
    dtype: npt.NDArray[np.int16]
    """Index into `dtypes`."""
    dtypes: list[str]


def operator_costs(found: Origins) -> OperatorCosts:
    """Cost of each known operator with recorded shapes, computed once per name and signature."""
    count, on_gpu = max(len(found.signatures), 1), len(found.owner) > 0
    shaped = (found.row_signature != NONE) & found.row_is_operator
    codes = found.row_name * count + np.maximum(found.row_signature, 0)
    unique, group = np.unique(codes[shaped], return_inverse=True)
    costs = [
        _cost(found.names[code // count], found.signatures[code % count], on_gpu=on_gpu) for code in unique.tolist()
    ]
    dtypes = sorted({c.dtype for c in costs if c is not None}) or ["other"]
    known, flops, size = np.zeros(len(codes), dtype=bool), np.zeros(len(codes)), np.zeros(len(codes))
    dtype = np.zeros(len(codes), dtype=np.int16)
    if costs:
        known[shaped] = np.array([c is not None for c in costs])[group]
        flops[shaped] = np.array([c.flops if c else 0 for c in costs], dtype=np.float64)[group]
        size[shaped] = np.array([c.bytes if c else 0 for c in costs], dtype=np.float64)[group]
        dtype[shaped] = np.array([dtypes.index(c.dtype) if c else 0 for c in costs], dtype=np.int16)[group]
    return OperatorCosts(known, flops, size, dtype, dtypes)


def _cost(name: str, signature: tuple[bytes, bytes, bytes], *, on_gpu: bool) -> Cost | None:
    cost = cost_of(name, *signature)
    if cost is not None and cost.dtype == "float32" and name in _MAY_USE_TF32 and on_gpu:
        return cost._replace(dtype="tfloat32")
    return cost


_MAY_USE_TF32 = ("aten::convolution_backward", "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward")
"""Operators of cuDNN, which computes float32 in TF32 unless it is told not to; their arguments do not say."""


class GpuCosts(NamedTuple):
    """Each operator's cost divided among its GPU work by duration. Columns are parallel to `links.gpu`."""

    known: Bools
    flops: Floats
    bytes: Floats
    arithmetic_us: Floats
    """FLOPs over the attainable rate; NaN if no ceiling is known."""
    bandwidth_us: Floats

    @property
    def roofline_us(self) -> Floats:
        """The larger of the two."""
        return np.fmax(self.arithmetic_us, self.bandwidth_us)


_SPARSE = "cusparse"


def without_sparse(table: EventTable, gpu: Ints, owner: Ints, costs: OperatorCosts) -> OperatorCosts:
    """The costs without those of products that launched kernels for sparse matrices: shapes do not tell their work."""
    sparse = owner[(owner != NONE) & table.named(lambda name: _SPARSE in name)[gpu]]
    if not len(sparse) or not len(costs.known):
        return costs
    known = costs.known.copy()
    known[sparse] = False
    return costs._replace(known=known)


def gpu_costs(table: EventTable, gpu: Ints, owner: Ints, costs: OperatorCosts, ceilings: Ceilings | None) -> GpuCosts:
    """Costs of kernels, from the operators at `owner` (as in `Origins`, NONE without an operator).

    Copies and sets that an operator launches alongside its kernels get no share of its cost.
    """
    if not len(costs.known):
        nothing, unknown = np.zeros(len(gpu)), np.full(len(gpu), np.nan)
        return GpuCosts(np.zeros(len(gpu), dtype=bool), nothing, nothing, unknown, unknown)
    at = np.maximum(owner, 0)
    known = (owner != NONE) & costs.known[at] & (table.kind[gpu] == Kind.KERNEL)
    time = np.zeros(len(costs.known))
    np.add.at(time, owner[known], table.dur[gpu[known]])
    share = np.where(known, table.dur[gpu] / np.maximum(time[at], 1), 0.0)
    flops, size = costs.flops[at] * share, costs.bytes[at] * share
    with np.errstate(invalid="ignore"):
        arithmetic = np.where(known, flops / _rates(costs, ceilings)[costs.dtype[at]] * 1e6, np.nan)
    bandwidth = np.where(known, size / ceilings.bytes_per_s * 1e6, np.nan) if ceilings else np.full(len(gpu), np.nan)
    return GpuCosts(known, flops, size, arithmetic, bandwidth)


def _rates(costs: OperatorCosts, ceilings: Ceilings | None) -> Floats:
    """FLOP/s by dtype code; infinite for `other` types: indices and flags do no arithmetic that could limit a GPU."""
    rates = [ceilings.rate(dtype) if ceilings else None for dtype in costs.dtypes]
    unknown = [np.inf if dtype == "other" else np.nan for dtype in costs.dtypes]
    return np.array([other if rate is None else rate for rate, other in zip(rates, unknown, strict=True)])


class Owned(NamedTuple):
    """GPU work, the operators that launched it, and their costs."""

    gpu: Ints
    """Rows of GPU work in the event table."""
    owner: Ints
    """Their rows in `Origins`, NONE without an operator."""
    operators: OperatorCosts
    costs: GpuCosts


def trace_work(table: EventTable, found: Origins, owned: Owned, own: Bools) -> TraceWork:
    """FLOPs of the steps' `own` GPU work, and the part of all GPU work that could not be counted."""
    gpu, owner, operators, costs = owned
    flops: dict[str, float] = {}
    for code, dtype in enumerate(operators.dtypes):
        mine = own & costs.known & (operators.dtype[np.maximum(owner, 0)] == code)
        if (total := float(costs.flops[mine].sum())) > 0:
            flops[dtype] = total
    missing = ~costs.known & (table.kind[gpu] == Kind.KERNEL)
    name = np.where(owner == NONE, table.name[gpu], found.name)[missing]
    unique, group = np.unique(name, return_inverse=True)
    uncounted_ns = np.bincount(group, weights=table.dur[gpu[missing]], minlength=len(unique))
    largest = [found.names[unique[i]] for i in np.argsort(-uncounted_ns)[:5].tolist()]
    return TraceWork(flops_by_dtype=flops, uncounted_us=float(uncounted_ns.sum()) / 1000, uncounted=largest)


class Outside(NamedTuple):
    """Kernels that no operator launched: no dispatch counter saw them as they ran."""

    launched_us: dict[str, float]
    """Time of those that were launched one by one (Triton, extensions that bypass torch), by name."""
    replayed_us: float
    """Time of those that CUDA graphs launched, if their captures are not known."""
    named_us: float
    """Time of all kernels that CUDA graphs launched whose captures are known."""


def outside_operators(table: EventTable, links: Links, found: Origins) -> Outside:
    """The kernels launched by no operator. Collectives have none around them, and no work to count."""
    kernel = (table.kind[links.gpu] == Kind.KERNEL) & (links.launch != NONE)
    by_graph, named = np.isin(links.launch, links.calls[links.graph_calls]), found.by_capture
    rows = links.gpu[kernel & (~by_graph | named) & ~found.dispatched]
    names, group = distinct(table.name[rows].astype(np.int64), len(table.names))
    total = np.bincount(group, weights=table.dur[rows], minlength=len(names)) / 1000
    launched = {table.names[name]: us for name, us in zip(names.tolist(), total.tolist(), strict=True)}
    return Outside(
        {name: us for name, us in launched.items() if kind_of_kernel(name) != "communication"},
        float(table.dur[links.gpu[kernel & by_graph & ~named]].sum()) / 1000,
        float(table.dur[links.gpu[kernel & by_graph & named]].sum()) / 1000,
    )


OFF_RIDGE = 2.0
"""An operator's arithmetic and traffic times must differ by this factor for one to be named as its limit."""
_COSTLY = re.compile(r"exp|log|erf|gelu|tanh|sigmoid|silu|mish|softplus|pow|sin|cos|tan|softmax")
"""Functions that do more arithmetic than their FLOPs tell (one per element): bandwidth limits them only near their
roofline."""
NEAR_ROOFLINE = 1.5


def cpu_calls(table: EventTable, forest: Forest, costs: OperatorCosts) -> CpuTrace:
    """The operators of a trace by name and input shapes. `costs` begin with those of the forest's rows."""
    at = np.flatnonzero(table.kind[forest.rows] == Kind.CPU_OP)
    rows = forest.rows[at]
    codes = table.name[rows].astype(np.int64) * (len(table.signatures) + 1) + table.signature[rows] + 1
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    medians, counts = _medians(group, forest.self_ns[at], len(first))
    calls = []
    for row, one, count, median in zip(rows[first].tolist(), at[first], counts.tolist(), medians.tolist(), strict=True):
        known = bool(costs.known[one])
        calls.append(
            CpuCalls(
                name=table.names[table.name[row]],
                calls=count,
                self_us=median / 1000,
                flops=float(costs.flops[one]) if known else None,
                bytes=float(costs.bytes[one]) if known else None,
                dtype=costs.dtypes[costs.dtype[one]] if known else None,
            )
        )
    start, end, thread = forest.start[at], forest.end[at], table.thread[rows].astype(np.int64)
    threads = np.unique(thread)
    summed = sum(union(start[thread == one], end[thread == one]).length for one in threads.tolist())
    return CpuTrace(calls=calls, threads=len(threads), overlap=union(start, end).length / summed if summed else 1.0)


def cpu_work(trace: CpuTrace, ceilings: Ceilings) -> CpuWork:
    """The part of the operators' time that is work, by the limit of that work.

    An operator's self time in excess of the price of a call is work. The price was measured on this machine for some
    operators (`Ceilings.call_us`), but depends on more than the operator (threads to wake, primitives to set up). So
    work is computed twice: with the operator's own price (the median price if its own was not measured), and with the
    highest price of all plus waking the threads. If threads work concurrently, all times are scaled to the time in
    which any of them works.
    """
    prices = {name: price for name, price in ceilings.call_us.items() if name != PARALLEL}
    median, highest = (statistics.median(prices.values()), max(prices.values())) if prices else (0.0, 0.0)
    highest += ceilings.call_us.get(PARALLEL, 0.0)
    working: dict[Limit, float] = {}
    least: dict[Limit, float] = {}
    for op in trace.calls:
        limit, scale = _limit(op, ceilings), op.calls * trace.overlap
        own = max(prices.get(op.name, 0.0), median)
        for sums, price in ((working, own), (least, highest)):
            if op.self_us > price:
                sums[limit] = sums.get(limit, 0.0) + (op.self_us - price) * scale
    return CpuWork(
        operators=sum(op.calls for op in trace.calls),
        operators_us=sum(op.calls * op.self_us for op in trace.calls) * trace.overlap,
        working_us=working,
        least_working_us=least,
        threads=trace.threads,
    )


def _limit(op: CpuCalls, ceilings: Ceilings) -> Limit:
    """What limits an operator: arithmetic, bandwidth, or unknown if its shapes or the ceilings do not tell."""
    if op.flops is None or op.bytes is None:
        return "unknown"
    rate = ceilings.rate(op.dtype or "")
    if rate is None and op.dtype != "other" and op.flops > op.bytes:
        return "unknown"
    arithmetic = op.flops / rate * 1e6 if rate is not None else 0.0
    bandwidth = op.bytes / ceilings.bytes_per_s * 1e6
    if arithmetic > OFF_RIDGE * bandwidth:
        return "arithmetic"
    if bandwidth <= OFF_RIDGE * arithmetic:
        return "unknown"
    costly = _COSTLY.search(op.name) is not None and op.self_us > NEAR_ROOFLINE * bandwidth
    return "unknown" if costly else "bandwidth"


def _medians(group: Ints, values: Ints, groups: int) -> tuple[Floats, Ints]:
    """The median of `values` and their count, by group (0 to `groups` - 1, none empty)."""
    if not groups:
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    ordered = values[order]
    return (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2, count
