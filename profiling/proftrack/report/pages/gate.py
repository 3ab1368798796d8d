"""A gate as a page for CI: the outcome, the limits, and the comparison behind it."""

from __future__ import annotations

from proftrack.compare.gate import NOISE, Check, Gate
from proftrack.report.document import Document, Items, Lead, Table, Tone
from proftrack.report.pages.comparison import page as comparison_page
from proftrack.text import difference, figure

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "unclear"}
_MARKS = {"pass": "pass", "fail": "FAIL", "inconclusive": "?"}


def page(gate: Gate) -> Document:
    """The full gate."""
    compared = [f"candidate: {gate.candidate}", f"baseline: {gate.baseline or 'none'}", f"policy: {gate.policy}"]
    rows = [_row(check) for check in gate.checks]
    limits = Table(
        "Limits", ("", "metric", "limit", "reason", "baseline", "candidate"), rows, numbers=4, folded=False, below=3
    )
    comparison = comparison_page(gate.comparison).blocks if gate.comparison else []
    lead = Lead(f"{gate.outcome.upper()}: {gate.reason}", _TONES[gate.outcome])
    return Document(f"proftrack gate: {gate.outcome}", [lead, Items("Checked", compared), limits, *comparison])


def _row(check: Check) -> tuple[str, ...]:
    mark = _MARKS[check.outcome] if check.counted else "not counted"
    return (mark, check.name, check.limit, check.reason, _value(check, check.before), _value(check, check.after))


def _value(check: Check, value: float | None) -> str:
    return difference(value) if check.name == NOISE and value is not None else figure(check.name, value)
