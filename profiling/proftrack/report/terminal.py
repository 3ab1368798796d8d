"""What the terminal shows: the verdict first, then the figures it rests on. Plain text where it is piped.

Lines fit the terminal; where there is none, $COLUMNS, else 100 columns. Numbers are never cut: the name beside them
gives way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from proftrack.record import Record
from proftrack.report import tables
from proftrack.report.sections import idle_parts, split_parts, time_bars
from proftrack.text import brief, counted, duration, percent, plain

TOP = 5
_GAPS = 3
_DEVICES = 8
PIPED_COLUMNS = 100
_BAR = 30
_LABEL = 8
_NARROWEST_NAME = 12
_WIDEST_NAME = 60
_STYLE = {"high": "bold green", "medium": "bold yellow", "low": "bold red"}


def console(stream: IO[str] | None = None) -> Console:
    """stdout, or another text stream. rich honours NO_COLOR itself, and colours nothing that is no terminal.

    A character that the stream's encoding has not is shown as its escape: no report may fail for a name's sake.
    """
    out = sys.stdout if stream is None else stream
    reconfigure: Callable[..., None] | None = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return Console(file=stream, highlight=False, soft_wrap=False, width=_width(out))


def _width(out: IO[str]) -> int | None:
    """None for a terminal, whose width rich finds out itself."""
    if out.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else PIPED_COLUMNS


def print_result(record: Record, stream: IO[str] | None = None) -> None:
    """What `proftrack run` says at its end: verdict, times, the largest kernels."""
    out = console(stream)
    _verdict(out, record)
    _times(out, record)
    _kernels(out, record)


def print_note(label: str, text: str) -> None:
    """A sentence behind a label of eight columns, as wide as the terminal is."""
    _hanging(console(), Text(text), label.ljust(_LABEL), " " * _LABEL)


def _hanging(out: Console, text: Text, first: str = "", below: str = "") -> None:
    """A text in lines that fit, the first behind `first`, the others behind `below`, which is as wide."""
    for i, part in enumerate(text.wrap(out, max(out.width - len(below), 20))):
        part.rstrip()
        out.print(Text(below if i else first) + part)


def print_record(record: Record, stream: IO[str] | None = None) -> None:
    """What `proftrack analyze` says: the same, with idle time by cause, the split and operators."""
    out = console(stream)
    _verdict(out, record)
    _times(out, record)
    _parts(out, f"Window of {duration(record.window.duration_us)}, {counted(record.window.steps, 'step')}:", record)
    _gaps(out, record)
    _launches(out, record)
    _kernels(out, record)
    _ops(out, record)
    _quality(out, record)


def _verdict(out: Console, record: Record) -> None:
    verdict = record.verdict
    style = "bold red" if verdict.regime == "inconclusive" else _STYLE[verdict.confidence]
    out.print()
    _hanging(out, Text(verdict.summary, style=style))
    said = f"confidence {verdict.confidence}, step time {verdict.basis}"
    out.print(Text(said + (f", largest cause {verdict.cause}" if verdict.cause else "")))
    for heading, mark, lines in (
        ("Not certain because", "?", verdict.reasons),
        ("It rests on", "-", [item.text for item in verdict.evidence]),
        ("What to do next", ">", verdict.advice),
    ):
        if lines:
            out.print()
            out.print(Text(f"{heading}:"))
            _items(out, mark, lines)


def _items(out: Console, mark: str, lines: Sequence[str], style: str = "") -> None:
    """One item a line; what does not fit goes on below its own text."""
    for line in lines:
        _hanging(out, Text(plain(line, 600), style=style), f"  {mark} ", "    ")


def _times(out: Console, record: Record) -> None:
    bars = time_bars(record)
    longest = max((bar.us for bar in bars), default=0.0)
    out.print()
    for bar in bars:
        line = f"{bar.key}  {bar.label.partition(':')[0].partition(',')[0]:<24}{duration(bar.us):>9}  "
        out.print(Text(line + _bar(bar.us / longest, out.width - len(line))))
    other = record.timing.other if record.timing is not None else None
    if other is not None:
        label = "step, synchronised" if other.noun == "step" else "step, back to back"
        out.print(Text(f"   {label:<24}{duration(other.us):>9}"))
    if record.verdict.gpu_busy_fraction is not None:
        out.print(Text(f"u  {'B / T':<24}{percent(record.verdict.gpu_busy_fraction):>9}"))


def _bar(share: float, room: int) -> str:
    return "#" * max(1, round(min(_BAR, room) * share)) if room > 3 else ""


def _parts(out: Console, heading: str, record: Record) -> None:
    """The window's exclusive parts, and idle time by cause."""
    idle = f"GPU idle{' a step' if record.window.steps else ''}, by cause (profiled):"
    for title, parts in ((heading, split_parts(record)), (idle, idle_parts(record))):
        if parts:
            out.print()
            out.print(Text(title))
        for part in parts:
            line = f"  {part.label.partition(':')[0]:<22}{duration(part.us):>9} {percent(part.share / 100):>8}  "
            out.print(Text(line + _bar(part.share / 100, out.width - len(line))))


def _gaps(out: Console, record: Record) -> None:
    """The longest stretches in which the GPU idled, and what the host did."""
    if record.idle.largest:
        out.print()
        out.print(Text("The longest idle gaps (profiled):"))
    for gap in record.idle.largest[:_GAPS]:
        line = f"  {duration(gap.duration_us):>9}  {gap.cause:<16}during "
        out.print(Text(line + brief(gap.during, max(out.width - len(line) - 1, _NARROWEST_NAME))))


def _launches(out: Console, record: Record) -> None:
    """How work came to the GPU, and which of several devices the figures are about."""
    launch, lines = record.launch, []
    if launch is not None and launch.delay_median_us is not None:
        late = f", p95 {duration(launch.delay_p95_us)}" if launch.delay_p95_us is not None else ""
        depth = launch.queue_depth_max
        lines.append(f"Launch to start: median {duration(launch.delay_median_us)}{late}; queue at most {depth} deep.")
    if len(record.devices) > 1:
        busiest = max(record.devices, key=lambda d: (d.gpu_busy_us or 0.0, -d.device))
        each = ", ".join(f"{d.device} busy {duration(d.gpu_busy_us)}" for d in record.devices[:_DEVICES])
        lines.append(f"{counted(len(record.devices), 'device')} ({each}): B, idle and split are of {busiest.device}.")
    if lines:
        out.print()
    for line in lines:
        out.print(Text(line))


def _kernels(out: Console, record: Record) -> None:
    if record.kernels:
        _table(out, tables.kernels(record), ("GPU work", "share", "total", "calls", "mean", "limit"))


def _ops(out: Console, record: Record) -> None:
    if record.ops:
        _table(out, tables.operators(record), ("operator, region or call", "share", "self CPU", "calls", "self CUDA"))


def _table(out: Console, table: tables.Table, wanted: Sequence[str]) -> None:
    """The first rows of these columns; the first of them is the name, which takes the room that is left."""
    labels = [column.label for column in table.columns]
    at = [labels.index(name) for name in wanted if name in labels]
    rows = [[row[i] for i in at] for row in table.rows[:TOP]]
    heads = [labels[i] for i in at]
    widths = [max(len(head), *(len(row[i].text) for row in rows)) for i, head in enumerate(heads)]
    room = max(out.width - sum(widths[1:]) - 2 * (len(widths) - 1) - 1, _NARROWEST_NAME)
    names = _told_apart([row[0].hint or row[0].text for row in rows], min(room, _WIDEST_NAME))
    width = max(map(len, [*names, heads[0][:room]]))
    out.print()
    for name, cells in zip([heads[0], *names], [heads, *([c.text for c in row] for row in rows)], strict=True):
        line = f"{name:<{width}.{width}}" + "".join(f"  {c:>{w}}" for c, w in zip(cells[1:], widths[1:], strict=True))
        out.print(Text(line, no_wrap=True, style="bold" if cells is heads else ""), crop=False)
    if len(table.rows) > TOP:
        out.print(Text(f"and {counted(len(table.rows) - TOP, 'more row')}: proftrack report shows all"))


def _told_apart(names: list[str], room: int) -> list[str]:
    """Names cut in their middle; those that are then alike by their ends, where that tells them apart."""
    cut = [brief(name, room) for name in names]
    return [
        name_cut if cut.count(name_cut) == 1 else f"{brief(name, len(name))[: room - 3]}..."
        for name, name_cut in zip(names, cut, strict=True)
    ]


def _quality(out: Console, record: Record) -> None:
    told = set(record.verdict.reasons)
    flags = [flag for flag in record.quality if flag.message not in told]
    if flags:
        out.print()
        _items(out, "!", [f"{flag.code} ({flag.count}): {flag.message}" for flag in flags], style="yellow")
