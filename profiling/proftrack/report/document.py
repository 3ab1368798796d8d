"""A page as plain data: the blocks that every page is made of. Their text is raw and may be untrusted.

terminal.py, markdown.py and html.py each show all of them, and each escapes what is untrusted in its own way. In
sentences (leads, paragraphs, lists) a stretch between backticks is code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack.report.charts import Chart

if TYPE_CHECKING:
    from proftrack.report.timeline.lanes import Lanes

Tone = Literal["good", "bad", "unclear", "plain"]
SUB = "    "
"""Beginning of a line that belongs to the item before it."""


def code(name: str) -> str:
    """An untrusted name as code within a sentence."""
    return f"`{name.replace('`', chr(39))}`"


class Lead(Struct, frozen=True):
    """What the page says, in one line."""

    text: str
    tone: Tone = "plain"
    label: str = ""
    """The word that it comes down to, before it; where there is one, this is what stands out."""


class Paragraph(Struct, frozen=True):
    """Sentences."""

    text: str
    style: Literal["plain", "muted", "note"] = "plain"


class Chips(Struct, frozen=True):
    """A few words about the lead, each with its name where it needs one."""

    items: Sequence[tuple[str, str]]


class Items(Struct, frozen=True):
    """A list under a heading; nothing is shown where it is empty."""

    title: str
    lines: Sequence[str]
    mark: str = "-"
    """Before each line in a terminal."""
    ordered: bool = False
    """Whether HTML counts them."""
    warning: bool = False


class Facts(Struct, frozen=True):
    """Names and their values."""

    title: str
    rows: Sequence[tuple[str, str]]


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table."""

    label: str
    kind: Literal["number", "text", "word", "code"] = "number"
    """A number and a word are never cut; a text may be, and code is cut as names of code are."""
    hint: str = ""
    width: int = 0
    """The least that it takes in a terminal."""


class Cell(Struct, frozen=True, kw_only=True):
    """A cell: what is shown, and what it is sorted by."""

    text: str
    value: float | None = None
    hint: str = ""
    """The whole of a text that was cut."""


class Table(Struct, frozen=True):
    """Rows under a heading. Nothing is shown where it has none.

    A head that is a string is a column of texts, from `numbers` on one of numbers. Where no column has a label there is
    no row of heads.
    """

    title: str
    heads: Sequence[str | Column]
    rows: Sequence[Sequence[str | Cell]]
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
    repeated: int = 1
    """The first columns, which name a row: each part of a table that a terminal has to divide begins with them."""
    sortable: bool = False
    """Whether HTML sorts it by the column whose head is clicked."""

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
        """What is said below it where no more than `most` of its rows are shown."""
        more = len(self.rows) - self.most
        return [f"and {more} more"] * (more > 0) + [self.note] * bool(self.note)

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows as cells."""
        return [[each if isinstance(each, Cell) else Cell(text=each) for each in row] for row in self.rows]


class Bar(Struct, frozen=True, kw_only=True):
    """A time as a bar: solid up to what stands below it, the rest is what could be won. Per cent of the longest."""

    key: str
    label: str
    short: str = ""
    """The label, where there is little room."""
    value: str
    solid: float = 0.0
    rest: float = 0.0
    text: str = ""
    """What could be won, and by what."""


class Bars(Struct, frozen=True):
    """Times below each other, each with a bar; one without a length has none."""

    title: str
    bars: Sequence[Bar]
    rest: str = ""
    """What the rest of each bar is, where any has one."""


class Share(Struct, frozen=True, kw_only=True):
    """A part of a whole, in per cent from `start` on."""

    style: str
    """Its fill in the palette."""
    label: str
    short: str = ""
    """The label, where there is little room."""
    value: str
    start: float
    share: float


class Shares(Struct, frozen=True):
    """A whole as one bar of its parts. Nothing is shown where there are none."""

    title: str
    parts: Sequence[Share]


class Span(Struct, frozen=True, kw_only=True):
    """Steps of the schedule that were treated alike."""

    kind: str
    """first, warm, timed, skipped, waited, warmed, recorded."""
    label: str
    detail: str


class Strip(Struct, frozen=True):
    """Stretches one after the other."""

    spans: Sequence[Span]


class Way(Struct, frozen=True, kw_only=True):
    """How something came about: from the outermost link to the innermost, and what they led to."""

    links: Sequence[str]
    end: str
    text: str = ""


class Ways(Struct, frozen=True):
    """Several of them."""

    ways: Sequence[Way]


class Figure(Struct, frozen=True):
    """A chart, in HTML only."""

    chart: Chart
    name: str = ""


class Timeline(Struct, frozen=True):
    """The timeline with its tools, in HTML only."""

    lanes: Lanes


class Link(Struct, frozen=True):
    """To another section of the page, in HTML only."""

    text: str
    section: str


class Beside(Struct, frozen=True):
    """Blocks beside each other where there is room."""

    blocks: Sequence[Block]


class Section(Struct, frozen=True):
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]
    id: str = ""
    headed: bool = True
    """Whether its heading is seen, and not only heard."""


Block = (
    Lead
    | Paragraph
    | Chips
    | Items
    | Facts
    | Table
    | Bars
    | Shares
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
    """For the browser's tab, where it is another one."""
    comment: bool = True
    """Whether its Markdown goes into somebody's page or comment, where it has small headings."""


_CONTENT = {Items: "lines", Facts: "rows", Table: "rows", Bars: "bars", Shares: "parts", Strip: "spans", Ways: "ways"}


def is_empty(block: Block) -> bool:
    """Whether there is nothing in it to show, and no heading of it is shown either."""
    if isinstance(block, Section | Beside):
        return all(map(is_empty, block.blocks))
    return type(block) in _CONTENT and not getattr(block, _CONTENT[type(block)])
