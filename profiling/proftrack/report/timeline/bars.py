"""The timeline's marks as bars for a picture of a given width; marks narrower than a pixel are merged into columns.

A column is as high as the share of its time that is filled: a row of short kernels with long gaps must not look full.
The script of report.html does the same at each zoom.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.report.timeline.lanes import STYLES, Lanes
from proftrack.report.timeline.thinning import Marks
from proftrack.trace.table import NONE, Bools, Ints

Floats = npt.NDArray[np.float64]
_NARROW_PX = 2


class Bars(NamedTuple):
    """The bars of one picture. Times in microseconds from its start; heights as a share of the row's height."""

    row: Ints
    left_us: Floats
    width_us: Floats
    base: Floats
    height: Floats
    style: Ints
    name: Ints
    """Index into the names; NONE for columns and for marks of several events."""


def bars(lanes: Lanes, low: int, high: int, pixels: int) -> Bars:
    """The marks within [low, high) as bars."""
    marks = lanes.marks
    seen = marks.take((marks.start < high) & (marks.start + marks.dur > low))
    filled = np.where((seen.events > 1) & (seen.self_ns >= 0), seen.self_ns, seen.dur)
    per_px = max((high - low) / pixels, 1e-9)
    narrow = seen.dur < _NARROW_PX * per_px
    wide = _wide(seen, filled, low, high, ~narrow)
    columns = _columns(seen.take(narrow), filled[narrow], low, per_px)
    return Bars(*(np.concatenate(pair) for pair in zip(wide, columns, strict=True)))


def _wide(seen: Marks, filled: Ints, low: int, high: int, keep: Bools) -> Bars:
    marks = seen.take(keep)
    start, end = np.maximum(marks.start, low), np.minimum(marks.start + marks.dur, high)
    height = np.clip(filled[keep] / np.maximum(marks.dur, 1), 0.1, 1.0)
    return Bars(
        marks.row,
        (start - low) / 1000,
        (end - start) / 1000,
        np.zeros(len(start)),
        height,
        marks.style,
        marks.name,
    )


def _columns(marks: Marks, filled: Ints, low: int, per_px: float) -> Bars:
    """One bar for each style in a column, stacked."""
    place = np.maximum((marks.start - low) / per_px, 0).astype(np.int64)
    key = (marks.row * (int(place.max(initial=0)) + 1) + place) * len(STYLES) + marks.style
    unique, group = np.unique(key, return_inverse=True)
    share = np.bincount(group, weights=filled, minlength=len(unique)) / per_px
    column, style = np.divmod(unique, len(STYLES))
    row, at = np.divmod(column, int(place.max(initial=0)) + 1)
    height = np.clip(share, 0.06, 1.0)
    before = np.concatenate([[0.0], np.cumsum(height)])
    first = np.searchsorted(column, column, side="left")
    base = before[np.arange(len(column))] - before[first]
    left = at * per_px / 1000
    width = np.full(len(left), per_px / 1000)
    height = np.minimum(height, np.maximum(1.0 - base, 0.0))
    return Bars(row, left, width, np.minimum(base, 1.0), height, style, np.full(len(left), NONE, dtype=np.int64))
