"""The parts of a report that need the events themselves, for the cycle with the busiest step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.idle import find_gaps
from proftrack.measures.view import View, view
from proftrack.measures.window import find_windows
from proftrack.record.figures import Kernel
from proftrack.report.chains import Chain, Wait, chains_of_cycles, waits
from proftrack.report.queue import Queue, queue
from proftrack.report.timeline.lanes import Lanes, lanes
from proftrack.trace.table import EventTable


class EventDetails(NamedTuple):
    """One cycle's timeline, launches and waits."""

    lanes: Lanes | None
    queue: Queue | None
    chains: list[Chain]
    waits: list[Wait]
    cycle: int
    """Index of the cycle; 0 if there is only one."""
    cycles: int


def details(tables: list[EventTable], kernels: list[Kernel]) -> EventDetails | None:
    """Details of the cycle with the busiest step; None if no event has a usable time."""
    views = [view(table) for table in tables]
    if not views:
        return None
    cycle = int(np.argmax([_most_work(seen) for seen in views]))
    seen = views[cycle]
    windows = find_windows(seen.table, seen.links, seen.steps, seen.owned, seen.on_device)
    if windows is None:
        return None
    gaps = find_gaps(seen, windows) if len(seen.links.gpu) else None
    return EventDetails(
        lanes=lanes(seen, windows, gaps, kernels),
        queue=queue(seen, windows),
        chains=chains_of_cycles([seen], kernels),
        waits=waits(seen),
        cycle=cycle,
        cycles=len(tables),
    )


def _most_work(seen: View) -> int:
    """Nanoseconds of own GPU work in the busiest step."""
    owned = seen.on_device
    own = owned.usable & (owned.step >= 0)
    if not own.any():
        return 0
    return int(np.bincount(owned.step[own], weights=(owned.end - owned.start)[own]).max())
