"""A document as Markdown, for a pull request, a wiki, a chat, or a run's description in MLflow.

All text is untrusted: every character that Markdown or HTML could take for markup becomes an entity. Only text between
backticks in a sentence is code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from proftrack.report.document import (
    SUB,
    Bars,
    Beside,
    Block,
    Chips,
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
    Ways,
    is_empty,
)
from proftrack.text import percent, plain

_NAME, _CELL, _SENTENCE = 90, 160, 1200
_MARKUP = re.compile(r"[&<>|*`~\[\]\\#!$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.|:(?=//)|@(?=\w)")
_LEADING = re.compile(r"^(?:[-+](?=\s)|\d+[.)](?=\s))")
_CODE = re.compile(r"`([^`<>|&\[\]]*[^`<>|&\[\]\s][^`<>|&\[\]]*)`")
"""Code in a sentence. Text that could be markup to a parser without code spans does not count: it is all escaped."""


def escape(text: str, chars: int = _NAME) -> str:
    """Untrusted text as one line of Markdown that shows exactly that text."""
    return _escaped(_one_line(text, chars))


def sentence(text: str, chars: int = _SENTENCE) -> str:
    """The same, but text between backticks is code."""
    parts = _CODE.split(_one_line(text, chars))
    return "".join(f"`{part}`" if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _one_line(text: str, chars: int) -> str:
    return plain(" ".join(text.split()), chars)


def _escaped(line: str) -> str:
    line = _MARKUP.sub(lambda match: f"&#{ord(match.group())};", line)
    return _LEADING.sub(lambda match: match.group()[:-1] + f"&#{ord(match.group()[-1])};", line)


def render(document: Document, *, most_chars: int | None = None) -> str:
    """The document. Blocks that do not fit into `most_chars` are left out whole, since half a table shows as text."""
    title = f"{'###' if document.comment else '#'} {escape(document.title, _SENTENCE)}" if document.title else ""
    parts = [title, sentence(document.origin), *_blocks(document.blocks, comment=document.comment)]
    text = ""
    for part in filter(None, parts):
        if most_chars is None or len(text) + len(part) + 3 <= most_chars:
            text += ("\n\n" if text else "") + part
    return text + "\n"


def _blocks(blocks: Sequence[Block], *, comment: bool) -> Iterator[str]:
    for block in blocks:
        if is_empty(block):
            continue
        if isinstance(block, Section | Beside):
            if isinstance(block, Section):
                yield _heading(block.title, comment=comment)
            yield from _blocks(block.blocks, comment=comment)
        elif type(block) in _BODY:
            yield _headed(block, _BODY[type(block)](block), comment=comment)


def _heading(title: str, *, comment: bool) -> str:
    return f"{sentence(title)}:" if comment else f"## {sentence(title)}"


def _headed(block: Any, body: str, *, comment: bool) -> str:
    """A block under its title; in a comment, a long table is collapsed."""
    title = getattr(block, "title", "")
    if isinstance(block, Table) and block.folded and comment:
        return f"<details><summary>{escape(title, _SENTENCE)}</summary>\n\n{body}\n\n</details>"
    return f"{_heading(title, comment=comment)}\n\n{body}" if title else body


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _lead(block: Lead) -> str:
    if block.label:
        return f"**{escape(block.label)}** {sentence(block.text)}"
    return f"**{sentence(block.text)}**"


def _paragraph(block: Paragraph) -> str:
    return sentence(block.text)


def _chips(block: Chips) -> str:
    return ", ".join(f"{escape(name)} {escape(value)}".strip() for name, value in block.items)


def _items(block: Items) -> str:
    return "\n".join(f"{'  ' if line.startswith(SUB) else ''}- {sentence(line)}" for line in block.lines)


def _facts(block: Facts) -> str:
    return _rows(("name", "value"), block.rows, numbers=2)


def _bars(block: Bars) -> str:
    rows = [(f"{bar.key}: {bar.label}" if bar.key else bar.label, bar.value, bar.text) for bar in block.bars]
    table = _rows(("time", "", "what could be saved"), rows, numbers=3)
    return f"{table}\n\n{sentence(block.note)}" if block.note else table


def _shares(block: Shares) -> str:
    rows = [(part.label, part.value, percent(part.share / 100)) for part in block.parts]
    return _rows(("part", "time", "share"), rows, numbers=1)


def _icicle(block: Icicle) -> str:
    return _shares(Shares(block.title, block.tiles.passes))


def _strip(block: Strip) -> str:
    return "\n".join(f"- {sentence(f'{span.label}: {span.detail}')}" for span in block.spans)


def _ways(block: Ways) -> str:
    lines = []
    for way in block.ways:
        links = " &rarr; ".join(escape(link) for link in (*way.links, way.end))
        lines.append(f"- {links}{f' ({sentence(way.text)})' if way.text else ''}")
    return "\n".join(lines)


def _table(block: Table) -> str:
    rows = [
        [sentence(cell.text) if i == block.below else escape(cell.text, _CELL) for i, cell in enumerate(row)]
        for row in block.cells[: block.most]
    ]
    heads = [escape(column.label) for column in block.columns]
    right = [column.kind == "number" for column in block.columns]
    return "\n\n".join([_lines(heads, rows, right), *map(sentence, block.notes)])


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int) -> str:
    cells = [[escape(cell, _SENTENCE) for cell in row] for row in rows]
    return _lines(heads, cells, [i >= numbers for i in range(len(heads))])


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    rule = "|".join("---:" if is_right else "---" for is_right in right)
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


_BODY: dict[type, Callable[[Any], str]] = {
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
}
