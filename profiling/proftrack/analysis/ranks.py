"""Compares the ranks of one run, and adds to each rank's verdict what only the comparison shows.

A collective ends for all ranks at about the same time, but begins for each rank when that rank arrives. So its
shortest duration is the transfer, and the excess on another rank is that rank's waiting. The rank that waits least is
the one that the others wait for. Durations are compared, never the ranks' clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import filterfalse, islice

import msgspec
from msgspec import Struct

from proftrack.measures.collectives import Collective
from proftrack.record import Record
from proftrack.record.ranks import Joint, RankFigures
from proftrack.record.verdict import Evidence
from proftrack.text import difference, short_time

MOSTLY = 0.5
"""From this share of its time in collectives on, a rank counts as waiting."""
NOTABLE = 0.05
"""Differences between ranks under this share are not reported."""
_LISTED = 10


class Part(Struct, frozen=True, kw_only=True):
    """One rank's record and its collectives, in order."""

    rank: int
    record: Record
    collectives: Sequence[Collective]
    assumed: bool = False
    """Neither the trace nor its name states this rank; see `numbered`."""

    @property
    def partial(self) -> bool:
        """Whether the trace was read only in part."""
        return any(flag.code == "partial_file" for flag in self.record.quality)


def join_ranks(parts: Sequence[Part]) -> tuple[list[Record], Joint]:
    """Compare the ranks of one run.

    Returns the record of each part, in the order of `parts` and with a verdict that takes the other ranks into account,
    and the comparison.
    """
    joint = join(parts)
    return [_with_waiting(part.record, part.rank, joint) for part in parts], joint


def join(parts: Sequence[Part]) -> Joint:
    """The ranks' figures side by side, and the findings."""
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


def _with_waiting(record: Record, rank: int, joint: Joint) -> Record:
    """The record, whose verdict says if most of its time in collectives is waiting for another rank.

    By its own trace a waiting rank is communication-bound, but changing its communication would not help it.
    """
    figures = {rank_figures.rank: rank_figures for rank_figures in joint.ranks}
    own, late = figures[rank], figures.get(-1 if joint.waited_for_rank is None else joint.waited_for_rank)
    if record.verdict.regime != "communication-bound" or late is None or late.rank == rank:
        return record
    waiting, communication = own.waiting_us or 0.0, own.communication_us or 0.0
    if not communication or waiting < MOSTLY * communication:
        return record
    summary = record.verdict.summary.rstrip(".")
    verdict = msgspec.structs.replace(
        record.verdict,
        cause=f"rank {late.rank}",
        summary=f"{summary}, and {waiting / communication:.0%} of that is waiting for rank {late.rank}.",
        evidence=[
            *record.verdict.evidence,
            Evidence(
                name="waiting_us",
                value=waiting,
                unit="us",
                text=f"{waiting:.0f} us of the {communication:.0f} us per step in collectives exceeds "
                f"rank {late.rank}'s own time there.",
            ),
        ],
        advice=[
            f"Look at rank {late.rank}, which the other ranks wait for; on its own it is {late.regime}.",
            "While they wait, overlapping collectives, sending less data or a faster network gains little.",
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
        step_time_us=record.step_time_us,
        gpu_busy_us=record.times.gpu_busy_per_step_us,
        communication_us=round(communication / steps, 3) if part.collectives else None,
        exposed_communication_us=round(record.split.exposed_communication_us / steps, 3) if record.split else None,
        waiting_us=round(waiting / steps, 3) if waiting is not None else None,
        partial=part.partial,
        reasons=record.verdict.reasons if record.verdict.regime == "inconclusive" else [],
    )


def _waiting(parts: list[Part]) -> dict[int, float]:
    """For each rank, its time in collectives beyond the fastest rank's, over the collectives that all ranks share."""
    sequences = {part.rank: _by_name(part.collectives) for part in parts}
    if len(parts) < 2 or not all(sequences.values()):
        return {}
    waiting: dict[int, float] = {}
    for name in set.intersection(*(set(s) for s in sequences.values())):
        columns = {rank: s[name] for rank, s in sequences.items()}
        if len({len(c) for c in columns.values()}) != 1:
            continue  # the ranks ran different numbers of these: they cannot be paired
        for durations in zip(*columns.values(), strict=True):
            least = min(durations)
            for rank, duration in zip(columns, durations, strict=True):
                waiting[rank] = waiting.get(rank, 0.0) + duration - least
    return waiting


def _by_name(collectives: Sequence[Collective]) -> dict[str, list[float]]:
    durations: dict[str, list[float]] = defaultdict(list)
    for collective in collectives:
        durations[collective.name].append(collective.duration_us)
    return durations


def _waited_for(ranks: list[RankFigures]) -> int | None:
    paired = [r for r in ranks if r.waiting_us is not None]
    if len(paired) < 2:
        return None
    least, most = min(paired, key=lambda r: r.waiting_us or 0.0), max(paired, key=lambda r: r.waiting_us or 0.0)
    notable = (most.waiting_us or 0.0) - (least.waiting_us or 0.0) > NOTABLE * (most.step_time_us or float("inf"))
    return least.rank if notable else None


def _compared(
    parts: Sequence[Part], ranks: list[RankFigures], waited_for: int | None, spread: float | None, timed: int
) -> list[str]:
    """Findings from comparing the ranks with complete traces."""
    out = []
    if spread is not None:
        up_to = "up to " if timed > 2 else ""
        out.append(f"Step times of the {timed} ranks differ by {up_to}{difference(spread)}.")
    if waited_for is not None:
        others = [r for r in ranks if r.rank != waited_for and r.waiting_us]
        worst = max(others, key=lambda r: r.waiting_us or 0.0)
        regime = next(r.regime for r in ranks if r.rank == waited_for)
        waiting = short_time(worst.waiting_us or 0.0)
        out.append(
            f"The other ranks wait for rank {waited_for}: rank {worst.rank} spends {waiting} per step waiting in "
            f"collectives. Look at rank {waited_for} ({regime} on its own), not at the network."
        )
    elif any(r.waiting_us is not None for r in ranks):
        out.append("No rank waits notably for another: time in collectives is transfer.")
    lengths = {len(part.collectives) for part in parts if not part.partial}
    if len(lengths) > 1:
        out.append(f"The ranks recorded different numbers of collectives ({min(lengths)} to {max(lengths)}).")
    return out


def _left_out(parts: Sequence[Part]) -> list[str]:
    """Findings about ranks that are missing, not compared, or assumed."""
    out = []
    partial = sorted(part.rank for part in parts if part.partial)
    if partial:
        traces, were, are = ("trace of rank", "was", "is") if len(partial) == 1 else ("traces of ranks", "were", "are")
        out.append(f"The {traces} {_listed(partial)} {were} read only in part and {are} left out of the comparison.")
    present = {part.rank for part in parts}
    # Not a set of all ranks: a name or a trace may state a rank of any size.
    missing = list(islice(filterfalse(present.__contains__, range(max(present) + 1)), _LISTED + 1))
    if missing:
        out.append(f"There is no trace of {'rank' if len(missing) == 1 else 'ranks'} {_listed(missing)}.")
    assumed = sum(part.assumed for part in parts)
    if assumed:
        ranks_are = "rank of 1 trace is" if assumed == 1 else f"ranks of {assumed} traces are"
        out.append(f"The {ranks_are} assumed from the order of the file names.")
    return out


def _listed(ranks: list[int]) -> str:
    return f"{', '.join(map(str, ranks[:_LISTED]))}{' and more' if len(ranks) > _LISTED else ''}"
