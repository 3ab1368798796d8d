"""Whose time it is: the typical steps' time by owner and pass; its parts add up to B times the steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from proftrack.measures.origins import Origins
from proftrack.measures.owners import Owners
from proftrack.measures.sites import TypicalWork
from proftrack.measures.tables import kind_of_work
from proftrack.measures.view import View
from proftrack.measures.work_owners import WorkOwners
from proftrack.record.modules import MOST_PIECES, PASSES, Module, OwnedWork, summed
from proftrack.record.timing import NORMAL
from proftrack.trace.categories import is_step
from proftrack.trace.codes import grouped
from proftrack.trace.table import NONE, Bools, Codes, EventTable, Ints

MOST = 2000
"""Rows kept; of the others, the smallest of the deepest are added to what is around them."""


class _Pieces(NamedTuple):
    """Work, whose it is, and how long it took. All columns are parallel."""

    code: Codes
    """Owner."""
    part: npt.NDArray[np.int8]
    ns: npt.NDArray[np.float64]
    operator: Ints
    """Name of what launched it, as a code of `Origins`, or NONE."""
    kernel: Ints
    """Name of the work on the GPU, likewise."""
    kind: npt.NDArray[np.int8]
    """Kind of its row."""
    step: Ints
    """Index of its step, or NONE."""


def modules(
    view: View, found: Origins, owners: WorkOwners | None, work: TypicalWork | None, outliers: Collection[int]
) -> list[Module]:
    """Exclusive times by owner, largest first.

    `outliers`: the steps to leave out. Without GPU work the times are self CPU times.
    """
    if owners is None:
        return []
    on_host = _on_host(view, found, owners.host, outliers)
    if work is not None:
        pieces = _on_device(view, found, owners, work)
    elif not len(view.links.gpu):
        pieces = on_host
    else:
        return []
    table, count = view.table, len(owners.named)
    times = _by_owner(pieces.code * len(PASSES) + pieces.part, pieces.ns, count * len(PASSES)).reshape(count, -1)
    communication, copies = _of_kinds(table, pieces)
    host = _by_owner(on_host.code, on_host.ns, count)
    called = owners.host.calls[_in_steps(view, owners.host.calls, outliers)]
    calls = np.bincount(owners.host.code[called], minlength=count) + owners.captured_calls(outliers)
    largest = _largest(found, pieces)
    typical = _typical(pieces, count, len(view.steps), outliers, on_host=work is None)
    columns: dict[str, list[Any]] = {
        "calls": calls.tolist(),
        **{f"{part}_us": us for part, us in zip(PASSES, times.T.tolist(), strict=True)},
        "communication_us": _by_owner(pieces.code[communication], pieces.ns[communication], count).tolist(),
        "copies_us": _by_owner(pieces.code[copies], pieces.ns[copies], count).tolist(),
        "host_us": host.tolist(),
        "typical_us": [us for us, _ in typical],
        "deviation_us": [us for _, us in typical],
        "largest": [largest.get(code, []) for code in range(count)],
    }
    rows = [
        Module(**owner._asdict(), **dict(zip(columns, values, strict=True)))
        for owner, *values in zip(owners.named, *columns.values(), strict=True)
    ]
    return merged(row for row in rows if row.calls or row.busy_us or row.host_us)


def _by_owner(code: npt.NDArray[np.integer], ns: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Microseconds; rounded, which makes sums independent of the order of their parts."""
    return np.round(np.bincount(code, weights=ns, minlength=count) / 1000, 9)


def _on_device(view: View, found: Origins, owners: WorkOwners, work: TypicalWork) -> _Pieces:
    table, gpu = view.table, view.links.gpu[work.at]
    code, part = owners.code[work.at], owners.part[work.at]
    names = (found.name[work.at], table.name[gpu].astype(np.int64))
    return _Pieces(code, part, work.ns, *names, table.kind[gpu], view.on_device.step[work.at])


def _on_host(view: View, found: Origins, owners: Owners, outliers: Collection[int]) -> _Pieces:
    """The host rows that begin within the typical steps, with their self times."""
    table, forest = view.table, view.forest
    at = np.flatnonzero(_in_steps(view, forest.rows, outliers))
    rows = forest.rows[at]
    nothing = np.full(len(rows), NONE, dtype=np.int64)
    time = forest.self_ns[at].astype(np.float64)
    step = view.steps.containing(table.ts[rows]) if len(view.steps) else nothing
    return _Pieces(owners.code[rows], owners.part[rows], time, found.row_name[at], nothing, table.kind[rows], step)


def _in_steps(view: View, rows: Ints, outliers: Collection[int]) -> Bools:
    """Which rows begin within a typical step on the host; without steps, all."""
    if not len(view.steps):
        return np.ones(len(rows), dtype=bool)
    step = view.steps.containing(view.table.ts[rows])
    return np.asarray((step != NONE) & ~np.isin(step, list(outliers)))


def _of_kinds(table: EventTable, pieces: _Pieces) -> tuple[Bools, Bools]:
    """Masks of the collectives, and of the copies between host and device."""
    first, group = grouped((pieces.kernel, pieces.kind))
    kinds = [
        kind_of_work(table.names[name], kind) if name != NONE else ""
        for name, kind in zip(pieces.kernel[first].tolist(), pieces.kind[first].tolist(), strict=True)
    ]
    communication = np.array([kind == "communication" for kind in kinds], dtype=bool)
    copies = np.array([kind == "host-device copy" for kind in kinds], dtype=bool)
    return communication[group], copies[group]


def _typical(
    pieces: _Pieces, count: int, steps: int, outliers: Collection[int], *, on_host: bool
) -> list[tuple[float | None, float | None]]:
    """Each owner's time in a typical step, and how far the steps are from it."""
    steps_at = np.setdiff1d(np.arange(steps), list(outliers))
    if len(steps_at) < 2:
        return [(None, None)] * count
    place = np.full(steps + 1, NONE, dtype=np.int64)  # NONE is the last
    place[steps_at] = np.arange(len(steps_at))
    step = place[pieces.step]
    # An owner without work in most steps has none in the typical one. So the table of all others is no larger than
    # the pieces, however many steps and owners there are: a region may have another name in each step.
    often = 2 * np.bincount(pieces.code[step != NONE], minlength=count) >= len(steps_at)
    within = (step != NONE) & often[pieces.code]
    shape = int(often.sum()), len(steps_at)
    cell = (np.cumsum(often) - 1)[pieces.code[within]] * len(steps_at) + step[within]
    times = _by_owner(cell, pieces.ns[within], shape[0] * shape[1]).reshape(shape)
    typical, deviation = np.zeros(count), np.zeros(count)
    middle = np.median(times, axis=1)
    if on_host:
        # Where other programs disturb every step, the least is as uncertain as the steps are apart.
        typical[often] = times.min(axis=1)
        deviation[often] = middle - typical[often]
    else:
        typical[often] = middle
        deviation[often] = NORMAL * np.median(np.abs(times - middle[:, None]), axis=1)
    return list(zip(np.round(typical, 9).tolist(), np.round(deviation, 9).tolist(), strict=True))


def _largest(found: Origins, pieces: _Pieces) -> dict[int, list[OwnedWork]]:
    """Of each owner the largest pieces by operator, kernel and pass."""
    columns = (pieces.code, pieces.part, pieces.operator, pieces.kernel)
    first, group = grouped(columns)
    time = _by_owner(group, pieces.ns, len(first))
    calls = np.bincount(group, minlength=len(first))
    order = np.lexsort((first, -time, pieces.code[first]))
    owner = pieces.code[first][order]
    begins = np.searchsorted(owner, owner)
    order = order[(np.arange(len(order)) - begins < MOST_PIECES) & (time[order] > 0)]
    out: dict[int, list[OwnedWork]] = defaultdict(list)
    for one, number, us in zip(first[order].tolist(), calls[order].tolist(), time[order].tolist(), strict=True):
        code, part, operator, kernel = (int(column[one]) for column in columns)
        name = found.names[operator] if operator != NONE else ""
        out[code].append(
            OwnedWork(
                operator="" if is_step(name) else name,
                kernel=found.names[kernel] if kernel != NONE else "",
                part=PASSES[part],
                calls=number,
                busy_us=us,
            )
        )
    return out


_OF_A_STEP = ("typical_us", "deviation_us")
"""Figures of one step, not of all."""


def merged(parts: Iterable[Module], cycles: int = 1) -> list[Module]:
    """The rows of the same owner, as of several cycles or two classes in one place, added up; at most MOST of them.

    `cycles`: how many cycles the rows are of. The typical step is that of the cycles' mean, and the deviation that of
    a step of any.
    """
    groups: dict[tuple[str, str], list[Module]] = defaultdict(list)
    for module in parts:
        typical, deviation = module.typical_us, module.deviation_us
        groups[module.kind, module.path].append(
            msgspec.structs.replace(
                module,
                typical_us=typical if typical is None else typical / cycles,
                deviation_us=deviation if deviation is None else deviation / math.sqrt(cycles),
            )
        )
    return bounded(_sum(group) for group in groups.values())


def bounded(rows: Iterable[Module]) -> list[Module]:
    """At most MOST rows with the same total, largest first.

    What is too many is added to the next path above that has a row, deepest first and of those the smallest; regions,
    and what has nothing above it, to the row of kind "none".
    """
    kept: dict[tuple[str, str], Module] = {(row.kind, row.path): row for row in rows}
    while (excess := len(kept) - MOST) > 0 and (deepest := max(map(_depth, kept.values()))) > 0:
        smallest = sorted((row for row in kept.values() if _depth(row) == deepest), key=lambda row: row.busy_us)
        taken: dict[tuple[str, str], list[Module]] = defaultdict(list)
        for row in smallest[:excess]:
            del kept[row.kind, row.path]
            above = _above(row, kept)
            taken[above.kind, above.path].append(row)
        for key, below in taken.items():
            above = kept.get(key, Module(kind="none"))
            kept[key] = msgspec.structs.replace(_sum([above, *below]), calls=above.calls)
    return sorted(kept.values(), key=lambda row: (-row.busy_us, -row.host_us, row.kind, row.path))


def _depth(row: Module) -> int:
    """How many modules are around it, if each part of the path is one; regions come before all modules."""
    if row.kind == "none":
        return 0
    return len(row.path.split(".")) if row.kind in ("module", "compiled") and row.path else 1


def _above(row: Module, rows: dict[tuple[str, str], Module]) -> Module:
    path = row.path
    while row.kind in ("module", "compiled") and path:
        path = path.rpartition(".")[0]
        if ("module", path) in rows:
            return rows["module", path]
    return rows.get(("none", ""), Module(kind="none"))


def _sum(group: Sequence[Module]) -> Module:
    if len(group) == 1:
        return group[0]
    added = {
        name: sum(getattr(row, name) for row in group)
        for name in Module.__struct_fields__
        if name == "calls" or (name.endswith("_us") and name not in _OF_A_STEP)
    }
    medians, deviations = ([us for row in group if (us := getattr(row, name)) is not None] for name in _OF_A_STEP)
    added["typical_us"] = sum(medians) if medians else None
    added["deviation_us"] = float(np.sqrt(np.sum(np.square(deviations)))) if deviations else None
    class_name = next((row.class_name for row in group if row.class_name), "")
    largest = summed(work for row in group for work in row.largest)[:MOST_PIECES]
    return msgspec.structs.replace(group[0], class_name=class_name, largest=largest, **added)
