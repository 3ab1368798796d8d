"""How far T and B may be off, from the samples they are made of."""

from __future__ import annotations

import numpy as np

from proftrack.record.figures import Step
from proftrack.record.timing import Timing

_RESAMPLES = 400
_FEWEST = 3


def time_interval(timing: Timing | None) -> tuple[float, float] | None:
    """95 % interval of T: a percentile bootstrap of the median over T's samples (Efron & Tibshirani 1993, ch. 13)."""
    if timing is None:
        return None
    samples = np.array(timing.chosen.samples_us)
    if len(samples) < _FEWEST:
        return None
    draws = np.random.default_rng(0).choice(samples, size=(_RESAMPLES, len(samples)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def busy_error(steps: list[Step]) -> float:
    """Relative half-width of B: two standard errors of the steps' own GPU time, 0 where there are too few."""
    own = np.array([s.self_cuda_time_us for s in steps if s.self_cuda_time_us])
    if len(own) < _FEWEST:
        return 0.0
    return 2 * float(own.std(ddof=1)) / float(np.sqrt(len(own))) / float(own.mean())
