"""Calls in which the host waits for the GPU, and when a wait no longer delays anything. Nanoseconds."""

from __future__ import annotations

import numpy as np

from proftrack.measures.links import Links
from proftrack.measures.view import View
from proftrack.trace.categories import CALL_KINDS, Kind, is_copy, is_wait
from proftrack.trace.table import NONE, Bools, EventTable, Ints


def waiting_calls(table: EventTable, links: Links) -> Bools:
    """Mask of the calls that wait for the GPU: synchronizations, and copies that return when the data have arrived."""
    mask = table.of_kind(*CALL_KINDS) & table.valid & table.named(is_wait)
    mask[_blocking_copies(table, links)] = True
    return mask


def _blocking_copies(table: EventTable, links: Links) -> Ints:
    """Calls of any name that did not return before their copy ended, as copies to pageable memory do not.

    The end may be a little late on the GPU's clock: of a pageable copy, a call that returned after its start counts.
    """
    copies = links.launch != NONE
    copies[copies] = (table.kind == Kind.MEMCPY)[links.gpu[copies]] & table.named(is_copy)[links.launch[copies]]
    copy, call = links.gpu[copies], links.launch[copies]
    pageable = table.named(lambda name: "Pageable" in name)[copy]
    blocks = table.end[call] >= np.where(pageable, table.ts[copy], table.end[copy])
    return np.unique(call[blocks & table.valid[copy] & table.valid[call]])


def delays_until(view: View) -> int:
    """From here on a wait delays nothing: the last step's end; without steps, the last launch call of the trace."""
    table, steps = view.table, view.steps
    if len(steps):
        return int(steps.end.max())
    return int(table.ts[view.links.calls].max(initial=0))
