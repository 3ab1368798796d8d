"""Launch delay and queue depth over the window: does the host run ahead of the GPU, or does the GPU wait for it?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.trace.table import NONE, Ints

BINS = 240

Floats = npt.NDArray[np.float64]


class Queue(NamedTuple):
    """Figures in bins of equal width over the window; NaN where nothing started."""

    low: int
    high: int
    """Nanoseconds on the event table's clock."""
    delay_median_us: Floats
    delay_max_us: Floats
    depth_max: Floats
    """The most launched but not yet started work on one stream at any moment of the bin."""


def queue(seen: View, windows: Windows) -> Queue | None:
    """Delay and depth over the window; None if no GPU work could be matched with its launch."""
    joined = np.flatnonzero((seen.links.launch != NONE) & seen.owned.usable)
    if not len(joined) or not windows.duration:
        return None
    called = seen.table.end[seen.links.launch[joined]]
    started = np.maximum(seen.owned.start[joined], called)
    delay = (started - called) / 1000
    place = _bins(started, windows)
    inside = (started >= windows.low) & (started <= windows.high)
    median, largest = _median_and_max(place[inside], delay[inside])
    lane = seen.table.lane[seen.links.gpu[joined]].astype(np.int64)
    return Queue(windows.low, windows.high, median, largest, _depth(lane, called, started, windows))


def _bins(times: Ints, windows: Windows) -> Ints:
    return np.asarray(np.clip((times - windows.low) * BINS // windows.duration, 0, BINS - 1), dtype=np.int64)


def _median_and_max(place: Ints, values: Floats) -> tuple[Floats, Floats]:
    median, largest = np.full(BINS, np.nan), np.full(BINS, np.nan)
    order = np.lexsort((values, place))
    place, values = place[order], values[order]
    bins, first, count = np.unique(place, return_index=True, return_counts=True)
    median[bins] = (values[first + (count - 1) // 2] + values[first + count // 2]) / 2
    largest[bins] = values[first + count - 1]
    return median, largest


def _depth(lane: Ints, called: Ints, started: Ints, windows: Windows) -> Floats:
    """The depth of the deepest stream's queue in each bin; a queue keeps its depth until it changes."""
    depth = np.zeros(BINS)
    for stream in np.unique(lane).tolist():
        mine = lane == stream
        times = np.concatenate([called[mine], started[mine]])
        change = np.repeat([1, -1], int(mine.sum()))
        order = np.lexsort((change, times))  # starts before calls at the same instant: a start at once is no queue
        times, level = times[order], np.cumsum(change[order])
        inside = times <= windows.high
        times, level = np.maximum(times[inside], windows.low), level[inside]
        deepest = np.full(BINS, -1.0)
        place = _bins(times, windows)
        np.maximum.at(deepest, place, level)
        depth = np.maximum(depth, _carried(deepest, place, level))
    return depth


def _carried(deepest: Floats, place: Ints, level: Ints) -> Floats:
    """Each bin's largest level, at least the level at which the previous bin ended."""
    last = np.zeros(BINS)
    changed = np.zeros(BINS, dtype=bool)
    last[place] = level  # for repeated indices, numpy keeps the last value
    changed[place] = True
    latest = np.maximum.accumulate(np.where(changed, np.arange(BINS), -1))
    ended = np.where(latest >= 0, last[np.maximum(latest, 0)], 0)
    before = np.concatenate([[0], ended[:-1]])
    return np.asarray(np.maximum(deepest, before))
