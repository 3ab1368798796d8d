"""How far off T and B may be, estimated from their samples."""

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
    """Relative half-width of B: two standard errors of the typical steps' GPU time; 0 if there are too few."""
    own = np.array([s.self_cuda_time_us for s in steps if s.self_cuda_time_us and s.outlier is None])
    if len(own) < _FEWEST:
        return 0.0
    return 2 * float(own.std(ddof=1)) / float(np.sqrt(len(own))) / float(own.mean())
