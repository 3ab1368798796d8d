"""Which variant is faster, by round-by-round ratios.

All variants run in every round, so what changes between rounds (clocks, neighbours) is in both sides of a ratio. The
interval is the percentile bootstrap of the median ratio that `compare` uses for the blocks of two runs. Two processes
of one code can differ by more than an interval from one process says: `--isolate` takes the rounds from fresh ones.

A median over many rounds can be sure of a difference that single rounds do not show: then the noise is larger than the
effect, and none is claimed.
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
"""A difference under one per cent is none that anybody should act on."""
NARROW = 0.03
"""An interval that holds 1 and is no wider than this to either side allows the words `no difference`."""


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
    """How far the ratio of a single round is from the middle one: half of what lies between the 10th and 90th
    percentile, as a factor less 1.
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
    """Steps after which the other has won back what it costs more to set up; 0 where it costs no more.

    None where it is not faster.
    """
    if other.versus_first is None or other.versus_first.word != "faster":
        return None
    gain = (first.step_time_us or 0.0) - (other.step_time_us or 0.0)
    cost = _set_up(other) - _set_up(first)
    return None if gain <= 0 else max(0, math.ceil(cost / gain))


def _set_up(entry: Entry) -> float:
    """Build and first step, less what any other step takes."""
    return (entry.build_us or 0.0) + (entry.first_step_us or 0.0) - (entry.step_time_us or 0.0)


def judge(variants: Variants) -> None:
    """Fill in what follows from the rounds: each against the first, payoff, winner and verdict."""
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
    """The fastest of those whose results are right, if it is faster than the next."""
    right = [entry for entry in measured if entry.outputs is None or entry.outputs.equal is not False]
    ranked = sorted(right, key=lambda entry: entry.step_time_us or math.inf)
    if len(ranked) < 2:
        return None, f"Only {ranked[0].name} was measured: there is nothing to hold it against." if ranked else "None."
    best, following = ranked[0], ranked[1]
    against = versus(best.round_us, following.round_us)
    times = f"{duration(best.step_time_us)} against {duration(following.step_time_us)} a step"
    if against is None:
        return None, f"Too few rounds to tell {best.name} from {following.name} ({times})."
    span = f"{against.ratio:.3f} of its time, 95 % interval {against.low:.3f} to {against.high:.3f}"
    if against.word == "faster":
        return best.name, f"{best.name} is the fastest: {times} of {following.name} ({span})."
    names = " and ".join([best.name, *(entry.name for entry in ranked[1:] if _tied(best, entry))])
    if against.word == "no difference":
        return None, f"No difference between {names} ({times}; {span})."
    return None, f"No winner: {names} cannot be told apart ({times}; {span}): {_why_not(against)}."


def _why_not(against: Versus) -> str:
    if against.low <= 1 <= against.high:
        return "the interval holds 1; more rounds (--rounds) or a quieter machine narrow it"
    if against.ratio > 1:
        return "round by round it is the slower one"
    return (
        f"single rounds vary by {difference(against.noise)}, and the difference is no larger than that; measure again "
        "on a quieter machine"
    )


def _tied(best: Entry, other: Entry) -> bool:
    against = versus(best.round_us, other.round_us)
    return against is not None and against.word != "faster"
