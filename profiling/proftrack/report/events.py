"""The parts of a report that need the events themselves, for the cycle with the busiest typical step."""

from __future__ import annotations

from typing import NamedTuple

from proftrack.measures.idle import find_gaps
from proftrack.measures.view import View, view
from proftrack.measures.window import Windows, find_windows
from proftrack.record.figures import Kernel
from proftrack.report.chains import Chain, Wait, chains_of_cycles, waits
from proftrack.report.queue import Queue, queue
from proftrack.report.timeline.lanes import Busiest, Lanes, busiest, lanes
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


class _Cycle(NamedTuple):
    number: int
    seen: View
    windows: Windows
    busiest: Busiest


def details(tables: list[EventTable], kernels: list[Kernel]) -> EventDetails | None:
    """Details of the cycle with the busiest typical step; None if no event has a usable time."""
    cycles = [cycle for number, table in enumerate(tables) if (cycle := _cycle(number, table)) is not None]
    if not cycles:
        return None
    number, seen, windows, step = max(cycles, key=lambda cycle: cycle.busiest.work)
    gaps = find_gaps(seen, windows) if len(seen.links.gpu) else None
    return EventDetails(
        lanes=lanes(seen, windows, step.step, gaps, kernels),
        queue=queue(seen, windows),
        chains=chains_of_cycles([seen], kernels),
        waits=waits(seen),
        cycle=number,
        cycles=len(tables),
    )


def _cycle(number: int, table: EventTable) -> _Cycle | None:
    seen = view(table)
    windows = find_windows(seen.table, seen.links, seen.steps, seen.owned, seen.on_device)
    return None if windows is None else _Cycle(number, seen, windows, busiest(seen, windows))
