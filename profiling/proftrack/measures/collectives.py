"""The collectives of a trace in order, for comparing ranks."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from proftrack.measures.kernels import kind_of_kernel
from proftrack.measures.view import View
from proftrack.trace.categories import Kind
from proftrack.trace.table import NONE

_HOST_COLLECTIVE = re.compile(r"^(?:gloo|nccl|mpi|ucc|xccl):(?!.*(?:barrier|coalesc))", re.IGNORECASE)
_PARAMETERS = re.compile(r"[<(].*", re.DOTALL)


class Collective(NamedTuple):
    """One collective of one rank. Its duration includes waiting for the other ranks."""

    name: str
    start_us: float
    """Relative to the trace's first event."""
    duration_us: float


def collectives(view: View) -> list[Collective]:
    """Collective kernels in order of time; if there are none, the host rows of collectives (gloo, mpi)."""
    table, steps = view.table, view.steps
    rows = np.flatnonzero(table.of_kind(Kind.KERNEL) & table.valid & table.named(_is_kernel))
    if not len(rows):
        host = table.of_kind(Kind.ANNOTATION, Kind.CPU_OP, Kind.OTHER)
        rows = np.flatnonzero(host & table.valid & table.named(lambda n: _HOST_COLLECTIVE.match(n) is not None))
    if len(steps) and len(rows):
        low, high = int(steps.start[0]), int(steps.end.max())
        rows = rows[(table.ts[rows] >= low) & (table.ts[rows] < max(high, _end_of_own(view)))]
    unordered = [
        Collective(_PARAMETERS.sub("", table.names[table.name[i]]), int(table.ts[i]) / 1000, int(table.dur[i]) / 1000)
        for i in rows.tolist()
    ]
    return sorted(unordered, key=lambda c: (c.start_us, c.duration_us, c.name))


def _is_kernel(name: str) -> bool:
    return kind_of_kernel(name) == "communication"


def _end_of_own(view: View) -> int:
    own = view.owned.usable & (view.owned.step != NONE)
    return int(view.owned.end[own].max()) if own.any() else 0
