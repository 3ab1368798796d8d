"""Where time went, as parts of a whole: the window, and the idle time of a step."""

from __future__ import annotations

from proftrack.record import Record
from proftrack.report.document import Share
from proftrack.text import duration
from proftrack.verdict.evidence import CAUSE_TEXT


def split_parts(record: Record) -> list[Share]:
    """The window as exclusive parts."""
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
    """Idle time of a step by cause."""
    causes = sorted(record.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    return _parts([(f"idle-{cause}", f"{cause}: {CAUSE_TEXT.get(cause, '')}", us) for cause, us in causes])


def _parts(rows: list[tuple[str, str, float]]) -> list[Share]:
    whole = sum(us for _, _, us in rows)
    out, start = [], 0.0
    for style, label, us in rows:
        if us > 0:
            out.append(
                Share(
                    style=style,
                    label=label,
                    short=label.partition(":")[0],
                    value=duration(us),
                    start=start,
                    share=100 * us / whole,
                )
            )
            start += 100 * us / whole
    return out
