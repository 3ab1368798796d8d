"""A gate as a page for CI: the outcome, the limits, and the comparison behind them."""

from __future__ import annotations

from proftrack.compare.gate import NOISE, Check, Gate
from proftrack.report.compare_page import page as comparison_page
from proftrack.report.document import Document, Items, Lead, Table, Tone
from proftrack.text import difference, figure

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "unclear"}
_MARKS = {"pass": "pass", "fail": "FAIL", "inconclusive": "?"}


def page(gate: Gate) -> Document:
    """The whole gate."""
    about = [f"candidate: {gate.candidate}", f"baseline: {gate.baseline or 'none'}", f"policy: {gate.policy}"]
    rows = [_row(check) for check in gate.checks]
    checks = Table(
        "Limits", ("", "metric", "limit", "said", "baseline", "candidate"), rows, numbers=4, folded=False, below=3
    )
    behind = comparison_page(gate.comparison).blocks if gate.comparison else []
    return Document(
        f"proftrack gate: {gate.outcome}",
        [Lead(f"{gate.outcome.upper()}: {gate.reason}", _TONES[gate.outcome]), Items("Held", about), checks, *behind],
    )


def _row(check: Check) -> tuple[str, ...]:
    mark = _MARKS[check.outcome] if check.counted else "not counted"
    return (mark, check.name, check.limit, check.reason, _value(check, check.before), _value(check, check.after))


def _value(check: Check, value: float | None) -> str:
    return difference(value) if check.name == NOISE and value is not None else figure(check.name, value)
