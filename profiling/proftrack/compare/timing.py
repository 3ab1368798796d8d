"""Does a time differ? A ratio with its interval, a noise floor, and the word that both allow.

Within a process, T is the median over blocks, and the interval of the ratio of two medians is a percentile bootstrap
over the blocks (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13). It is computed for the reported
figure itself and assumes no distribution; block times are skewed (the first block runs at higher clocks).

That interval says nothing about another process. matmul_add n=64 took 29.2, 20.3 and 19.2 us in three fresh processes
on one H200, each with blocks within 3 % of each other. So a floor for the difference between processes is applied on
top (Georges, Buytaert & Eeckhout, OOPSLA 2007, and Kalibera & Jones, ISMM 2013, on why processes are the unit of
repetition): measured from repeats if there are any, given by the caller, or assumed. The interval that decides reaches
as far as the wider of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from proftrack.compare.results import Floor, Interval, TimeChange, Word

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
FEWEST_SAMPLES = 3
"""With fewer in a run, its time is one figure without a spread, and nothing is claimed."""
BOOTSTRAP_FROM = 5
"""With fewer, the interval spans the extremes: a bootstrap of three or four values is too narrow."""
SMALL_ENOUGH = 0.1
"""A measured floor up to this allows the word `no difference`; above it, too large a change could go unnoticed."""


_INFLATED = (
    "Profiling slows the host down by a factor that a trace does not reveal; give both step times as measured without "
    "the profiler."
)


class Samples:
    """One time of one side: its value, the samples behind it, and the number of processes.

    `mean`: the value is the samples' mean (steps of a trace), not their median (blocks).
    """

    def __init__(self, value: float, samples: Sequence[float] = (), runs: int = 1, *, mean: bool = False) -> None:
        self.value, self.runs, self.mean = value, max(runs, 1), mean
        self.samples = np.array([s for s in samples if s > 0], dtype=float)

    def centre(self, drawn: Floats) -> Floats:
        """The same statistic as the value, of each row."""
        return np.asarray(drawn.mean(axis=-1) if self.mean else np.median(drawn, axis=-1), dtype=float)


def compare_times(
    metric: str,
    before: Samples,
    after: Samples,
    floor: Floor,
    *,
    same_data: bool = False,
    inflated: tuple[float, float] = (1.0, 1.0),
) -> TimeChange:
    """The ratio after / before with its interval, and whether it counts as a difference.

    improved, regressed   the interval excludes 1
    no difference         it includes 1, and the floor was measured (or given) and is small enough
    inconclusive          otherwise, and if a run has fewer than three samples and the floor is assumed
    `same_data`: both sides are the same measurement. `inflated`: by what factor each time may be too long.
    """
    ratio = after.value / before.value
    within = within_interval(before, after)
    interval = _widened(ratio, within, floor, before.runs, after.runs)
    word, reason = _word(ratio, within, interval, floor)
    interval = Interval(low=interval.low / inflated[1], high=interval.high * inflated[0])
    if word in ("improved", "regressed") and interval.holds(1.0):
        word, reason = "inconclusive", _INFLATED
    if same_data:
        interval, word, reason = Interval(low=1.0, high=1.0), "no difference", "Both are the same measurement."
    return TimeChange(
        metric=metric,
        before_us=before.value,
        after_us=after.value,
        ratio=ratio,
        interval=interval,
        within=within,
        floor=floor,
        word=word,
        reason=reason,
        same_data=same_data,
    )


def within_interval(before: Samples, after: Samples) -> Interval | None:
    """95 % interval of the ratio from the samples within the two processes; None with fewer than three of them.

    It is centred on the ratio of the two values: a trace's step time comes from its device window; the steps' times on
    the host only show its spread.
    """
    a, b = before.samples, after.samples
    if min(len(a), len(b)) < FEWEST_SAMPLES:
        return None
    centre = after.value / before.value
    if min(len(a), len(b)) < BOOTSTRAP_FROM:
        low, high = b.min() / a.max(), b.max() / a.min()
    else:
        generator = np.random.default_rng(0)
        draws = _resampled(after, generator) / _resampled(before, generator) * centre
        low, high = np.percentile(draws, [2.5, 97.5])
    return Interval(low=min(float(low), centre), high=max(float(high), centre))


def _resampled(side: Samples, generator: np.random.Generator) -> Floats:
    """The values of resamples, relative to the value of the samples themselves."""
    drawn = generator.choice(side.samples, size=(RESAMPLES, len(side.samples)))
    return side.centre(drawn) / side.centre(side.samples)


def _widened(ratio: float, within: Interval | None, floor: Floor, runs_before: int, runs_after: int) -> Interval:
    """The interval as far as the samples or the floor reach. The floor is for one process on each side; more lower it:
    the variance of the middle one of n is about 1.5 / n of that of one (exactly 1 for one).
    """
    share = math.sqrt(sum(1.5 / n if n > 1 else 1.0 for n in (runs_before, runs_after)) / 2)
    reach = (1 + floor.fraction) ** share
    low, high = ratio / reach, ratio * reach
    return Interval(low=min(low, within.low), high=max(high, within.high)) if within else Interval(low=low, high=high)


def _word(ratio: float, within: Interval | None, interval: Interval, floor: Floor) -> tuple[Word, str]:
    if within is None and floor.source == "assumed":
        return "inconclusive", f"Too few samples: at least {FEWEST_SAMPLES} blocks (or steps) in each run are needed."
    if not interval.holds(1.0):
        word: Word = "improved" if ratio < 1 else "regressed"
        return word, f"The difference is larger than the noise: {floor.text}"
    if floor.source != "assumed" and floor.fraction <= SMALL_ENOUGH:
        return "no difference", f"Within the noise: {floor.text}"
    if within is not None and not within.holds(1.0):
        return "inconclusive", f"The two processes differ, but two processes of the same code may too: {floor.text}"
    return "inconclusive", f"A difference this small cannot be distinguished from noise: {floor.text}"


def quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(degrees, 0.975))
