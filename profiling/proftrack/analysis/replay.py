"""Which launches Nsight Compute is to replay, and where their figures belong.

A replayed step and a recorded one launch the same kernels in the same order: the third launch of a name in the one is
the third of that name in the other, and has its operator and shapes. Grids have to agree, too; if those of no recorded
step do, the figures belong to the name alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import structs

from proftrack.analysis.pipeline import Analysis
from proftrack.capture import ncu
from proftrack.capture.ncu import Launch, Selection
from proftrack.measures.origins import origins
from proftrack.measures.sites import Launched, Origin
from proftrack.measures.sites import launched as launched_by
from proftrack.measures.view import view
from proftrack.record.counters import KernelCounters, Replay, Unit
from proftrack.trace.categories import Kind
from proftrack.trace.table import EventTable

if TYPE_CHECKING:
    from proftrack.capture.replay import Replayed

LAUNCH_SECONDS, PASSES = 0.35, 15
"""What one launch takes to replay, besides its own time in each pass. On an H200 it was 0.3 s and 9 passes; memory that
the kernel writes is saved and restored between them."""
_NAMED = 3
"""Kernels that a sentence names."""
_Step = dict[str, list[Launched]]


class Planned(NamedTuple):
    """What is to be replayed, and the recorded steps that tell what each launch is."""

    selection: Selection
    steps: list[_Step]
    """Typical steps first."""


# ---- which launches --------------------------------------------------------------------------------------------------


def plan(analysis: Analysis, count: int, seconds: float) -> Planned:
    """Select launches of the `count` largest kernels, as many as take about `seconds` to replay.

    Each operator and shapes comes once before any comes again. Copies, sets and collectives cannot be replayed.
    """
    kernels = {name for table in analysis.tables for name in _kernels(table)}
    found = [k.name for k in analysis.record.kernels if k.name in kernels and k.kind != "communication"]
    wanted = found[:count]
    outliers = [step.outlier is not None for step in analysis.record.per_step]
    steps = [step for table in analysis.tables for step in _steps(table, wanted)] if wanted else []
    if len(steps) == len(outliers):
        steps = [step for _, step in sorted(zip(outliers, steps, strict=True), key=lambda each: each[0])]
    fullest = max(steps, key=lambda step: sum(name in step for name in wanted), default={})
    return Planned(Selection(wanted, _numbers(fullest, seconds)), steps)


def _kernels(table: EventTable) -> list[str]:
    return [table.names[code] for code in np.unique(table.name[table.of_kind(Kind.KERNEL)]).tolist()]


def _steps(table: EventTable, kernels: Collection[str]) -> list[_Step]:
    seen = view(table)
    return [dict(step) for step in launched_by(seen, origins(seen, []), kernels)]


def _numbers(step: _Step, seconds: float) -> list[int] | None:
    """The launches to replay, counted for each kernel from 1; None if there is time for all.

    ncu takes the same numbers for all kernels.
    """
    most = max(map(len, step.values()), default=0)
    cost = np.zeros(most + 1)
    for launches in step.values():
        cost[1 : len(launches) + 1] += [LAUNCH_SECONDS + PASSES * launch.us / 1e6 for launch in launches]
    chosen: set[int] = {1}
    left = seconds - (cost[1] if most else 0.0)
    for number in _in_order(step, most):
        if number not in chosen and cost[number] <= left:
            chosen.add(number)
            left -= cost[number]
    return None if len(chosen) >= most else sorted(chosen)


def _in_order(step: _Step, most: int) -> Iterator[int]:
    """First the first launch of everything that launches one of the kernels, by its time; then all others."""
    firsts: dict[tuple[str, Origin], int] = {}
    time: Counter[tuple[str, Origin]] = Counter()
    for name, launches in step.items():
        for number, launch in enumerate(launches, 1):
            firsts.setdefault((name, launch.origin), number)
            time[name, launch.origin] += launch.us  # type: ignore[assignment]  # Counter may hold floats
    yield from (firsts[site] for site, _ in time.most_common())
    yield from range(1, most + 1)


# ---- where their figures belong --------------------------------------------------------------------------------------


def joined(analysis: Analysis, replayed: Replayed, planned: Planned) -> Analysis:
    """The analysis with the replayed figures at its kernels and sites, and a note if any are missing."""
    record, wanted = analysis.record, planned.selection.kernels
    by_name = _by_name(replayed.launches, {kernel.name for kernel in record.kernels})
    kernels: dict[str, KernelCounters] = {}
    sites: dict[tuple[str, Origin], KernelCounters] = {}
    for name, launches in by_name.items():
        counters = [launch.counters for launch in launches]
        found = _found(name, launches, planned, complete=replayed.complete)
        kernels[name] = merged(counters, found and found.stand_for)
        sites |= {(name, origin): figures for origin, figures in _by_origin(counters, found).items()}
    about = _with_missing(replayed.about, [name for name in wanted if name not in by_name])
    record = structs.replace(
        record,
        kernels=[structs.replace(kernel, counters=kernels.get(kernel.name)) for kernel in record.kernels],
        sites=[
            structs.replace(site, counters=sites.get((site.kernel, Origin(site.operator, site.shapes))))
            for site in record.sites
        ],
        replay=about,
        run=record.run and structs.replace(record.run, notes=[*record.run.notes, *filter(None, [about.problem])]),
    )
    return analysis._replace(record=record)


def _by_name(launches: Sequence[Launch], known: Collection[str]) -> dict[str, list[Launch]]:
    """The launches of each kernel of the trace, in their order."""
    out: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        # Kineto leaves very long names as they are.
        name = next((n for n in (ncu.demangled(launch.kernel), launch.kernel) if n in known), None)
        if name is not None:
            out[name].append(launch)
    return dict(out)


class _Found(NamedTuple):
    """One kernel in a recorded step."""

    launches: list[Launched]
    """All of the step."""
    replayed: list[Launched]
    """Those that were replayed, in their order."""

    @property
    def stand_for(self) -> list[float]:
        """How many of the step's launches each of the replayed ones is an example of."""
        all_launches = Counter(launch.origin for launch in self.launches)
        examples = Counter(launch.origin for launch in self.replayed)
        return [all_launches[launch.origin] / examples[launch.origin] for launch in self.replayed]


def _found(name: str, launches: Sequence[Launch], planned: Planned, *, complete: bool) -> _Found | None:
    """The same launches in a recorded step; None if those of no step agree."""
    for step in planned.steps:
        of_step = step.get(name, [])
        for selected in _selected(of_step, planned.selection.numbers):
            as_many = len(selected) == len(launches) or (not complete and len(selected) > len(launches))
            if as_many and all(_agree(*pair) for pair in zip(launches, selected, strict=False)):
                return _Found(of_step, selected[: len(launches)])
    return None


def _by_origin(counters: Sequence[KernelCounters], found: _Found | None) -> dict[Origin, KernelCounters]:
    groups: dict[Origin, list[KernelCounters]] = defaultdict(list)
    for figures, launch in zip(counters, found.replayed if found is not None else [], strict=False):
        groups[launch.origin].append(figures)
    return {origin: merged(group) for origin, group in groups.items()}


def _selected(launches: Sequence[Launched], numbers: Sequence[int] | None) -> Iterator[list[Launched]]:
    """What ncu takes the numbers for: those of a name (2025.3), or of a name and a grid (its later documentation)."""
    if numbers is None:
        yield list(launches)
        return
    yield [launches[number - 1] for number in numbers if number <= len(launches)]
    counts: Counter[int | None] = Counter()
    chosen = []
    for launch in launches:
        counts[launch.blocks] += 1
        chosen += [launch] if counts[launch.blocks] in numbers else []
    yield chosen


def _agree(replayed: Launch, recorded: Launched) -> bool:
    return None in (replayed.blocks, recorded.blocks) or replayed.blocks == recorded.blocks


def merged(launches: Sequence[KernelCounters], stands_for: Sequence[float] | None = None) -> KernelCounters:
    """One or more launches as one: means of time and bytes, everything else weighted by time.

    `stands_for`: how many launches each one is an example of; without it, all are examples of as many.
    """
    if len(launches) == 1:
        return launches[0]
    times = [1.0] * len(launches) if stands_for is None else stands_for
    weights = [launch.duration_us * number for launch, number in zip(launches, times, strict=True)]
    units: list[Unit] = [unit for unit in launches[0].shares if all(unit in launch.shares for launch in launches)]
    size = _mean([launch.dram_bytes for launch in launches], times)
    return KernelCounters(
        launches=len(launches),
        duration_us=round(sum(weights) / sum(times), 3),
        dram_bytes=None if size is None else round(size),
        shares={unit: _mean([launch.shares[unit] for launch in launches], weights) or 0.0 for unit in units},
        sm_share=_mean([launch.sm_share for launch in launches], weights),
        achieved_occupancy=_mean([launch.achieved_occupancy for launch in launches], weights),
        theoretical_occupancy=_mean([launch.theoretical_occupancy for launch in launches], weights),
        waves=_mean([launch.waves for launch in launches], weights),
        registers=max((launch.registers for launch in launches if launch.registers is not None), default=None),
    )


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
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
