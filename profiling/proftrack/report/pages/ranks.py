"""Several ranks: the joint findings, then one line per rank, then why some are inconclusive."""

from __future__ import annotations

from collections import defaultdict

from proftrack.record.ranks import Joint, RankFigures
from proftrack.report.document import Block, Column, Document, Items, Paragraph, Table
from proftrack.text import duration

_WIDTH = 9


def page(joint: Joint) -> Document:
    """All ranks on one page."""
    heads = [
        Column(label="rank"),
        *(Column(label=label, width=_WIDTH) for label in ("step time", "GPU busy", "in coll.", "exposed", "waiting")),
        Column(label="regime", kind="word"),
    ]
    rows = [_row(rank, joint) for rank in joint.ranks]
    blocks: list[Block] = [
        *(Paragraph(finding.text) for finding in joint.findings),
        Table("", heads, rows, most=len(rows), folded=False),
        *_reasons(joint),
    ]
    return Document(f"{len(rows)} ranks", blocks)


def _row(rank: RankFigures, joint: Joint) -> list[str]:
    times = (
        rank.step_time_us,
        rank.gpu_busy_us,
        rank.communication_us,
        rank.exposed_communication_us,
        rank.waiting_us,
    )
    return [_name(rank), *map(duration, times), f"{rank.regime}{_mark(rank, joint)}"]


def _mark(rank: RankFigures, joint: Joint) -> str:
    """What distinguishes a rank: never that its step is long while it waits for another."""
    if any(other.waits_for == rank.rank and other.stage == rank.stage for other in joint.ranks):
        return "  (waited for)"
    return "  (slowest)" if rank.rank == joint.slowest_rank else ""


def _reasons(joint: Joint) -> list[Items]:
    """Why verdicts are inconclusive; ranks with the same reasons share a list."""
    by_reasons: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for rank in joint.ranks:
        if rank.reasons:
            by_reasons[tuple(rank.reasons)].append(_name(rank))
    return [
        Items(f"{_subject(ranks)} inconclusive because", reasons, mark="?") for reasons, ranks in by_reasons.items()
    ]


def _name(rank: RankFigures) -> str:
    return f"{rank.rank} {rank.stage}" if rank.stage else str(rank.rank)


def _subject(ranks: list[str]) -> str:
    return f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {', '.join(ranks)} are"
