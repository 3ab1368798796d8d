"""Who launched the large kernels, and what the host waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from proftrack.measures.view import View
from proftrack.measures.waits import waiting_calls
from proftrack.measures.window import busy
from proftrack.record.figures import Kernel
from proftrack.trace.categories import Kind, is_step
from proftrack.trace.table import NONE, Ints

_LONGEST = 6
"""Links shown of a chain; longer ones keep the outermost and innermost links."""
_DEEPEST = 64
"""Nesting depth searched around a launch."""
LARGE = 10
"""Number of kernels that get a chain."""


class Chain(Struct, frozen=True, kw_only=True):
    """How a kernel is launched for most of its time."""

    kernel: str
    links: list[str]
    """Region, operators, runtime call: outermost first. Empty if no launch was recorded."""
    share: float
    """The share of the kernel's time that was launched in this way."""
    ways: int
    """Number of different chains that launch it."""


class Wait(Struct, frozen=True, kw_only=True):
    """All calls of one name that wait for the GPU."""

    name: str
    calls: int
    total_us: float
    busy_us: float
    """The part of it in which the GPU was busy."""


def chains_of_cycles(cycles: Iterable[View], kernels: list[Kernel]) -> list[Chain]:
    """One chain for each of the largest kernels, by the time of all cycles."""
    ways: dict[str, Counter[tuple[str, ...]]] = {kernel.name: Counter() for kernel in kernels[:LARGE]}
    for seen in cycles:
        table, links = seen.table, seen.links
        at = np.where(links.launch == NONE, NONE, seen.forest.position_of(len(table))[links.launch])
        code_of = {name: code for code, name in enumerate(table.names)}
        for kernel, times in ways.items():
            mine = np.flatnonzero(table.name[links.gpu] == code_of.get(kernel, NONE))
            if len(mine):
                _add_ways(times, seen, at[mine], table.dur[links.gpu[mine]])
    return [_chain(kernel, times) for kernel, times in ways.items() if times]


def _add_ways(times: Counter[tuple[str, ...]], seen: View, at: Ints, dur: Ints) -> None:
    """Add the time launched from these positions of the forest to the chains that lead there."""
    unique, group = np.unique(_paths(seen, at), axis=0, return_inverse=True)
    time = np.bincount(group.reshape(-1), weights=dur, minlength=len(unique))
    for path, spent in zip(unique.tolist(), time.tolist(), strict=True):
        times[tuple(seen.table.names[code] for code in path if code != NONE)] += spent


def _chain(kernel: str, times: Counter[tuple[str, ...]]) -> Chain:
    """The chain with the most time."""
    most = max(times, key=times.__getitem__)
    names = list(most)
    if len(names) > _LONGEST:
        names = [*names[: _LONGEST // 2], "...", *names[-(_LONGEST // 2) :]]
    total = sum(times.values())
    return Chain(kernel=kernel, links=names, share=times[most] / total if total else 1.0, ways=len(times))


def _paths(seen: View, at: Ints) -> Ints:
    """For each position, the names of it and all its parents, outermost first; padded with NONE.

    Steps are left out, and modules: each layer would be a way of its own.
    """
    table, forest = seen.table, seen.forest
    left_out = table.named(is_step) | table.of_kind(Kind.MODULE)
    levels = [np.full(len(at), NONE)]
    above = at.copy()
    while (above != NONE).any() and len(levels) < _DEEPEST:
        inside = above != NONE
        row = forest.rows[np.where(inside, above, 0)]
        levels.append(np.where(inside & ~left_out[row], table.name[row], NONE))
        above = np.where(inside, forest.parent[np.where(inside, above, 0)], NONE)
    return np.stack(levels[::-1], axis=1).astype(np.int64)


def waits(seen: View) -> list[Wait]:
    """The calls that wait for the GPU, by name, longest first, with the GPU's busy time during each."""
    table = seen.table
    rows = np.flatnonzero(waiting_calls(table, seen.links))
    worked = busy(seen.on_device).covered_within(table.ts[rows], table.end[rows])
    out = []
    for code in np.unique(table.name[rows]).tolist():
        mine = table.name[rows] == code
        out.append(
            Wait(
                name=table.names[code],
                calls=int(mine.sum()),
                total_us=int(table.dur[rows[mine]].sum()) / 1000,
                busy_us=int(worked[mine].sum()) / 1000,
            )
        )
    return sorted(out, key=lambda wait: (-wait.total_us, wait.name))
