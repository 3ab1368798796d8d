"""A page as plain data: headings, paragraphs, lists and tables of raw text, and its three forms.

Comparisons, gates and histories are written as one of these; each form escapes what is untrusted in its own way.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import IO, Literal

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from proftrack.report import markdown
from proftrack.report.assets import asset, policy
from proftrack.report.charts import Chart
from proftrack.report.terminal import console
from proftrack.text import plain

_SENTENCE, _CELL, _NARROWEST = 1200, 160, 10
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_SHORT_ID = 8
Tone = Literal["good", "bad", "unclear", "plain"]
_STYLES: dict[Tone, str] = {"good": "bold green", "bad": "bold red", "unclear": "bold yellow", "plain": ""}


class Lead(Struct, frozen=True):
    """What the page says, in one line."""

    text: str
    tone: Tone = "plain"


SUB = "    "
"""Beginning of a line that belongs to the item before it."""


class Items(Struct, frozen=True):
    """A list under a heading; nothing is shown where it is empty."""

    title: str
    lines: Sequence[str]


class Table(Struct, frozen=True):
    """Rows under a heading; columns from `numbers` on are aligned right. Nothing is shown where it has no rows."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1
    note: str = ""
    most: int = 12
    """Rows shown in text and Markdown; HTML has them all."""
    folded: bool = True
    """Whether Markdown shows it on demand only."""
    code: bool = False
    """Whether the first column holds names of code."""
    below: int | None = None
    """A column of sentences, which in a terminal goes below its row where the columns do not fit."""


class Picture(Struct, frozen=True):
    """A chart, in HTML only."""

    chart: Chart


Block = Lead | Items | Table | Picture


class Document(Struct, frozen=True):
    """A page."""

    title: str
    blocks: Sequence[Block]


# ---- text ------------------------------------------------------------------------------------------------------------


def print_text(document: Document, stream: IO[str] | None = None) -> None:
    """For a terminal, or as plain text for a pipe."""
    out = console(stream)
    for block in document.blocks:
        if isinstance(block, Lead):
            out.print()
            out.print(Text(plain(block.text, _SENTENCE), style=_STYLES[block.tone]))
        elif isinstance(block, Items) and block.lines:
            out.print()
            out.print(Text(f"{block.title}:"))
            for line in block.lines:
                out.print(Text(f"  {'' if line.startswith(SUB) else '- '}{plain(line, _SENTENCE)}"))
        elif isinstance(block, Table) and block.rows:
            _print_table(out, block)


def text(document: Document) -> str:
    """The same as a string."""
    stream = io.StringIO()
    print_text(document, stream)
    return stream.getvalue().lstrip("\n")


def _print_table(out: Console, block: Table) -> None:
    """Columns side by side. Where they do not fit, run ids are shortened, sentences go below their row, and then the
    widest column of words gives way; never a number.
    """
    rows = [
        [plain(cell, _SENTENCE if index == block.below else _CELL) for index, cell in enumerate(row)]
        for row in (block.heads, *block.rows[: block.most])
    ]
    numbers, below = block.numbers, [""] * len(rows)
    if not _fits(rows, out.width):
        rows = [[cell[:_SHORT_ID] if _RUN_ID.fullmatch(cell) else cell for cell in row] for row in rows]
    if block.below is not None and not _fits(rows, out.width):
        below = ["", *(row[block.below] for row in rows[1:])]
        rows = [[cell for index, cell in enumerate(row) if index != block.below] for row in rows]
        numbers -= block.below < numbers
    widths = _widths(rows)
    words = widths[:numbers]
    while sum(widths) + 2 * (len(widths) - 1) > out.width and max(words) > _NARROWEST:
        words[words.index(max(words))] -= 1
        widths[:numbers] = words
    out.print()
    out.print(Text(f"{block.title}:"))
    for row, sentence in zip(rows, below, strict=True):
        cells = [
            _fit(cell, widths[index]) if index < numbers else cell.rjust(widths[index])
            for index, cell in enumerate(row)
        ]
        line = Text("  ".join(cells).rstrip(), style="bold" if row is rows[0] else "")
        out.print(line, no_wrap=True, overflow="ignore", crop=False)
        for part in Text(sentence).wrap(out, max(out.width - len(SUB), _NARROWEST)) if sentence else ():
            part.rstrip()
            out.print(Text(SUB) + part)
    for note in _notes(block):
        out.print(Text(note, style="dim"))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]


def _fits(rows: Sequence[Sequence[str]], width: int) -> bool:
    widths = _widths(rows)
    return sum(widths) + 2 * (len(widths) - 1) <= width


def _fit(cell: str, width: int) -> str:
    return (cell if len(cell) <= width else plain(cell, width)).ljust(width)


def _notes(block: Table) -> list[str]:
    more = len(block.rows) - block.most
    return [f"and {more} more"] * (more > 0) + [block.note] * bool(block.note)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def as_markdown(document: Document) -> str:
    """Fit for a pull request's comment: what is long is folded away."""
    parts = [f"### {_line(document.title)}"]
    for block in document.blocks:
        if isinstance(block, Lead):
            parts.append(f"**{_line(block.text)}**")
        elif isinstance(block, Items) and block.lines:
            parts.append("\n".join([f"{_line(block.title)}:", "", *(_markdown_item(line) for line in block.lines)]))
        elif isinstance(block, Table) and block.rows:
            parts.append(_markdown_table(block))
    return "\n\n".join(parts) + "\n"


def _line(raw: str) -> str:
    return markdown.escape(raw, _SENTENCE)


def _markdown_item(line: str) -> str:
    return f"  - {_line(line)}" if line.startswith(SUB) else f"- {_line(line)}"


def _markdown_table(block: Table) -> str:
    aligned = ["---" if index < block.numbers else "---:" for index in range(len(block.heads))]
    lines = [" | ".join(_cell(cell) for cell in row) for row in (block.heads, *block.rows[: block.most])]
    table = "\n".join([f"| {lines[0]} |", f"|{'|'.join(aligned)}|", *(f"| {line} |" for line in lines[1:])])
    notes = "".join(f"\n\n{_line(note)}" for note in _notes(block))
    if not block.folded:
        return f"{_line(block.title)}:\n\n{table}{notes}"
    return f"<details><summary>{_line(block.title)}</summary>\n\n{table}{notes}\n\n</details>"


def _cell(raw: str) -> str:
    return markdown.escape(raw, _CELL)


# ---- HTML ------------------------------------------------------------------------------------------------------------


def as_html(document: Document) -> str:
    """One self-contained page: no script, nothing fetched."""
    style = asset("report.css") + _STYLE
    body = "\n".join(filter(None, (_html_block(block) for block in document.blocks)))
    title = html.escape(plain(document.title, _SENTENCE))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(style, ""))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\n"
        "</main>\n</body>\n</html>\n"
    )


_STYLE = """
.good { color: var(--green); } .bad { color: var(--red); } .unclear { color: var(--brown); }
.lead { font-size: 1.15rem; font-weight: 600; } td.code { font-family: ui-monospace, monospace; }
li.sub { margin-left: 1.5rem; list-style: circle; }
.rows { width: 100%; } .rows thead th { border-bottom: 2px solid var(--line); }
.rows tbody tr { border-bottom: 1px solid var(--grid); }
.h-run { fill: var(--blue); } .h-level { stroke: var(--green); stroke-width: 2; fill: none; }
.h-change { stroke: var(--red); stroke-width: 2; stroke-dasharray: 4 3; fill: none; }
"""


def _html_block(block: Block) -> str:
    if isinstance(block, Picture):
        return f'<div class="scroll">{_svg(block.chart)}</div>'
    if isinstance(block, Lead):
        return f'<p class="lead {block.tone}">{html.escape(plain(block.text, _SENTENCE))}</p>'
    if isinstance(block, Items):
        lines = "".join(
            f"<li{' class=sub' if line.startswith(SUB) else ''}>{html.escape(plain(line.strip(), _SENTENCE))}</li>"
            for line in block.lines
        )
        return f"<section><h2>{html.escape(block.title)}</h2><ul>{lines}</ul></section>" if lines else ""
    return _html_table(block) if block.rows else ""


def _svg(chart: Chart) -> str:
    """Axes and shapes; every text in it is escaped."""
    parts = [
        f'<svg class="chart" viewBox="0 0 {chart.width:g} {chart.height:g}" role="img" '
        f'aria-label="{html.escape(chart.summary)}">'
    ]
    for tick in chart.y_ticks:
        parts.append(f'<line class="grid" x1="{chart.left:g}" x2="{chart.right:g}" y1="{tick.at:g}" y2="{tick.at:g}"/>')
        parts.append(f'<text class="c-end" x="{chart.left - 6:g}" y="{tick.at + 4:g}">{html.escape(tick.label)}</text>')
    for tick in chart.x_ticks:
        label = html.escape(plain(tick.label, 20))
        parts.append(f'<text class="c-mid" x="{tick.at:g}" y="{chart.bottom + 17:g}">{label}</text>')
    for shape in chart.shapes:
        hint = f"<title>{html.escape(plain(shape.text, 400))}</title>"
        if shape.kind == "circle":
            parts.append(
                f'<circle class="{shape.style}" cx="{shape.x:g}" cy="{shape.y:g}" r="{shape.width:g}">{hint}</circle>'
            )
        else:
            parts.append(f'<path class="{shape.style}" d="{shape.path}">{hint}</path>')
    middle = (chart.left + chart.right) / 2
    parts.append(f'<text class="c-mid" x="{middle:g}" y="{chart.bottom + 34:g}">{html.escape(chart.x_label)}</text>')
    return "".join(parts) + "</svg>"


def _html_table(block: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_number(i, block)}>{html.escape(plain(h, _CELL))}</th>' for i, h in enumerate(block.heads)
    )
    rows = "".join(f"<tr>{_html_cells(row, block)}</tr>" for row in block.rows)
    note = f'<p class="muted">{html.escape(block.note)}</p>' if block.note else ""
    return (
        f'<section><h2>{html.escape(block.title)}</h2><div class="scroll"><table class="rows"><thead><tr>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{note}</section>"
    )


def _html_cells(row: Sequence[str], block: Table) -> str:
    return "".join(f"<td{_number(i, block)}>{html.escape(plain(cell, 600))}</td>" for i, cell in enumerate(row))


def _number(index: int, block: Table) -> str:
    if index >= block.numbers:
        return ' class="n"'
    return ' class="code"' if block.code and index == 0 else ""
