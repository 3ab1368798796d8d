"""events.parquet: a run's event tables, which DuckDB, Dask, Spark and pandas can read in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from proftrack.errors import TraceError
from proftrack.trace.categories import Kind
from proftrack.trace.codes import grouped, paired
from proftrack.trace.table import NONE, Codes, EventTable, Ints, LaunchConfig, Notes, TraceMeta

MAX_BYTES = 8 << 30
ROWS_ALWAYS = 1_000_000
MAX_ROWS_PER_BYTE = 20
COLUMNS = {
    "cycle": "index of the active window (one trace file each)",
    "ts_ns": "start, nanoseconds after the first event of its file",
    "dur_ns": "duration",
    "valid": "false if the file's times are impossible",
    "name": "operator, annotation, call or kernel",
    "category": "the file's own word",
    "kind": "what that is: cpu_op, annotation, runtime, driver, kernel, memcpy, memset, ...",
    "pid": "process, as text",
    "tid": "thread, as text",
    "device": "of GPU work, else null",
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
}
"""Columns of events.parquet."""
_ADDED = ("block_threads", "registers", "shared_bytes", "sequence", "forward_thread")
"""Columns that the first version did not write."""


def write_events(tables: list[EventTable], path: Path) -> None:
    """Write the tables of all cycles as one file."""
    import pyarrow.parquet as pq

    pq.write_table(to_arrow(tables), path, compression="zstd")


def to_arrow(tables: list[EventTable]) -> Any:
    """The tables of all cycles as one pyarrow.Table with the columns of COLUMNS."""
    import pyarrow as pa

    return pa.concat_tables([_arrow(pa, cycle, table) for cycle, table in enumerate(tables)]).unify_dictionaries()


def _arrow(pa: Any, cycle: int, table: EventTable) -> Any:
    def coded(codes: Any, values: list[str | None]) -> Any:
        # Several codes can stand for one text (a process has many threads), and pandas refuses such a dictionary.
        numbers = {text: number for number, text in enumerate(dict.fromkeys(map(_text, values)))}
        distinct = np.array([numbers[_text(value)] for value in values] or [0], dtype=np.int32)
        known = pa.array(distinct[np.where(codes == NONE, 0, codes)], mask=codes == NONE, type=pa.int32())
        return pa.DictionaryArray.from_arrays(known, pa.array(list(numbers), type=pa.string()))

    def optional(values: Any) -> Any:
        return pa.array(values, mask=values == NONE)

    return pa.table(
        {
            "cycle": pa.array(np.full(len(table), cycle, dtype=np.int32)),
            "ts_ns": table.ts,
            "dur_ns": table.dur,
            "valid": table.valid,
            "name": coded(table.name, list(table.names)),
            "category": coded(table.category, list(table.categories)),
            "kind": coded(table.kind.astype(np.int32), [k.name.lower() for k in Kind]),
            "pid": coded(table.thread, [pid for pid, _ in table.threads]),
            "tid": coded(table.thread, [tid for _, tid in table.threads]),
            "device": optional(table.device),
            "stream": coded(table.lane, [stream for _, stream in table.lanes]),
            "correlation": optional(table.correlation),
            "external_id": optional(table.external_id),
            "ev_idx": optional(table.ev_idx),
            **{name: optional(values) for name, values in _configs_of(table).items()},
            "bytes": optional(table.size),
            "input_dims": coded(table.signature, [dims.decode("utf-8", "replace") for dims, _, _ in table.signatures]),
            "sequence": optional(table.sequence),
            "forward_thread": optional(table.forward_thread),
        }
    )


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
    whole = whole.combine_chunks()
    return [_table(whole.filter(pa.array(cycle == number))) for number in np.unique(cycle).tolist()]


def _refuse_bomb(path: Path, meta: Any) -> None:
    """An untrusted file may expand to any size; real ones take at least five bytes per row."""
    inside = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
    size = path.stat().st_size
    if inside > MAX_BYTES or (meta.num_rows > ROWS_ALWAYS and meta.num_rows > MAX_ROWS_PER_BYTE * size):
        raise TraceError(
            f"{path}: {size} bytes expand to {meta.num_rows} rows and {inside} bytes, which no real trace does",
            "name the trace itself",
        )


def _table(rows: Any) -> EventTable:
    def column(name: str, dtype: Any = np.int64) -> Any:
        if name in _ADDED and name not in rows.column_names:
            return np.full(len(rows), NONE, dtype=dtype)
        return rows[name].fill_null(NONE).to_numpy().astype(dtype)

    def coded(name: str) -> tuple[Any, list[str]]:
        values = rows[name].combine_chunks().dictionary_encode()
        codes = values.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int32)
        return codes, values.dictionary.to_pylist()

    name, names = coded("name")
    category, categories = coded("category")
    word, words = coded("kind")
    signature, shapes = coded("input_dims")
    (pid, pids), (tid, tids) = coded("pid"), coded("tid")
    thread, threads = paired(pid, tid)
    device = column("device", np.int32)
    stream, streams = coded("stream")
    lane, lanes = paired(device, stream)
    config, configs = _configs([column(field) for field in LaunchConfig._fields])
    kinds = np.array([Kind[each.upper()] for each in words] or [Kind.OTHER], dtype=np.int8)
    return EventTable(
        ts=column("ts_ns"),
        dur=column("dur_ns"),
        valid=rows["valid"].to_numpy().astype(bool),
        name=name,
        kind=kinds[word],
        category=category,
        thread=thread,
        device=device,
        lane=np.where(stream == NONE, NONE, lane).astype(np.int32),
        correlation=column("correlation"),
        external_id=column("external_id"),
        ev_idx=column("ev_idx"),
        config=config,
        size=column("bytes"),
        signature=signature,
        meeting=np.full(len(signature), NONE, dtype=np.int32),
        sequence=column("sequence"),
        forward_thread=column("forward_thread"),
        launches=np.full(len(signature), NONE, dtype=np.int32),
        names=names,
        categories=categories,
        threads=[(_decoded(pids, p), _decoded(tids, t)) for p, t in threads],
        lanes=[(d, _decoded(streams, s)) for d, s in lanes],
        configs=configs,
        signatures=[(dims.encode(), b"", b"") for dims in shapes],
        meetings=[],
        meta=TraceMeta(),
        notes=Notes(),
        origin_ns=0,
    )


def _configs(fields: list[Ints]) -> tuple[Codes, list[LaunchConfig]]:
    """The columns of LaunchConfig's fields as one column of codes, and what each code stands for."""
    codes = np.full(len(fields[0]), NONE, dtype=np.int32)
    rows = np.flatnonzero(np.any([values != NONE for values in fields], axis=0))
    of_rows = [values[rows] for values in fields]
    first, codes[rows] = grouped([np.unique(values, return_inverse=True)[1] for values in of_rows])
    return codes, [LaunchConfig(*each) for each in zip(*(values[first].tolist() for values in of_rows), strict=True)]


def _decoded(texts: list[str], code: int) -> str:
    return "" if code == NONE else texts[code]
