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
        *(Paragraph(finding) for finding in joint.findings),
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
    slowest = "  (slowest)" if rank.rank == joint.slowest_rank and len(joint.ranks) > 1 else ""
    return [str(rank.rank), *map(duration, times), f"{rank.regime}{slowest}"]


def _reasons(joint: Joint) -> list[Items]:
    """Why verdicts are inconclusive; ranks with the same reasons share a list."""
    by_reasons: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in joint.ranks:
        if rank.reasons:
            by_reasons[tuple(rank.reasons)].append(rank.rank)
    return [
        Items(f"{_subject(ranks)} inconclusive because", reasons, mark="?") for reasons, ranks in by_reasons.items()
    ]


def _subject(ranks: list[int]) -> str:
    return f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} are"
