"""One trace with its rows nested, joined and assigned: the basis of every measure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.measures.cold import start_up_calls
from proftrack.measures.intervals import union_by_group
from proftrack.measures.links import Links, link
from proftrack.measures.nesting import Forest, nest
from proftrack.measures.window import Ownership, Steps, find_steps, own_work, window_of
from proftrack.trace.table import EventTable, Ints


class View(NamedTuple):
    """A trace ready to be measured."""

    table: EventTable
    forest: Forest
    links: Links
    steps: Steps
    owned: Ownership
    """GPU work of all devices."""
    on_device: Ownership
    """The same, with `usable` and `step` for the busiest device only: windows and idle time are based on it."""
    device: int | None
    """The busiest device, None if there is no GPU work."""
    start_up: Ints
    """Rows, in order of time, of the calls that start something up (see `cold.start_up_calls`)."""


def view(table: EventTable) -> View:
    """Nest, join and assign the rows of a trace."""
    forest = nest(table, table.host)
    links = link(table, forest)
    steps = find_steps(table)
    owned = own_work(table, links, steps)
    device = _busiest(table, links, owned, window_of(table, steps, owned) or (0, 0))
    on_device = _restricted(table, links, owned, device)
    return View(table, forest, links, steps, owned, on_device, device, _start_up(table, steps, on_device))


def _start_up(table: EventTable, steps: Steps, on_device: Ownership) -> Ints:
    second_step = int(steps.start[1]) if len(steps) > 1 else None
    return start_up_calls(table, second_step, running=len(steps) > 0 and bool(on_device.leaked.any()))


def _busiest(table: EventTable, links: Links, owned: Ownership, window: tuple[int, int]) -> int | None:
    """The device with most busy time in the window; the first of several."""
    if not len(links.gpu):
        return None
    unique, group = np.unique(table.device[links.gpu], return_inverse=True)
    start, end = np.maximum(owned.start, window[0]), np.minimum(owned.end, window[1])
    busy = union_by_group(group.astype(np.int64), start, np.where(owned.usable, end, start), len(unique))
    return int(unique[int(np.argmax(busy))])


def _restricted(table: EventTable, links: Links, owned: Ownership, device: int | None) -> Ownership:
    here = table.device[links.gpu] == device
    if here.all():
        return owned
    return owned._replace(step=np.where(here, owned.step, -1), leaked=owned.leaked & here, usable=owned.usable & here)
