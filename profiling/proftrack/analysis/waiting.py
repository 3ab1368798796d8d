"""Who waits for whom in the collectives of several ranks.

A collective ends for all ranks of its process group at about the same time, but begins for each rank when that rank
arrives. So its shortest duration is the transfer, and the excess on another rank is that rank's waiting. The rank that
waits least is the one that the others wait for. Collectives meet only within their process group. Where the traces do
not state the groups, the ends of the collectives have to say that all ranks are in one; see `_as_one_group`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from proftrack.record.ranks import Collective

NOTABLE = 0.05
"""Differences between ranks under this share of a step are not reported."""
SIMULTANEOUS = 0.1
"""The ends of one collective vary by less than this share of what its durations vary, or of the waiting that they show.

In recorded runs of four and eight ranks it was 0.002 to 0.009."""
FEWEST = 3
"""From this many collectives on, their durations can be said to vary."""

Floats: TypeAlias = npt.NDArray[np.float64]


class Seen(NamedTuple):
    """What one rank recorded."""

    rank: int
    collectives: Sequence[Collective]
    step_time_us: float | None
    steps: int = 1
    """What times per step are divided by."""
    counted: frozenset[int] | None = None
    """Numbers of the steps whose times count, `steps` of them; None if all do."""

    def counts(self, collective: Collective) -> bool:
        """Whether its time is part of the times per step."""
        return self.counted is None or collective.step in self.counted


class Late(NamedTuple):
    """A rank that others wait for in one process group."""

    rank: int
    how: Literal["always", "one step", "first step", "once"]
    """How often: in several steps, in the only one, only in the first of several, only in one of several."""
    waiters: dict[int, float]
    """Microseconds that each rank which waits notably does so, in all (or in that step)."""
    step: int | None = None
    """The number of the only step; None if the trace has no steps."""


@dataclass
class Waiting:
    """What the collectives of several ranks show."""

    waiting_us: dict[int, float] = field(default_factory=dict)
    """Time per step beyond the fastest rank's, by rank, in all collectives that could be compared."""
    late: list[Late] = field(default_factory=list)
    in_turns: list[list[int]] = field(default_factory=list)
    """Ranks of a group that wait notably, now for one and now for another."""
    unknown: bool = False
    """The process groups are not stated, and several would explain the times."""
    counts: tuple[int, int] | None = None
    """Fewest and most collectives of the ranks of a group, where their numbers differ."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """First and last step of each rank of a group, where none is common to all."""
    not_compared_us: dict[int, float] = field(default_factory=dict)
    """Time per step in collectives that could not be compared, by rank."""
    between_two_us: dict[int, float] = field(default_factory=dict)
    """Time per step in sends and receives, by rank."""

    @property
    def waits_for(self) -> dict[int, int]:
        """For each rank that waits, the rank that this goes back to, through ranks that themselves wait."""
        direct: dict[int, tuple[float, int]] = {}
        for late in self.late:
            for rank, us in late.waiters.items() if late.how in ("always", "one step") else ():
                direct[rank] = max(direct.get(rank, (0.0, late.rank)), (us, late.rank))
        return {rank: _root(rank, direct) for rank in direct}


def _root(rank: int, direct: Mapping[int, tuple[float, int]]) -> int:
    seen = [rank]
    while (following := direct.get(seen[-1])) is not None and following[1] not in seen:
        seen.append(following[1])
    return seen[-1]


def find(ranks: Sequence[Seen]) -> Waiting:
    """Compare the collectives of the ranks of one run. All of its ranks must be there."""
    found = Waiting()
    by_rank = {seen.rank: seen for seen in ranks}
    for seen in ranks:
        if two := _time_of(seen, [c for c in seen.collectives if c.between_two]):
            found.between_two_us[seen.rank] = two
    for key, columns in _groups(ranks).items():
        met = _compared(found, key, columns, by_rank)
        _add(found.waiting_us, {} if met is None else met.per_step(by_rank))
        _add(found.not_compared_us, _time(columns, by_rank) if met is None else met.unpaired_us)
    return found


def _compared(
    found: Waiting, key: _Key, columns: Mapping[int, Sequence[Collective]], ranks: Mapping[int, Seen]
) -> _Met | None:
    """The collectives of one group, if its ranks can be compared; what they show, or why not, is added to `found`."""
    if key.kind == "several" or (key.kind == "named" and key.size is None):
        found.unknown = True
        return None
    of_all = key.members or (() if key.kind == "named" else tuple(ranks))
    if any(rank in ranks and rank not in columns for rank in of_all):
        found.counts = (0, max(map(len, columns.values())))
    if len(columns) != (key.size if key.kind == "named" else len(of_all)) or len(columns) < 2:
        return None
    met = _met(columns, ranks)
    _note_unpaired(found, met, columns)
    if met.ends is None:
        return met
    limits = met.limits(ranks)
    late, in_turns = _late(met, limits)
    if key.kind == "unknown" and not _as_one_group(met, limits, late):
        found.unknown = True
        return None
    found.late += late
    found.in_turns += [in_turns] if in_turns and in_turns not in found.in_turns else []
    return met


# ---- groups ----------------------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """What tells process groups apart."""

    kind: Literal["members", "named", "unknown", "several"]
    members: tuple[int, ...] = ()
    name: str = ""
    size: int | None = None


def _key(collective: Collective) -> _Key:
    if collective.members:
        return _Key("members", collective.members, collective.group)
    if collective.group:
        return _Key("named", (), collective.group, collective.size)
    return _Key("unknown" if collective.members is None else "several")


def _groups(ranks: Sequence[Seen]) -> dict[_Key, dict[int, list[Collective]]]:
    """The collectives of each group, by rank; groups of a single rank left out, and what earlier steps launched."""
    groups: defaultdict[_Key, dict[int, list[Collective]]] = defaultdict(dict)
    for seen in ranks:
        has_steps = any(collective.step is not None for collective in seen.collectives)
        for collective in seen.collectives:
            key = _key(collective)
            alone = len(key.members) == 1 or key.size == 1
            if not alone and not collective.between_two and (collective.step is not None or not has_steps):
                groups[key].setdefault(seen.rank, []).append(collective)
    return groups


# ---- collectives that meet -------------------------------------------------------------------------------------------


class _Met(NamedTuple):
    """The collectives of one group that its ranks have in common: a row each, and a column a rank."""

    ranks: list[int]
    durations: Floats
    ends: Floats | None
    """None if nothing could be paired."""
    counted: npt.NDArray[np.bool_]
    """Which durations are part of the times per step."""
    units: npt.NDArray[np.int64]
    """For each row, the index of its step; without steps, of the collective itself."""
    steps: list[int | None]
    """For each unit, the number of its step."""
    unpaired_us: dict[int, float]
    """Time per step, by rank."""

    def waits(self) -> Floats:
        """Each rank's time beyond the fastest one's, by collective."""
        excess: Floats = self.durations - self.durations.min(axis=1, keepdims=True)
        return excess

    def per_step(self, ranks: Mapping[int, Seen]) -> dict[int, float]:
        """Each rank's waiting in a step."""
        if self.ends is None:
            return {}
        us = np.where(self.counted, self.waits(), 0.0).sum(axis=0).tolist()
        return {rank: each / ranks[rank].steps for rank, each in zip(self.ranks, us, strict=True)}

    def limits(self, ranks: Mapping[int, Seen]) -> Floats:
        """What is notable of one unit, by rank."""
        whole = np.array([ranks[rank].step_time_us or np.inf for rank in self.ranks])
        limits: Floats = NOTABLE * whole / (1 if self.steps[0] is not None else len(self.steps))
        return limits


def _met(columns: Mapping[int, Sequence[Collective]], seen: Mapping[int, Seen]) -> _Met:
    """The ranks' collectives, paired by their number in the group, else by step, name and order."""
    numbered = all(c.sequence is not None for column in columns.values() for c in column)
    buckets = [_buckets(column, numbered) for column in columns.values()]
    rows: list[tuple[Collective, ...]] = []
    for identity, first in buckets[0].items():
        same = [first, *(other.get(identity, []) for other in buckets[1:])]
        if len({len(bucket) for bucket in same}) == 1:
            rows += zip(*same, strict=True)
    ranks = list(columns)
    paired = _time({rank: [row[i] for row in rows] for i, rank in enumerate(ranks)}, seen)
    unpaired = {rank: us - paired[rank] for rank, us in _time(columns, seen).items()}
    if not rows:
        none = np.zeros((0, len(ranks)))
        return _Met(ranks, none, None, none > 0, np.zeros(0, dtype=np.int64), [], unpaired)
    counted = np.array([[seen[rank].counts(c) for rank, c in zip(ranks, row, strict=True)] for row in rows])
    durations = np.array([[c.duration_us for c in row] for row in rows])
    ends = np.array([[c.start_us for c in row] for row in rows]) + durations
    numbers = [row[0].step for row in rows]
    steps: list[int | None] = [*sorted({n for n in numbers if n is not None})]
    if not steps:  # no steps: each collective for itself, in the order of time
        order = np.argsort(ends[:, 0], kind="stable")
        units = np.arange(len(rows))
        return _Met(ranks, durations[order], ends[order], counted[order], units, [None] * len(rows), unpaired)
    at = {number: unit for unit, number in enumerate(steps)}
    units = np.array([at[n] for n in numbers if n is not None], dtype=np.int64)
    return _Met(ranks, durations, ends, counted, units, steps, unpaired)


def _buckets(column: Sequence[Collective], numbered: bool) -> dict[tuple[Any, ...], list[Collective]]:
    buckets: defaultdict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for collective in column:
        buckets[collective.name, collective.sequence if numbered else collective.step].append(collective)
    return buckets


def _note_unpaired(found: Waiting, met: _Met, columns: Mapping[int, Sequence[Collective]]) -> None:
    """Say why some collectives of a group could not be paired, if any could not."""
    if not any(len(column) > len(met.durations) for column in columns.values()):
        return
    numbers = [[c.step for c in column if c.step is not None] for column in columns.values()]
    counts = {len(column) for column in columns.values()}
    if met.ends is None and all(numbers) and not set.intersection(*map(set, numbers)):
        found.steps = [(min(n), max(n)) for n in numbers]
    elif len(counts) > 1:
        found.counts = (min(counts), max(counts))


def _time(columns: Mapping[int, Sequence[Collective]], seen: Mapping[int, Seen]) -> dict[int, float]:
    return {rank: _time_of(seen[rank], column) for rank, column in columns.items()}


def _time_of(seen: Seen, column: Sequence[Collective]) -> float:
    """A rank's time in these collectives, per step."""
    return sum(c.duration_us for c in column if seen.counts(c)) / seen.steps


def _add(sums: dict[int, float], more: Mapping[int, float]) -> None:
    for rank, us in more.items():
        sums[rank] = sums.get(rank, 0.0) + us


# ---- who is late -----------------------------------------------------------------------------------------------------


def _late(met: _Met, limits: Floats) -> tuple[list[Late], list[int]]:
    """The rank that the others wait for, and how often; or else the ranks that wait for each other in turns.

    One step cannot tell a slow rank from one that only started later. Of several steps, the first shows only that, and
    a wait that does not recur is not the rank's speed: it must be notable without its largest step.
    """
    by_unit = np.zeros((len(met.steps), len(met.ranks)))
    np.add.at(by_unit, met.units, met.waits())
    units = len(met.steps)
    if units == 1:
        late, excess = _excess(by_unit)
        return _as_late(met, late, "one step", excess, excess[0] > limits, 0), []
    for part in (by_unit[1:], by_unit) if units > 2 else (by_unit,):
        late, excess = _excess(part)
        recurring = excess.sum(axis=0) - excess.max(axis=0) > limits * (len(part) - 1)
        if recurring.any():
            return _as_late(met, late, "always", excess, recurring) + _started_late(met, by_unit, limits, late), []
    largest = int(by_unit.sum(axis=1).argmax())
    if (np.delete(by_unit, largest, axis=0).sum(axis=0) > limits * (units - 1)).any():
        waiting = [rank for rank, us in zip(met.ranks, by_unit.sum(axis=0) > limits * units, strict=True) if us]
        return [], waiting if len(waiting) > 1 else []
    late, excess = _excess(by_unit[largest : largest + 1])
    how: Literal["first step", "once"] = "once" if largest else "first step"
    return _as_late(met, late, how, excess, excess[0] > limits * units, largest), []


def _excess(by_unit: Floats) -> tuple[int, Floats]:
    """The column that waits least, and what the others wait beyond it."""
    late = int(by_unit.sum(axis=0).argmin())
    return late, by_unit - by_unit[:, late : late + 1]


def _started_late(met: _Met, by_unit: Floats, limits: Floats, otherwise: int) -> list[Late]:
    """The rank that even the one waited for `otherwise` waited for in the first step, if that shows in the mean."""
    late, excess = _excess(by_unit[:1])
    notable = excess[0] > limits * len(by_unit)
    return _as_late(met, late, "first step", excess, notable, 0) if notable[otherwise] else []


def _as_late(
    met: _Met,
    late: int,
    how: Literal["always", "one step", "first step", "once"],
    excess: Floats,
    who: npt.NDArray[np.bool_],
    unit: int | None = None,
) -> list[Late]:
    us = excess.sum(axis=0).tolist()
    waiters = {rank: us[i] for i, rank in enumerate(met.ranks) if who[i]}
    return [Late(met.ranks[late], how, waiters, None if unit is None else met.steps[unit])] if waiters else []


def _as_one_group(met: _Met, limits: Floats, late: Sequence[Late]) -> bool:
    """Whether ranks whose groups are not stated behave as one group.

    If no rank waits beyond the fastest of all, none waits within a smaller group either. Otherwise the ends have to
    coincide. Where the durations vary while the ends still coincide, that is proof; where nothing varies, two groups in
    lock-step look the same, except that in each of them one rank waits for nobody.
    """
    waits = met.waits()
    if (waits.sum(axis=0) <= limits * len(met.steps)).all():
        return True
    assert met.ends is not None
    apart, varied = _varied(met.ends), _varied(met.durations)
    if len(waits) >= FEWEST and (varied > 0).all() and (varied * SIMULTANEOUS >= apart).all():
        return True
    if apart.sum() > SIMULTANEOUS * waits.sum():
        return False
    return len(met.ranks) == 2 or (bool(late) and all(len(each.waiters) == len(met.ranks) - 1 for each in late))


def _varied(columns: Floats) -> Floats:
    """How much each rank's values move against the mean of all ranks; constant differences, as of clocks, are none."""
    apart = columns - columns.mean(axis=1, keepdims=True)
    moved: Floats = np.abs(apart - np.median(apart, axis=0)).sum(axis=0)
    return moved
