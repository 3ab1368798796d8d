"""How a cost grows: what a test may say of speed, since a figure in seconds is one of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(small: Callable[[], object], large: Callable[[], object]) -> float:
    """How many times the processor time of `small` the call `large` takes: the best of three each, in turns.

    Time of this thread alone: what else runs on the machine counts as little as can be.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        for call, taken in zip((small, large), times, strict=True):
            began = time.thread_time()
            call()
            taken.append(time.thread_time() - began)
    return min(times[1]) / min(times[0])
