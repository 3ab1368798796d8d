"""events.parquet: the event tables of a run, readable by DuckDB, Dask, Spark and pandas where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from proftrack.events.categories import Kind
from proftrack.events.table import NONE, EventTable

COLUMNS = {
    "cycle": "index of the active window (one trace file each)",
    "ts_ns": "start, nanoseconds after the first event of its file",
    "dur_ns": "duration",
    "valid": "false where the file's times cannot be",
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
    "bytes": "moved by a copy or set, else null",
    "input_dims": "an operator's input shapes as JSON, else null",
}
"""Columns of events.parquet."""


def write_events(tables: list[EventTable], path: Path) -> None:
    """Write the tables of all cycles as one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pa.concat_tables([_arrow(pa, cycle, table) for cycle, table in enumerate(tables)])
    pq.write_table(whole.unify_dictionaries(), path, compression="zstd")


def _arrow(pa: Any, cycle: int, table: EventTable) -> Any:
    def coded(codes: Any, values: list[str | None]) -> Any:
        known = pa.array(codes, mask=codes == NONE, type=pa.int32())
        return pa.DictionaryArray.from_arrays(known, pa.array([_text(v) for v in values], type=pa.string()))

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
            "blocks": optional(table.blocks),
            "bytes": optional(table.size),
            "input_dims": coded(table.signature, [dims.decode("utf-8", "replace") for dims, _, _ in table.signatures]),
        }
    )


def _text(value: str | None) -> str | None:
    """Lone surrogates, which JSON allows and UTF-8 does not, replaced."""
    return None if value is None else value.encode("utf-8", "replace").decode("utf-8")
