"""How far apart the times of two fresh processes with the same code can be: measured, given or assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from proftrack.compare.changepoints import FEWEST_RUNS, stretches
from proftrack.compare.results import Floor
from proftrack.compare.timing import FEWEST_SAMPLES, quantile
from proftrack.record.timing import StepTime
from proftrack.text import difference

ASSUMED_GPU = 0.03
ASSUMED_HOST = 0.5
"""The floors if nothing is known, as logarithms: of a step's GPU time, and of the rest of the step. On an H200, warm
steps that fill the GPU agreed within 1 % between processes; the host time of the same code differed by a factor of
1.6."""
ASSUMED_BUSY = 0.1
"""The same for B, which comes from a few recorded steps after a pause: on the same H200, at its power limit, kernels
took 213 to 227 us per step in six processes."""
LEAST = 0.005
"""The lowest floor: a handful of runs can agree better by chance."""


def assumed_floor(busy_fraction: float | None, blocks: Sequence[Sequence[float]] = ()) -> Floor:
    """The assumed floor of a step without known repeats: its GPU time is steady, the rest is not.

    `busy_fraction`: B / T, None on a device without GPU lane. `blocks`: the block times of each process; two processes
    are not assumed to agree better than the blocks of one process do (their 10th and 90th percentiles).
    """
    u = min(max(busy_fraction or 0.0, 0.0), 1.0)
    fraction = math.expm1(ASSUMED_GPU * u + ASSUMED_HOST * (1 - u))
    why = "no repeats are known"
    within = max((_spread(times) for times in blocks if len(times)), default=0.0)
    if within > fraction:
        fraction, why = within, f"{why}, and blocks of one process differ by as much"
    text = f"two fresh processes are assumed to differ by up to {difference(fraction)} ({why})."
    return Floor(fraction=fraction, source="assumed", text=text)


def assumed_busy_floor() -> Floor:
    """The assumed floor of GPU busy time without known repeats."""
    fraction = math.expm1(ASSUMED_BUSY)
    by = difference(fraction)
    text = f"the GPU time of a few recorded steps is assumed to differ by up to {by} (no repeats are known)."
    return Floor(fraction=fraction, source="assumed", text=text)


def own_floor(timed: StepTime | None, repeats: Sequence[float] = ()) -> Floor | None:
    """How noisy one side is by itself: from the samples of its process or, if there are three and they differ more,
    from runs of its code in fresh processes. None if neither is known.
    """
    floors = [floor for floor in (measured_floor([repeats]), _of_samples(timed)) if floor is not None]
    return max(floors, key=lambda floor: floor.fraction, default=None)


def _of_samples(timed: StepTime | None) -> Floor | None:
    if timed is None or len(timed.samples_us) < FEWEST_SAMPLES:
        return None
    fraction = _spread(timed.samples_us)
    text = f"the timed {timed.noun}s of one process differ by {difference(fraction)}."
    return Floor(fraction=fraction, source="measured", runs=1, text=text)


def _spread(times: Sequence[float]) -> float:
    low, high = np.percentile(times, [10, 90])
    return float(high / low - 1) if low > 0 else 0.0


def given_floor(percent: float) -> Floor:
    """The floor given by the caller: two processes of the same code differ by up to `percent`."""
    text = f"two fresh processes may differ by {percent:g} % (given)."
    return Floor(fraction=percent / 100, source="given", text=text)


def measured_floor(groups: Sequence[Sequence[float]], series: Sequence[float] = ()) -> Floor | None:
    """The floor measured from runs in fresh processes; None if there are too few.

    `groups`: values of one metric, one group for each version of the code; needs three runs of one version, or as many
    in pairs. `series`: values of comparable runs in the order of their commits, at least eight; used if the groups are
    too small. Their noise is the residual around the levels between changes, so that real changes are not noise.
    """
    logs = [np.log(np.array(group, dtype=float)) for group in groups if len(group) > 1 and min(group) > 0]
    degrees = sum(len(group) - 1 for group in logs)
    if degrees >= 2:
        runs = sum(len(group) for group in logs)
        return _floor(logs, degrees, runs, f"by {runs} runs of the same code in fresh processes")
    values = [value for value in series if value > 0]
    if len(values) < FEWEST_RUNS:
        return None
    logs_in_order = np.log(np.array(values))
    levels = [logs_in_order[low:high] for low, high in pairwise(stretches(logs_in_order))]
    return _floor(levels, len(values) - len(levels), len(values), f"by {len(values)} runs of successive commits")


def _floor(groups: Sequence[np.ndarray], degrees: int, runs: int, how: str) -> Floor:
    """The floor of the difference of two runs: Student's quantile times the pooled deviation times the root of two."""
    deviation = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / degrees)
    fraction = max(math.expm1(quantile(degrees) * deviation * math.sqrt(2)), LEAST)
    return Floor(
        fraction=fraction,
        source="measured",
        runs=runs,
        text=f"two fresh processes may differ by {difference(fraction)} ({how}).",
    )
