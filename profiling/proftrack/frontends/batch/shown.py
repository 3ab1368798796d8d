"""A batch as people see it: a table and sentences, in the terminal, in Markdown and in MLflow's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from proftrack.frontends.batch.result import Figures
from proftrack.text import duration, percent, plain

P = TypeVar("P", bound=Figures)
_SENTENCE, _CELL = 400, 160
_GAP = 2


class Column(Struct, Generic[P], frozen=True):
    """A column of the table: its head, and the cell of a part."""

    head: str
    cell: Callable[[P], str]
    words: bool = False
    """Aligned left."""


class Page(Struct, Generic[P], frozen=True, kw_only=True):
    """All that is said about a batch."""

    lead: str = ""
    """What came of it, in one line."""
    caption: str
    """What was measured, where and how."""
    names: Sequence[Column[P]]
    """The columns that tell the parts apart: they give way where room is scarce."""
    columns: Sequence[Column[P]]
    """All others, whose cells are never cut. A part without figures says so in that of its regime."""
    parts: Sequence[P]
    sentences: Sequence[str]
    narrowest: int
    """To which width names may give way."""


class Outcome(NamedTuple):
    """What came of a batch, for whoever shows it."""

    page: Page[Any]
    lines: list[str]
    """Where everything is, to be shown below the page."""
    error: str | None
    """Why not everything that was asked for is there."""


STEP_TIME = Column[Any]("T", lambda part: duration(part.step_time_us))
BUSY = Column[Any]("B", lambda part: duration(part.busy_us))
FRACTION = Column[Any]("u", lambda part: percent(part.busy_fraction))
ROOFLINE = Column[Any]("R", lambda part: duration(part.roofline_us))
REGIME = Column[Any]("regime", lambda part: part.regime, words=True)
CONFIDENCE = Column[Any]("confidence", lambda part: part.confidence, words=True)


def rows(page: Page[Any]) -> list[list[str]]:
    """The table's cells, a row a part, with the heads first."""
    columns = [*page.names, *page.columns]
    return [[column.head for column in columns], *(_row(page, part) for part in page.parts)]


def _row(page: Page[P], part: P) -> list[str]:
    named = [column.cell(part) for column in page.names]
    if not part.instead:
        return [*named, *(column.cell(part) for column in page.columns)]
    return [*named, *(part.instead if column is REGIME else "-" for column in page.columns)]


# ---- terminal --------------------------------------------------------------------------------------------------------


def print_page(page: Page[Any]) -> None:
    """Lead, table and sentences, on stdout."""
    from rich.text import Text

    from proftrack.report.terminal import console

    out = console()
    out.print()
    if page.lead:
        out.print(Text(page.lead, style="bold"))
    out.print(Text(page.caption))
    for lines in side_by_side(page, out.width):
        out.print()
        for line in lines:
            out.print(Text(line), no_wrap=True, crop=False)
    for sentence in page.sentences:
        out.print(Text(sentence))


def side_by_side(page: Page[Any], width: int) -> list[list[str]]:
    """The table's lines; columns that do not fit beside the others make another table below, with the names again."""
    cells = [list(column) for column in zip(*rows(page), strict=True)]
    names, columns = cells[: len(page.names)], cells[len(page.names) :]
    least = sum(min(_width(column), page.narrowest) for column in names) + _GAP * (len(names) - 1)
    tables: list[list[int]] = [[]]
    room = least
    for index, column in enumerate(columns):
        taken = _GAP + _width(column)
        if tables[-1] and room + taken > width:
            tables.append([])
            room = least
        tables[-1].append(index)
        room += taken
    return [_lines(page, names, {index: columns[index] for index in table}, width) for table in tables]


def _lines(page: Page[Any], names: list[list[str]], columns: dict[int, list[str]], width: int) -> list[str]:
    room = width - sum(_GAP + _width(column) for column in columns.values()) - _GAP * (len(names) - 1)
    padded = [
        _padded([plain(cell, wide) for cell in column], words=of.words)
        for of, column, wide in zip(page.names, names, _narrowed(names, room, page.narrowest), strict=True)
    ]
    padded += [_padded(column, words=page.columns[index].words) for index, column in columns.items()]
    return [(" " * _GAP).join(row).rstrip() for row in zip(*padded, strict=True)]


def _narrowed(names: list[list[str]], room: int, narrowest: int) -> list[int]:
    """The widths of the names' columns: the widest gives way until all fit, or none can any more."""
    widths = [_width(column) for column in names]
    while sum(widths) > room and max(widths) > narrowest:
        widths[widths.index(max(widths))] -= 1
    return widths


def _padded(cells: list[str], *, words: bool) -> list[str]:
    wide = _width(cells)
    return [cell.ljust(wide) if words else cell.rjust(wide) for cell in cells]


def _width(cells: list[str]) -> int:
    return max(map(len, cells))


# ---- files -----------------------------------------------------------------------------------------------------------


def markdown(page: Page[Any]) -> str:
    """All of it as Markdown: the parent run's description."""
    from proftrack.report.markdown import escape

    head, *body = rows(page)
    table = [head, ["---"] * len(head), *([escape(cell, _CELL) for cell in cells] for cells in body)]
    lines = [f"**{escape(page.lead, _SENTENCE)}**", ""] if page.lead else []
    lines += [escape(page.caption, _SENTENCE), "", *(f"| {' | '.join(cells)} |" for cells in table), ""]
    return "\n".join([*lines, *(f"- {escape(sentence, _SENTENCE)}" for sentence in page.sentences)])


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
