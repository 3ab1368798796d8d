"""Finds events that stand in a file twice, as in traces that were merged with themselves."""

from __future__ import annotations

import numpy as np

from proftrack.trace.categories import CALL_KINDS, GPU_KINDS, is_step
from proftrack.trace.table import NONE, Bools, EventTable, Ints

_COLUMNS = ("ts", "dur", "kind", "category", "name", "thread", "lane", "correlation", "external_id", "ev_idx")
"""What must be equal."""
_ODD = np.array([7046029254386353131, 5871781006564002453, 8650415919381337933, 3954105396203117867], dtype=np.int64)
"""Any odd numbers of 63 bits: sums of multiples of them seldom coincide."""
_ROUNDED_NS = 1000
"""If times are whole microseconds, two kernels of this length may share one."""


def duplicates(table: EventTable) -> Ints:
    """Rows that are an earlier row written again.

    Equal in all columns is not enough where two events can be equal: a wrapper and the operator in it, calls of no
    length. What cannot be two is GPU work at the same time on the same stream (a graph's kernels share their id, but
    not the time), a step, a call with its correlation id, and any other row with an id of its own. A file that has
    such rows twice was written twice: there, equal rows that take time or have an id are the same row, too.
    """
    rows = _candidates(table)
    sure = _again(table, rows[_cannot_be_two(table, rows)])
    if not len(sure):
        return sure
    takes_time = table.valid[rows] & (table.dur[rows] > 0)
    return np.union1d(sure, _again(table, rows[takes_time | (table.correlation[rows] > 0) | _named(table, rows)]))


def _again(table: EventTable, rows: Ints) -> Ints:
    """Those of `rows` that equal an earlier one."""
    columns = [getattr(table, name)[rows] for name in _COLUMNS]
    order = np.lexsort((rows, *columns))
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    return np.asarray(rows[order[1:][same]])


def _candidates(table: EventTable) -> Ints:
    """Rows that may have an equal one: those whose columns mix to the same number. In most files there are none.

    A sort of all rows would take three times as long as the table of the last row in each of many buckets.
    """
    mixed = table.ts * _ODD[0]  # wraps around, as is meant
    for column, odd in ((table.dur, _ODD[1]), (table.name, _ODD[2]), (table.thread, _ODD[3])):
        mixed += column * odd
    bits = len(mixed).bit_length() + 1
    bucket = mixed.view(np.uint64) >> np.uint64(64 - bits)
    row = np.arange(len(mixed), dtype=np.int32)
    last = np.empty(1 << bits, dtype=np.int32)
    last[bucket] = row
    shared = np.zeros(len(mixed), dtype=bool)
    earlier = np.flatnonzero(last[bucket] != row)
    shared[earlier] = True
    shared[last[bucket[earlier]]] = True
    rows = np.flatnonzero(shared)
    ordered = np.sort(mixed[rows])
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    return rows[np.isin(mixed[rows], twice)] if len(twice) else rows[:0]


def _cannot_be_two(table: EventTable, rows: Ints) -> Bools:
    kind = table.kind[rows]
    gpu, call = np.isin(kind, GPU_KINDS), np.isin(kind, CALL_KINDS)
    whole = ((table.ts[rows] + table.origin_ns) % 1000 == 0) & (table.dur[rows] % 1000 == 0)
    work = table.on_stream[rows] & (table.dur[rows] > np.where(whole, _ROUNDED_NS, 0))
    correlated = table.correlation[rows] > 0
    # A call's External id is that of its operator, which may make the same call twice.
    known = np.where(call, correlated, _named(table, rows) | table.named(is_step)[rows])
    return np.asarray(table.valid[rows] & np.where(gpu, work, known))


def _named(table: EventTable, rows: Ints) -> Bools:
    return np.asarray((table.external_id[rows] > 0) | (table.ev_idx[rows] != NONE))
