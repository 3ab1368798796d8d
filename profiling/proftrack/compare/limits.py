"""How a limit is applied to a figure before and after, given how noisy it is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from proftrack.compare.policy import Limit, describe
from proftrack.compare.results import Interval
from proftrack.text import amount, changes, number

Outcome = Literal["pass", "fail", "inconclusive"]


class Check(Struct, frozen=True, kw_only=True):
    """One limit."""

    name: str
    before: float | None = None
    after: float | None = None
    limit: str
    outcome: Outcome
    counted: bool = True
    """Whether it counts towards the outcome; a metric that is inconclusive and not required does not."""
    reason: str = ""


def check_of(
    name: str,
    limit: Limit,
    before: float | None,
    after: float | None,
    outcome: Outcome,
    reason: str,
    *,
    unit: str = "",
    counted: bool = False,
) -> Check:
    """The result of a limit. `unit`: a metric in whose unit it is shown, if not `name`. `counted`: even if optional."""
    return Check(
        name=name,
        before=before,
        after=after,
        limit=describe(limit, unit or name),
        outcome=outcome,
        counted=counted or limit.required or outcome != "inconclusive",
        reason=reason,
    )


def within(
    name: str, limit: Limit, before: float | None, after: float, interval: Interval | None
) -> tuple[Outcome, str]:
    """The worst outcome among a limit's bounds, and why. `name`: the metric, for its unit.

    `interval`: 95 % interval of after / before; None for a figure without noise.
    """
    found: list[tuple[Outcome, str]] = []
    if limit.max is not None:
        found.append(_bound(after <= limit.max, f"{amount(name, after)} is above {amount(name, limit.max)}"))
    if limit.min is not None:
        found.append(_bound(after >= limit.min, f"{amount(name, after)} is below {amount(name, limit.min)}"))
    if before is not None:
        if limit.exact:
            found.append(_bound(after == before, f"{amount(name, before)} -> {amount(name, after)}, must be equal"))
        for most, is_increase in (
            (_most(limit.max_increase_pct, limit.max_increase, before), True),
            (_most(limit.max_decrease_pct, limit.max_decrease, before), False),
        ):
            if most is not None:
                found.append(_relative(before, after, interval, most, increase=is_increase))
    order: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")
    return min(found, key=lambda each: order.index(each[0])) if found else ("inconclusive", "no bound applies")


def _bound(kept: bool, reason: str) -> tuple[Outcome, str]:
    return ("pass", "") if kept else ("fail", reason)


def _most(percent: float | None, amount: float | None, before: float) -> float | None:
    """How far the value may move from `before`, in its own unit: the tighter of the two bounds."""
    bounds = [before * percent / 100] if percent is not None else []
    bounds += [amount] if amount is not None else []
    return min(bounds) if bounds else None


def _relative(
    before: float, after: float, interval: Interval | None, most: float, *, increase: bool
) -> tuple[Outcome, str]:
    change = after - before if increase else before - after
    moved = changes(after / before)[0] if before else f"{number(before)} -> {number(after)}"
    if interval is None:
        return _bound(change <= most, moved)
    # How much worse it is as a ratio: at least (low), most likely (ratio), at most (high).
    low, high = (interval.low, interval.high) if increase else (1 / interval.high, 1 / interval.low)
    ratio = after / before if increase else before / after
    allowed = 1 + most / before if increase else before / max(before - most, 1e-12)
    noise = f"95 % interval {' to '.join(changes(interval.low, interval.high))}"
    if ratio > allowed:
        return ("fail", f"{moved} ({noise})") if low > 1 else ("inconclusive", f"{moved}, which may be noise ({noise})")
    if high <= allowed or high / ratio <= allowed:
        return "pass", moved
    return "inconclusive", f"{moved}, but noise could hide more than the limit allows ({noise})"
