"""Steps, the GPU work that belongs to them, and the time windows that the figures cover. Nanoseconds.

host    |-- ProfilerStep#2 --|-- ProfilerStep#3 --|
GPU  leaked|--- own work of #2 ---|  |- own work of #3 -|
        |<---------------------- window ------------------>|
           |<-------------- device window ---------------->|
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from proftrack.measures.cold import start_up_end
from proftrack.measures.intervals import Intervals, intersection, union
from proftrack.measures.links import Links
from proftrack.trace.categories import Kind
from proftrack.trace.table import NONE, Bools, EventTable, Ints

_STEP = re.compile(r"ProfilerStep#?\*?\s*([0-9]{1,15})(?![0-9])")
QUEUE_DELAY_NS = 20_000
"""Work that starts later than this after the end of its launch call had a queue ahead of it."""

MOST_WORK = 0.75
"""Without steps, all start-up is cut off, with what came before it, if this share of the GPU work lies behind: the
first pass of a program that loads its kernels as it meets them. If less lies behind it, start-up and work are mixed."""


class Steps(NamedTuple):
    """The recorded steps, in order of time."""

    number: Ints
    name: list[str]
    start: Ints
    end: Ints
    thread: Ints

    def __len__(self) -> int:
        return len(self.number)

    def containing(self, times: Ints) -> Ints:
        """For each time, the index of the step whose host interval [start, end) holds it, or NONE."""
        if not len(self.number):
            return np.full(len(times), NONE, dtype=np.int64)
        index = np.searchsorted(self.start, times, side="right") - 1
        inside = (index >= 0) & (times < self.end[np.maximum(index, 0)])
        return np.where(inside, index, NONE)


def find_steps(table: EventTable) -> Steps:
    """ProfilerStep rows of the host (old traces have them among the operators)."""
    number_of = {i: int(m[1]) for i, n in enumerate(table.names) if (m := _STEP.match(n))}
    if not number_of:
        none = np.zeros(0, dtype=np.int64)
        return Steps(none, [], none, none, none)
    rows = np.flatnonzero(
        table.of_kind(Kind.ANNOTATION, Kind.CPU_OP) & table.valid & np.isin(table.name, list(number_of))
    )
    rows = rows[np.argsort(table.ts[rows], kind="stable")]
    return Steps(
        np.array([number_of[n] for n in table.name[rows].tolist()], dtype=np.int64),
        [table.names[n] for n in table.name[rows].tolist()],
        table.ts[rows],
        table.end[rows],
        table.thread[rows].astype(np.int64),
    )


class Ownership(NamedTuple):
    """Which GPU work belongs to which step. All columns are parallel to `links.gpu`."""

    step: Ints
    """Index of the step that launched it, or NONE. Without steps, 0 for all."""
    leaked: Bools
    """Launched before the steps and still running when they were recorded."""
    usable: Bools
    """Has valid times."""
    start: Ints
    end: Ints
    """`links.end`."""


def own_work(table: EventTable, links: Links, steps: Steps) -> Ownership:
    """GPU work belongs to a step if its launch call starts inside the step's host interval, whenever it runs."""
    usable = table.valid[links.gpu]
    start, end = table.ts[links.gpu], links.end
    if not len(steps):
        none = np.zeros(len(links.gpu), dtype=bool)
        return Ownership(np.where(usable, 0, NONE), none, usable, start, end)
    launched = links.launch != NONE
    step = np.full(len(links.gpu), NONE, dtype=np.int64)
    step[launched] = steps.containing(table.ts[links.launch[launched]])
    return Ownership(step, _leaked(table, links, steps, step, usable), usable, start, end)


def _leaked(table: EventTable, links: Links, steps: Steps, step: Ints, usable: Bools) -> Bools:
    """Work not launched inside the steps that precedes the first own work on its stream.

    On a stream without own work: work launched before the first step, and work that has no launch row and starts before
    any own work.
    """
    lane, start = table.lane[links.gpu], table.ts[links.gpu]
    own = usable & (step != NONE)
    first_own = np.full(len(table.lanes) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_own, lane[own], start[own])
    without = first_own[lane] == np.iinfo(np.int64).max
    earliest = int(start[own].min()) if own.any() else int(steps.start[0])
    launched_before = (links.launch != NONE) & (table.ts[links.launch] < steps.start[0])
    lonely = without & (launched_before | ((links.launch == NONE) & (start < earliest)))
    return np.asarray(usable & (step == NONE) & ((~without & (start < first_own[lane])) | lonely))


class Windows(NamedTuple):
    """The window and the device window as [low, high)."""

    low: int
    high: int
    device_low: int
    device_high: int
    leaked: int
    """How many GPU events of earlier steps are in the trace."""
    unrecorded: bool
    """There are none, but a queue seems to have been ahead of the first own work."""
    unseen: int
    """By how much the steps may take longer than the typical time if that was none, or if it hid that launches came
    late."""
    typical: Intervals
    """The device window without outliers (see `typical`)."""
    typical_steps: int
    """How many steps that is; 0 if none were recorded."""

    @property
    def duration(self) -> int:
        """Length of the window."""
        return self.high - self.low

    @property
    def device_duration(self) -> int:
        """Length of the device window."""
        return self.device_high - self.device_low

    def during_steps(self, owned: Ownership, mask: Bools | None = None) -> Intervals:
        """Union of the GPU work (in `mask`) within the typical time."""
        return intersection(busy(owned, mask), self.typical)


def find_windows(
    table: EventTable, links: Links, steps: Steps, owned: Ownership, on_device: Ownership
) -> Windows | None:
    """The window, over the own work of all devices, and the device window, over the device that `on_device` covers.

    None if nothing in the trace has a valid time.
    """
    window = window_of(table, steps, owned)
    if window is None:
        return None
    low, high = window
    leaked = int(on_device.leaked.sum()) if len(steps) else 0
    device_low, device_high, unrecorded = low, high, False
    if len(steps):
        device_low, unrecorded = _device_start(table, links, on_device, low)
        device_high = _end_of_steps(steps, on_device)
    if len(steps) < 2:  # a step is not cut in two, a recording may be
        share = 1.0 if len(steps) else MOST_WORK
        device_low = max(device_low, _start_up_end(table, links, on_device, share, running=leaked > 0))
    whole = union(np.array([device_low], dtype=np.int64), np.array([device_high], dtype=np.int64))
    unseen = device_low - low if unrecorded else 0
    return Windows(low, high, device_low, device_high, leaked, unrecorded, unseen, whole, len(steps))


def _device_start(table: EventTable, links: Links, on_device: Ownership, low: int) -> tuple[int, bool]:
    """Where the device window begins, and whether that is behind a queue which is not in the trace."""
    here = on_device.usable & (on_device.step != NONE)
    if not here.any():
        return low, False
    first = int(np.flatnonzero(here)[np.argmin(on_device.start[here])])
    start, called = int(on_device.start[first]), int(table.end[links.launch[first]])
    if not on_device.leaked.any():
        # The wait is taken for a queue if it is most of the time up to that point.
        unrecorded = start - called > QUEUE_DELAY_NS and (start - called) * 2 >= start - low
        return (max(low, start) if unrecorded else low), unrecorded
    # Leaked work on a separate stream (a copy) runs concurrently with own work and does not delay it.
    queued = on_device.leaked & np.isin(table.lane[links.gpu], np.unique(table.lane[links.gpu[here]]))
    beside = on_device.leaked & ~queued
    device_low = max(
        low, int(on_device.end[queued].max(initial=low)), min(int(on_device.end[beside].max(initial=low)), start)
    )
    return min(device_low, int(on_device.end[here].max())), False


def _start_up_end(table: EventTable, links: Links, on_device: Ownership, share: float, *, running: bool) -> int:
    """When the start-up ahead of own work was over (all of it, if ahead of this share), at most when that work began;
    0 if there was none."""
    own = np.flatnonzero(on_device.usable & (on_device.step != NONE))
    start, launch = on_device.start[own], links.launch[own]
    launched = np.where(launch == NONE, start, table.end[launch])
    length = on_device.end[own] - start
    over = start_up_end(table, launched, length, share, running=running) if len(own) else None
    return 0 if over is None else min(over, int(start[launched >= over].min()))


def window_of(table: EventTable, steps: Steps, owned: Ownership) -> tuple[int, int] | None:
    """The first step's start, and the later of the last step's end and the end of own work.

    Without steps, the span of all operators and GPU work; without those, of the other host rows.
    """
    if len(steps):
        return int(steps.start[0]), _end_of_steps(steps, owned)
    for rows in (table.valid & (table.gpu_work | table.of_kind(Kind.CPU_OP)), table.valid & table.host):
        if rows.any():
            last = int(table.end[rows & ~table.gpu_work].max(initial=0))
            return int(table.ts[rows].min()), max(last, int(owned.end[owned.usable].max(initial=0)))
    return None


def _end_of_steps(steps: Steps, owned: Ownership) -> int:
    own = owned.usable & (owned.step != NONE)
    return max(int(steps.end.max()), int(owned.end[own].max(initial=0)))


def busy(owned: Ownership, mask: Bools | None = None) -> Intervals:
    """Union of the GPU work (in `mask`) with valid times."""
    keep = owned.usable if mask is None else owned.usable & mask
    return union(owned.start[keep], owned.end[keep])
