"""A record: the result at the end of a run, the overview, and the summary for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proftrack.record import Record
from proftrack.report.document import (
    Bar,
    Bars,
    Block,
    Chips,
    Column,
    Document,
    Facts,
    Items,
    Lead,
    Paragraph,
    Shares,
    Table,
    Tone,
)
from proftrack.report.pages import counters, modules, tables
from proftrack.report.pages.environment import environment, origin, title
from proftrack.report.pages.times import bars, idle_parts, legend_of, split_parts, window_steps
from proftrack.text import counted, duration, percent, scaled

TOP, SUMMARY_ROWS = 5, 10
_GAPS, _DEVICES = 3, 8
_TONES: dict[str, Tone] = {"high": "good", "medium": "unclear", "low": "bad"}
_ALL = "and {}: proftrack report shows {shown}"
_KERNEL_COLUMNS = ("GPU work", "share", "total", "calls", "mean", "limit")
_COUNTER_COLUMNS = (
    *("GPU work", "mean", "DRAM", "tensor", "fp32", "integer", "occupancy", "waves", "moved", "launched by"),
)
_OP_COLUMNS = ("operator, region or call", "share", "self CPU", "calls", "self CUDA")


def result(record: Record) -> Document:
    """What `proftrack run` prints at its end: verdict, times, the largest modules and kernels."""
    blocks = [
        *_verdict(record),
        _times(record),
        *counters.block(record),
        *modules.block(record, modules.FEW, passes=False),
        _largest_kernels(record),
        *_replayed(record),
    ]
    return Document(title(record), blocks)


def overview(record: Record) -> Document:
    """What `proftrack analyze` prints: the same, plus the split of the window, idle time by cause, and operators."""
    blocks = [
        *_verdict(record),
        _times(record),
        *counters.block(record),
        Shares(f"Window of {window_steps(record)}", split_parts(record)),
        Shares(f"GPU idle{' per step' if record.window.steps else ''}, by cause (profiled)", idle_parts(record)),
        _gaps(record),
        *_launches(record),
        *modules.block(record),
        _largest_kernels(record),
        *_replayed(record),
        tables.first(tables.operators(record), TOP, _ALL, _OP_COLUMNS),
        Items("", _flags(record, except_for=record.verdict.reasons), mark="!", warning=True),
    ]
    return Document(title(record), blocks)


def summary(record: Record) -> Document:
    """For a pull request, a wiki or a chat: verdict, times, the split of the window, the first rows of the tables."""
    verdict = record.verdict
    more = "{}."
    blocks = [
        Lead(verdict.summary),
        Chips([("", verdict.regime), *chips(record)]),
        Bars("Per step", bars(record), note=legend_of(record)),
        *counters.block(record),
        *_grounds(record),
        Shares(f"Window of {window_steps(record)}", split_parts(record)),
        Shares("GPU idle per step, by cause", idle_parts(record)),
        *modules.block(record),
        tables.first(tables.kernels(record, "GPU work"), SUMMARY_ROWS, more),
        *_replayed(record),
        tables.first(tables.operators(record, "On the host"), SUMMARY_ROWS, more),
        tables.first(tables.steps(record, "Recorded steps"), SUMMARY_ROWS, more),
        Items("Data quality", _flags(record)),
        Facts("Environment", environment(record)),
    ]
    return Document(title(record), blocks, origin=origin(record), comment=False)


# ---- the verdict and its evidence ------------------------------------------------------------------------------------


def _verdict(record: Record) -> list[Block]:
    verdict = record.verdict
    tone = "bad" if verdict.regime == "inconclusive" else _TONES[verdict.confidence]
    return [Lead(verdict.summary, tone), Chips(chips(record)), *_grounds(record)]


def chips(record: Record) -> list[tuple[str, str]]:
    """Confidence, which step time was used, and the largest cause."""
    verdict = record.verdict
    cause = [("largest cause", verdict.cause)] if verdict.cause else []
    return [("confidence", verdict.confidence), ("step time", verdict.basis), *cause]


def _grounds(record: Record) -> list[Block]:
    verdict = record.verdict
    return [
        Items("Caveats", verdict.reasons, mark="?"),
        Items("Evidence", [item.text for item in verdict.evidence]),
        Items("What to do next", verdict.advice, mark=">"),
    ]


def _flags(record: Record, except_for: Sequence[str] = ()) -> list[str]:
    """The quality flags, without those that `except_for` already lists."""
    return [f"{flag.code} ({flag.count}): {flag.message}" for flag in record.quality if flag.message not in except_for]


# ---- figures for a terminal ------------------------------------------------------------------------------------------


def _times(record: Record) -> Bars:
    """The bars, plus the figures that have none."""
    shown = [msgspec.structs.replace(bar, text="") for bar in bars(record)]
    other, busy = record.timing.other if record.timing else None, record.verdict.gpu_busy_fraction
    if other is not None:
        label = "step, synchronised" if other.noun == "step" else "step, back to back"
        shown.append(Bar(key="", label=label, value=duration(other.us)))
    if record.tokens_per_s is not None:
        shown.append(Bar(key="", label="tokens per second", value=scaled(record.tokens_per_s, "").strip()))
    if record.times.step_time_all_steps_us:
        shown.append(Bar(key="", label="all steps, profiled", value=duration(record.times.step_time_all_steps_us)))
    if busy is not None:
        shown.append(Bar(key="u", label="B / T", value=percent(busy)))
    return Bars("", shown, note=legend_of(record))


def _largest_kernels(record: Record) -> Table:
    return tables.first(tables.kernels(record), TOP, _ALL, _KERNEL_COLUMNS)


def _replayed(record: Record) -> list[Block]:
    """The kernels that Nsight Compute replayed, and why there are none or not all."""
    if record.replay is None:
        return []
    title = f"Replayed one by one, in per cent of the hardware's peak ({record.replay.tool})"
    table = tables.replayed(record, title)
    shown = tables.first(table, len(table.rows), _ALL, _COUNTER_COLUMNS)
    blocks: list[Block] = [msgspec.structs.replace(shown, below=len(_COUNTER_COLUMNS) - 1)]
    return [*blocks, *([Paragraph(record.replay.problem)] if record.replay.problem else [])]


def _gaps(record: Record) -> Table:
    """The longest stretches in which the GPU was idle, and what the host did."""
    rows = [(duration(gap.duration_us), gap.cause, f"during {gap.during}") for gap in record.idle.largest[:_GAPS]]
    heads = [Column(label="", width=11), Column(label="", kind="word", width=14), Column(label="", kind="text")]
    return Table("Longest idle gaps (profiled)", heads, rows)


def _launches(record: Record) -> list[Block]:
    """How the GPU got its work, and which of several devices the figures describe."""
    launch, lines = record.launch, []
    if launch is not None and launch.delay_median_us is not None:
        late = f", p95 {duration(launch.delay_p95_us)}" if launch.delay_p95_us is not None else ""
        depth = launch.queue_depth_max
        lines.append(f"Launch to start: median {duration(launch.delay_median_us)}{late}; queue depth at most {depth}.")
    if len(record.devices) > 1:
        busiest = max(record.devices, key=lambda d: (d.gpu_busy_us or 0.0, -d.device))
        each = ", ".join(f"{d.device} busy {duration(d.gpu_busy_us)}" for d in record.devices[:_DEVICES])
        lines.append(
            f"{counted(len(record.devices), 'device')} ({each}): B, idle time and split are those of device "
            f"{busiest.device}."
        )
    return [Paragraph(line) for line in lines]
