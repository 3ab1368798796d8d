"""Blocks and charts made by hand, in each of their forms."""

from __future__ import annotations

import html as html_entities
import logging
import re
import threading
import warnings
from pathlib import Path

import module_rows
import numpy as np
import pytest

from proftrack.compare import gate as gates
from proftrack.compare.policy import DEFAULT
from proftrack.record.modules import Module
from proftrack.report import charts, curves, document, html, markdown, palette, plots, svg, terminal
from proftrack.report.charts import Axis, Band, Box, Chart, Dot, Key, Line, Stairs, Tick, Words
from proftrack.report.document import (
    Bar,
    Bars,
    Beside,
    Cell,
    Chips,
    Column,
    Document,
    Facts,
    Figure,
    Icicle,
    Items,
    Lead,
    Paragraph,
    Section,
    Share,
    Shares,
    Span,
    Strip,
    Table,
    Way,
    Ways,
)
from proftrack.report.pages.comparison import gate_page
from proftrack.report.tiles import Tiles, tiles

HOSTILE = "<script>alert(1)</script>|](http://x.example)\n\x1b[31m"


def chart(**changes: object) -> Chart:
    """One mark of each kind on axes from 0 to 10 and from 1 to 100."""
    values = {
        "summary": "A chart",
        "x": Axis(label="x", low=0, high=10, ticks=[Tick(5, "five")]),
        "y": Axis(label="y", low=1, high=100, ticks=[Tick(10, "ten")], log=True),
        "marks": [
            Band(style="crossing", left=2, right=4),
            Line(style="level", points=[(0, 10), (10, 10)], points_style="point-0"),
            Box(style="host", left=1, right=3, low=1, high=10, text="a\nb"),
            Stairs(style="typical", edges=[0, 1, 2, 3], levels=[10, None, 100]),
            Dot(style="latency", x=5, y=10, radius=4, hint="a dot", text="1", name="1 dot"),
            Words(text="there", x=10, y=100, anchor="end", dx=-2, dy=3),
        ],
        "key": [Key("host", "the host")],
    }
    return Chart(**{**values, **changes})  # type: ignore[arg-type]


def icicle(rows: list[Module]) -> Tiles:
    """The icicle of some rows of modules."""
    found = tiles(module_rows.record(rows))
    assert found is not None
    return found


# ---- every block in every form ---------------------------------------------------------------------------------------

TEXT = "a `b` c"
BLOCKS = [
    Lead(TEXT, "bad", label="word"),
    Paragraph(TEXT, "muted"),
    Chips([("", "first"), ("name", "value")]),
    Items("List", [TEXT, document.SUB + "below"], ordered=True),
    Facts("Facts", [("name", "value")]),
    Table("Table", ("what", "how many"), [("kernel", Cell(text="12", value=12.0))], sortable=True),
    Bars("Bars", [Bar(key="T", label="step time", value="3 us", solid=40, rest=60, text="2x")], rest="the rest"),
    Shares("Shares", [Share(style="idle", label="idle", value="4 us", start=0, share=100)]),
    Icicle("Icicle", icicle(module_rows.cnn())),
    Strip([Span(kind="timed", label="3 steps", detail="timed")]),
    Ways([Way(links=["outer", "inner"], end="kernel", text="often")]),
    Section("Section", [Beside([Paragraph("left"), Paragraph("right")])], "here"),
]


def test_every_block_has_every_form() -> None:
    page = Document("Title", BLOCKS, origin="somewhere", comment=False)
    words = "word first value List below Facts Table kernel 12 Bars Shares idle Icicle backward timed outer inner often"
    words += " Section left right"
    for text in (terminal.text(page), markdown.render(page), html.render(page)):
        assert [word for word in words.split() if word not in text] == []


def test_nothing_is_shown_of_empty_blocks() -> None:
    empty = [Items("List", []), Facts("Facts", []), Table("Table", ("a",), []), Shares("Shares", []), Strip([])]
    page = Document("", [*empty, Ways([]), Section("Section", empty), Beside(empty)])
    assert terminal.text(page) == ""
    assert markdown.render(page).strip() == ""
    assert "Section" not in html.render(page)


def test_text_of_every_block_is_escaped() -> None:
    blocks = [
        Lead(HOSTILE, label=HOSTILE),
        Paragraph(HOSTILE),
        Chips([(HOSTILE, HOSTILE)]),
        Items(HOSTILE, [HOSTILE]),
        Facts(HOSTILE, [(HOSTILE, HOSTILE)]),
        Table(HOSTILE, (HOSTILE, Column(label=HOSTILE, hint=HOSTILE)), [(HOSTILE, Cell(text="", hint=HOSTILE))]),
        Table("", ("a", "b"), [("`" + HOSTILE + "`", "1")], note=HOSTILE, below=0),
        Bars(HOSTILE, [Bar(key="T", label=HOSTILE, value=HOSTILE, solid=1, text=HOSTILE)], rest=HOSTILE),
        Shares(HOSTILE, [Share(style=HOSTILE, label=HOSTILE, value=HOSTILE, start=0, share=100)]),
        Icicle(HOSTILE, icicle(module_rows.hostile((HOSTILE, "`")))),
        Strip([Span(kind=HOSTILE, label=HOSTILE, detail=HOSTILE)]),
        Ways([Way(links=[HOSTILE], end=HOSTILE, text=HOSTILE)]),
        Figure(chart(summary=HOSTILE, key=[Key("host", HOSTILE)], marks=[Words(text=HOSTILE, x=1, y=1)]), HOSTILE),
        Section(HOSTILE, [Paragraph(f"`{HOSTILE}`")], HOSTILE),
    ]
    for comment in (True, False):
        page = Document(HOSTILE, blocks, origin=HOSTILE, comment=comment)
        for text in (terminal.text(page), markdown.render(page), html.render(page)):
            assert "\x1b" not in text
        assert "<script" not in markdown.render(page)
        assert "<script>alert" not in html.render(page)  # the icicle has a script of ours
        assert "](http" not in markdown.render(page)


# ---- code in sentences -----------------------------------------------------------------------------------------------


def test_code_is_code_in_each_form() -> None:
    page = Document("", [Paragraph("Run `proftrack run x`, not a`b.")])
    assert terminal.text(page) == "Run `proftrack run x`, not a`b.\n"
    assert markdown.render(page) == "Run `proftrack run x`, not a&#96;b.\n"
    assert "Run <code>proftrack run x</code>, not a`b." in html.render(page)


def test_a_gate_names_commands_as_commands() -> None:
    """In a pipe it is Markdown: backticks, not their entities."""
    found = gates.undecided("b", DEFAULT, "no baseline; run `proftrack run x`, or name one", None)
    page = gate_page(found)
    assert "run `proftrack run x`, or" in markdown.render(page)
    assert "run `proftrack run x`, or" in terminal.text(page)
    assert "run <code>proftrack run x</code>, or" in html.render(page)


def test_a_description_leaves_out_whole_blocks() -> None:
    page = Document("", [Paragraph("a" * 50), Items("Long", ["b" * 50] * 9), Paragraph("c" * 30)])
    text = markdown.render(page, most_chars=100)
    assert (len(text) <= 100, "aaa" in text, "bbb" in text, "ccc" in text) == (True, True, False, True)


# ---- tables on a terminal --------------------------------------------------------------------------------------------


def test_columns_without_room_are_another_table_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    heads = ("name", *(f"figure {i}" for i in range(5)))
    page = Document("", [Table("", heads, [("a" * 40, *("12.3 us",) * 5)])])
    lines = terminal.text(page).splitlines()
    assert max(map(len, lines)) <= 30
    assert [line.split() for line in lines if line.startswith("name")] == [
        ["name", "figure", "0", "figure", "1"],
        ["name", "figure", "2", "figure", "3"],
        ["name", "figure", "4"],
    ]
    assert sum(line.count("12.3 us") for line in lines) == 5


# ---- charts ----------------------------------------------------------------------------------------------------------


def test_a_chart_has_the_same_places_in_both_forms() -> None:
    """x 5 of 0 to 10 is the middle; y 10 of 1 to 100 is the middle of a log axis."""
    drawing = svg.Drawing(chart())
    middle = ((drawing.left + drawing.right) / 2, (drawing.top + drawing.bottom) / 2)
    [dot] = [shape for shape in drawing.shapes if shape.style == "latency"]
    assert (dot.x, dot.y) == middle
    assert drawing.x(5) == middle[0]
    assert f'x="{middle[0]}" y="{drawing.bottom + 17}">five</text>' in html.render(Document("", [Figure(chart(), "")]))
    figure = plots._drawn([chart()])
    [axes] = figure.axes
    assert (axes.get_xlim(), axes.get_ylim(), axes.get_yscale()) == ((0, 10), (1, 100), "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["five"]
    offsets = [place for each in axes.collections for place in np.asarray(each.get_offsets()).tolist()]
    assert [5.0, 10.0] in offsets
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["the host", "1 dot"]


def test_a_gap_in_stairs_is_a_gap() -> None:
    [stairs] = [shape for shape in svg.Drawing(chart()).shapes if shape.style == "typical"]
    assert stairs.path.count("Z") == 2


def test_both_forms_take_their_colours_from_the_palette() -> None:
    style = palette.css()
    for name in (*palette.FILLS, *palette.STROKES):
        assert f".{name} {{" in style
        assert re.fullmatch("#[0-9a-f]{6}", palette.color(name))
    assert re.search(r"--blue: #0072b2;", style)
    assert ".host { fill: var(--sky); }" in style
    assert palette.color("host") == palette.COLORS["sky"]


def test_axes_of_a_narrow_range_have_ticks() -> None:
    assert charts.log_ticks(90, 240) == [100, 200]
    assert charts.log_ticks(1, 10_000) == [1, 10, 100, 1000, 10_000]


def test_curves_leave_gaps_where_nothing_is_known(tmp_path: Path) -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    curve = curves.Curve(name="", x=x, time_us=[10, None, 30, 40], busy_us=[1, 2, 3, 4], fraction=[0.1, None, 0.1, 0.1])
    ticks = [(at, f"{at:g}") for at in x]
    times, fractions = curves.charts([curve], title="t", x_label="n", ticks=ticks, numeric=True, span=(2, 4))
    lines = [mark for mark in times.marks if isinstance(mark, Line) and mark.style == "curve-0"]
    assert [line.points for line in lines] == [[(1, 10)], [(4, 30), (8, 40)]]
    assert (times.x.log, times.x is fractions.x) == (True, True)
    assert curves.write(tmp_path / "a" / "c.png", [curve], title="t", x_label="n", ticks=ticks, numeric=True)
    page = html.render(Document("", [Figure(times), Figure(fractions)]))
    assert page.count("<svg") >= 2
    assert html_entities.unescape(page).count("T step time") == 1


def test_drawing_leaves_other_threads_their_warnings_and_settings() -> None:
    """A profiled loop draws inside a training: what other threads set meanwhile stays."""
    matplotlib = pytest.importorskip("matplotlib")
    logger = logging.getLogger("matplotlib")
    level, width = logger.level, matplotlib.rcParams["lines.linewidth"]
    entered, leave = threading.Event(), threading.Event()

    def draw() -> None:
        with plots.quiet():
            entered.set()
            leave.wait(60)

    drawing = threading.Thread(target=draw)
    try:
        with warnings.catch_warnings():
            drawing.start()
            assert entered.wait(60)
            warnings.filterwarnings("ignore", "of the training")
            logger.setLevel(logging.DEBUG)
            matplotlib.rcParams["lines.linewidth"] = 7.0
            leave.set()
            drawing.join()
            assert any(rule[1] is not None and rule[1].match("of the training") for rule in warnings.filters)
            assert (logger.level, matplotlib.rcParams["lines.linewidth"]) == (logging.DEBUG, 7.0)
    finally:
        leave.set()
        logger.setLevel(level)
        matplotlib.rcParams["lines.linewidth"] = width
