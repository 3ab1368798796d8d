"""Where a series of runs changed, and by how much.

A penalised likelihood proposes, permutations decide:

1. Optimal partitioning (Jackson et al. 2005; PELT, Killick, Fearnhead & Eckley 2012, is its fast form) cuts the series
   of logarithms into stretches of one level each. The noise is estimated from differences of neighbours, so that the
   changes themselves do not count; the penalty per cut is set so that normal noise is cut in 2 of 100 series.
2. Each cut must separate its two stretches better than nearly all best cuts of shuffled residuals do.
3. All cuts together must explain more than nearly all best sets of as many cuts of the shuffled series do. Both sides
   of the clearest cut are then judged by themselves, as long as they are long enough: one real change does not prove
   another.

A long series is processed in overlapping windows, so that the time is linear in the runs; the chance of a false alarm
is then 2 % in WINDOW runs.

The first step alone finds short stretches and a regression that was later fixed, but raises false alarms in up to a
quarter of the series with heavy-tailed or bimodal noise, which step times have. Permutations assume only that the noise
has no order, but alone they miss a change that was reverted. benchmarks/changepoints.py compares both, e-divisive
(Matteson & James 2014) and binary segmentation on known series; docs/compare.md has the table.

None of them can handle noise that drifts (a machine that warms up over days): drift is a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from proftrack.compare.results import Interval
from proftrack.compare.timing import quantile
from proftrack.record.timing import NORMAL

FEWEST_RUNS = 8
SHORTEST = 2
"""Runs in a stretch: a single run is no evidence."""
LEAST_NOISE = 1e-4
"""In logarithms: if measured times agree better than this, it is by chance."""
CUT_ALPHA = 0.025
WHOLE_ALPHAS = ((16, 0.025), (math.inf, 0.01))
"""(runs, alpha): the allowed chance of a false alarm by shuffles, for series shorter than `runs`; short series have too
few arrangements for a stricter test."""
SHUFFLES, SHUFFLES_LONG, LONG = 399, 199, 300
WINDOW = 400
APART = 50
"""Fewest runs of a part that is judged by itself; a shorter part has too few arrangements."""
Floats = npt.NDArray[np.float64]


class ChangePoint(Struct, frozen=True, kw_only=True):
    """A change between two runs of a series."""

    index: int
    """Position of the first run after it."""
    before: float
    """Typical value of the stretch before: the geometric mean of a time, or the count itself."""
    after: float
    ratio: float | None
    """after / before, None if before is 0."""
    interval: Interval | None
    """95 % interval of the ratio; None for a count, which is exact."""


def find(values: Sequence[float]) -> list[ChangePoint]:
    """Changes of a measured, positive value (a time) over ordered runs; none in fewer than eight runs."""
    if len(values) < FEWEST_RUNS or min(values) <= 0:
        return []
    logs = np.log(np.array(values, dtype=float))
    bounds = stretches(logs)
    degrees = max(len(logs) - (len(bounds) - 1), 1)
    deviation = math.sqrt(float((_residuals(logs, bounds) ** 2).sum()) / degrees)
    return [_describe(logs, bounds, i, deviation, degrees) for i in range(1, len(bounds) - 1)]


def find_exact(values: Sequence[float]) -> list[ChangePoint]:
    """All changes of a count: a count has no noise."""
    return [
        ChangePoint(index=i, before=a, after=b, ratio=b / a if a else None, interval=None)
        for i, (a, b) in enumerate(pairwise(values), start=1)
        if a != b
    ]


def stretches(series: Floats) -> list[int]:
    """Bounds of the stretches of one level: 0, the first position of each further stretch, the length."""
    bounds, low = [0], 0
    while len(series) - low > WINDOW:
        cuts = [low + cut for cut in _stretches(series[low : low + WINDOW])[1:-1]]
        # A cut near the window's end is judged in the next window, together with what follows it.
        sure = [cut for cut in cuts if cut < low + WINDOW * 3 // 4]
        bounds += sure
        low = sure[-1] if sure else low + WINDOW // 2
    bounds += [low + cut for cut in _stretches(series[low:])[1:-1]]
    return _without_weak_cuts(series, [*bounds, len(series)])


def _without_weak_cuts(series: Floats, bounds: list[int]) -> list[int]:
    """Drop cuts that are insignificant next to their two full stretches, of which a window saw only a part.

    The limit is the expected largest of n normal deviates, sqrt(2 ln n).
    """
    while len(series) > WINDOW and len(bounds) > 2:
        noise = math.sqrt(float((_residuals(series, bounds) ** 2).mean()))
        strengths = [_strength(series, bounds, i) for i in range(1, len(bounds) - 1)]
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= math.sqrt(2 * math.log(len(series))) * max(noise, LEAST_NOISE):
            break
        bounds = bounds[: weakest + 1] + bounds[weakest + 2 :]
    return bounds


def _stretches(series: Floats) -> list[int]:
    """`stretches` of one window; both sides of the clearest cut are judged by themselves if they are long enough."""
    bounds = _judged(series)
    if len(bounds) <= 2:
        return bounds
    clearest = max(range(1, len(bounds) - 1), key=lambda i: _strength(series, bounds, i))
    cut = bounds[clearest]
    before, after = bounds[: clearest + 1], bounds[clearest:]
    if cut >= APART:
        before = _stretches(series[:cut])
    if len(series) - cut >= APART:
        after = [cut + bound for bound in _stretches(series[cut:])]
    return before + after[1:]


def _strength(series: Floats, bounds: list[int], i: int) -> float:
    """How far apart the levels on both sides of a cut are, weighted by how certain their lengths make them."""
    old, new = series[bounds[i - 1] : bounds[i]], series[bounds[i] : bounds[i + 1]]
    return float(abs(new.mean() - old.mean())) * math.sqrt(len(old) * len(new) / (len(old) + len(new)))


def _judged(series: Floats) -> list[int]:
    """The proposed cuts that permutation tests confirm."""
    generator = np.random.default_rng(0)
    shuffles = SHUFFLES if len(series) < LONG else SHUFFLES_LONG
    bounds = proposed(series)
    while len(bounds) > 2:
        chances = [_cut_by_chance(series, bounds, i, generator, shuffles) for i in range(1, len(bounds) - 1)]
        weakest = int(np.argmax(chances))
        if chances[weakest] <= CUT_ALPHA:
            break
        bounds = _settled(series, bounds[: weakest + 1] + bounds[weakest + 2 :])
    if len(bounds) > 2:
        limit = next(alpha for runs, alpha in WHOLE_ALPHAS if len(series) < runs)
        if _whole_by_chance(series, bounds, generator, shuffles) > limit:
            return [0, len(series)]
    return bounds


# ---- proposing -------------------------------------------------------------------------------------------------------


def penalty(runs: int) -> float:
    """How much each further stretch must explain, in squared noise; fitted to simulated normal noise, see the top."""
    return 11 + 115 / runs


def proposed(series: Floats) -> list[int]:
    """Bounds of the best partition; repeated with the noise estimated without its jumps, as long as that finds more."""
    bounds = [0, len(series)]
    while True:
        jumps = np.diff(series)
        inside = np.delete(jumps, np.array(bounds[1:-1], dtype=np.int64) - 1)
        noise = NORMAL * float(np.median(np.abs(inside))) / math.sqrt(2)
        further = partition(series / max(noise, LEAST_NOISE), penalty(len(series)))
        if len(further) <= len(bounds):
            return bounds
        bounds = further


def partition(series: Floats, price: float) -> list[int]:
    """Bounds of the partition that explains the most squares at `price` per stretch (dynamic programming, exact)."""
    count = len(series)
    sums = np.concatenate([[0.0], np.cumsum(series - series.mean())])
    best, start = np.full(count + 1, -np.inf), np.zeros(count + 1, dtype=np.int64)
    best[0] = 0.0
    for end in range(SHORTEST, count + 1):
        begin = np.arange(end - SHORTEST + 1)
        value = best[begin] + (sums[end] - sums[begin]) ** 2 / (end - begin) - price
        start[end] = int(value.argmax())
        best[end] = value[start[end]]
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(int(start[bounds[-1]]))
    return bounds[::-1]


# ---- deciding --------------------------------------------------------------------------------------------------------


def _cut_by_chance(series: Floats, bounds: list[int], i: int, generator: np.random.Generator, shuffles: int) -> float:
    """How often shuffled residuals, without the cut at `bounds[i]`, can be cut there as well as the series is."""
    low, high = bounds[i - 1], bounds[i + 1]
    others = bounds[:i] + bounds[i + 1 :]
    residuals = _residuals(series, others)
    strength = _best_cut(residuals[None, low:high])[0][0]
    shuffled = generator.permuted(np.tile(_spread(residuals, others), (shuffles, 1)), axis=1)
    return _share(_best_cut(shuffled[:, low:high])[0], float(strength))


def _whole_by_chance(series: Floats, bounds: list[int], generator: np.random.Generator, shuffles: int) -> float:
    """How often the same number of best cuts of the shuffled series explains as much as these cuts do."""
    centred = series - series.mean()
    explained = sum(float(centred[low:high].sum()) ** 2 / (high - low) for low, high in pairwise(bounds))
    shuffled = generator.permuted(np.tile(centred, (shuffles, 1)), axis=1)
    return _share(_most_explained(shuffled, len(bounds) - 2), explained)


def _share(shuffled: Floats, observed: float) -> float:
    return (1 + int((shuffled >= observed * (1 - 1e-9)).sum())) / (len(shuffled) + 1)


def _best_cut(rows: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """For each row the largest standardised difference of the means left and right of a cut, and the cut's position."""
    length = rows.shape[1]
    left = np.arange(SHORTEST, length - SHORTEST + 1)
    sums = np.cumsum(rows, axis=1)
    difference = sums[:, left - 1] / left - (sums[:, -1:] - sums[:, left - 1]) / (length - left)
    strength = np.abs(difference) * np.sqrt(left * (length - left) / length)
    index = strength.argmax(axis=1)
    return strength[np.arange(len(rows)), index], left[index]


def _most_explained(rows: Floats, cuts: int) -> Floats:
    """For each row how much the best `cuts` cuts explain of its squares (dynamic programming over all rows at once)."""
    count = rows.shape[1]
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    best = sums**2 / np.maximum(np.arange(count + 1), 1)
    for cut in range(1, cuts + 1):
        further = np.full_like(best, -np.inf)
        for end in range((cut + 1) * SHORTEST, count + 1):
            begin = np.arange(cut * SHORTEST, end - SHORTEST + 1)
            value = best[:, begin] + (sums[:, end : end + 1] - sums[:, begin]) ** 2 / (end - begin)
            further[:, end] = value.max(axis=1)
        best = further
    return np.asarray(best[:, count])


def _residuals(series: Floats, bounds: list[int]) -> Floats:
    """The series minus the mean of each stretch."""
    out = series.astype(float)
    for low, high in pairwise(bounds):
        out[low:high] -= out[low:high].mean()
    return out


def _spread(residuals: Floats, bounds: list[int]) -> Floats:
    """Residuals scaled up to the width of the noise: fitting the means made them narrower."""
    out: Floats = residuals.copy()
    total = len(residuals)
    for low, high in pairwise(bounds):
        length = high - low
        out[low:high] *= math.sqrt(length / max(length - 1, 1) * (total - 1) / total)
    return out


def _settled(series: Floats, bounds: list[int]) -> list[int]:
    """Each cut moved to where it separates its own two stretches best."""
    out = list(bounds)
    for i in range(1, len(out) - 1):
        low, high = out[i - 1], out[i + 1]
        out[i] = low + int(_best_cut(series[None, low:high])[1][0])
    return out


def _describe(logs: Floats, bounds: list[int], i: int, deviation: float, degrees: int) -> ChangePoint:
    """The change at `bounds[i]`, with Student's interval of the ratio."""
    old, new = logs[bounds[i - 1] : bounds[i]], logs[bounds[i] : bounds[i + 1]]
    size = float(new.mean() - old.mean())
    reach = quantile(degrees) * deviation * math.sqrt(1 / len(old) + 1 / len(new))
    return ChangePoint(
        index=bounds[i],
        before=math.exp(float(old.mean())),
        after=math.exp(float(new.mean())),
        ratio=math.exp(size),
        interval=Interval(low=math.exp(size - reach), high=math.exp(size + reach)),
    )
