"""Changes in the GPU work from one variant to another: kernels fused away, kernels added, copies added."""

from __future__ import annotations

import re

from proftrack.compare.match import match
from proftrack.compare.parts import parts_of
from proftrack.compare.results import Row
from proftrack.frontends.variants.result import Change
from proftrack.record import Record

MOST = 12
_COPY = re.compile(r"memcpy|memset|copy_kernel|CopyKernel|direct_copy", re.IGNORECASE)
_SMALL_SHARE = 0.002
"""Share of the step; a smaller change is not reported, unless it is a copy that is called more often."""


def changes(before: Record, after: Record) -> list[Change]:
    """The changes, largest first; on the CPU, changes of operators. Added copies come before all others."""
    parts = [parts_of(record, record.step_time_us or 0.0) for record in (before, after)]
    rows = [row for row in match(*parts) if row.part in ("gpu", "host")]
    step_us = max(before.step_time_us or 0.0, after.step_time_us or 0.0)
    changed = [change for row in rows if (change := _change(row, step_us)) is not None]
    changed.sort(key=lambda change: (change.what != "copy added", -abs(change.after_us - change.before_us)))
    return changed[:MOST]


def _change(row: Row, step_us: float) -> Change | None:
    if row.status in ("same", "slower", "faster"):
        return None
    moved = abs(row.after_us - row.before_us)
    copy = row.part == "gpu" and bool(_COPY.search(row.name)) and row.calls_after > row.calls_before
    if moved < _SMALL_SHARE * step_us and not copy:
        return None
    more = "more" if row.calls_after > row.calls_before else "less"
    what = row.status if row.status in ("gone", "added", "renamed") else more
    return Change(
        what="copy added" if copy else what,  # type: ignore[arg-type]  # one of the Literal's words
        name=row.name,
        old_name=row.old_name,
        operator=row.operator,
        calls_before=row.calls_before,
        calls_after=row.calls_after,
        before_us=row.before_us,
        after_us=row.after_us,
    )
