"""Writes a run folder: everything that there is to log about a run, complete on disk before a store sees any of it.

FOLDER/record.json
       trace/*.pt.trace.json.gz      put there by the capture
       tables/key_averages.txt, ops.json, kernels.json
       events.parquet
       git.diff                      only where the tree was dirty
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from proftrack import record as records
from proftrack.analysis import Analysis
from proftrack.errors import ProftrackError
from proftrack.measures.results import Kernel, Op
from proftrack.report import key_averages


def write(analysis: Analysis, folder: Path, *, diff: str | None = None) -> None:
    """Write the folder; record.json comes last, so that a folder that holds one is whole.

    Raises ProftrackError where the disk refuses.
    """
    from proftrack.events.parquet import write_events

    record = analysis.record
    try:
        tables = folder / "tables"
        tables.mkdir(parents=True, exist_ok=True)
        (tables / "key_averages.txt").write_text(key_averages.table(record), encoding="utf-8")
        _write_table(tables / "ops.json", record.ops, Op)
        _write_table(tables / "kernels.json", record.kernels, Kernel)
        write_events(analysis.tables, folder / "events.parquet")
        if diff is not None:
            (folder / "git.diff").write_text(diff, encoding="utf-8")
        unfinished = folder / "record.json.part"
        records.save(record, unfinished)
        unfinished.replace(folder / "record.json")
    except OSError as error:
        raise ProftrackError(
            f"{folder}: the run cannot be kept ({error.strerror}); free some space or name another --output"
        ) from error


def _write_table(path: Path, rows: list[Any], kind: type[msgspec.Struct]) -> None:
    """One table in the form of mlflow.log_table: columns, and a list of values for each row."""
    columns = [field.name for field in msgspec.structs.fields(kind)]
    data = [[getattr(row, column) for column in columns] for row in rows]
    path.write_bytes(msgspec.json.encode({"columns": columns, "data": data}))
