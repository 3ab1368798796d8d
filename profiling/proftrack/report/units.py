"""Figures as text, and untrusted names made fit to show. The one place that formats."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def duration(us: float | None) -> str:
    """Microseconds with three digits and a fitting unit: 2.79 us, 51.2 us, 1.19 s."""
    if us is None:
        return "-"
    for limit, divisor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms"), (float("inf"), 1e6, "s")):
        value = us / divisor
        if abs(us) < limit:
            return f"{_three_digits(value)} {unit}"
    raise AssertionError("infinity is larger than every time")


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value else "0"


def percent(fraction: float | None) -> str:
    """0.0142 -> 1.4 %."""
    return "-" if fraction is None else f"{fraction * 100:.1f} %"


def plain(name: str, limit: int = 200) -> str:
    """An untrusted name on one line: control and direction characters escaped, the middle of a long one left out."""
    text = _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), name)
    if len(text) <= limit:
        return text
    head = (limit - 3) * 2 // 3
    return f"{text[:head]}...{text[len(text) - (limit - 3 - head) :]}"
