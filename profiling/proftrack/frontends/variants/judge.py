"""Decide which variant is faster, from round-by-round ratios.

All variants run in every round, so whatever changes between rounds (clocks, neighbours) affects both sides of a ratio.
The interval is the percentile bootstrap of the median ratio, as `compare` uses it for the blocks of two runs. Two
processes that run the same code can differ by more than the interval from one process; `--isolate` takes each round
from a fresh process.

A median over many rounds can resolve a difference that single rounds do not show. The noise is then larger than the
effect, and no difference is claimed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from proftrack.compare.timing import Samples, within_interval
from proftrack.frontends.variants.result import Entry, Variants, Versus, Word
from proftrack.text import difference, duration

SMALLEST = 0.01
"""A difference under one per cent is not worth acting on."""
NARROW = 0.03
"""`no difference` requires an interval that contains 1 and reaches no further than this to either side."""


def versus(samples: Sequence[float], other: Sequence[float]) -> Versus | None:
    """The ratio of the first over the second, round by round; None with fewer than three rounds."""
    ratios = [a / b for a, b in zip(samples, other, strict=False) if a > 0 and b > 0]
    if not ratios:
        return None
    middle = statistics.median(ratios)
    interval = within_interval(Samples(1.0, [1.0] * len(ratios)), Samples(middle, ratios))
    if interval is None:
        return None
    low, high = interval.low, interval.high
    noise = _noise(ratios)
    return Versus(ratio=middle, low=low, high=high, noise=noise, word=_word(middle, low, high, noise))


def _noise(ratios: Sequence[float]) -> float:
    """How far the ratio of a single round is from the median: half the range from the 10th to the 90th percentile, as a
    factor less 1.
    """
    low, high = np.percentile(ratios, [10, 90])
    return math.sqrt(float(high / low)) - 1


def _word(ratio: float, low: float, high: float, noise: float) -> Word:
    clear = max(ratio, 1 / ratio) - 1 >= noise
    if high < 1 and ratio <= 1 - SMALLEST:
        return "faster" if clear else "inconclusive"
    if low > 1 and ratio >= 1 + SMALLEST:
        return "slower" if clear else "inconclusive"
    return "no difference" if low >= 1 - NARROW and high <= 1 + NARROW else "inconclusive"


def payoff(first: Entry, other: Entry) -> int | None:
    """Steps after which the other variant has made up for its higher set-up cost; 0 if its set-up costs no more.

    None if it is not faster.
    """
    if other.versus_first is None or other.versus_first.word != "faster":
        return None
    gain = (first.step_time_us or 0.0) - (other.step_time_us or 0.0)
    cost = _set_up(other) - _set_up(first)
    return None if gain <= 0 else max(0, math.ceil(cost / gain))


def _set_up(entry: Entry) -> float:
    """Build plus first step, minus the time of an ordinary step; in microseconds."""
    return (entry.build_us or 0.0) + (entry.first_step_us or 0.0) - (entry.step_time_us or 0.0)


def judge(variants: Variants) -> None:
    """Fill in the comparison with the first variant, payoff, winner and verdict."""
    measured = variants.measured
    if not measured:
        variants.verdict = "No variant could be measured."
        return
    first = measured[0]
    for entry in measured[1:]:
        entry.versus_first = versus(entry.round_us, first.round_us)
        entry.payoff_steps = payoff(first, entry)
    variants.winner, variants.verdict = _winner(measured)


def _winner(measured: Sequence[Entry]) -> tuple[str | None, str]:
    """The fastest variant with correct results, if it is faster than the next, and the verdict."""
    correct = [entry for entry in measured if entry.outputs is None or entry.outputs.equal is not False]
    ranked = sorted(correct, key=lambda entry: entry.step_time_us or math.inf)
    if len(ranked) < 2:
        if not ranked:
            return None, "No measured variant has the same results as the first."
        return None, f"Only {ranked[0].name} was measured, so there is nothing to compare it with."
    best, following = ranked[0], ranked[1]
    comparison = versus(best.round_us, following.round_us)
    times = f"{duration(best.step_time_us)} per step, against {duration(following.step_time_us)} for {following.name}"
    if comparison is None:
        return None, f"Too few rounds to tell {best.name} and {following.name} apart ({times})."
    ratio = f"ratio of step times {comparison.ratio:.3f}, 95 % interval {comparison.low:.3f} to {comparison.high:.3f}"
    if comparison.word == "faster":
        return best.name, f"{best.name} is the fastest: {times} ({ratio})."
    names = " and ".join([best.name, *(entry.name for entry in ranked[1:] if _tied(best, entry))])
    if comparison.word == "no difference":
        return None, f"No difference between {names} ({times}; {ratio})."
    return None, f"No winner: {names} cannot be told apart ({times}; {ratio}): {_why_not(comparison)}."


def _why_not(comparison: Versus) -> str:
    if comparison.low <= 1 <= comparison.high:
        return "the interval contains 1; use more rounds (--rounds) or a quieter machine"
    if comparison.ratio > 1:
        return "round by round it is the slower one"
    return (
        f"single rounds vary by {difference(comparison.noise)}, and the difference is no larger than that; measure "
        "again on a quieter machine"
    )


def _tied(best: Entry, other: Entry) -> bool:
    comparison = versus(best.round_us, other.round_us)
    return comparison is not None and comparison.word != "faster"
