"""events.parquet: a run's event tables, which DuckDB, Dask, Spark and pandas can read in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proftrack.errors import TraceError
from proftrack.trace.categories import Kind
from proftrack.trace.codes import distinct, grouped_values, paired, positions
from proftrack.trace.marks import MEMORY
from proftrack.trace.table import (
    NONE,
    Bools,
    Codes,
    CounterRows,
    EventTable,
    FlowRows,
    Ints,
    LaunchConfig,
    MemoryRows,
    Notes,
    TraceMeta,
)

MAX_BYTES = 8 << 30
ROWS_ALWAYS = 1_000_000
MAX_ROWS_PER_BYTE = 20
COLUMNS = {
    "cycle": "index of the active window (one trace file each)",
    "phase": "X: an event that takes time; i: memory instant; C: counter; s, f: beginning and end of a flow",
    "ts_ns": "start, nanoseconds after the first X of its file; null if it is no X and its time is impossible",
    "dur_ns": "duration of an X, else null",
    "valid": "false if the file's times are impossible",
    "name": "operator, annotation, call, kernel or counter; of a flow its category",
    "category": "the file's own word; null for memory and counters",
    "kind": "what that is: cpu_op, annotation, runtime, driver, kernel, memcpy, memset, ...; memory, counter, flow",
    "pid": "process, as text",
    "tid": "thread, as text",
    "device": "of GPU work, and of memory on a GPU, else null",
    "stream": "of GPU work, as text, else null",
    "correlation": "joins a call with the GPU work it caused, else null",
    "external_id": "torch's number of the operator, else null",
    "ev_idx": "order in which torch recorded it, else null",
    "blocks": "thread blocks of a kernel, else null",
    "block_threads": "threads of each of its blocks, else null",
    "registers": "registers of each of its threads, else null",
    "shared_bytes": "shared memory of each of its blocks, static and dynamic, else null",
    "bytes": "moved by a copy or set, else null",
    "input_dims": "an operator's input shapes as JSON, else null",
    "sequence": "autograd's sequence number of an operator, else null",
    "forward_thread": "torch's number of the thread of a backward operator's forward operator, else null",
    "flow": "number that both ends of a flow have, else null",
    "address": "of the memory that was allocated or freed, else null",
    "memory_bytes": "allocated, negative if freed, else null",
    "allocated_bytes": "allocated on the device afterwards, else null",
    "reserved_bytes": "kept by the allocator afterwards, else null",
    "device_type": "of memory: torch's number, 0 for a CPU and 1 for CUDA, else null",
    "series": "which of a counter's values, else null",
    "value": "of a counter; null if it is no number",
}
"""Columns of events.parquet. Rows that take time come first in each cycle; `where phase = 'X'` selects them."""
_ADDED = frozenset(
    (
        *("block_threads", "registers", "shared_bytes", "sequence", "forward_thread", "phase", "flow", "address"),
        *("memory_bytes", "allocated_bytes", "reserved_bytes", "device_type", "series", "value"),
    )
)
"""Columns that the first version did not write."""
_OF_MEMORY = {
    "memory_bytes": "bytes",
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
    "device": "device",
    "device_type": "device_type",
    "address": "address",
    "ev_idx": "ev_idx",
}
"""Columns of memory rows, and the fields of MemoryRows."""


def write_events(tables: list[EventTable], path: Path) -> None:
    """Write the tables of all cycles as one file."""
    import pyarrow.parquet as pq

    pq.write_table(to_arrow(tables), path, compression="zstd")


def to_arrow(tables: list[EventTable]) -> Any:
    """All rows of all cycles as one pyarrow.Table with the columns of COLUMNS."""
    import pyarrow as pa

    whole = _joined(pa, ([_complete(pa, table), *_marks(pa, table)] for table in tables))
    types = {"series": pa.dictionary(pa.int32(), pa.string()), "value": pa.float64()}
    for name in COLUMNS:
        if name not in whole.column_names:  # no table has such rows
            whole = whole.append_column(name, pa.nulls(len(whole), types.get(name, pa.int64())))
    return whole.select(list(COLUMNS))


def complete_to_arrow(tables: list[EventTable]) -> Any:
    """The complete events of all cycles, with those of the columns of COLUMNS that they can have."""
    import pyarrow as pa

    return _joined(pa, ([_complete(pa, table)] for table in tables))


def _joined(pa: Any, cycles: Iterable[list[dict[str, Any]]]) -> Any:
    """The parts of each cycle as one table; null where a part does not have a column."""
    numbered = [
        pa.table({"cycle": pa.array(np.full(len(part["ts_ns"]), cycle, dtype=np.int32)), **part})
        for cycle, parts in enumerate(cycles)
        for part in parts
    ]
    return pa.concat_tables(numbered, promote_options="default").unify_dictionaries()


def _complete(pa: Any, table: EventTable) -> dict[str, Any]:
    dims = [dims.decode("utf-8", "replace") for dims, _, _ in table.signatures]
    return {
        "phase": _constant(pa, "X", len(table)),
        "ts_ns": pa.array(table.ts),
        "dur_ns": pa.array(table.dur),
        "valid": pa.array(table.valid),
        "name": _coded(pa, table.name, table.names),
        "category": _coded(pa, table.category, table.categories),
        "kind": _coded(pa, table.kind.astype(np.int32), [k.name.lower() for k in Kind]),
        **_threads(pa, table.thread, table),
        "device": _optional(pa, table.device),
        "stream": _coded(pa, table.lane, [stream for _, stream in table.lanes]),
        "correlation": _optional(pa, table.correlation),
        "external_id": _optional(pa, table.external_id),
        "ev_idx": _optional(pa, table.ev_idx),
        **{name: _optional(pa, values) for name, values in _configs_of(table).items()},
        "bytes": _optional(pa, table.size),
        "input_dims": _coded(pa, table.signature, dims),
        "sequence": _optional(pa, table.sequence),
        "forward_thread": _optional(pa, table.forward_thread),
    }


def _marks(pa: Any, table: EventTable) -> Iterator[dict[str, Any]]:
    """The columns of memory instants, counters and flows; the other columns are null."""
    if (memory := table.memory) is not None:
        yield {
            **_mark(pa, table, memory, "memory"),
            "phase": _constant(pa, "i", len(memory)),
            "name": _constant(pa, MEMORY, len(memory)),
            **{name: _optional(pa, getattr(memory, field)) for name, field in _OF_MEMORY.items()},
            "device": _optional(pa, memory.device.astype(np.int32)),
            "memory_bytes": pa.array(memory.bytes),
        }
    if (counters := table.counters) is not None:
        yield {
            **_mark(pa, table, counters, "counter"),
            "phase": _constant(pa, "C", len(counters)),
            "name": _coded(pa, counters.name, counters.names),
            "series": _coded(pa, counters.series, counters.names),
            "value": pa.array(counters.value, mask=np.isnan(counters.value)),
        }
    if (flows := table.flows) is not None:
        category = _coded(pa, flows.category, flows.categories)
        yield {
            **_mark(pa, table, flows, "flow"),
            "phase": _coded(pa, flows.is_end.astype(np.int32), ["s", "f"]),
            "name": category,
            "category": category,
            "flow": _optional(pa, flows.id),
        }


def _mark(pa: Any, table: EventTable, rows: MemoryRows | CounterRows | FlowRows, kind: str) -> dict[str, Any]:
    return {
        "ts_ns": pa.array(rows.ts, mask=~rows.valid),
        "valid": pa.array(rows.valid),
        "kind": _constant(pa, kind, len(rows)),
        **_threads(pa, rows.thread, table),
    }


def _threads(pa: Any, thread: Codes, table: EventTable) -> dict[str, Any]:
    return {
        "pid": _coded(pa, thread, [pid for pid, _ in table.threads]),
        "tid": _coded(pa, thread, [tid for _, tid in table.threads]),
    }


def _coded(pa: Any, codes: Codes, values: Sequence[str | None]) -> Any:
    # Several codes can stand for one text (a process has many threads), and pandas refuses such a dictionary.
    numbers = {text: number for number, text in enumerate(dict.fromkeys(map(_text, values)))}
    distinct = np.array([numbers[_text(value)] for value in values] or [0], dtype=np.int32)
    known = pa.array(distinct[np.where(codes == NONE, 0, codes)], mask=codes == NONE, type=pa.int32())
    return pa.DictionaryArray.from_arrays(known, pa.array(list(numbers), type=pa.string()))


def _constant(pa: Any, text: str, rows: int) -> Any:
    return _coded(pa, np.zeros(rows, dtype=np.int32), [text])


def _optional(pa: Any, values: Any) -> Any:
    return pa.array(values, mask=values == NONE)


def _configs_of(table: EventTable) -> dict[str, Any]:
    """A column for each field of LaunchConfig."""
    unknown = LaunchConfig(NONE, NONE, NONE, NONE)
    values = np.array([*table.configs, unknown], dtype=np.int64)[table.config]  # the last is for rows without one
    return {name: values[:, i] for i, name in enumerate(LaunchConfig._fields)}


def _text(value: str | None) -> str | None:
    """The text with lone surrogates replaced: JSON allows them, UTF-8 does not."""
    return None if value is None else value.encode("utf-8", "replace").decode("utf-8")


def read_events(path: Path) -> list[EventTable]:
    """The tables that `write_events` wrote, one per cycle.

    Fields that the file does not store are empty: the trace's metadata (`meta`, which includes the devices'
    multiprocessors), the reader's notes, `meetings`, and everything in `signatures` except the shapes.
    Raises TraceError if the file is missing or is not an events.parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        _refuse_bomb(path, pq.read_metadata(path))
        whole = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{path}: cannot be read ({error})", "name the trace itself") from error
    missing = [name for name in COLUMNS if name not in (*whole.column_names, *_ADDED)]
    if missing:
        raise TraceError(
            f"{path}: not an events.parquet of proftrack: it has no column {missing[0]}", "name the trace itself"
        )
    cycle = whole["cycle"].to_numpy()
    return [_table(_Rows(whole, cycle == number)) for number in np.unique(cycle).tolist()]


def _refuse_bomb(path: Path, meta: Any) -> None:
    """An untrusted file may expand to any size; real ones take at least five bytes per row."""
    inside = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
    size = path.stat().st_size
    if inside > MAX_BYTES or (meta.num_rows > ROWS_ALWAYS and meta.num_rows > MAX_ROWS_PER_BYTE * size):
        raise TraceError(
            f"{path}: {size} bytes expand to {meta.num_rows} rows and {inside} bytes, which no real trace does",
            "name the trace itself",
        )


class _Rows:
    """Some rows of the file; columns are copied one at a time."""

    def __init__(self, file: Any, mask: Bools) -> None:
        self._file = file
        self._mask = mask

    def of(self, *phases: str) -> _Rows:
        """Those of these phases. A file without that column has only complete events."""
        if "phase" not in self._file.column_names:
            return _Rows(self._file, self._mask & ("X" in phases))
        codes, words = _Rows(self._file, np.ones_like(self._mask)).coded("phase")
        wanted = np.array([word in phases for word in words], dtype=bool)
        return _Rows(self._file, self._mask & wanted[codes])

    def __len__(self) -> int:
        return int(self._mask.sum())

    def column(self, name: str) -> Any:
        """A column as arrow has it."""
        values = self._file[name]
        return (values if self._mask.all() else values.filter(self._mask)).combine_chunks()

    def ints(self, name: str, dtype: Any = np.int64) -> Any:
        """A column with NONE for null; all of it NONE if the file does not have it."""
        if name not in self._file.column_names:
            return np.full(len(self), NONE, dtype=dtype)
        return self.column(name).fill_null(NONE).to_numpy(zero_copy_only=False).astype(dtype)

    def floats(self, name: str) -> npt.NDArray[np.float64]:
        """A column with NaN for null."""
        return np.asarray(self.column(name).fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=np.float64)

    def bools(self, name: str) -> Bools:
        """A column without nulls."""
        return np.asarray(self.column(name).to_numpy(zero_copy_only=False), dtype=bool)

    def coded(self, name: str) -> tuple[Codes, list[str]]:
        """A column of texts as codes, NONE for null, and the texts that these rows have."""
        values = self.column(name).dictionary_encode()
        codes = values.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int32)
        used, position = distinct(codes[codes != NONE].astype(np.int64), len(values.dictionary))
        codes[codes != NONE] = position
        return codes, values.dictionary.take(used).to_pylist()

    def threads(self, known: list[tuple[str, str]]) -> Codes:
        """Each row's thread as an index into `known`, to which those that it lacks are added."""
        (pid, pids), (tid, tids) = self.coded("pid"), self.coded("tid")
        thread, pairs = paired(pid, tid)
        return positions([(_decoded(pids, p), _decoded(tids, t)) for p, t in pairs], known)[thread]


def _table(rows: _Rows) -> EventTable:
    complete = rows.of("X")
    name, names = complete.coded("name")
    category, categories = complete.coded("category")
    word, words = complete.coded("kind")
    signature, shapes = complete.coded("input_dims")
    threads: list[tuple[str, str]] = []
    thread = complete.threads(threads)
    device = complete.ints("device", np.int32)
    stream, streams = complete.coded("stream")
    lane, lanes = paired(device, stream)
    config, configs = _configs([complete.ints(field) for field in LaunchConfig._fields])
    kinds = np.array([Kind.__members__.get(each.upper(), Kind.OTHER) for each in words] or [Kind.OTHER], dtype=np.int8)
    return EventTable(
        ts=complete.ints("ts_ns"),
        dur=complete.ints("dur_ns"),
        valid=complete.bools("valid"),
        name=name,
        kind=kinds[word],
        category=category,
        thread=thread,
        device=device,
        lane=np.where(stream == NONE, NONE, lane).astype(np.int32),
        correlation=complete.ints("correlation"),
        external_id=complete.ints("external_id"),
        ev_idx=complete.ints("ev_idx"),
        config=config,
        size=complete.ints("bytes"),
        signature=signature,
        meeting=np.full(len(signature), NONE, dtype=np.int32),
        sequence=complete.ints("sequence"),
        forward_thread=complete.ints("forward_thread"),
        launches=np.full(len(signature), NONE, dtype=np.int32),
        names=names,
        categories=categories,
        memory=_memory(rows.of("i"), threads),
        counters=_counters(rows.of("C"), threads),
        flows=_flows(rows.of("s", "f"), threads),
        threads=threads,
        lanes=[(d, _decoded(streams, s)) for d, s in lanes],
        configs=configs,
        signatures=[(dims.encode(), b"", b"") for dims in shapes],
        meetings=[],
        meta=TraceMeta(),
        notes=Notes(),
        origin_ns=0,
    )


def _memory(rows: _Rows, threads: list[tuple[str, str]]) -> MemoryRows | None:
    if not len(rows):
        return None
    fields = {field: rows.ints(name) for name, field in _OF_MEMORY.items()}
    return MemoryRows(ts=rows.ints("ts_ns"), valid=rows.bools("valid"), thread=rows.threads(threads), **fields)


def _counters(rows: _Rows, threads: list[tuple[str, str]]) -> CounterRows | None:
    if not len(rows):
        return None
    (name, names), (series, keys) = rows.coded("name"), rows.coded("series")
    return CounterRows(
        ts=rows.ints("ts_ns"),
        valid=rows.bools("valid"),
        name=name,
        series=positions(keys, names)[series],
        value=rows.floats("value"),
        thread=rows.threads(threads),
        names=names,
    )


def _flows(rows: _Rows, threads: list[tuple[str, str]]) -> FlowRows | None:
    if not len(rows):
        return None
    category, categories = rows.coded("category")
    phase, phases = rows.coded("phase")
    return FlowRows(
        ts=rows.ints("ts_ns"),
        valid=rows.bools("valid"),
        id=rows.ints("flow"),
        category=category,
        is_end=np.array([word == "f" for word in phases], dtype=bool)[phase],
        thread=rows.threads(threads),
        categories=categories,
    )


def _configs(fields: list[Ints]) -> tuple[Codes, list[LaunchConfig]]:
    """The columns of LaunchConfig's fields as one column of codes, and what each code stands for."""
    codes = np.full(len(fields[0]), NONE, dtype=np.int32)
    rows = np.flatnonzero(np.any([values != NONE for values in fields], axis=0))
    of_rows = [values[rows] for values in fields]
    first, codes[rows] = grouped_values(of_rows)
    return codes, [LaunchConfig(*each) for each in zip(*(values[first].tolist() for values in of_rows), strict=True)]


def _decoded(texts: list[str], code: int) -> str:
    return "" if code == NONE else texts[code]
