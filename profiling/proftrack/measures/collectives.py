"""The collectives of a trace in order, with their process groups, for comparing ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from proftrack.measures.kernels import kind_of_kernel
from proftrack.measures.view import View
from proftrack.measures.window import busy
from proftrack.record.ranks import Collective
from proftrack.trace.categories import Kind
from proftrack.trace.groups import configured, count_of, ranks_in, world_size
from proftrack.trace.table import NONE, EventTable, Ints, Meeting

_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):(?!.*(?:barrier|coalesc))", re.IGNORECASE)
"""What the host itself carries out. The host's rows of NCCL's collectives only launch them: nobody waits there."""
_PARAMETERS = re.compile(r"[<(].*", re.DOTALL)
_BETWEEN_TWO = re.compile(r"(?:^|[^a-z])i?(?:send|recv)(?![a-z])|sendrecv|send_?recv|batch_p2p", re.IGNORECASE)
_SHARED_KERNEL = re.compile(r"send_?recv", re.IGNORECASE)
_TITLE = re.compile(r"(?:nccl|rccl|xccl|hccl):", re.IGNORECASE)
"""How torch annotates what it hands to the library: `nccl:all_to_all`, `nccl:send 0->1`."""
_SENDS = re.compile(r"\w+:(?:send|recv|coalesced)(?![a-z])", re.IGNORECASE)
_OF_ALL = re.compile(r"all_?to_?all|all_?gather|all_?reduce|reduce|gather|scatter|broadcast", re.IGNORECASE)


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
    if not len(rows):
        return []
    groups, exposed = _Groups.of(table), _exposed(view, rows)
    clock_us = table.started_ns / 1000
    unordered = [
        _collective(table, i, clock_us, step, meeting, groups, exposed_us)
        for i, step, meeting, exposed_us in zip(
            rows.tolist(), _steps_of(view, rows), _meetings_of(view, rows).tolist(), exposed, strict=True
        )
    ]
    return sorted(unordered, key=lambda c: (c.start_us, c.duration_us, c.name, c.exposed_us or 0.0, c.step or 0))


class _Groups(NamedTuple):
    """What the trace's metadata say of the process groups."""

    by_name: dict[str, tuple[int, ...]]
    usual: tuple[int, ...] | None
    """The ranks of a collective that states no group; see `Collective.members`."""
    world: int | None
    sends: bool
    """Whether a kernel that sends and receives, and does not say for what, may be a send or a receive."""

    @classmethod
    def of(cls, table: EventTable) -> _Groups:
        world, by_name = world_size(table.meta.distributed), configured(table.meta.distributed)
        distinct = set(by_name.values())
        usual: tuple[int, ...] | None = () if distinct else None
        if len(distinct) == 1:
            usual = distinct.pop()
        elif not distinct and world == 2:
            usual = (0, 1)  # two ranks meet in no other group
        told = [name for name in table.names if _TITLE.match(name)]
        sends = any(map(_SENDS.match, told)) or not any(map(_OF_ALL.search, told))
        return cls(by_name, usual, world, sends)


def _collective(
    table: EventTable,
    row: int,
    clock_us: float,
    step: int | None,
    meeting: int,
    groups: _Groups,
    exposed_us: float | None,
) -> Collective:
    said = table.meetings[meeting] if meeting != NONE else None
    name = _PARAMETERS.sub("", table.names[table.name[row]])
    return Collective(
        name=name,
        start_us=clock_us + int(table.ts[row]) / 1000,
        duration_us=int(table.dur[row]) / 1000,
        step=step,
        between_two=_is_between_two(name, said, groups.sends),
        exposed_us=exposed_us,
        **_group_of(said, groups),
    )


def _group_of(said: Meeting | None, groups: _Groups) -> dict[str, Any]:
    """The group that a row states, or else the only one that it can be."""
    if said is None or (said.group is None and said.ranks is None):
        return {"members": groups.usual}
    group, size = str(said.group or "").strip('"'), count_of(said.size)
    members = groups.by_name.get(group) or ranks_in(said.ranks, size)
    if members is None and size is not None and size == groups.world:
        members = tuple(range(size))
    if members is None:  # a shortened list still tells groups apart
        group = f"{group} {said.ranks or ''}".strip()
    return {"group": group, "members": members, "size": size, "sequence": count_of(said.sequence)}


def _is_between_two(name: str, said: Meeting | None, sends: bool) -> bool:
    """Whether it is a send or a receive. NCCL's kernel of these, SendRecv, also does all_to_all, gather and scatter."""
    if said is not None:
        return _BETWEEN_TWO.search(f"{name} {said.collective}") is not None and not _OF_ALL.search(str(said.collective))
    return _BETWEEN_TWO.search(name) is not None and (sends or not _SHARED_KERNEL.search(name))


def _meetings_of(view: View, rows: Ints) -> Ints:
    """For each row, its index into `meetings`: its own, or that of the operator which recorded the same collective.

    Before torch 2.4, `record_param_comms` has what the kernel itself does not say: it has the External id of the kernel
    or of its launch, or the launch lies in it.
    """
    table, links = view.table, view.links
    meeting = table.meeting[rows].astype(np.int64)
    told = np.flatnonzero((table.meeting != NONE) & ~table.gpu_work)
    if not len(told) or not len(links.gpu):
        return meeting
    at = np.minimum(np.searchsorted(links.gpu, rows), len(links.gpu) - 1)
    launch = np.where(links.gpu[at] == rows, links.launch[at], NONE)
    # Some versions write a kernel's correlation as its External id: that is no operator's.
    named = np.where(table.external_id[rows] == table.correlation[rows], NONE, rows)
    for source in (_by_id(table, told, launch), _around(table, told, launch), _by_id(table, told, named)):
        meeting = np.where(meeting == NONE, source, meeting)
    return meeting


def _by_id(table: EventTable, told: Ints, rows: Ints) -> Ints:
    """For each row (or NONE), the meeting of the row among `told` that has its External id."""
    told = told[np.argsort(table.external_id[told], kind="stable")]
    ids, wanted = table.external_id[told], np.where(rows == NONE, NONE, table.external_id[rows])
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((wanted != NONE) & (ids[at] == wanted), table.meeting[told[at]], NONE)


def _around(table: EventTable, told: Ints, rows: Ints) -> Ints:
    """For each row (or NONE), the meeting of the row among `told` that it lies in, on its thread."""
    meeting = np.full(len(rows), NONE, dtype=np.int64)
    for thread in np.unique(table.thread[told]).tolist():
        mine = np.flatnonzero((rows != NONE) & (table.thread[rows] == thread))
        here = told[table.thread[told] == thread]
        here = here[np.argsort(table.ts[here], kind="stable")]
        at = np.searchsorted(table.ts[here], table.ts[rows[mine]], side="right") - 1
        inside = (at >= 0) & (table.ts[rows[mine]] < table.end[here[at]])
        meeting[mine[inside]] = table.meeting[here[at[inside]]]
    return meeting


def _steps_of(view: View, rows: Ints) -> list[int | None]:
    """The number of the step that launched each row; if no launch was recorded, of the last one that began before it.

    None for what earlier steps launched.
    """
    steps, links, owned = view.steps, view.links, view.owned
    if not len(steps):
        return [None] * len(rows)
    index = np.searchsorted(steps.start, view.table.ts[rows], side="right") - 1
    if len(links.gpu):
        at = np.minimum(np.searchsorted(links.gpu, rows), len(links.gpu) - 1)
        is_gpu = links.gpu[at] == rows
        index = np.where(is_gpu & (links.launch[at] != NONE), owned.step[at], index)
        index = np.where(is_gpu & owned.leaked[at], NONE, index)
    return [None if i == NONE else int(steps.number[i]) for i in index.tolist()]


def _exposed(view: View, rows: Ints) -> Sequence[float | None]:
    """For each row, its time beside other kernels; where collectives overlap, the earlier one has their time."""
    table, gpu = view.table, view.links.gpu
    if not table.of_kind(Kind.KERNEL)[rows].any():
        return [None] * len(rows)
    others = (table.kind[gpu] == Kind.KERNEL) & ~table.named(_is_kernel)[gpu]
    order = np.argsort(table.ts[rows], kind="stable")
    end = np.maximum.accumulate(table.end[rows][order])
    start = np.maximum(table.ts[rows][order], np.concatenate([[0], end[:-1]]))
    exposed = np.zeros(len(rows), dtype=np.int64)
    exposed[order] = end - start - busy(view.on_device, others).covered_within(start, end)
    return [int(ns) / 1000 for ns in np.maximum(exposed, 0)]


def _is_kernel(name: str) -> bool:
    return kind_of_kernel(name) == "communication"


def _end_of_own(view: View) -> int:
    own = view.owned.usable & (view.owned.step != NONE)
    return int(view.owned.end[own].max()) if own.any() else 0
