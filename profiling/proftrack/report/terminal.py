"""A document on a terminal, or as plain text for a pipe.

Lines fit the terminal's width; in a pipe, $COLUMNS, else 100 columns. Numbers are never cut; names beside them are.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, TypeVar

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from proftrack.report.document import (
    SUB,
    Bars,
    Beside,
    Block,
    Cell,
    Chips,
    Column,
    Document,
    Facts,
    Icicle,
    Items,
    Lead,
    Paragraph,
    Section,
    Shares,
    Strip,
    Table,
    Tone,
    Ways,
    is_empty,
)
from proftrack.text import brief, percent, plain

_Item = TypeVar("_Item")
PIPED_COLUMNS = 100
_SENTENCE, _CELL, _NAME = 1200, 160, 60
_NARROWEST = 10
"""Width below which a column of words is not shortened further."""
_BAR = 30
_LABEL = 8
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_SHORT_ID = 8
_GAP = 2
_STYLES: dict[Tone, str] = {"good": "bold green", "bad": "bold red", "unclear": "bold yellow", "plain": "bold"}


def console(stream: IO[str] | None = None) -> Console:
    """A console on stdout or another text stream. rich honours NO_COLOR, and uses colour on terminals only.

    A character that the stream's encoding lacks is shown as its escape: no report may fail because of a name.
    """
    out = sys.stdout if stream is None else stream
    reconfigure: Callable[..., None] | None = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return Console(file=stream, highlight=False, soft_wrap=False, width=_width(out))


def _width(out: IO[str]) -> int | None:
    """Columns of a pipe; None for a terminal, since rich finds out its width."""
    if out.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) > 0 else PIPED_COLUMNS


def show(document: Document, stream: IO[str] | None = None) -> None:
    """Print a document to stdout, or to another text stream."""
    _show(console(stream), document.blocks)


def text(document: Document) -> str:
    """The same as a string."""
    stream = io.StringIO()
    show(document, stream)
    return stream.getvalue().lstrip("\n")


def print_note(label: str, text: str) -> None:
    """Print a sentence after a label of eight columns, wrapped to the terminal's width."""
    _hanging(console(), text, label.ljust(_LABEL), " " * _LABEL)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _show(out: Console, blocks: Sequence[Block]) -> None:
    """Print the blocks, separated by empty lines except where they belong together."""
    before: Block | None = None
    for block in blocks:
        if is_empty(block) or type(block) not in _SHOW:
            continue
        together = isinstance(block, Chips | Paragraph | Ways) and isinstance(before, Lead | Paragraph)
        if not together and not isinstance(block, Section | Beside):
            out.print()
        _SHOW[type(block)](out, block)
        before = block


def _lead(out: Console, block: Lead) -> None:
    label = f"{block.label}: " if block.label else ""
    _hanging(out, label + block.text, style=_STYLES[block.tone])


def _paragraph(out: Console, block: Paragraph) -> None:
    _hanging(out, block.text)


def _chips(out: Console, block: Chips) -> None:
    _hanging(out, ", ".join(f"{name} {value}".strip() for name, value in block.items))


def _items(out: Console, block: Items) -> None:
    _heading(out, block.title)
    for line in block.lines:
        first = SUB if line.startswith(SUB) else f"{block.mark} "
        _hanging(out, line.strip(), f"  {first}", "  " + " " * len(first), "yellow" if block.warning else "")


def _facts(out: Console, block: Facts) -> None:
    _heading(out, block.title)
    width = max(len(name) for name, _ in block.rows)
    for name, value in block.rows:
        _hanging(out, value, f"  {plain(name):<{width}}  ", " " * (width + 4))


def _bars(out: Console, block: Bars) -> None:
    _heading(out, block.title)
    for bar in block.bars:
        line = f"{bar.key:<2} {plain(bar.short or bar.label, _CELL):<24}{plain(bar.value):>9}  "
        length = bar.solid + bar.rest
        out.print(Text((line + _bar(length / 100, out.width - len(line)) if length else line).rstrip()))
    if block.note:
        _hanging(out, block.note, style="dim")


def _bar(share: float, room: int) -> str:
    return "#" * max(1, round(min(_BAR, room) * share)) if room > 3 else ""


def _shares(out: Console, block: Shares) -> None:
    _heading(out, block.title)
    for part in block.parts:
        share = part.share / 100
        line = f"  {plain(part.short or part.label, _CELL):<22}{plain(part.value):>9} {percent(share):>8}  "
        out.print(Text(line + _bar(share, out.width - len(line))))


def _icicle(out: Console, block: Icicle) -> None:
    _shares(out, Shares(block.title, block.tiles.passes))


def _strip(out: Console, block: Strip) -> None:
    for span in block.spans:
        _hanging(out, f"{span.label}: {span.detail}", "  - ", SUB)


def _ways(out: Console, block: Ways) -> None:
    for way in block.ways:
        for depth, link in enumerate([*way.links, *([way.end] if way.end else [])]):
            out.print(Text(f"  {'  ' * depth}{'└ ' if depth else ''}{plain(link, 70)}"))
        if way.text:
            _hanging(out, way.text, "  ", "  ")


def _section(out: Console, block: Section) -> None:
    if block.headed:
        out.print()
        _heading(out, block.title)
    _show(out, block.blocks)


def _heading(out: Console, title: str) -> None:
    if title:
        out.print(Text(f"{plain(title, _SENTENCE)}:"))


def _hanging(out: Console, text: str, first: str = "", below: str = "", style: str = "") -> None:
    """Print a text in lines that fit, the first after `first`, the others after `below`, which is as wide."""
    words = Text(plain(text, _SENTENCE), style=style)
    for i, part in enumerate(words.wrap(out, max(out.width - len(below), 20))):
        part.rstrip()
        out.print(Text(below if i else first) + part)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(out: Console, block: Table) -> None:
    """Print columns side by side.

    If they do not fit, run ids are shortened, sentences go below their row, and words (never numbers) are cut; columns
    that still do not fit go into another table below, which repeats the first columns.
    """
    columns = [replace(column, label=plain(column.label, _CELL)) for column in block.columns]
    shown = block.cells[: block.most]
    below = [""] * len(shown)
    texts = [[_full_text(cell, column) for cell, column in zip(row, columns, strict=True)] for row in shown]
    if _total(_widths(columns, texts)) > out.width:
        texts = [[cell[:_SHORT_ID] if _RUN_ID.fullmatch(cell) else cell for cell in row] for row in texts]
    if block.below is not None and _total(_widths(columns, texts)) > out.width:
        below = [plain(row[block.below].text, _SENTENCE) for row in shown]
        columns = _without(columns, block.below)
        texts = [_without(row, block.below) for row in texts]
    widths = _narrowed(columns, _widths(columns, texts), out.width)
    _heading(out, block.title)
    for number, part in enumerate(_parts(widths, block.repeated, out.width)):
        if number:
            out.print()
        _rows(
            out,
            [columns[i] for i in part],
            [[row[i] for row in texts] for i in part],
            [widths[i] for i in part],
            below,
            headed=any(column.label for column in columns),
        )
    for note in block.notes:
        _hanging(out, note, style="dim")


def _without(row: Sequence[_Item], index: int) -> list[_Item]:
    return [*row[:index], *row[index + 1 :]]


def _full_text(cell: Cell, column: Column) -> str:
    if column.kind == "code":
        return cell.hint or cell.text
    return plain(cell.text, _CELL)


def _widths(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    out = []
    for i, column in enumerate(columns):
        longest = max(len(row[i]) if column.kind != "code" else len(brief(row[i], _NAME)) for row in texts)
        out.append(max(len(column.label), longest, column.width))
    return out


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Shorten the widest column that may be cut until all fit or none can be cut further."""
    widths = list(widths)
    cut = [i for i, column in enumerate(columns) if column.kind in ("text", "code")]
    while cut and _total(widths) > width:
        widest = max(cut, key=lambda i: widths[i])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return widths


def _parts(widths: Sequence[int], repeated: int, width: int) -> list[list[int]]:
    """Groups of columns that fit side by side; each group starts with the repeated columns."""
    parts = [list(range(repeated))]
    for i in range(repeated, len(widths)):
        if len(parts[-1]) > repeated and _total([widths[j] for j in (*parts[-1], i)]) > width:
            parts.append(list(range(repeated)))
        parts[-1].append(i)
    return parts


def _rows(
    out: Console,
    columns: Sequence[Column],
    texts: Sequence[Sequence[str]],
    widths: Sequence[int],
    below: Sequence[str],
    *,
    headed: bool,
) -> None:
    """Print the lines of a table given column by column."""
    cells = [_column(column, text, width) for column, text, width in zip(columns, texts, widths, strict=True)]
    if headed:
        heads = [_aligned(column, column.label[:width], width) for column, width in zip(columns, widths, strict=True)]
        _line(out, heads, "bold")
    for row, sentence in zip(zip(*cells, strict=True), below, strict=True):
        _line(out, row, "")
        if sentence:
            _hanging(out, sentence, SUB, SUB)


def _line(out: Console, cells: Sequence[str], style: str) -> None:
    line = Text((" " * _GAP).join(cells).rstrip(), style=style)
    out.print(line, no_wrap=True, overflow="ignore", crop=False)


def _column(column: Column, texts: Sequence[str], width: int) -> list[str]:
    if column.keeps_end:
        cut = [_cut_start(name, width) for name in texts]
    elif column.kind == "code":
        cut = _cut_distinctly(texts, width)
    else:
        cut = [_cut(cell, width) for cell in texts]
    return [_aligned(column, cell, width) for cell in cut]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else plain(text, width)


def _aligned(column: Column, text: str, width: int) -> str:
    return text.rjust(width) if column.kind == "number" else text.ljust(width)


def _cut_distinctly(names: Sequence[str], room: int) -> list[str]:
    """Names with their middle cut; those that would then look the same lose their end instead."""
    cut = [brief(name, room) for name in names]
    return [
        name_cut if cut.count(name_cut) == 1 else _cut_end(brief(name, len(name)), room)
        for name, name_cut in zip(names, cut, strict=True)
    ]


def _cut_start(name: str, room: int) -> str:
    name = plain(name, _SENTENCE)
    return name if len(name) <= room else f"...{name[3 - room :].lstrip('.')}"


def _cut_end(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 3]}..."


_SHOW: dict[type, Callable[[Console, Any], None]] = {
    Lead: _lead,
    Paragraph: _paragraph,
    Chips: _chips,
    Items: _items,
    Facts: _facts,
    Table: _table,
    Bars: _bars,
    Shares: _shares,
    Icicle: _icicle,
    Strip: _strip,
    Ways: _ways,
    Section: _section,
    Beside: lambda out, block: _show(out, block.blocks),
}
