"""A record as Markdown, for a pull request, a wiki or a chat.

All names are untrusted: every character that Markdown or HTML could take for markup becomes an entity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proftrack.record import Record
from proftrack.report import facts, sections, tables
from proftrack.text import counted, duration, percent, plain

ROWS = 10
_SENTENCE = 600
_MARKUP = re.compile(r"[&<>|*`~\[\]\\#!$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=www)\.|:(?=//)|@(?=\w)")
_LEADING = re.compile(r"^(?:[-+](?=\s)|\d+[.)](?=\s))")


def escape(text: str, chars: int = 90) -> str:
    """Untrusted text as one line of Markdown that shows exactly that text."""
    line = plain(" ".join(text.split()), chars)
    line = _MARKUP.sub(lambda match: f"&#{ord(match.group())};", line)
    return _LEADING.sub(lambda match: match.group()[:-1] + f"&#{ord(match.group()[-1])};", line)


def render(record: Record) -> str:
    """The report: verdict, times, evidence, what to do, where the window went, the largest kernels and operators."""
    verdict = record.verdict
    parts = [
        f"# {escape(sections.title(record))}",
        escape(sections.origin(record), _SENTENCE),
        f"**{escape(verdict.summary, _SENTENCE)}**",
        f"{escape(verdict.regime)}, confidence {escape(verdict.confidence)}, step time {escape(verdict.basis)}"
        + (f", largest cause {escape(verdict.cause)}" if verdict.cause else ""),
        _times(record),
        _list("Not certain because", verdict.reasons),
        _list("It rests on", [item.text for item in verdict.evidence]),
        _list("What to do next", verdict.advice),
        _parts(f"Window of {duration(record.window.duration_us)}", sections.split_parts(record)),
        _parts("GPU idle a step, by cause", sections.idle_parts(record)),
        _table("GPU work", tables.kernels(record)) if record.kernels else "",
        _table("On the host", tables.operators(record)) if record.ops else "",
        _table("Recorded steps", tables.steps(record)) if record.per_step else "",
        _list("About the data", [f"{flag.code} ({flag.count}): {flag.message}" for flag in record.quality]),
        _rows("Environment", ("what", "value"), facts.environment(record)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _times(record: Record) -> str:
    rows = [(f"{bar.key}: {bar.label}", duration(bar.us), bar.text) for bar in sections.time_bars(record)]
    return _rows("A step's times", ("time", "", "what could be won"), rows)


def _list(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {escape(line, _SENTENCE)}" for line in lines)]) if lines else ""


def _parts(title: str, parts: list[sections.Part]) -> str:
    rows = [(part.label, duration(part.us), percent(part.share / 100)) for part in parts]
    return _rows(title, ("part", "time", "share"), rows) if rows else ""


def _table(title: str, table: tables.Table) -> str:
    rows = [[cell.text for cell in row] for row in table.rows[:ROWS]]
    text = _rows(title, [column.label for column in table.columns], rows)
    more = len(table.rows) - ROWS
    return text + (f"\n\n{counted(more, 'more row')}." if more > 0 else "")


def _rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(escape(cell, 1500) for cell in cells) for cells in (heads, *rows)]
    body = [f"| {line} |" for line in lines]
    return "\n".join([f"## {title}", "", body[0], "|---" * len(heads) + "|", *body[1:]])
