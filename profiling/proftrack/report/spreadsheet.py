"""Rows as CSV, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV: text that looks like a formula is quoted, times are ISO 8601."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0].keys())
    for row in rows:
        writer.writerow([_cell(name, value) for name, value in row.items()])
    return out.getvalue()


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name == "started":
        return datetime.fromtimestamp(value / 1000, timezone.utc).isoformat(timespec="seconds")
    if isinstance(value, str):
        text = " ".join(value.split())
        return f"'{text}" if value.startswith(_FORMULA) or text.startswith(_FORMULA) else text
    return str(value).lower() if isinstance(value, bool) else value
