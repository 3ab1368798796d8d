"""Fewer marks than events, and visibly so: neighbouring short events become one mark that shows their number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.trace.table import NONE, Bools, Ints

_FINEST = 4000
"""Number of bins that thinning starts with: finer than a wide screen shows."""


class Marks(NamedTuple):
    """The marks to draw, ordered by row, then start. Times in nanoseconds."""

    row: Ints
    """Row of the picture."""
    start: Ints
    dur: Ints
    style: Ints
    """Index into lanes.STYLES."""
    name: Ints
    """Index into the event table's names; NONE for gaps and for marks of several events."""
    self_ns: Ints
    """Self time of a host row; for several events, the sum of their durations; NONE for GPU work."""
    own: Bools
    """False for GPU work of other steps."""
    busy_permille: Ints
    """Share of a wait in which the GPU was busy, in thousandths; NONE for other marks."""
    event: Ints
    """Row in the event table; NONE for gaps and for marks of several events."""
    events: Ints
    """How many events the mark stands for."""

    def take(self, rows: Ints | Bools) -> Marks:
        """These marks only."""
        return Marks._make(column[rows] for column in self)


class Thinned(NamedTuple):
    """The reduced marks, and how they were reduced."""

    marks: Marks
    place: Ints
    """For each original mark, the index of the mark that replaces it."""
    resolution_ns: int
    """Events shorter than this were merged with their neighbours; 0 if none were."""


def thin(marks: Marks, budget: int, keep: Bools, span: int) -> Thinned:
    """At most about `budget` marks; marks in `keep` stay as they are."""
    if len(marks.row) <= budget:
        return Thinned(marks, np.arange(len(marks.row)), 0)
    resolution = max(span // _FINEST, 1)
    while True:
        group = _groups(marks, keep, resolution)
        if group.max() < budget or resolution > span:
            return _joined(marks, group, resolution)
        resolution *= 2


def _groups(marks: Marks, keep: Bools, resolution: int) -> Ints:
    """A group number for each mark; marks to be merged share one: short, close in time, same row and style."""
    short = ~keep & (marks.dur < resolution)
    bucket = np.where(short, marks.start // resolution - marks.start.min() // resolution, 0)
    place = (marks.row * 64 + marks.style) * (bucket.max() + 1) + bucket
    key = np.where(short, place, place.max() + 1 + np.arange(len(short)))
    return np.unique(key, return_inverse=True)[1].astype(np.int64)


def _joined(marks: Marks, group: Ints, resolution: int) -> Thinned:
    count = np.bincount(group)
    first = np.zeros(len(count), dtype=np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    several = count > 1
    start = np.full(len(count), np.iinfo(np.int64).max)
    end = np.full(len(count), np.iinfo(np.int64).min)
    np.minimum.at(start, group, marks.start)
    np.maximum.at(end, group, marks.start + marks.dur)
    total = np.zeros(len(count), dtype=np.int64)
    np.add.at(total, group, marks.dur)
    out = marks.take(first)._replace(start=start, dur=end - start, events=count)
    out = out._replace(
        name=np.where(several, NONE, out.name),
        event=np.where(several, NONE, out.event),
        self_ns=np.where(several, total, out.self_ns),
        busy_permille=np.where(several, NONE, out.busy_permille),
    )
    order = np.lexsort((out.start, out.row))
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return Thinned(out.take(order), position[group], resolution)
