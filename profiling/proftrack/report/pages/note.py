"""The run's description in MLflow: the verdict, the times and the largest kernels, as Markdown."""

from __future__ import annotations

from proftrack.record import Record
from proftrack.report import markdown
from proftrack.report.document import Block, Column, Document, Items, Lead, Paragraph, Table
from proftrack.report.pages import counters, modules
from proftrack.report.pages.times import is_part, legend_of
from proftrack.text import duration, percent, plain

NOTE_CHARS = 7_900
"""MLflow cuts the note at 8,000 characters, even in the middle of a table."""
REPORT = "For the timeline, tables and more, see `report.html` in the artifacts; `proftrack open` shows the trace."
_KERNELS, _REASONS, _FLAGS, _ADVICE = 5, 5, 8, 6
_NAME, _SENTENCE = 90, 400


def note(record: Record) -> str:
    """The description, at most NOTE_CHARS characters of Markdown."""
    verdict = record.verdict
    text = f"({verdict.confidence} confidence, {verdict.basis}): {_cut(verdict.summary)}"
    blocks: list[Block] = [
        Lead(text, label=verdict.regime),
        Items("Caveats", [_cut(reason) for reason in verdict.reasons[:_REASONS]]),
        _times(record),
        *counters.block(record),
        *modules.lines(record),
        Paragraph(REPORT),
        _kernels(record),
        Items("Data quality", [f"{flag.code}: {_cut(flag.message)}" for flag in record.quality[:_FLAGS]]),
        Items("What to do next", [_cut(advice) for advice in verdict.advice[:_ADVICE]]),
    ]
    return markdown.render(Document("", blocks), most_chars=NOTE_CHARS)


def _cut(text: str) -> str:
    return plain(" ".join(text.split()), _SENTENCE)


def _times(record: Record) -> Table:
    times = record.times
    profiled = "" if record.verdict.basis == "unprofiled" else " (profiled)"
    rows = [
        ("T", f"step time T{profiled}", record.step_time_us),
        ("B", "GPU busy B", times.gpu_busy_per_step_us),
        ("R", f"roofline R{' (a lower bound)' if is_part(record) else ''}", times.roofline_time_us),
    ]
    shown = [(letter, name, duration(us)) for letter, name, us in rows if us is not None]
    note = legend_of(record, [letter for letter, _, _ in shown])
    return Table("", ("per step", "time"), [(name, time) for _, name, time in shown], note=note, folded=False)


def _kernels(record: Record) -> Table:
    heads = [
        Column(label="largest kernels", kind="code"),
        Column(label="kind", kind="word"),
        Column(label="calls"),
        Column(label="total"),
        Column(label="share"),
    ]
    rows = [
        (plain(k.name, _NAME), plain(k.kind, 30), str(k.calls), duration(k.total_us), percent(k.share))
        for k in record.kernels[:_KERNELS]
    ]
    return Table("", heads, rows, folded=False)
