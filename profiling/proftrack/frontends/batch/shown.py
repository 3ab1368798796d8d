"""A batch as people see it: a page with a table and sentences, and its table in MLflow's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from proftrack.frontends.batch.result import Figures
from proftrack.report import document
from proftrack.report.document import Block, Document, Items, Lead, Paragraph, Table
from proftrack.text import duration, percent

P = TypeVar("P", bound=Figures)


class Column(Struct, Generic[P], frozen=True):
    """A column of the table: its head, and the cell of a part."""

    head: str
    cell: Callable[[P], str]
    kind: Literal["number", "text", "word"] = "number"
    """A text gives way where room is scarce, a number or a word never."""


class Outcome(NamedTuple):
    """What came of a batch, for whoever shows it."""

    page: Document
    lines: list[str]
    """Where everything is, to be shown below the page."""
    error: str | None
    """Why not everything that was asked for is there."""


STEP_TIME = Column[Any]("T", lambda part: duration(part.step_time_us))
BUSY = Column[Any]("B", lambda part: duration(part.busy_us))
FRACTION = Column[Any]("u", lambda part: percent(part.busy_fraction))
ROOFLINE = Column[Any]("R", lambda part: duration(part.roofline_us))
REGIME = Column[Any]("regime", lambda part: part.regime, "word")
CONFIDENCE = Column[Any]("confidence", lambda part: part.confidence, "word")


def page(
    parts: Sequence[P],
    names: Sequence[Column[P]],
    columns: Sequence[Column[P]],
    *,
    lead: str = "",
    caption: str,
    sentences: Sequence[str],
) -> Document:
    """All that is said about a batch.

    `lead` is what came of it, in one line, `caption` what was measured, where and how. `names` are the columns that
    tell the parts apart, `columns` all others: a part without figures says so in that of its regime.
    """
    heads = [document.Column(label=column.head, kind=column.kind) for column in (*names, *columns)]
    rows = [_row(part, names, columns) for part in parts]
    blocks: list[Block] = [Lead(lead)] if lead else []
    blocks.append(Paragraph(caption))
    blocks.append(Table("", heads, rows, repeated=len(names), most=len(rows), folded=False))
    blocks.append(Items("", sentences))
    return Document("", blocks)


def _row(part: P, names: Sequence[Column[P]], columns: Sequence[Column[P]]) -> list[str]:
    named = [column.cell(part) for column in names]
    if not part.instead:
        return [*named, *(column.cell(part) for column in columns)]
    return [*named, *(part.instead if column is REGIME else "-" for column in columns)]


def figures(part: Figures) -> dict[str, Any]:
    """The figures of a part by the names of their columns in MLflow's form."""
    return {
        "step_time_us": part.step_time_us,
        "busy_us": part.busy_us,
        "busy_fraction": part.busy_fraction,
        "roofline_time_us": part.roofline_us,
        "regime": part.regime,
        "confidence": part.confidence,
        "run_id": part.run_id,
        "error": part.error,
    }


def as_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows with the same columns, in the form of mlflow.log_table."""
    columns = list(rows[0]) if rows else []
    return msgspec.json.encode({"columns": columns, "data": [list(row.values()) for row in rows]})
