"""A page as plain data: the blocks that every page consists of. Their text is raw and may be untrusted.

terminal.py, markdown.py and html.py each render all of them, and each escapes untrusted text in its own way. In
sentences (leads, paragraphs, lists), text between backticks is code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack.report.charts import Chart

if TYPE_CHECKING:
    from proftrack.report.tiles import Tiles
    from proftrack.report.timeline.lanes import Lanes

Tone = Literal["good", "bad", "unclear", "plain"]
SUB = "    "
"""Prefix of a line that belongs to the item before it."""


def code(name: str) -> str:
    """An untrusted name as code in a sentence."""
    return f"`{name.replace('`', chr(39))}`"


class Lead(Struct, frozen=True):
    """The page's main statement, in one line."""

    text: str
    tone: Tone = "plain"
    label: str = ""
    """The conclusion in one word, shown before the text; if given, only the label is emphasised."""


class Paragraph(Struct, frozen=True):
    """Sentences."""

    text: str
    style: Literal["plain", "muted"] = "plain"


class Chips(Struct, frozen=True):
    """A few words about the lead, as names and values; a name may be empty."""

    items: Sequence[tuple[str, str]]


class Items(Struct, frozen=True):
    """A list under a heading; not shown if empty."""

    title: str
    lines: Sequence[str]
    mark: str = "-"
    """Before each line in a terminal."""
    ordered: bool = False
    """Whether HTML numbers the lines."""
    warning: bool = False


class Facts(Struct, frozen=True):
    """Names and values."""

    title: str
    rows: Sequence[tuple[str, str]]


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table."""

    label: str
    kind: Literal["number", "text", "word", "code"] = "number"
    """Numbers and words are never cut; text may be, and code is shortened in the middle."""
    hint: str = ""
    width: int = 0
    """Minimum width in a terminal."""
    keeps_end: bool = False
    """Whether the end of a name tells most, as that of a path does: a terminal cuts the beginning."""


class Cell(Struct, frozen=True, kw_only=True):
    """A cell: the text shown, and the value to sort by."""

    text: str
    value: float | None = None
    hint: str = ""
    """The full text if it was cut."""


class Table(Struct, frozen=True):
    """Rows under a heading; not shown if empty.

    A head given as a string is a text column, or a number column from index `numbers` on. If no column has a label, the
    table has no header row.
    """

    title: str
    heads: Sequence[str | Column]
    rows: Sequence[Sequence[str | Cell]]
    numbers: int = 1
    note: str = ""
    most: int = 12
    """Number of rows shown in text and Markdown; HTML has them all."""
    folded: bool = True
    """Whether Markdown shows the table on demand only."""
    code: bool = False
    """Whether the first column has names of code."""
    below: int | None = None
    """Index of a column of sentences; a terminal puts it below each row if the columns do not fit."""
    repeated: int = 1
    """Number of leading columns that name a row; if a terminal splits the table, each part starts with them."""
    sortable: bool = False
    """Whether a click on a column's head sorts the table in HTML."""
    cut: int = 0
    """Number of rows that exist beyond `rows`."""

    @property
    def columns(self) -> list[Column]:
        """The heads as columns."""
        return [self._column(index, head) for index, head in enumerate(self.heads)]

    def _column(self, index: int, head: str | Column) -> Column:
        if isinstance(head, Column):
            return head
        if index >= self.numbers:
            return Column(label=head)
        return Column(label=head, kind="code" if self.code and index == 0 else "text")

    @property
    def notes(self) -> list[str]:
        """The notes below the table if only `most` of its rows are shown."""
        more = len(self.rows) - self.most
        return [f"and {more} more"] * (more > 0) + [self.note] * bool(self.note)

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows as cells."""
        return [[cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row] for row in self.rows]


class Bar(Struct, frozen=True, kw_only=True):
    """A time as a bar: solid up to the length of the next bar; the rest could be saved. In per cent of the longest."""

    key: str
    label: str
    short: str = ""
    """The label if there is little room."""
    value: str
    solid: float = 0.0
    rest: float = 0.0
    text: str = ""
    """How much could be saved, and how."""


class Bars(Struct, frozen=True):
    """Times below each other, each with a bar; one of length 0 has none."""

    title: str
    bars: Sequence[Bar]
    rest: str = ""
    """What the rest of a bar means; empty if no bar has one."""
    note: str = ""
    """What the bars' keys stand for."""


class Share(Struct, frozen=True, kw_only=True):
    """A part of a total; start and size in per cent."""

    style: str
    """Its fill in the palette."""
    label: str
    short: str = ""
    """The label if there is little room."""
    value: str
    start: float
    share: float


class Shares(Struct, frozen=True):
    """A total as one bar of its parts; not shown if empty."""

    title: str
    parts: Sequence[Share]


class Icicle(Struct, frozen=True):
    """The module tree as an icicle that HTML can zoom into; elsewhere its passes as shares."""

    title: str
    tiles: Tiles


class Span(Struct, frozen=True, kw_only=True):
    """Consecutive steps with the same use."""

    kind: str
    """first, warm, timed, skipped, waited, warmed, recorded."""
    label: str
    detail: str


class Strip(Struct, frozen=True):
    """Spans one after the other."""

    spans: Sequence[Span]


class Way(Struct, frozen=True, kw_only=True):
    """A chain of calls, from the outermost link to the innermost, and what it leads to."""

    links: Sequence[str]
    end: str
    text: str = ""


class Ways(Struct, frozen=True):
    """Several chains of calls."""

    ways: Sequence[Way]


class Figure(Struct, frozen=True):
    """A chart, in HTML only."""

    chart: Chart
    name: str = ""


class Timeline(Struct, frozen=True):
    """The interactive timeline, in HTML only."""

    lanes: Lanes


class Link(Struct, frozen=True):
    """A link to another section of the page, in HTML only."""

    text: str
    section: str


class Beside(Struct, frozen=True):
    """Blocks side by side if there is room."""

    blocks: Sequence[Block]


class Section(Struct, frozen=True):
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]
    id: str = ""
    headed: bool = True
    """Whether the heading is visible; if not, only screen readers get it."""


Block = (
    Lead
    | Paragraph
    | Chips
    | Items
    | Facts
    | Table
    | Bars
    | Shares
    | Icicle
    | Strip
    | Ways
    | Figure
    | Timeline
    | Link
    | Beside
    | Section
)


class Document(Struct, frozen=True):
    """A page."""

    title: str
    blocks: Sequence[Block]
    origin: str = ""
    """Where and when, below the title."""
    short_title: str = ""
    """Title of the browser's tab, if it differs."""
    comment: bool = True
    """Whether its Markdown goes into another page or a comment, and so has small headings."""


_CONTENT = {Items: "lines", Facts: "rows", Table: "rows", Bars: "bars", Shares: "parts", Strip: "spans", Ways: "ways"}


def is_empty(block: Block) -> bool:
    """Whether the block has nothing to show; then its heading is not shown either."""
    if isinstance(block, Section | Beside):
        return all(map(is_empty, block.blocks))
    return type(block) in _CONTENT and not getattr(block, _CONTENT[type(block)])
