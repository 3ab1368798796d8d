"""Arithmetic and traffic of GPU work, by the shapes of the operators that launched it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.events.categories import Kind
from proftrack.events.table import NONE, Bools, EventTable, Ints
from proftrack.hardware import Ceilings
from proftrack.measures.costs import Cost, cost_of
from proftrack.measures.nesting import Forest
from proftrack.measures.results import CpuWork, TraceWork

Floats = npt.NDArray[np.float64]


class OperatorCosts(NamedTuple):
    """Costs of the rows of a forest; all columns go with `forest.rows`."""

    known: Bools
    flops: Floats
    bytes: Floats
    dtype: npt.NDArray[np.int16]
    """Index into `dtypes`."""
    dtypes: list[str]


def operator_costs(table: EventTable, forest: Forest) -> OperatorCosts:
    """Cost of each operator whose shapes were recorded and whose kind is known, asked once a name and signature."""
    rows = forest.rows
    shaped = (table.signature[rows] != NONE) & (table.kind[rows] == Kind.CPU_OP)
    codes = table.name[rows].astype(np.int64) * max(len(table.signatures), 1) + np.maximum(table.signature[rows], 0)
    unique, group = np.unique(codes[shaped], return_inverse=True)
    costs = [_cost(table, code) for code in unique.tolist()]
    dtypes = sorted({c.dtype for c in costs if c is not None}) or ["other"]
    known, flops, size = np.zeros(len(rows), dtype=bool), np.zeros(len(rows)), np.zeros(len(rows))
    dtype = np.zeros(len(rows), dtype=np.int16)
    if costs:
        known[shaped] = np.array([c is not None for c in costs])[group]
        flops[shaped] = np.array([c.flops if c else 0 for c in costs], dtype=np.float64)[group]
        size[shaped] = np.array([c.bytes if c else 0 for c in costs], dtype=np.float64)[group]
        dtype[shaped] = np.array([dtypes.index(c.dtype) if c else 0 for c in costs], dtype=np.int16)[group]
    return OperatorCosts(known, flops, size, dtype, dtypes)


def _cost(table: EventTable, code: int) -> Cost | None:
    name, signature = divmod(code, max(len(table.signatures), 1))
    return cost_of(table.names[name], *table.signatures[signature])


class GpuCosts(NamedTuple):
    """An operator's cost shared among the GPU work it launched, by duration. Columns go with `links.gpu`."""

    known: Bools
    flops: Floats
    bytes: Floats
    arithmetic_us: Floats
    """FLOPs over the attainable rate; NaN where no ceiling is known."""
    bandwidth_us: Floats

    @property
    def roofline_us(self) -> Floats:
        """The larger of the two."""
        return np.fmax(self.arithmetic_us, self.bandwidth_us)


def gpu_costs(table: EventTable, gpu: Ints, owner: Ints, costs: OperatorCosts, ceilings: Ceilings | None) -> GpuCosts:
    """Costs of kernels from those of the operators at `owner` (positions in the forest, NONE without).

    Copies and sets that an operator launches beside its kernels have no part in its cost.
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
    """FLOP/s by dtype code. Types without a measured rate do no arithmetic that could limit a GPU (indices, flags)."""
    known = ceilings.flops_per_s if ceilings else {}
    return np.array([known.get(d, np.inf if d == "other" else np.nan) for d in costs.dtypes])


class Owned(NamedTuple):
    """GPU work, the operators that launched it and what is known of their costs."""

    gpu: Ints
    """Rows of GPU work in the event table."""
    owner: Ints
    """Positions in the forest of the operators that launched it, NONE without."""
    operators: OperatorCosts
    costs: GpuCosts


def trace_work(table: EventTable, forest: Forest, owned: Owned, own: Bools) -> TraceWork:
    """FLOPs of the steps' `own` GPU work, and what could not be counted of all GPU work."""
    gpu, owner, operators, costs = owned
    flops: dict[str, float] = {}
    for code, dtype in enumerate(operators.dtypes):
        mine = own & costs.known & (operators.dtype[np.maximum(owner, 0)] == code)
        if (total := float(costs.flops[mine].sum())) > 0:
            flops[dtype] = total
    missing = ~costs.known & (table.kind[gpu] == Kind.KERNEL)
    rows = np.where(owner == NONE, gpu, forest.rows[np.maximum(owner, 0)])[missing]
    unique, group = np.unique(table.name[rows], return_inverse=True)
    lost = np.bincount(group, weights=table.dur[gpu[missing]], minlength=len(unique))
    largest = [table.names[unique[i]] for i in np.argsort(-lost)[:5].tolist()]
    return TraceWork(flops_by_dtype=flops, uncounted_us=float(lost.sum()) / 1000, uncounted=largest)


SETUP_DISPATCHES = 30.0
"""What an operator needs beyond its roofline time is the price of calling it (dispatch, setting up a primitive, waking
threads) up to this many times an empty dispatch: some 30 us. More is work: page faults, caches, a poor kernel."""


def cpu_work(table: EventTable, forest: Forest, costs: OperatorCosts, ceilings: Ceilings) -> CpuWork:
    """What of the operators' self time is work, by the limit of that work.

    The roofline time of an operator (as far as its self time goes) is work, and so is what its self time has over the
    price of a call. Calls of one operator with the same shapes count with their median: a call during which the system
    ran something else says nothing about the operator. One that only calls others has next to no self time.
    """
    is_op = table.kind[forest.rows] == Kind.CPU_OP
    self_us = _typical(table, forest.rows[is_op], forest.self_ns[is_op]) / 1000
    work = np.maximum(self_us - SETUP_DISPATCHES * (ceilings.dispatch_us or 0.0), 0.0)
    arithmetic = costs.flops[is_op] / _rates(costs, ceilings)[costs.dtype[is_op]] * 1e6
    bandwidth = costs.bytes[is_op] / ceilings.bytes_per_s * 1e6
    least = np.fmax(arithmetic, bandwidth)
    known = costs.known[is_op] & ~np.isnan(least)
    work = np.where(known, np.maximum(work, np.minimum(self_us, least)), work)
    limit = np.where(known, np.where(arithmetic >= bandwidth, "arithmetic", "bandwidth"), "unknown")
    sums = {name: float(work[limit == name].sum()) for name in np.unique(limit).tolist()}
    return CpuWork(
        operators=int(is_op.sum()),
        operators_us=float(self_us.sum()),
        working_us={name: us for name, us in sums.items() if us > 0},
    )


def _typical(table: EventTable, rows: Ints, values: Ints) -> Floats:
    """For each row the median of `values` over the rows of its name and signature."""
    if not len(rows):
        return np.zeros(0)
    codes = table.name[rows].astype(np.int64) * (len(table.signatures) + 1) + table.signature[rows] + 1
    unique, group = np.unique(codes, return_inverse=True)
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=len(unique))
    first = np.cumsum(count) - count
    ordered = values[order]
    median = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return np.asarray(median[group], dtype=np.float64)
