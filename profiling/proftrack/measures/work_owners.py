"""Whose each piece of GPU work is: what owns its launch or, in a replayed graph, the launch that it was captured from.

Where several captures name a graph and disagree about whose a launch is (a server captures each layer, and their
kernels are the same), the work has no owner of theirs. Work that no module of its capture owns is that of what replays
the graph, like all work of a graph whose capture is not known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.captures import Capture, Captures
from proftrack.measures.origins import Origins
from proftrack.measures.owners import NOBODY, Owner, Owners, find_owners
from proftrack.measures.view import View
from proftrack.record.modules import PASSES
from proftrack.trace.categories import CAPTURED
from proftrack.trace.table import NONE, Codes, Ints

Parts = npt.NDArray[np.int8]
_OTHER = np.int8(PASSES.index("other"))


class WorkOwners(NamedTuple):
    """The owners of a trace's GPU work. `code` and `part` are parallel to `links.gpu`."""

    host: Owners
    """Of the host rows; its `named` lack what only captures know."""
    named: list[Owner]
    code: Codes
    """Index into `named`."""
    part: Parts
    """Index into PASSES."""
    replayed_calls: list[tuple[Ints, Ints]]
    """For each named graph the step of each of its replays (NONE: none), and the owners called in one of them."""

    def captured_calls(self, outliers: Collection[int]) -> Ints:
        """How often each owner was called in the replays of the typical steps, as captured."""
        calls = np.zeros(len(self.named), dtype=np.int64)
        for step, codes in self.replayed_calls:
            replays = int((~np.isin(step, [NONE, *outliers])).sum())
            calls += replays * np.bincount(codes, minlength=len(calls))
        return calls


def work_owners(seen: View, found: Origins, host: Owners | None) -> WorkOwners | None:
    """The owners of GPU work; None if nothing in the trace or in its graphs' captures tells of any."""
    captured: dict[int, Owners | None] = {}
    for match in found.matches:
        for source, _ in match.captures:
            if id(source) not in captured:
                captured[id(source)] = find_owners(source.table, source.forest)
    if host is None and any(each is not None for each in captured.values()):
        host = find_owners(seen.table, seen.forest, regions_alone=True)
    if host is None:
        return None
    launch = seen.links.launch
    code, part = host.of_launches(launch).astype(np.int32), host.parts_of_launches(launch)
    named = {owner: number for number, owner in enumerate(host.named)}
    calls = []
    for match in found.matches:
        whose = [_of_calls(captured[id(source)], capture, named) for source, capture in match.captures]
        agreed = _agreed(whose)
        if agreed is None:
            continue
        codes, parts = agreed
        replays = len(match.work)
        work, codes, parts = match.work.ravel(), np.tile(codes, replays), np.tile(parts, replays)
        part[work] = np.where(parts != _OTHER, parts, part[work])
        code[work] = np.where(codes != NOBODY, codes, code[work])
        if len(match.captures) == 1:
            [(source, capture)] = match.captures
            calls.append((seen.owned.step[match.work[:, 0]], _called(captured[id(source)], source, capture, named)))
    return WorkOwners(host, list(named), code, part, calls)


def _numbers(owners: Owners, named: dict[Owner, int]) -> Codes:
    """The number in `named`, which grows, of each owner; the region around a capture owns nothing."""
    codes = [
        NOBODY if owner.kind == "region" and owner.path.startswith(CAPTURED) else named.setdefault(owner, len(named))
        for owner in owners.named
    ]
    return np.array(codes, dtype=np.int32)


def _of_calls(owners: Owners | None, capture: Capture, named: dict[Owner, int]) -> tuple[Codes, Parts] | None:
    if owners is None:
        return None
    return _numbers(owners, named)[owners.of_launches(capture.calls)], owners.parts_of_launches(capture.calls)


def _agreed(whose: list[tuple[Codes, Parts] | None]) -> tuple[Codes, Parts] | None:
    """What all captures say of each launch: nobody and "other" where they differ."""
    first = whose[0]
    if first is None:
        return None
    codes, parts = first
    for other in whose[1:]:
        if other is None:
            return None
        codes = np.where(codes == other[0], codes, np.int32(NOBODY))
        parts = np.where(parts == other[1], parts, _OTHER)
    return codes, parts


def _called(owners: Owners | None, source: Captures, capture: Capture, named: dict[Owner, int]) -> Ints:
    """The owners of the calls within a capture."""
    if owners is None:
        return np.zeros(0, dtype=np.int64)
    start = source.table.ts[owners.calls]
    rows = owners.calls[(start >= capture.begin) & (start < capture.end)]
    codes = _numbers(owners, named)[owners.code[rows]]
    return np.asarray(codes[codes != NOBODY], dtype=np.int64)
