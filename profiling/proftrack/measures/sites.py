"""Which operator, with which input shapes, caused which GPU work: B divided into parts that add up to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from proftrack.measures.origins import Origins
from proftrack.measures.tables import kind_of_work
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.measures.work_owners import WorkOwners
from proftrack.record.figures import Site
from proftrack.trace.categories import STEP, Kind, is_step
from proftrack.trace.codes import grouped
from proftrack.trace.table import NONE, Codes, Ints

MOST = 1000
"""Rows kept; the others, the smallest, are merged by kernel, without an operator."""
OTHERS = "(other operators)"
_SHAPES_LIMIT = 300
MOST_MODULES = 10
"""Owners that a row names."""


class Origin(NamedTuple):
    """What launched a piece of GPU work, as a Site names it."""

    operator: str
    shapes: str


class Launched(NamedTuple):
    """One launch of a kernel."""

    origin: Origin
    blocks: int | None
    us: float


class TypicalWork(NamedTuple):
    """GPU work of the typical steps on the busiest device."""

    at: Ints
    """Places in `links.gpu`."""
    ns: npt.NDArray[np.float64]
    """Each one's share of the union of all: B times the steps, in nanoseconds."""


def typical_work(view: View, windows: Windows | None) -> TypicalWork | None:
    """The GPU work that B counts; None if there is none. Concurrent work shares its time equally."""
    owned = view.on_device
    if windows is None or not len(view.links.gpu):
        return None
    at = np.flatnonzero(owned.usable & windows.typical.overlapping(owned.start, owned.end))
    # Times on a clock that stands still outside the typical time.
    start, end = windows.typical.covered_until(owned.start[at]), windows.typical.covered_until(owned.end[at])
    return TypicalWork(at, shared_time(start, np.maximum(end, start)))


def sites(view: View, found: Origins, work: TypicalWork | None, owners: WorkOwners | None = None) -> list[Site]:
    """The typical steps' GPU work by launching operator, input shapes and name, most busy time first."""
    table, links = view.table, view.links
    if work is None:
        return []
    at, operator = work.at, found.name[work.at]
    columns = (
        np.where(operator == NONE, NONE, _operator_names(found.names)[operator]),
        found.signature[at],
        table.name[links.gpu[at]],
        table.kind[links.gpu[at]],
    )
    first, group = grouped(columns)
    calls = np.bincount(group, minlength=len(first)).tolist()
    time = np.bincount(group, weights=work.ns, minlength=len(first)).tolist()
    codes = np.stack([column[first] for column in columns], axis=1).tolist()
    modules = _modules(owners, owners.code[at], group, work.ns, len(first)) if owners else None
    # Signatures may differ in parts that are not shown: types, concrete values.
    return merged(
        _site(found, *values, modules[i] if modules else [])
        for i, values in enumerate(zip(codes, calls, time, strict=True))
    )


def _modules(owners: WorkOwners, code: Codes, group: Ints, ns: npt.NDArray[np.float64], groups: int) -> list[list[str]]:
    """The paths of each group's owners that are known, most time first; at most MOST_MODULES."""
    first, pair = grouped((group, code))
    time = np.bincount(pair, weights=ns, minlength=len(first))
    out: list[list[str]] = [[] for _ in range(groups)]
    for one in first[np.argsort(-time, kind="stable")].tolist():
        path = owners.named[code[one]].shown
        if path and len(out[group[one]]) < MOST_MODULES:
            out[group[one]].append(path)
    return out


def _operator_names(names: list[str]) -> Ints:
    """Each name's code, with one code for all steps, so that work launched directly by steps is one row."""
    codes = np.arange(len(names), dtype=np.int64)
    steps = np.array([is_step(name) for name in names], dtype=bool)
    if steps.any():
        codes[steps] = codes[steps][0]
    return codes


def _site(found: Origins, code: list[int], calls: int, busy_ns: float, modules: list[str]) -> Site:
    operator, signature, name, kind = code
    kernel = found.names[name]
    origin = _origin(found, operator, signature)
    return Site(
        operator=origin.operator,
        shapes=origin.shapes,
        kernel=kernel,
        kind=kind_of_work(kernel, kind),
        calls=calls,
        busy_us=round(busy_ns / 1000, 9),  # makes the sum independent of the order of its parts
        modules=modules,
    )


def _origin(found: Origins, operator: int, signature: int) -> Origin:
    shapes = found.signatures[signature][0].decode("utf-8", "replace") if signature != NONE else ""
    return Origin(_operator(found, operator), "".join(shapes.split())[:_SHAPES_LIMIT])  # without the file's whitespace


def _operator(found: Origins, code: int) -> str:
    if code == NONE:
        return ""
    name = found.names[code]
    return STEP if is_step(name) else name


def launched(view: View, found: Origins, kernels: Collection[str]) -> list[dict[str, list[Launched]]]:
    """For each recorded step, its launches of these kernels, by kernel, in the order of launching.

    A graph's kernels have one launch: they count in the order in which they ran.
    """
    table, links, owned = view.table, view.links, view.owned
    wanted = table.named(lambda name: name in kernels)[links.gpu] & (table.kind[links.gpu] == Kind.KERNEL)
    rows = np.flatnonzero(wanted & (owned.step != NONE))
    rows = rows[np.lexsort((owned.start[rows], table.ts[links.launch[rows]]))]
    out: list[dict[str, list[Launched]]] = [defaultdict(list) for _ in range(len(view.steps))]
    operators, signatures = found.name, found.signature
    for row in rows.tolist():
        kernel, blocks = links.gpu[row], int(table.blocks[links.gpu[row]])
        origin = _origin(found, int(operators[row]), int(signatures[row]))
        launch = Launched(origin, None if blocks == NONE else blocks, int(table.dur[kernel]) / 1000)
        out[owned.step[row]][table.names[table.name[kernel]]].append(launch)
    return out


def shared_time(start: Ints, end: Ints) -> npt.NDArray[np.float64]:
    """For each interval, its share of the union of all: intervals that overlap share the overlap equally.

    |=====|            4 + 1 of the 2 in which both run
        |=====|        1 + 4
    """
    if not len(start):
        return np.zeros(0)
    points = np.sort(np.concatenate([start, end]))
    running = np.searchsorted(np.sort(start), points, side="right") - np.searchsorted(np.sort(end), points, "right")
    lengths = np.diff(points, append=points[-1])
    shares = np.concatenate([[0.0], np.cumsum(lengths / np.maximum(running, 1))])
    return np.asarray(shares[np.searchsorted(points, end)] - shares[np.searchsorted(points, start)])


def merged(parts: Iterable[Site]) -> list[Site]:
    """Rows of the same operator, shapes and kernel merged, also across cycles; at most MOST of them."""
    groups: dict[tuple[str, str, str, str], list[Site]] = defaultdict(list)
    for site in parts:
        groups[site.operator, site.shapes, site.kernel, site.kind].append(site)
    return bounded(_sum(group) for group in groups.values())


def bounded(rows: Iterable[Site]) -> list[Site]:
    """At most MOST rows with the same total, most busy time first."""
    ordered = sorted(rows, key=lambda s: (-s.busy_us, s.kernel, s.operator, s.shapes))
    if len(ordered) <= MOST:
        return ordered
    rest: dict[tuple[str, str], list[Site]] = defaultdict(list)
    for site in ordered[MOST:]:
        rest[site.kernel, site.kind].append(msgspec.structs.replace(site, operator=OTHERS, shapes=""))
    return ordered[:MOST] + [_sum(group) for group in rest.values()]


def _sum(group: list[Site]) -> Site:
    largest_first = sorted(group, key=lambda site: -site.busy_us)
    modules = list(dict.fromkeys(path for site in largest_first for path in site.modules))
    return msgspec.structs.replace(
        group[0],
        calls=sum(s.calls for s in group),
        busy_us=sum(s.busy_us for s in group),
        modules=modules[:MOST_MODULES],
    )
