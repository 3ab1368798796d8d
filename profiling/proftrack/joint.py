"""Several traces as one run: which rank each is of, and what the ranks say of each other.

A collective ends for all ranks at about the same time, and begins for each when it arrives: of the same collective the
shortest is the transfer, what it takes longer on another rank is that rank's waiting. The rank that waits least is the
one that the others wait for. Durations are compared, never the ranks' clocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import count, filterfalse, islice
from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack.errors import UsageError
from proftrack.measures.collectives import Collective
from proftrack.record import Record
from proftrack.verdict.evidence import number
from proftrack.verdict.result import Evidence

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_WORKER = re.compile(r"^(?P<worker>.+?)[._](?P<time>\d{10,})(?:\.cycle\d+)?(?=\.)")
_CYCLE = re.compile(r"\.cycle\d+(?=\.)")
MOSTLY = 0.5
"""Share of a rank's time in collectives from which on it is called waiting."""
NOTABLE = 0.05
"""Differences between ranks under this share are not worth a word."""
LARGEST_RANK = 10**18 - 1
"""A larger number is none of a rank."""
_LISTED = 10


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank of several. Times in microseconds a step (over the whole trace where it has no steps)."""

    rank: int
    files: list[str]
    regime: str
    steps: int
    step_time_us: float | None
    gpu_busy_us: float | None
    communication_us: float | None
    """Time in collectives, waiting included."""
    exposed_communication_us: float | None
    """What of the window only collectives filled."""
    waiting_us: float | None
    """Time in collectives beyond the rank that was quickest through each."""
    partial: bool = False
    """Its trace is broken and was read in part: it is not compared with the others."""
    reasons: list[str] = []
    """Why its verdict is inconclusive."""


class Joint(Struct, frozen=True, kw_only=True):
    """What several ranks say together."""

    schema_version: int = 1
    ranks: list[RankFigures]
    slowest_rank: int | None
    """The rank with the longest step."""
    waited_for_rank: int | None
    """The rank that waits least: the others wait for it. None where nobody waits notably."""
    spread: float | None
    """Longest over shortest step time, less 1."""
    findings: list[str]
    """What this means, in sentences."""


class Part(Struct, frozen=True, kw_only=True):
    """One rank's record and its collectives, in order."""

    rank: int
    record: Record
    collectives: list[Collective]
    assumed: bool = False
    """Nothing says that it is this rank; see `numbered`."""

    @property
    def partial(self) -> bool:
        """Whether its trace was read in part."""
        return any(flag.code == "partial_file" for flag in self.record.quality)


def stated_rank(value: object) -> int | None:
    """The rank in a trace's `distributedInfo`: a number, or one written as text. None where it is neither."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_RANK:
        return value
    return None


def numbered(ranks: Sequence[int | None]) -> list[int]:
    """The ranks, with the free numbers in their order for those that are not known."""
    free = filterfalse({rank for rank in ranks if rank is not None}.__contains__, count())
    return [next(free) if rank is None else rank for rank in ranks]


def rank_of(path: Path, distributed_rank: int | None, pattern: str | None = None) -> int | None:
    """The rank of a trace: by `pattern` (one group, on the file's name), else as the trace says, else by its name.

    Raises UsageError where the pattern is no regular expression with a group of digits, or does not match.
    """
    if pattern is not None:
        return _by_pattern(path, pattern)
    if distributed_rank is not None:
        return distributed_rank
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


def _by_pattern(path: Path, pattern: str) -> int:
    try:
        match = re.search(pattern, path.name)
        if match is None:
            raise UsageError(
                f"--rank-from {pattern!r} does not match {path.name}; give a pattern that matches all files"
            )
        rank = int(match[1])
    except (re.error, IndexError, ValueError) as error:
        problem = f"--rank-from {pattern!r} is not a regular expression with one group of digits ({error})"
        raise UsageError(f"{problem}; for example 'rank(\\d+)'") from error
    if not 0 <= rank <= LARGEST_RANK:
        raise UsageError(f"--rank-from {pattern!r} takes {rank} from {path.name}; give a pattern that matches a rank")
    return rank


def worker_of(path: Path) -> str:
    """What the traces of one process have in common: torch names them HOST_PID.TIME.pt.trace.json, one a cycle."""
    name = _CYCLE.sub("", path.name)
    match = _WORKER.match(name)
    return match["worker"] if match else name


def join(parts: list[Part]) -> Joint:
    """The ranks' figures side by side, and what they mean."""
    waiting = _waiting([part for part in parts if not part.partial])
    ranks = [_figures(part, waiting.get(part.rank)) for part in sorted(parts, key=lambda p: p.rank)]
    timed = {r.rank: r.step_time_us for r in ranks if r.step_time_us and not r.partial}
    spread = max(timed.values()) / min(timed.values()) - 1 if len(timed) > 1 else None
    waited_for = _waited_for(ranks)
    return Joint(
        ranks=ranks,
        slowest_rank=max(timed, key=timed.__getitem__) if len(timed) > 1 else None,
        waited_for_rank=waited_for,
        spread=round(spread, 5) if spread is not None else None,
        findings=[*_compared(parts, ranks, waited_for, spread, len(timed)), *_left_out(parts)],
    )


def in_company(record: Record, rank: int, joint: Joint) -> Record:
    """The record with what only the other ranks can tell: whether its time in collectives is transfer, or waiting.

    A rank that waits for another is communication-bound by its own trace; nothing done to its communication helps it.
    """
    figures = {each.rank: each for each in joint.ranks}
    own, late = figures[rank], figures.get(-1 if joint.waited_for_rank is None else joint.waited_for_rank)
    if record.verdict.regime != "communication-bound" or late is None or late.rank == rank:
        return record
    waiting, inside = own.waiting_us or 0.0, own.communication_us or 0.0
    if not inside or waiting < MOSTLY * inside:
        return record
    summary = record.verdict.summary.rstrip(".")
    verdict = msgspec.structs.replace(
        record.verdict,
        cause=f"rank {late.rank}",
        summary=f"{summary}, and {waiting / inside:.0%} of that is waiting for rank {late.rank}.",
        evidence=[
            *record.verdict.evidence,
            Evidence(
                name="waiting_us",
                value=waiting,
                unit="us",
                text=f"Of {inside:.0f} us a step in collectives {waiting:.0f} us are beyond rank {late.rank}'s own.",
            ),
        ],
        advice=[
            f"Look at rank {late.rank}, which the others wait for; by itself it is {late.regime}.",
            "Overlapping collectives, sending less or a faster network wins little while they wait.",
        ],
    )
    return msgspec.structs.replace(record, verdict=verdict)


def _figures(part: Part, waiting: float | None) -> RankFigures:
    record = part.record
    steps = max(record.window.steps, 1)
    communication = sum(c.duration_us for c in part.collectives)
    return RankFigures(
        rank=part.rank,
        files=[f.name for f in record.source.files],
        regime=record.verdict.regime,
        steps=record.window.steps,
        step_time_us=record.times.step_time_us,
        gpu_busy_us=record.times.gpu_busy_per_step_us,
        communication_us=round(communication / steps, 3) if part.collectives else None,
        exposed_communication_us=round(record.split.exposed_communication_us / steps, 3) if record.split else None,
        waiting_us=round(waiting / steps, 3) if waiting is not None else None,
        partial=part.partial,
        reasons=record.verdict.reasons if record.verdict.regime == "inconclusive" else [],
    )


def _waiting(parts: list[Part]) -> dict[int, float]:
    """For each rank, its time in collectives beyond the quickest rank's, over those that all ranks have alike."""
    sequences = {part.rank: _by_name(part.collectives) for part in parts}
    if len(parts) < 2 or not all(sequences.values()):
        return {}
    waiting: dict[int, float] = {}
    for name in set.intersection(*(set(s) for s in sequences.values())):
        columns = {rank: s[name] for rank, s in sequences.items()}
        if len({len(c) for c in columns.values()}) != 1:
            continue  # not the same collectives: nothing pairs them
        for durations in zip(*columns.values(), strict=True):
            least = min(durations)
            for rank, duration in zip(columns, durations, strict=True):
                waiting[rank] = waiting.get(rank, 0.0) + duration - least
    return waiting


def _by_name(found: list[Collective]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = defaultdict(list)
    for collective in found:
        out[collective.name].append(collective.duration_us)
    return out


def _waited_for(ranks: list[RankFigures]) -> int | None:
    known = [r for r in ranks if r.waiting_us is not None]
    if len(known) < 2:
        return None
    least, most = min(known, key=lambda r: r.waiting_us or 0.0), max(known, key=lambda r: r.waiting_us or 0.0)
    notable = (most.waiting_us or 0.0) - (least.waiting_us or 0.0) > NOTABLE * (most.step_time_us or float("inf"))
    return least.rank if notable else None


def _compared(
    parts: list[Part], ranks: list[RankFigures], waited_for: int | None, spread: float | None, timed: int
) -> list[str]:
    """What comes of comparing the ranks whose traces are whole."""
    out = []
    if spread is not None:
        apart = f"{spread:.1%}" if spread < 1 else f"a factor of {number(1 + spread)}"
        out.append(f"Step times of the {timed} ranks differ by {apart}.")
    if waited_for is not None:
        others = [r for r in ranks if r.rank != waited_for and r.waiting_us]
        worst = max(others, key=lambda r: r.waiting_us or 0.0)
        regime = next(r.regime for r in ranks if r.rank == waited_for)
        out.append(
            f"The others wait for rank {waited_for}: rank {worst.rank} spends {worst.waiting_us:.0f} us a step in "
            f"collectives waiting. Look at rank {waited_for} ({regime} by itself), not at the network."
        )
    elif any(r.waiting_us is not None for r in ranks):
        out.append("No rank waits notably for another: time in collectives is transfer.")
    lengths = {len(part.collectives) for part in parts if not part.partial}
    if len(lengths) > 1:
        out.append(f"The ranks recorded different numbers of collectives ({min(lengths)} to {max(lengths)}).")
    return out


def _left_out(parts: list[Part]) -> list[str]:
    """Ranks that are missing, not compared, or assumed."""
    out = []
    partial = sorted(part.rank for part in parts if part.partial)
    if partial:
        whose, they = ("trace of rank", "it is") if len(partial) == 1 else ("traces of ranks", "they are")
        out.append(f"Read in part, the {whose} {_listed(partial)}: {they} left out of the comparison.")
    present = {part.rank for part in parts}
    # Not a set of all ranks: a name or a trace may give one of any size.
    missing = list(islice(filterfalse(present.__contains__, range(max(present) + 1)), _LISTED + 1))
    if missing:
        out.append(f"No trace of rank {_listed(missing)}.")
    assumed = sum(part.assumed for part in parts)
    if assumed:
        whose = "rank of 1 trace is" if assumed == 1 else f"ranks of {assumed} traces are"
        out.append(f"The {whose} assumed from the order of {'the' if assumed == 1 else 'their'} names.")
    return out


def _listed(ranks: list[int]) -> str:
    return f"{', '.join(map(str, ranks[:_LISTED]))}{' and more' if len(ranks) > _LISTED else ''}"
