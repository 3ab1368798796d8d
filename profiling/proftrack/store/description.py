"""The run's description in MLflow: the verdict, the times and the largest kernels, as Markdown.

Names of kernels are untrusted text: they are cut, put on one line, and every character that Markdown or HTML could
take for markup becomes an entity.
"""

from __future__ import annotations

from proftrack.record import Record
from proftrack.report.markdown import escape
from proftrack.text import duration, percent

NOTE_CHARS = 7_900
"""MLflow cuts the note at 8,000 characters, in the middle of whatever stands there."""
KERNELS = 5
REPORT = "Timeline, tables and the rest: see `report.html` among the artifacts; `proftrack open` shows the trace."
_SENTENCE_CHARS = 400


def note(record: Record) -> str:
    """The description, at most NOTE_CHARS characters of Markdown."""
    parts = [_verdict(record), _times(record), REPORT, _kernels(record), _flags(record), _advice(record)]
    text = ""
    for part in filter(None, parts):
        # Whole parts only: half a table shows as text.
        if len(text) + len(part) + 2 <= NOTE_CHARS:
            text += ("\n\n" if text else "") + part
    return text


def _sentence(text: str) -> str:
    return escape(text, _SENTENCE_CHARS)


def _verdict(record: Record) -> str:
    verdict = record.verdict
    head = f"**{escape(verdict.regime)}** ({escape(verdict.confidence)} confidence, {escape(verdict.basis)})"
    reasons = [f"- {_sentence(reason)}" for reason in verdict.reasons[:5]]
    return "\n".join([f"{head}: {_sentence(verdict.summary)}", *([""] if reasons else []), *reasons])


def _times(record: Record) -> str:
    times = record.times
    rows = [
        ("step time T" + ("" if record.verdict.basis == "unprofiled" else " (profiled)"), record.step_time_us),
        ("GPU busy B", times.gpu_busy_per_step_us),
        ("roofline R", times.roofline_time_us),
    ]
    lines = [f"| {name} | {duration(value)} |" for name, value in rows if value is not None]
    return "\n".join(["| per step | time |", "|---|---:|", *lines]) if lines else ""


def _kernels(record: Record) -> str:
    if not record.kernels:
        return ""
    lines = [
        f"| {escape(kernel.name)} | {escape(kernel.kind, 30)} | {kernel.calls} | {duration(kernel.total_us)} "
        f"| {percent(kernel.share)} |"
        for kernel in record.kernels[:KERNELS]
    ]
    return "\n".join(["| largest kernels | kind | calls | total | share |", "|---|---|---:|---:|---:|", *lines])


def _flags(record: Record) -> str:
    return _list("Quality", [f"{escape(flag.code)}: {_sentence(flag.message)}" for flag in record.quality[:8]])


def _advice(record: Record) -> str:
    return _list("What to do", [_sentence(advice) for advice in record.verdict.advice[:6]])


def _list(title: str, items: list[str]) -> str:
    return "\n".join([f"**{title}**", "", *(f"- {item}" for item in items)]) if items else ""
