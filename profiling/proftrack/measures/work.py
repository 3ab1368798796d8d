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
    """Costs of GPU work from those of the operators at `owner` (positions in the forest, NONE without)."""
    at = np.maximum(owner, 0)
    known = (owner != NONE) & costs.known[at] if len(costs.known) else np.zeros(len(gpu), dtype=bool)
    share = np.zeros(len(gpu))
    if known.any():
        time = np.zeros(len(costs.known))
        np.add.at(time, owner[known], table.dur[gpu[known]])
        share[known] = table.dur[gpu[known]] / np.maximum(time[owner[known]], 1)
    flops = np.where(known, costs.flops[at] * share, 0.0) if len(costs.known) else np.zeros(len(gpu))
    size = np.where(known, costs.bytes[at] * share, 0.0) if len(costs.known) else np.zeros(len(gpu))
    rate = _rates(costs, ceilings)[costs.dtype[at]] if len(costs.known) else np.full(len(gpu), np.nan)
    with np.errstate(invalid="ignore"):
        arithmetic = np.where(known, flops / rate * 1e6, np.nan)
    bandwidth = np.where(known, size / ceilings.bytes_per_s * 1e6, np.nan) if ceilings else np.full(len(gpu), np.nan)
    return GpuCosts(known, flops, size, arithmetic, bandwidth)


def _rates(costs: OperatorCosts, ceilings: Ceilings | None) -> Floats:
    """FLOP/s by dtype code. Types without a measured rate do no arithmetic that could limit a GPU (indices, flags)."""
    known = ceilings.flops_per_s if ceilings else {}
    return np.array([known.get(d, np.inf if d == "other" else np.nan) for d in costs.dtypes])
