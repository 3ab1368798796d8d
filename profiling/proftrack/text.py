"""Figures as text, and untrusted names made fit to show. The one place that formats."""

from __future__ import annotations

import datetime
import re

# Control and direction characters, what is invisible, and lone surrogates, which no file can hold.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
_NOISE = re.compile(r"^void |at::native::|at::cuda::|\(anonymous namespace\)::|c10::")
# What rounds to 1000 has the next unit.
_UNITS = ((0.1, 1e-3, "ns"), (1e3, 1, "us"), (1e6, 1e3, "ms"), (float("inf"), 1e6, "s"))


def duration(us: float | None) -> str:
    """Microseconds with three digits and a fitting unit: 7.68 ns, 2.79 us, 51.2 us, 1.19 s."""
    if us is None:
        return "-"
    for limit, divisor, unit in _UNITS:
        if abs(us) < 0.9995 * limit and (us or unit == "us"):
            return f"{_three_digits(us / divisor)} {unit}"
    raise AssertionError("infinity is larger than every time")


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value else "0"


def factor(value: float | None) -> str:
    """A ratio of two times: 1.2x, 18x."""
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 10 else f"{value:.2f}x" if value < 2 else f"{value:.1f}x"


def scaled(value: float | None, unit: str) -> str:
    """A figure with three digits and a decimal prefix: 747 TFLOP/s, 4.27 TB/s, 134 MB."""
    if value is None:
        return "-"
    for limit, divisor, prefix in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"), (1e15, 1e12, "T")):
        if abs(value) < limit:
            return f"{_three_digits(value / divisor)} {prefix}{unit}"
    return f"{_three_digits(value / 1e15)} P{unit}"


def moment(epoch_ns: int) -> str:
    """A point in time, UTC, to the minute."""
    at = datetime.datetime.fromtimestamp(epoch_ns // 1_000_000_000, datetime.timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M UTC")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """1 step, 2 steps, 12,000 steps."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def percent(fraction: float | None) -> str:
    """0.0142 -> 1.4 %; what is there and too small for that is <0.1 %."""
    if fraction is None:
        return "-"
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{fraction * 100:.1f} %"


def plain(name: str, limit: int = 200) -> str:
    """An untrusted name on one line: control and direction characters escaped, the middle of a long one left out."""
    limit = max(limit, 5)
    head = (limit - 3) * 2 // 3
    tail = limit - 3 - head
    if len(name) <= limit:
        text = _escaped(name)
        if len(text) <= limit:
            return text
    # Escapes only make it longer: no more than this can be shown of a name of megabytes.
    return f"{_escaped(name[:head])[:head]}...{_escaped(name[-tail:])[-tail:]}"


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def brief(name: str, limit: int) -> str:
    """A kernel's name where room is scarce: without the return type and the namespaces that all of torch's have."""
    return plain(_NOISE.sub("", name), limit)
