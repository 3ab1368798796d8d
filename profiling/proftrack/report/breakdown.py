"""Where time went, as parts of a total: the window, and the idle time per step."""

from __future__ import annotations

from proftrack.record import Record
from proftrack.report.document import Share
from proftrack.text import duration
from proftrack.verdict.evidence import CAUSE_TEXT


def split_parts(record: Record) -> list[Share]:
    """The window, split into exclusive parts."""
    split = record.split
    if split is None:
        return []
    return _parts(
        [
            ("compute", "compute", split.compute_us),
            ("communication", "exposed communication", split.exposed_communication_us),
            ("transfer", "exposed copies", split.exposed_copy_us),
            ("idle", "idle", split.idle_us),
        ]
    )


def idle_parts(record: Record) -> list[Share]:
    """Idle time per step, by cause."""
    causes = sorted(record.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    return _parts([(f"idle-{cause}", f"{cause}: {CAUSE_TEXT.get(cause, '')}", us) for cause, us in causes])


def _parts(rows: list[tuple[str, str, float]]) -> list[Share]:
    total = sum(us for _, _, us in rows)
    parts, start = [], 0.0
    for style, label, us in rows:
        if us > 0:
            share = 100 * us / total
            short = label.partition(":")[0]
            parts.append(Share(style=style, label=label, short=short, value=duration(us), start=start, share=share))
            start += share
    return parts
