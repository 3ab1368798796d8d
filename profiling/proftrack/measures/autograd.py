"""Which forward operator a backward operator belongs to.

    main thread   aten::mm (sequence 7) ---- aten::add (sequence 8) ----
                     |  flow "fwdbwd" 12        |  flow "fwdbwd" 13
    backward         '------------------------- | ---> MmBackward0 (sequence 7, forward thread 1)
                                                '-> AddBackward0 (sequence 8, forward thread 1)

A sequence number is one thread's own: only together with the thread does it name a node. The flows tell which of the
trace's threads torch's number of a forward thread stands for.
"""

from __future__ import annotations

import numpy as np

from proftrack.trace.categories import Kind
from proftrack.trace.codes import grouped_values
from proftrack.trace.table import NONE, Bools, Codes, EventTable, Ints

EVALUATE = "autograd::engine::evaluate_function: "
"""How the names of the rows begin that autograd's engine puts around each node of the backward pass."""
_FLOW = "fwdbwd"
_MOST_NODES = 3
"""Nodes that one operator makes at most: one that changes a view in place makes the view's again, its own, and one that
puts the changed part into the whole."""
_Columns = tuple[Ints | Codes, ...]


def forward_threads(table: EventTable) -> dict[int, int]:
    """The index in `table.threads` that each of torch's numbers of a forward thread (`forward_thread`) stands for.

    Empty if the trace has no flows from forward to backward operators. If they contradict each other, most count.
    """
    flows = table.flows
    if flows is None or _FLOW not in flows.categories:
        return {}
    of_backward = flows.valid & (flows.category == flows.categories.index(_FLOW))
    starts, ends = np.flatnonzero(of_backward & ~flows.is_end), np.flatnonzero(of_backward & flows.is_end)
    source = _find(flows.id[ends], flows.id[starts])
    rows = np.flatnonzero(table.valid & (table.forward_thread > 0))
    target = _find(
        *_same_codes((flows.thread[ends], flows.ts[ends]), (table.thread[rows], table.ts[rows])),
    )
    known = (source != NONE) & (target != NONE)
    number, thread = table.forward_thread[rows[target[known]]], flows.thread[starts[source[known]]]
    pairs, votes = np.unique(np.stack([number, thread], axis=1), axis=0, return_counts=True)
    return {int(number): int(thread) for number, thread in pairs[np.argsort(votes, kind="stable")]}


def forward_rows(table: EventTable) -> Ints:
    """For each row of a backward operator, the row of its forward operator; NONE if that is not known, and elsewhere.

    Backward operators are the rows with a sequence number and a forward thread, and those of `EVALUATE`. Of several
    forward rows with the same number on the same thread it is the one that started last, which made the node.
    """
    found = np.full(len(table), NONE, dtype=np.int64)
    numbered = table.sequence != NONE
    if not numbered.any():
        return found
    evaluates = table.named(lambda name: name.startswith(EVALUATE))
    backward = np.flatnonzero(numbered & ((table.forward_thread > 0) | evaluates))
    forward = _last_of_number(table, numbered & (table.forward_thread <= 0) & ~evaluates & table.valid)
    if not len(backward) or not len(forward):
        return found
    threads = forward_threads(table)
    numbers, code = np.unique(table.forward_thread[backward], return_inverse=True)
    thread = np.array([threads.get(number, NONE) for number in numbers.tolist()], dtype=np.int64)[code]
    sequence = table.sequence[backward]
    by_thread = _find_maker(thread, sequence, table.thread[forward], table.sequence[forward])
    # A number alone tells nothing if the thread that it is of may not have been recorded.
    unseen = len(threads) > 0 or (numbers > 0).sum() > len(np.unique(table.thread[forward]))
    alone = np.where(unseen & (table.forward_thread[backward] > 0), NONE, _find_only(sequence, table.sequence[forward]))
    position = np.where(thread == NONE, alone, by_thread)
    found[backward] = np.where(position == NONE, NONE, forward[position])
    return found


def _last_of_number(table: EventTable, among: Bools) -> Ints:
    """Of the operators `among` the rows, the one of each sequence number on each thread that started last."""
    rows = np.flatnonzero(among & table.of_kind(Kind.CPU_OP))
    order = np.lexsort((rows, table.ev_idx[rows], table.ts[rows], table.sequence[rows], table.thread[rows]))
    rows = rows[order]
    thread, sequence = table.thread[rows], table.sequence[rows]
    is_last = np.ones(len(rows), dtype=bool)
    is_last[:-1] = (thread[1:] != thread[:-1]) | (sequence[1:] != sequence[:-1])
    return rows[is_last]


def _same_codes(wanted: _Columns, among: _Columns) -> tuple[Ints, Ints]:
    """One code for each row of several columns, the same for equal rows of both tables."""
    code = grouped_values(np.concatenate(pair) for pair in zip(wanted, among, strict=True))[1]
    return code[: len(wanted[0])], code[len(wanted[0]) :]


def _find_maker(thread: Ints, number: Ints, threads: Codes, numbers: Ints) -> Ints:
    """The position of the operator that made each node (`thread`, `number`), or NONE.

    `threads` and `numbers`: those of the operators, ordered, each once. A number without an operator is a further node
    of the operator before it, unless so many are missing that operators may not have been recorded.
    """
    values, rank = np.unique(np.concatenate([number, numbers]), return_inverse=True)
    wanted = thread * len(values) + rank[: len(number)]
    among = threads.astype(np.int64) * len(values) + rank[len(number) :]
    at = np.searchsorted(among, wanted, side="right") - 1
    after = np.minimum(at + 1, len(numbers) - 1)
    here = (at >= 0) & (threads[at] == thread)
    follows = (at + 1 < len(numbers)) & (threads[after] == thread)
    last = np.where(follows, numbers[after] - 1, number)
    near = np.maximum(number, last) - numbers[at] < _MOST_NODES
    return np.where(here & ((numbers[at] == number) | near), at, NONE)


def _find(wanted: Ints, among: Ints) -> Ints:
    """The position `among` of each value; NONE if it is not there. Of several the first."""
    if not len(among):
        return np.full(len(wanted), NONE, dtype=np.int64)
    values, first = np.unique(among, return_index=True)
    place = np.searchsorted(values, wanted).clip(max=len(values) - 1)
    return np.where(values[place] == wanted, first[place], NONE)


def _find_only(wanted: Ints, among: Ints) -> Ints:
    """The same, but NONE as well for what is there more than once."""
    values, count = np.unique(among, return_counts=True)
    return np.where(np.isin(wanted, values[count == 1]), _find(wanted, among), NONE)
