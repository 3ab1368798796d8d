"""Typed rows as msgspec decodes them, and their way into numpy columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from proftrack.events.categories import GPU_KINDS, Kind, kind_of
from proftrack.events.table import NONE, Codes, EventTable, Ints, Notes, TraceMeta

ABSENT = Raw()
"""Of a Raw field: the file does not have it."""


class Args(Struct, gc=False):
    """The arguments that measures read; msgspec skips all others without building them.

    Any: other tools write numbers as text, and a wrong type in one place must not cost a batch of events.
    """

    correlation: Any = NONE
    external_id: Any = field(default=NONE, name="External id")
    ev_idx: Any = field(default=NONE, name="Ev Idx")
    device: Any = None
    stream: Any = None
    grid: Any = None
    bytes: Any = None
    dims: Raw = field(default=ABSENT, name="Input Dims")
    types: Raw = field(default=ABSENT, name="Input type")
    concrete: Raw = field(default=ABSENT, name="Concrete Inputs")


class Row(Struct, gc=False):
    """An event whose times fit a float64 without loss."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class ExactRow(Struct, gc=False):
    """The same with the times' text: an epoch time in microseconds with decimals does not fit a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Args | None = None


ROWS = msgspec.json.Decoder(list[Row])
EXACT_ROWS = msgspec.json.Decoder(list[ExactRow])
EXACT_ROW = msgspec.json.Decoder(ExactRow)

FLOAT_IS_EXACT_BELOW_US = 2.0**43
"""Under this a float64 of microseconds is off by less than half a nanosecond."""
_INVALID = np.iinfo(np.int64).min
_LIMIT_NS = 2**62
_NO_ARGS = Args()
_LARGEST_EXTENT = np.array([2**31 - 1, 65535, 65535])
"""CUDA's own limits of a grid: their product fits 63 bits."""
_IS_GPU_WORK = np.isin(np.arange(len(Kind)), GPU_KINDS)


def exact_ns(text: bytes) -> int:
    """Nanoseconds of a JSON number (or string holding one) in microseconds; `_INVALID` where it is none."""
    text = text.strip(b'"')
    whole, _, part = text.partition(b".")
    try:
        if len(part) == 3:  # what torch writes
            return _bounded_ns(int(whole + part))
        if not part:
            return _bounded_ns(int(whole) * 1000)
        raise ValueError
    except ValueError:
        return _ns_of_decimal(text)


def _ns_of_decimal(text: bytes) -> int:
    """Nanoseconds of a number with an exponent or with other than three decimals."""
    try:
        us = Decimal(text.decode("ascii", "replace"))
        # An int of a huge exponent takes forever; out of range it is anyway.
        return _bounded_ns(int((us * 1000).to_integral_value())) if us.is_finite() and us.adjusted() < 20 else _INVALID
    except ArithmeticError:
        return _INVALID


def _bounded_ns(value: int) -> int:
    return value if -_LIMIT_NS < value < _LIMIT_NS else _INVALID


class InexactTimes(Exception):
    """These rows hold a time that a float64 cannot keep to the nanosecond: decode them as ExactRow."""


def _ns_of_floats(values: list[Any]) -> Ints:
    """Nanoseconds of microseconds; whole and part apart, so that no product exceeds 2**53. Raises InexactTimes."""
    try:
        us = np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:  # an integer of hundreds of digits
        raise InexactTimes from None
    bad = ~(np.abs(us) < _LIMIT_NS / 1000)
    us[bad] = 0.0
    whole = np.floor(us)
    # A float may have rounded to a whole number: what matters is that it was written with decimals.
    if (np.abs(us) >= FLOAT_IS_EXACT_BELOW_US).any() and any(type(v) is float for v in values):
        raise InexactTimes
    ns = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    ns[bad] = _INVALID
    return ns


class _Numbering(dict[Any, int]):
    """Gives each distinct key the next number when it is first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


def _int64(values: list[Any]) -> Ints:
    try:
        numbers = np.array(values, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        numbers = np.zeros(0, dtype=np.int64)
    if numbers.shape == (len(values),):
        return numbers
    return np.array([_as_id(v) for v in values], dtype=np.int64)


def _as_id(value: Any) -> int:
    """An id of any type as int64. Ids over 63 bits wrap or hash, which keeps the joins."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return hash(value) if isinstance(value, str) else NONE
    return (number + 2**63) % 2**64 - 2**63


def _product(grid: Any) -> int:
    """Thread blocks of a grid like [4, 2, 1]; NONE where it is anything else."""
    if not isinstance(grid, list) or not grid or not all(isinstance(extent, int) for extent in grid):
        return NONE
    blocks = math.prod(grid)
    return blocks if 0 <= blocks < _LIMIT_NS else NONE


def _products(grids: list[Any]) -> Ints:
    """`_product` of many; the usual case, three whole numbers each, at once."""
    blocks: Ints = np.full(len(grids), NONE, dtype=np.int64)
    given = [i for i, grid in enumerate(grids) if grid is not None]
    usual = [grids[i] for i in given]
    try:
        extents = np.array(usual)
    except ValueError:  # of unequal lengths
        extents = np.zeros(0)
    within = extents.dtype == np.int64 and extents.ndim == 2 and extents.shape[1] <= 3
    if within and (extents >= 0).all() and (extents <= _LARGEST_EXTENT[: extents.shape[1]]).all():
        blocks[given] = extents.prod(axis=1)
    else:
        blocks[given] = [_product(grid) for grid in usual]
    return blocks


def _size(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    return int(value) if isinstance(value, (int, float)) and 0 <= value < _LIMIT_NS else NONE


class TableBuilder:
    """Collects batches of rows as columns; `build` makes the table."""

    def __init__(self) -> None:
        self._names = _Numbering()
        self._categories = _Numbering()
        self._pids = _Numbering()
        self._tids = _Numbering()
        self._lanes = _Numbering()
        self._signatures = _Numbering()
        self._kind_of_category: list[Kind] = []
        self._columns: dict[str, list[npt.NDArray[Any]]] = {}
        self.events_seen = 0
        """Events of any phase, for the record's source."""

    def add(self, decoded: Sequence[Row] | Sequence[ExactRow]) -> None:
        """Append the complete events among these rows. Raises InexactTimes before anything is appended."""
        rows: list[Any] = [r for r in decoded if r.ph == "X"]
        times = self._times(rows) if rows else None
        self.events_seen += len(decoded)
        if times is None:
            return
        args = [r.args or _NO_ARGS for r in rows]
        category = self._code(self._categories, [r.cat for r in rows])
        self._kind_of_category += [kind_of(c) for c in list(self._categories)[len(self._kind_of_category) :]]
        kind = np.array(self._kind_of_category, dtype=np.int8)[category]
        self._append(
            ts=times[0],
            dur=times[1],
            name=self._code(self._names, [r.name for r in rows]),
            category=category,
            kind=kind,
            pid=self._code(self._pids, [r.pid for r in rows]),
            tid=self._code(self._tids, [r.tid for r in rows]),
            correlation=_int64([a.correlation for a in args]),
            external_id=_int64([a.external_id for a in args]),
            ev_idx=_int64([a.ev_idx for a in args]),
            **self._gpu_columns(rows, args, kind),
            signature=self._signature_codes(args, kind),
        )

    @staticmethod
    def _times(rows: list[Any]) -> tuple[Ints, Ints]:
        if not isinstance(rows[0], ExactRow):
            return _ns_of_floats([r.ts for r in rows]), _ns_of_floats([r.dur for r in rows])
        ts = np.array([exact_ns(bytes(r.ts)) for r in rows], dtype=np.int64)
        return ts, np.array([exact_ns(bytes(r.dur)) for r in rows], dtype=np.int64)

    def _gpu_columns(self, rows: list[Any], args: list[Args], kind: npt.NDArray[np.int8]) -> dict[str, Any]:
        """Lane, device, blocks and bytes: of GPU work only. Old traces name the device by pid, the stream by tid."""
        columns: dict[str, npt.NDArray[Any]] = {
            "lane": np.full(len(rows), NONE, dtype=np.int32),
            "device": np.full(len(rows), NONE, dtype=np.int32),
            "blocks": np.full(len(rows), NONE, dtype=np.int64),
            "size": np.full(len(rows), NONE, dtype=np.int64),
        }
        gpu = np.flatnonzero(_IS_GPU_WORK[kind])
        work = [(rows[i], args[i]) for i in gpu.tolist()]
        device = [_as_device(r.pid if a.device is None else a.device) for r, a in work]
        stream = [str(r.tid if a.stream is None else a.stream) for r, a in work]
        columns["device"][gpu] = device
        columns["lane"][gpu] = [self._lanes[lane] for lane in zip(device, stream, strict=True)]
        columns["blocks"][gpu] = _products([a.grid for _, a in work])
        columns["size"][gpu] = [NONE if a.bytes is None else _size(a.bytes) for _, a in work]
        return columns

    def _signature_codes(self, args: list[Args], kind: npt.NDArray[np.int8]) -> Codes:
        codes = np.full(len(args), NONE, dtype=np.int32)
        shaped = [i for i, a in enumerate(args) if a.dims is not ABSENT]
        for i in shaped:
            if kind[i] == Kind.CPU_OP:
                a = args[i]
                codes[i] = self._signatures[(bytes(a.dims), bytes(a.types), bytes(a.concrete))]
        return codes

    @staticmethod
    def _code(numbering: _Numbering, keys: list[Any]) -> Codes:
        return np.array([numbering[k] for k in keys], dtype=np.int32)

    def _append(self, **columns: npt.NDArray[Any]) -> None:
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def build(self, meta: TraceMeta, notes: Notes) -> EventTable:
        """The table, its times made relative to the first valid event."""
        if not self._columns:
            self._append(
                **{c: np.zeros(0, dtype=_DTYPES.get(c, np.int64)) for c in (*_PLAIN, "ts", "dur", "pid", "tid")}
            )
        joined = {name: _concatenate(parts) for name, parts in self._columns.items()}
        self._columns.clear()
        ts, dur = joined.pop("ts"), joined.pop("dur")
        thread, threads = self._threads(joined.pop("pid"), joined.pop("tid"))
        valid = _valid_times(ts, dur, joined["kind"])
        origin = int(ts[valid].min()) if valid.any() else 0
        ts[ts == _INVALID] = origin
        return EventTable(
            ts=ts - origin,
            dur=np.where((dur >= 0) & (dur < LONGEST_NS), dur, 0),
            valid=valid,
            thread=thread,
            threads=threads,
            names=list(self._names),
            categories=list(self._categories),
            lanes=list(self._lanes),
            signatures=list(self._signatures),
            meta=meta,
            notes=notes,
            origin_ns=origin,
            **{name: joined[name] for name in _PLAIN if name in joined},
        )

    def _threads(self, pid: Codes, tid: Codes) -> tuple[Codes, list[tuple[str, str]]]:
        (pid_of, pids), (tid_of, tids) = _as_texts(self._pids), _as_texts(self._tids)
        pairs = pid_of[pid] * len(tids) + tid_of[tid]
        unique, inverse = np.unique(pairs, return_inverse=True)
        threads = [(pids[p // len(tids)], tids[p % len(tids)]) for p in unique.tolist()]
        return inverse.astype(np.int32), threads


_PLAIN = (
    "name",
    "category",
    "kind",
    "device",
    "lane",
    "correlation",
    "external_id",
    "ev_idx",
    "blocks",
    "size",
    "signature",
)
_DTYPES: dict[str, Any] = {"kind": np.int8}


def _as_texts(keys: _Numbering) -> tuple[Ints, list[str]]:
    """For each number the number of its key's text, and the texts: 7 and "7" are one thread."""
    texts = _Numbering()
    return np.array([texts[str(k)] for k in keys], dtype=np.int64), list(texts)


def _concatenate(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return joined


def _as_device(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:5])
    return value if isinstance(value, int) and 0 <= value < 1024 else NONE  # more GPUs than any host has


BEFORE_NS = 60 * 10**9
AFTER_NS = 3600 * 10**9
"""Rows further than this from the host's are not of this recording (kernels at ts 0, overflowed counters)."""
LONGEST_NS = 24 * 3600 * 10**9


def _valid_times(ts: Ints, dur: Ints, kind: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Rows whose times can be: dur not negative and not absurd, ts and end within reach of the recording."""
    valid = (ts != _INVALID) & (dur >= 0) & (dur < LONGEST_NS)
    anchor = valid & (kind != Kind.TRACE) & ~np.isin(kind, (*GPU_KINDS, Kind.GPU_ANNOTATION))
    if not anchor.any():
        anchor = valid
    if valid.any():
        first, last = _recording(ts[anchor], ts[anchor] + dur[anchor])
        reach = ts + np.where(valid, dur, 0)
        valid &= (ts >= first - BEFORE_NS) & (reach <= last + AFTER_NS)
    return np.asarray(valid)


def _recording(start: Ints, end: Ints) -> tuple[int, int]:
    """First start and last end of the rows around the median one, as far as no pause is longer than AFTER_NS."""
    if start.max() - start.min() > AFTER_NS:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        pauses = np.flatnonzero(np.diff(start) > AFTER_NS) + 1
        part = int(np.searchsorted(pauses, len(start) // 2, side="right"))
        bounds = [0, *pauses.tolist(), len(start)]
        start, end = start[bounds[part] : bounds[part + 1]], end[bounds[part] : bounds[part + 1]]
    return int(start.min()), int(end.max())
