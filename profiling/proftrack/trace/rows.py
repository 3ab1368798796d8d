"""Typed rows as msgspec decodes them, and their conversion to numpy columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from proftrack.trace import legacy
from proftrack.trace.categories import CALL_KINDS, GPU_KINDS, Kind, is_module, kind_of
from proftrack.trace.codes import Numbering, paired
from proftrack.trace.duplicates import duplicates
from proftrack.trace.marks import Clock, Marks, Times
from proftrack.trace.table import NONE, Codes, EventTable, Ints, LaunchConfig, Meeting, Notes, TraceMeta
from proftrack.trace.values import (
    ABSENT,
    INVALID,
    LIMIT,
    Column,
    devices,
    exact_times,
    int64,
    ns_of_floats,
    size_of,
)


class Args(Struct, gc=False):
    """The arguments that measures read; msgspec skips all others without building them.

    Typed Any because other tools write numbers as text, and one wrong type must not cost a whole batch of events.
    """

    correlation: Any = NONE
    external_id: Any = field(default=NONE, name="External id")
    ev_idx: Any = field(default=NONE, name="Ev Idx")
    device: Any = None
    stream: Any = None
    grid: Raw = ABSENT
    block: Raw = ABSENT
    registers: Any = field(default=None, name="registers per thread")
    shared: Any = field(default=None, name="shared memory")
    bytes: Any = None
    dims: Raw = field(default=ABSENT, name="Input Dims")
    types: Raw = field(default=ABSENT, name="Input type")
    concrete: Raw = field(default=ABSENT, name="Concrete Inputs")
    collective: Any = field(default=None, name="Collective name")
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    group_size: Any = field(default=None, name="Group size")
    group_sequence: Any = field(default=None, name="Seq")
    sequence: Any = field(default=NONE, name="Sequence number")
    forward_thread: Any = field(default=NONE, name="Fwd thread id")
    kernel: Any = None


Phase = Literal["", "X", "s", "t", "f", "i", "C", "M", "B", "E", "I", "b", "n", "e", "S", "T", "F", "P", "N", "O", "D"]
"""Of a known set the decoder need not make a text for each event. A batch with another one is read as ExactRow."""


class Row(Struct, gc=False):
    """An event with times that fit a float64 without loss."""

    ph: Phase = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None
    id: Any = NONE


class ExactRow(Struct, gc=False):
    """The same, with times as text: an epoch time in microseconds with decimals does not fit a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Args | None = None
    id: Any = NONE


ROWS = msgspec.json.Decoder(list[Row])
EXACT_ROWS = msgspec.json.Decoder(list[ExactRow])
EXACT_ROW = msgspec.json.Decoder(ExactRow)

_NO_ARGS = Args()
_IS_GPU_WORK = np.isin(np.arange(len(Kind)), GPU_KINDS)


def _volume(extents: bytes) -> int:
    """Thread blocks of a grid like [4, 2, 1], or threads of a block, in JSON; NONE for anything else.

    A grid without blocks launches nothing: [0, 0, 0] is what ROCm writes for a grid that it does not know.
    """
    try:
        sizes = msgspec.json.decode(extents)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NONE
    if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
        return NONE
    volume = math.prod(sizes)
    return volume if volume < LIMIT else NONE


def _config(grid: bytes, block: bytes, registers: Any, shared: Any) -> LaunchConfig:
    return LaunchConfig(_volume(grid), _volume(block), size_of(registers), size_of(shared))


class TableBuilder:
    """Collects batches of rows as columns; `build` makes the table."""

    def __init__(self) -> None:
        self._names = Numbering()
        self._categories = Numbering()
        self._pids = Numbering()
        self._tids = Numbering()
        self._streams = Numbering()
        self._configs = Numbering()
        self._signatures = Numbering()
        self._meetings: list[Meeting] = []
        self._marks = Marks()
        self._kind_of_category: list[Kind] = []
        self._columns: dict[str, list[npt.NDArray[Any]]] = {}
        self._legacy = False
        self._operators_on_gpu = 0
        self.events_seen = 0
        """Events of any phase, for the record's source."""

    def add(self, decoded: Sequence[Row] | Sequence[ExactRow], given: Callable[[], list[Raw]]) -> None:
        """Append the complete events, memory instants, counters and flows among these rows.

        `given`: the arguments of each row. If it raises InexactTimes, nothing was appended.
        """
        times = exact_times if decoded and isinstance(decoded[0], ExactRow) else ns_of_floats
        rows = [r for r in decoded if r.ph == "X"]
        marks = self._marks.columns(decoded, times, given) if len(rows) < len(decoded) else None
        if rows:
            self._add_complete(rows, times)
        if marks:
            self._marks.add(marks)
        self.events_seen += len(decoded)
        self._legacy = self._legacy or ("" in self._categories and any(map(legacy.is_legacy, self._pids)))
        if self._legacy:
            self._operators_on_gpu += sum(r.ph == "s" and r.cat.startswith("cpu_to_") for r in decoded)

    def _add_complete(self, rows: Sequence[Any], times: Times) -> None:
        categories, names = [r.cat for r in rows], [r.name for r in rows]
        pids, tids = [r.pid for r in rows], [r.tid for r in rows]
        ts, dur = times([r.ts for r in rows]), times([r.dur for r in rows])
        args = [r.args or _NO_ARGS for r in rows]
        category = self._categories.codes(categories)
        self._kind_of_category += [kind_of(c) for c in list(self._categories)[len(self._kind_of_category) :]]
        kind = np.array(self._kind_of_category, dtype=np.int8)[category]
        self._append(
            ts=ts,
            dur=dur,
            name=self._names.codes(names),
            category=category,
            kind=kind,
            pid=self._pids.codes(pids),
            tid=self._tids.codes(tids),
            correlation=int64([a.correlation for a in args]),
            external_id=int64([a.external_id for a in args]),
            ev_idx=int64([a.ev_idx for a in args]),
            **self._gpu_columns(pids, tids, args, np.flatnonzero(_IS_GPU_WORK[kind])),
            signature=self._signature_codes(args, kind),
            meeting=self._meeting_codes(args),
            **self._autograd_columns(args),
            launches=self._launched_codes(args, kind),
        )

    def _gpu_columns(self, pids: Column, tids: Column, args: list[Args], gpu: Ints) -> dict[str, Any]:
        """Device, stream, configuration and bytes of GPU work. Old traces give the device as pid, the stream as tid."""
        work = [(i, args[i]) for i in gpu.tolist()]
        given: dict[str, Any] = {
            "device": devices([pids[i] if a.device is None else a.device for i, a in work]),
            "stream": self._stream_codes([tids[i] if a.stream is None else a.stream for i, a in work]),
            "config": self._config_codes([(bytes(a.grid), bytes(a.block), a.registers, a.shared) for _, a in work]),
            "size": [NONE if a.bytes is None else size_of(a.bytes) for _, a in work],
        }
        columns = {}
        for name, values in given.items():
            columns[name] = np.full(len(args), NONE, dtype=np.int64 if name == "size" else np.int32)
            columns[name][gpu] = values
        return columns

    def _autograd_columns(self, args: list[Args]) -> dict[str, Ints]:
        """Sequence number and forward thread, which torch writes together; inference has neither."""
        sequence = [a.sequence for a in args]
        if sequence.count(NONE) == len(sequence):
            return {"sequence": _nothing(len(args)), "forward_thread": _nothing(len(args))}
        return {"sequence": int64(sequence), "forward_thread": int64([a.forward_thread for a in args])}

    def _stream_codes(self, streams: list[Any]) -> Codes:
        try:
            return self._streams.codes(streams)
        except TypeError:  # a list or an object, which has no hash
            return self._streams.codes([str(stream) for stream in streams])

    def _config_codes(self, configs: list[Any]) -> Codes:
        try:
            return self._configs.codes(configs)
        except TypeError:  # registers or shared memory given as a list or an object
            return self._configs.codes(
                [(*extents, str(registers), str(shared)) for *extents, registers, shared in configs]
            )

    def _signature_codes(self, args: list[Args], kind: npt.NDArray[np.int8]) -> Codes:
        dims = [a.dims for a in args]
        if dims.count(ABSENT) == len(dims):  # most traces are recorded without shapes
            return _nothing(len(args), np.int32)
        codes = np.full(len(args), NONE, dtype=np.int32)
        operators = np.flatnonzero(kind == Kind.CPU_OP).tolist()
        shaped = [i for i in operators if dims[i] is not ABSENT]
        codes[shaped] = self._signatures.codes(
            [(bytes(a.dims), bytes(a.types), bytes(a.concrete)) for a in map(args.__getitem__, shaped)]
        )
        return codes

    def _launched_codes(self, args: list[Args], kind: npt.NDArray[np.int8]) -> Codes:
        """The kernel that each launch call names; few files name any."""
        kernels = [a.kernel for a in args]
        if kernels.count(None) == len(kernels):
            return _nothing(len(kernels), np.int32)
        codes = np.full(len(kernels), NONE, dtype=np.int32)
        calls = np.flatnonzero(np.isin(kind, CALL_KINDS)).tolist()
        named = [i for i in calls if isinstance(kernels[i], str)]
        codes[named] = self._names.codes([kernels[i] for i in named])
        return codes

    def _meeting_codes(self, args: list[Args]) -> Codes:
        collectives = [a.collective for a in args]
        if collectives.count(None) == len(collectives):
            return _nothing(len(args), np.int32)
        codes = np.full(len(args), NONE, dtype=np.int32)
        rows = [i for i, collective in enumerate(collectives) if collective is not None]
        codes[rows] = np.arange(len(self._meetings), len(self._meetings) + len(rows))
        self._meetings += [
            Meeting(a.collective, a.group, a.group_ranks, a.group_size, a.group_sequence)
            for a in map(args.__getitem__, rows)
        ]
        return codes

    def _append(self, **columns: npt.NDArray[Any]) -> None:
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def build(self, meta: TraceMeta, notes: Notes) -> EventTable:
        """The table, with times relative to the first valid event, and each event once."""
        if not self._columns:
            self._append(**{c: np.zeros(0, dtype=_DTYPES.get(c, np.int64)) for c in (*_PLAIN, *_BUILT)})
        joined = {name: _concatenate(parts) for name, parts in self._columns.items()}
        self._columns.clear()
        ts, dur = joined.pop("ts"), joined.pop("dur")
        if self._legacy:
            notes = replace(notes, legacy=True, operators_on_gpu=self._read_legacy(joined))
        thread, threads = self._threads(joined.pop("pid"), joined.pop("tid"))
        lane, lanes = self._lanes(joined["device"], joined.pop("stream"))
        self._mark_modules(joined)
        valid, (first, last) = _valid_times(ts, dur, joined["kind"])
        origin = int(ts[valid].min()) if valid.any() else 0
        clock = Clock(origin, first, last)
        ts[ts == INVALID] = origin
        plain: dict[str, Any] = {name: joined[name] for name in _PLAIN if name in joined}
        table = EventTable(
            ts=ts - origin,
            dur=np.where((dur >= 0) & (dur < LONGEST_NS), dur, 0),
            valid=valid,
            thread=thread,
            threads=threads,
            names=list(self._names),
            categories=list(self._categories),
            lane=lane,
            lanes=lanes,
            configs=[_config(*config) for config in self._configs],
            signatures=list(self._signatures),
            meetings=self._meetings,
            meta=meta,
            notes=notes,
            origin_ns=origin,
            **plain,
        )
        twice = duplicates(table)
        memory, counters, flows = self._marks.build(clock, threads, once=len(twice) > 0)
        table = replace(table, memory=memory, counters=counters, flows=flows)
        if not len(twice):
            return table
        once = np.ones(len(table), dtype=bool)
        once[twice] = False
        return replace(table.take(once), notes=replace(notes, duplicates=len(twice)))

    def _mark_modules(self, joined: dict[str, npt.NDArray[Any]]) -> None:
        """Give the regions that capture puts around module calls a kind of their own: they are no operators."""
        calls = np.array([is_module(name) for name in self._names], dtype=bool)
        if calls.any():
            kind = joined["kind"]
            region = calls[joined["name"]] & np.isin(kind, (Kind.CPU_OP, Kind.ANNOTATION))
            joined["kind"] = np.where(region, np.int8(Kind.MODULE), kind)

    def _read_legacy(self, joined: dict[str, npt.NDArray[Any]]) -> int:
        """Give the rows of a legacy trace kinds, and its kernels a device; returns its operators on the GPU."""
        uncategorised = np.array([not category for category in self._categories], dtype=bool)[joined["category"]]
        kernels = legacy.kinds(joined["kind"], uncategorised, list(self._pids), joined["pid"], joined["name"])
        joined["device"][kernels] = devices(list(self._tids))[joined["tid"][kernels]]
        joined["stream"][kernels] = self._stream_codes([None])[0]
        again = int((uncategorised & (joined["kind"] == Kind.GPU_ANNOTATION)).sum())
        return max(again, self._operators_on_gpu)

    def _threads(self, pid: Codes, tid: Codes) -> tuple[Codes, list[tuple[str, str]]]:
        (pid_of, pids), (tid_of, tids) = self._pids.texts(), self._tids.texts()
        thread, pairs = paired(pid_of[pid], tid_of[tid])
        return thread, [(pids[p], tids[t]) for p, t in pairs]

    def _lanes(self, device: Codes, stream: Codes) -> tuple[Codes, list[tuple[int, str]]]:
        stream_of, streams = self._streams.texts()
        gpu = np.flatnonzero(stream != NONE)
        lane = np.full(len(stream), NONE, dtype=np.int32)
        lane[gpu], pairs = paired(device[gpu], stream_of[stream[gpu]])
        return lane, [(d, streams[s]) for d, s in pairs]


_PLAIN = (
    "name",
    "category",
    "kind",
    "device",
    "correlation",
    "external_id",
    "ev_idx",
    "config",
    "size",
    "signature",
    "meeting",
    "sequence",
    "forward_thread",
    "launches",
)
_BUILT = ("ts", "dur", "pid", "tid", "stream")
_DTYPES: dict[str, Any] = {"kind": np.int8, "launches": np.int32}


def _nothing(rows: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """A column without a value, which takes no memory."""
    return np.broadcast_to(np.array(NONE, dtype=dtype), rows)


def _concatenate(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if not any(part.flags.writeable for part in parts):  # all are `_nothing`
        joined = _nothing(sum(map(len, parts)), parts[0].dtype)
    else:
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return joined


BEFORE_NS = 60 * 10**9
AFTER_NS = 3600 * 10**9
"""Rows further than this from the host rows are not part of this recording (kernels at ts 0, overflowed counters)."""
LONGEST_NS = 24 * 3600 * 10**9


def _valid_times(ts: Ints, dur: Ints, kind: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.bool_], tuple[int, int]]:
    """Rows with possible times, and within which times an event is: those in reach of the recording.

    dur must not be negative or absurd. If no row has such times, any time is possible.
    """
    valid = (ts != INVALID) & (dur >= 0) & (dur < LONGEST_NS)
    anchor = valid & (kind != Kind.TRACE) & ~np.isin(kind, (*GPU_KINDS, Kind.GPU_ANNOTATION))
    if not anchor.any():
        anchor = valid
    if not valid.any():
        return valid, (-LIMIT, LIMIT)
    first, last = _recording(ts[anchor], ts[anchor] + dur[anchor])
    first, last = first - BEFORE_NS, last + AFTER_NS
    return valid & (ts >= first) & (ts + np.where(valid, dur, 0) <= last), (first, last)


def _recording(start: Ints, end: Ints) -> tuple[int, int]:
    """First start and last end of the rows around the median row, up to the first pause longer than AFTER_NS."""
    if start.max() - start.min() > AFTER_NS:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        pauses = np.flatnonzero(np.diff(start) > AFTER_NS) + 1
        part = int(np.searchsorted(pauses, len(start) // 2, side="right"))
        bounds = [0, *pauses.tolist(), len(start)]
        start, end = start[bounds[part] : bounds[part + 1]], end[bounds[part] : bounds[part + 1]]
    return int(start.min()), int(end.max())
