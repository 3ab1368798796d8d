"""Joins the launches that Nsight Compute replayed with the kernels of the trace, and with what launched them.

A replayed step and a recorded one launch the same kernels in the same order: the third launch of a name in the one is
the third of that name in the other, and has its operator and shapes. If a step launches a name as often as no recorded
step does, its figures belong to the name alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import structs

from proftrack.analysis.pipeline import Analysis
from proftrack.capture import ncu
from proftrack.measures.sites import Origin, origins
from proftrack.measures.tables import launching_row
from proftrack.measures.view import view
from proftrack.record.counters import KernelCounters, Replay, Unit
from proftrack.record.figures import Kernel, Site
from proftrack.trace.categories import Kind
from proftrack.trace.table import EventTable

if TYPE_CHECKING:
    from proftrack.capture.replay import Replayed

_Row = TypeVar("_Row", Kernel, Site)
_NAMED = 3
"""Kernels that a sentence names."""


def largest(analysis: Analysis, count: int) -> list[str]:
    """The names of the kernels with most time, the largest first; copies, sets and collectives cannot be replayed."""
    kernels = {name for table in analysis.tables for name in _kernels(table)}
    found = [k.name for k in analysis.record.kernels if k.name in kernels and k.kind != "communication"]
    return found[:count]


def _kernels(table: EventTable) -> list[str]:
    return [table.names[code] for code in np.unique(table.name[table.of_kind(Kind.KERNEL)]).tolist()]


def joined(analysis: Analysis, replayed: Replayed, wanted: Sequence[str]) -> Analysis:
    """The analysis with the replayed figures at its kernels and sites, and a note if any are missing."""
    record = analysis.record
    launches = _by_name(replayed.launches, {kernel.name for kernel in record.kernels})
    sites = _by_site(analysis, launches, complete=replayed.complete)
    about = _with_missing(replayed.about, [name for name in wanted if name not in launches])
    record = structs.replace(
        record,
        kernels=[_counted(kernel, launches.get(kernel.name)) for kernel in record.kernels],
        sites=[_counted(s, sites.get((s.kernel, Origin(s.operator, s.shapes)))) for s in record.sites],
        replay=about,
        run=record.run and structs.replace(record.run, notes=[*record.run.notes, *filter(None, [about.problem])]),
    )
    return analysis._replace(record=record)


def _by_name(launches: Sequence[ncu.Launch], known: set[str]) -> dict[str, list[KernelCounters]]:
    """The launches of each kernel of the trace, in their order."""
    out: dict[str, list[KernelCounters]] = defaultdict(list)
    for launch in launches:
        # Kineto leaves very long names as they are.
        name = next((n for n in (ncu.demangled(launch.kernel), launch.kernel) if n in known), None)
        if name is not None:
            out[name].append(launch.counters)
    return dict(out)


def _by_site(
    analysis: Analysis, launches: dict[str, list[KernelCounters]], *, complete: bool
) -> dict[tuple[str, Origin], list[KernelCounters]]:
    """The launches by kernel and by what launched them, as far as a recorded step tells."""
    out: dict[tuple[str, Origin], list[KernelCounters]] = defaultdict(list)
    steps = [step for table in analysis.tables for step in _origins(table, launches)] if launches else []
    for name, counted in launches.items():
        whole = complete or any(len(step[name]) == len(counted) for step in steps)
        same = (s[name] for s in steps if len(s[name]) == len(counted) or (not whole and len(s[name]) > len(counted)))
        for origin, counters in zip(next(same, []), counted, strict=False):
            out[name, origin].append(counters)
    return dict(out)


def _origins(table: EventTable, launches: dict[str, list[KernelCounters]]) -> list[dict[str, list[Origin]]]:
    seen = view(table)
    return origins(seen, launching_row(seen.table, seen.forest, seen.links), launches.keys())


def _counted(row: _Row, launches: Sequence[KernelCounters] | None) -> _Row:
    return structs.replace(row, counters=merged(launches)) if launches else row


def merged(launches: Sequence[KernelCounters]) -> KernelCounters:
    """One or more launches as one: means of time and bytes, everything else weighted by time."""
    if len(launches) == 1:
        return launches[0]
    weights = [launch.duration_us for launch in launches]
    units: list[Unit] = [unit for unit in launches[0].shares if all(unit in launch.shares for launch in launches)]
    size = _mean([launch.dram_bytes for launch in launches])
    return KernelCounters(
        launches=len(launches),
        duration_us=round(sum(weights) / len(launches), 3),
        dram_bytes=None if size is None else round(size),
        shares={unit: _weighted([launch.shares[unit] for launch in launches], weights) or 0.0 for unit in units},
        sm_share=_weighted([launch.sm_share for launch in launches], weights),
        achieved_occupancy=_weighted([launch.achieved_occupancy for launch in launches], weights),
        theoretical_occupancy=_weighted([launch.theoretical_occupancy for launch in launches], weights),
        waves=_weighted([launch.waves for launch in launches], weights),
        registers=max((launch.registers for launch in launches if launch.registers is not None), default=None),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    return _weighted(values, [1.0] * len(values))


def _weighted(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The weighted mean of the values that exist."""
    there = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in there)
    return round(sum(value * weight for value, weight in there) / total, 6) if total else None


def _with_missing(about: Replay, missing: Sequence[str]) -> Replay:
    if about.problem is not None or not missing:
        return about
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    named = ", ".join(name[:80] for name in missing[:_NAMED])
    return structs.replace(about, problem=f"The step that was replayed launched none of these: {named}{more}.")
