"""Formats figures as text, and makes untrusted names safe to show. The one place that formats.

Figures in columns have three digits each, so that they can be compared at a glance (51.0 us); figures in sentences have
no more digits than needed (51 us).
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Control and direction characters, invisible characters, and lone surrogates, which cannot be written to a file.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
_NOISE = re.compile(r"^void |at::native::|at::cuda::|\(anonymous namespace\)::|c10::")
_QUALIFIER = re.compile(r"^(?:void|static|__global__)\s+")
_PARAMETERS = re.compile(r"(?<=\w)\(.*\)$")
# Values that round to 1000 get the next unit.
_INF = float("inf")
_UNITS = ((0.1, 1e-3, "ns"), (1e3, 1, "us"), (1e6, 1e3, "ms"), (_INF, 1e6, "s"))
_PREFIXES = ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"), (1e15, 1e12, "T"), (_INF, 1e15, "P"))
_BYTES = tuple((limit, divisor, f"{prefix}B") for limit, divisor, prefix in _PREFIXES)
_JOULES = ((1e-3, 1e-6, "uJ"), (1, 1e-3, "mJ"), (1e3, 1, "J"), (_INF, 1e3, "kJ"))
_WATTS = ((1, 1e-3, "mW"), (1e3, 1, "W"), (_INF, 1e3, "kW"))
_VALUE = 80
"""Maximum characters of a value in a sentence."""
_SHORT_NAME = 80


# ---- figures ---------------------------------------------------------------------------------------------------------


def duration(us: float | None) -> str:
    """Microseconds in a column, with three digits and a fitting unit: 7.68 ns, 2.79 us, 51.0 us, 1.19 s."""
    if us is None:
        return "-"
    value, unit = _in_unit(us)
    return f"{_three_digits(value)} {unit}"


def short_time(us: float) -> str:
    """Microseconds in a sentence: 7.68 ns, 3 us, 51 us, 1.2 ms, 2,650 s."""
    value, unit = _in_unit(us)
    return f"{number(value)} {unit}"


def torch_time(us: float) -> str:
    """Microseconds as in torch's tables: 572.832us, 1.558ms, 3.574s."""
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


def _in_unit(us: float) -> tuple[float, str]:
    if not us:
        return 0.0, "us"
    return _scaled(us, _UNITS)


def _scaled(value: float, units: Sequence[tuple[float, float, str]]) -> tuple[float, str]:
    for limit, divisor, unit in units:
        if abs(value) < 0.9995 * limit:
            return value / divisor, unit
    return value / units[-1][1], units[-1][2]


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
    """A figure in a column, with three digits and a decimal prefix: 747 TFLOP/s, 4.27 TB/s, 134 MB."""
    if value is None:
        return "-"
    size, prefix = _scaled(value, _PREFIXES)
    return f"{_three_digits(size)} {prefix}{unit}"


def number(value: float, digits: int = 3) -> str:
    """A count or a ratio for a sentence, never with an exponent: 0.333, 2, 12.5, 1,234."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 or not value else f"{value:.9f}".rstrip("0").rstrip(".")


def figure(metric: str, value: float | None) -> str:
    """A metric's value in a column, in the unit given by its name: 2.65 s, 60.0 GB, 31.0 mJ, 0.5."""
    if value is None:
        return "-"
    if metric.endswith("_us"):
        return duration(value)
    units = _units_of(metric)
    if units is None:
        return number(value, 4)
    size, unit = _scaled(value, units)
    return f"{_three_digits(size)} {unit}"


def amount(metric: str, value: float) -> str:
    """A metric's value in a sentence: 2.65 s, 60 GB, 31 mJ, 0.5."""
    if metric.endswith("_us"):
        return short_time(value)
    units = _units_of(metric)
    if units is None:
        return number(value)
    size, unit = _scaled(value, units)
    return f"{number(size)} {unit}"


def _units_of(metric: str) -> Sequence[tuple[float, float, str]] | None:
    """The units of a metric that is not a time, by its name; None for counts and ratios."""
    if "joules" in metric:
        return _JOULES
    return {"bytes": _BYTES, "watts": _WATTS}.get(metric.rpartition("_")[2])


def moment(epoch_ns: int) -> str:
    """A point in time, UTC, to the minute."""
    at = datetime.datetime.fromtimestamp(epoch_ns // 1_000_000_000, datetime.timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M UTC")


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """1 step, 2 steps, 0.333 launches, 12,000 steps."""
    text = number(count)
    plural = plural or f"{noun}{'es' if noun.endswith(('ch', 's')) else 's'}"
    return f"{text} {noun if text == '1' else plural}"


def listed(items: Sequence[str]) -> str:
    """One or more items in a sentence: a; a and b; a, b and c."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def how_often(count: float) -> str:
    """once, 3 times, 0.5 times."""
    text = number(count)
    return "once" if text == "1" else f"{text} times"


def percent(fraction: float | None) -> str:
    """0.0142 -> 1.4 %; values above zero that would round to zero: <0.1 %."""
    if fraction is None:
        return "-"
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{fraction * 100:.1f} %"


def difference(fraction: float) -> str:
    """A relative difference: 0.12 -> 12.0 %; from a factor of ten, the factor: 240x."""
    return f"{fraction * 100:.1f} %" if fraction < 9 else f"{number(1 + fraction)}x"


def changes(*ratios: float) -> list[str]:
    """Ratios as changes: 1.05 -> +5.0 %. If any is beyond ten times or a tenth, all as factors: 0.019x, 1,101x."""
    if all(10 > ratio > 0.1 or not ratio for ratio in ratios):
        return [f"{(ratio - 1) * 100:+.1f} %" for ratio in ratios]
    return [f"{number(ratio)}x" for ratio in ratios]


# ---- words -----------------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """A value for use in a sentence: one line, not too long."""
    text = value if isinstance(value, str) and value.isprintable() and value.strip() else repr(value)
    return text if len(text) <= _VALUE else text[: _VALUE - 3] + "..."


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a known word is close, ignoring case; else empty."""
    words = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return f"; did you mean {words[close[0]]}?" if close else ""


# ---- names -----------------------------------------------------------------------------------------------------------


def plain(name: str, limit: int = 200) -> str:
    """An untrusted name on one line: control and direction characters are escaped, the middle of long names is cut."""
    limit = max(limit, 5)
    head = (limit - 3) * 2 // 3
    tail = limit - 3 - head
    if len(name) <= limit:
        text = _escaped(name)
        if len(text) <= limit:
            return text
    # Escaping only lengthens a text, so no more than this is needed, even for a name of megabytes.
    return f"{_escaped(name[:head])[:head]}...{_escaped(name[-tail:])[-tail:]}"


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def brief(name: str, limit: int) -> str:
    """A kernel's name for a table, without its return type and the namespaces common to all of torch's kernels."""
    return plain(_NOISE.sub("", name), limit)


def short_name(name: str) -> str:
    """A kernel's plain name, without return type, template arguments, parameters and torch's namespaces.

    Not escaped, and at most 80 characters.
    """
    text = _QUALIFIER.sub("", name.strip()).replace("(anonymous namespace)::", "")
    text = _PARAMETERS.sub("", text.partition("<")[0])
    if text.startswith("at::"):
        text = text.rpartition("::")[2]
    text = text or name
    return text if len(text) <= _SHORT_NAME else text[: _SHORT_NAME - 3] + "..."
