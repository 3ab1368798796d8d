"""How a batch is shown: a page with a table and sentences, and the table in MLflow's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from proftrack.frontends.batch.result import Figures
from proftrack.report import document
from proftrack.report.document import Block, Document, Items, Lead, Paragraph, Table
from proftrack.text import duration, figure, percent

P = TypeVar("P", bound=Figures)


class Column(Struct, Generic[P], frozen=True):
    """A column of the table: its head, and a function from a part to its cell."""

    head: str
    cell: Callable[[P], str]
    kind: Literal["number", "text", "word"] = "number"
    """If the table is too wide, text is shortened, numbers and words never are."""
    meaning: str = ""
    """What a one-letter head stands for; the legend explains it."""
    optional: bool = False
    """Whether it is left out if no part has the figure."""


class Outcome(NamedTuple):
    """The result of a batch, ready to be shown."""

    page: Document
    lines: list[str]
    """Where everything is; shown below the page."""
    error: str | None
    """Why the batch is incomplete; None if it is complete."""


STEP_TIME = Column[Any]("T", lambda part: duration(part.step_time_us), meaning="step time")
BUSY = Column[Any]("B", lambda part: duration(part.busy_us), meaning="busy time per step")
FRACTION = Column[Any]("u", lambda part: percent(part.busy_fraction), meaning="B / T")
ROOFLINE = Column[Any]("R", lambda part: duration(part.roofline_us), meaning="roofline time per step, at least")
ENERGY = Column[Any]("energy", lambda part: figure("joules", part.energy_joules), optional=True)
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
    """The whole page about a batch.

    `lead` is the result in one line, `caption` says what was measured, where and how. `names` are the columns that
    identify a part, `columns` all others. A part without figures has the reason in its regime column.
    """
    columns = [each for each in columns if not each.optional or any(each.cell(part) != "-" for part in parts)]
    heads = [document.Column(label=column.head, kind=column.kind) for column in (*names, *columns)]
    rows = [_row(part, names, columns) for part in parts]
    blocks: list[Block] = [Lead(lead)] if lead else []
    blocks.append(Paragraph(caption))
    blocks.append(Table("", heads, rows, repeated=len(names), most=len(rows), folded=False))
    legend = [f"{column.head} = {column.meaning}" for column in columns if column.meaning]
    blocks.append(Paragraph(f"{', '.join(legend)}."))
    blocks.append(Items("", sentences))
    return Document("", blocks)


def _row(part: P, names: Sequence[Column[P]], columns: Sequence[Column[P]]) -> list[str]:
    cells = [column.cell(part) for column in names]
    if not part.instead:
        return [*cells, *(column.cell(part) for column in columns)]
    return [*cells, *(part.instead if column is REGIME else "-" for column in columns)]


def figures(part: Figures) -> dict[str, Any]:
    """The figures of a part, by the names of their columns in MLflow's table."""
    return {
        "step_time_us": part.step_time_us,
        "busy_us": part.busy_us,
        "busy_fraction": part.busy_fraction,
        "roofline_time_us": part.roofline_us,
        "energy_per_step_joules": part.energy_joules,
        "regime": part.regime,
        "confidence": part.confidence,
        "run_id": part.run_id,
        "error": part.error,
    }


def as_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows that have the same columns, in the form of mlflow.log_table."""
    columns = list(rows[0]) if rows else []
    return msgspec.json.encode({"columns": columns, "data": [list(row.values()) for row in rows]})
