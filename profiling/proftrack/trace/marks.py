"""What a file holds besides complete events: what the allocators did, counters, and flows between events.

A batch with memory instants or counters is decoded once more for their arguments, which are others than those of
complete events: most files have neither, and those rows cost nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from proftrack.trace.codes import Numbering, grouped_values, positions
from proftrack.trace.table import NONE, Bools, CounterRows, FlowRows, Ints, MemoryRows
from proftrack.trace.values import ABSENT, INVALID, Column, devices, int64, size_of

MEMORY = "[memory]"
"""Name of the instants that torch writes for each allocation and each release."""
Columns = dict[str, npt.NDArray[Any]]
Times = Callable[[Column], Ints]


class _Event(Struct, gc=False):
    args: Raw = ABSENT


class _Memory(Struct, gc=False):
    """The arguments of a memory instant."""

    address: Any = field(default=NONE, name="Addr")
    bytes: Any = field(default=0, name="Bytes")
    allocated: Any = field(default=NONE, name="Total Allocated")
    reserved: Any = field(default=NONE, name="Total Reserved")
    device_type: Any = field(default=NONE, name="Device Type")
    device: Any = field(default=NONE, name="Device Id")
    ev_idx: Any = field(default=NONE, name="Ev Idx")


_EVENT = msgspec.json.Decoder(_Event)
_EVENTS = msgspec.json.Decoder(list[_Event])
_MEMORY = msgspec.json.Decoder(_Memory)
_FLOWS = frozenset(("s", "t", "f"))


def arguments(batch: bytes) -> list[Raw]:
    """The arguments of each event of a batch that decodes."""
    return [event.args for event in _EVENTS.decode(batch)]


def argument(event: bytes) -> Raw:
    """The arguments of one event, which may be none."""
    decoded: _Event = _decoded(_EVENT.decode, event, _Event())
    return decoded.args


class Batch(NamedTuple):
    """The marks of one batch, as columns."""

    memory: Columns | None = None
    counters: Columns | None = None
    flows: Columns | None = None


class Clock(NamedTuple):
    """What a time of the file, in nanoseconds, has to be to be one of the recording's."""

    origin: int
    """Where the table's times begin."""
    first: int
    last: int

    def relative(self, ts: Ints) -> tuple[Ints, Bools]:
        """Times since the origin, NONE for those that cannot be; and which can."""
        valid = (ts != INVALID) & (ts >= self.first) & (ts <= self.last)
        return np.where(valid, ts - self.origin, NONE), valid


class Marks:
    """Collects them batch by batch."""

    def __init__(self) -> None:
        self._threads = Numbering()
        self._names = Numbering()
        self._categories = Numbering()
        self._batches: list[Batch] = []

    def columns(self, events: Sequence[Any], times: Times, given: Callable[[], list[Raw]]) -> Batch:
        """The marks among the events of a batch, whose arguments are `given`. Raises what `times` raises."""
        others = [event for event in events if event.ph != "X"]
        flows = [event for event in others if event.ph in _FLOWS]
        if len(flows) < len(others) and any(map(_has_arguments, others)):
            args = given()
            pairs = [(event, args[i]) for i, event in enumerate(events) if _has_arguments(event)]
            memory = [pair for pair in pairs if pair[0].ph != "C"]
            counters = [pair for pair in pairs if pair[0].ph == "C"]
        else:
            memory, counters = [], []
        return Batch(
            memory=self._memory(memory, times) if memory else None,
            counters=self._counters(counters, times) if counters else None,
            flows=self._flows(flows, times) if flows else None,
        )

    def add(self, batch: Batch) -> None:
        """Keep what `columns` made."""
        self._batches.append(batch)

    def _flows(self, rows: list[Any], times: Times) -> Columns:
        return {
            "ts": times([row.ts for row in rows]),
            "id": int64([row.id for row in rows]),
            "category": self._categories.codes([row.cat for row in rows]),
            "is_end": np.array([row.ph != "s" for row in rows], dtype=bool),
            "thread": self._threads.codes([(row.pid, row.tid) for row in rows]),
        }

    def _memory(self, rows: list[tuple[Any, Raw]], times: Times) -> Columns:
        given = [_decoded(_MEMORY.decode, args, _Memory()) for _, args in rows]
        return {
            "ts": times([row.ts for row, _ in rows]),
            "address": int64([each.address for each in given]),
            "bytes": np.array([_change(each.bytes) for each in given], dtype=np.int64),
            "allocated": np.array([size_of(each.allocated) for each in given], dtype=np.int64),
            "reserved": np.array([size_of(each.reserved) for each in given], dtype=np.int64),
            "device_type": devices([each.device_type for each in given]),
            "device": devices([each.device for each in given]),
            "thread": self._threads.codes([(row.pid, row.tid) for row, _ in rows]),
            "ev_idx": int64([each.ev_idx for each in given]),
        }

    def _counters(self, rows: list[tuple[Any, Raw]], times: Times) -> Columns:
        ts = times([row.ts for row, _ in rows])
        given = [_series(args) for _, args in rows]
        each = np.repeat(np.arange(len(rows)), [len(series) for series in given])
        return {
            "ts": ts[each],
            "name": self._names.codes([row.name for row, _ in rows])[each],
            "series": self._names.codes([key for series in given for key in series]),
            "value": np.array([_number(value) for series in given for value in series.values()], dtype=np.float64),
            "thread": self._threads.codes([(row.pid, row.tid) for row, _ in rows])[each],
        }

    def build(
        self, clock: Clock, threads: list[tuple[str, str]], *, once: bool
    ) -> tuple[MemoryRows | None, CounterRows | None, FlowRows | None]:
        """The rows of each kind, None for a kind that the file does not have. Their threads are added to `threads`.

        `once`: the file was written twice, so rows that are equal are the same one.
        """
        thread_of = positions([(str(pid), str(tid)) for pid, tid in self._threads], threads)
        joined = []
        for parts in zip(*self._batches, strict=True) if self._batches else ((), (), ()):
            columns = _joined([part for part in parts if part is not None])
            if columns:
                columns["thread"] = thread_of[columns["thread"]]
                rows = _first_of_equal(columns) if once else slice(None)
                columns = {name: values[rows] for name, values in columns.items()}
                columns["ts"], columns["valid"] = clock.relative(columns["ts"])
            joined.append(columns if columns and len(columns["ts"]) else None)
        self._batches.clear()
        memory, counters, flows = joined
        return (
            MemoryRows(**memory) if memory else None,
            CounterRows(**counters, names=list(self._names)) if counters else None,
            FlowRows(**flows, categories=list(self._categories)) if flows else None,
        )


def _has_arguments(event: Any) -> bool:
    return bool(event.ph == "C" or (event.ph == "i" and event.name == MEMORY))


def _joined(parts: list[Columns]) -> dict[str, Any]:
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])} if parts else {}


def _first_of_equal(columns: Columns) -> Ints:
    """The rows without those that equal an earlier one in all columns."""
    values = [np.nan_to_num(column, nan=np.inf) for column in columns.values()]  # NaN equals NaN here
    first, _ = grouped_values(values)
    return np.sort(first)


def _decoded(decode: Callable[[Any], Any], args: Raw | bytes, otherwise: Any) -> Any:
    """The arguments of an event; `otherwise` if it has none, or something else in their place."""
    try:
        return decode(args)
    except msgspec.MsgspecError:
        return otherwise


def _change(value: Any) -> int:
    """Bytes allocated, or freed if negative; 0 for anything that is no size."""
    is_freed = value.startswith("-") if isinstance(value, str) else isinstance(value, (int, float)) and value < 0
    size = size_of((value[1:] if isinstance(value, str) else -value) if is_freed else value)
    return 0 if size == NONE else -size if is_freed else size


def _series(args: Raw) -> dict[str, Any]:
    given = _decoded(msgspec.json.decode, args, None)
    return given if isinstance(given, dict) else {}


def _number(value: Any) -> float:
    """A counter's value; other tools write numbers as text, too."""
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
