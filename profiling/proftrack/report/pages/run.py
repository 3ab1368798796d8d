"""A record: the result at the end of a run, the overview, the summary for a pull request, and the full report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proftrack.record import Record
from proftrack.report import figures
from proftrack.report.breakdown import idle_parts, split_parts
from proftrack.report.chains import Chain, Wait
from proftrack.report.document import (
    Bar,
    Bars,
    Beside,
    Block,
    Chips,
    Column,
    Document,
    Facts,
    Figure,
    Items,
    Lead,
    Link,
    Paragraph,
    Section,
    Shares,
    Strip,
    Table,
    Timeline,
    Tone,
    Way,
    Ways,
    code,
)
from proftrack.report.events import EventDetails
from proftrack.report.pages import tables
from proftrack.report.pages.environment import environment, origin, title
from proftrack.report.pages.times import bars, legend_of, remarks, schedule
from proftrack.text import counted, duration, percent, plain

TOP, SUMMARY_ROWS = 5, 10
_GAPS, _DEVICES, _WAITS = 3, 8, 100
_TONES: dict[str, Tone] = {"high": "good", "medium": "unclear", "low": "bad"}
_ALL = "and {}: proftrack report shows all"
_KERNEL_COLUMNS = ("GPU work", "share", "total", "calls", "mean", "limit")
_OP_COLUMNS = ("operator, region or call", "share", "self CPU", "calls", "self CUDA")


def result(record: Record) -> Document:
    """What `proftrack run` prints at its end: verdict, times, the largest kernels."""
    return Document(title(record), [*_verdict(record), _times(record), _largest_kernels(record)])


def overview(record: Record) -> Document:
    """What `proftrack analyze` prints: the same, plus the split of the window, idle time by cause, and operators."""
    blocks = [
        *_verdict(record),
        _times(record),
        Shares(_window_title(record), split_parts(record)),
        Shares(f"GPU idle{' per step' if record.window.steps else ''}, by cause (profiled)", idle_parts(record)),
        _gaps(record),
        *_launches(record),
        _largest_kernels(record),
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
        Chips([("", verdict.regime), *_chips(record)]),
        Bars("Per step", bars(record), note=legend_of(record)),
        *_grounds(record),
        Shares(f"Window of {duration(record.window.duration_us)}", split_parts(record)),
        Shares("GPU idle per step, by cause", idle_parts(record)),
        tables.first(tables.kernels(record, "GPU work"), SUMMARY_ROWS, more),
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
    return [Lead(verdict.summary, tone), Chips(_chips(record)), *_grounds(record)]


def _chips(record: Record) -> list[tuple[str, str]]:
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
    """The bars, plus the two figures that have none."""
    shown = [msgspec.structs.replace(bar, text="") for bar in bars(record)]
    other, busy = record.timing.other if record.timing else None, record.verdict.gpu_busy_fraction
    if other is not None:
        label = "step, synchronised" if other.noun == "step" else "step, back to back"
        shown.append(Bar(key="", label=label, value=duration(other.us)))
    if busy is not None:
        shown.append(Bar(key="u", label="B / T", value=percent(busy)))
    return Bars("", shown, note=legend_of(record))


def _window_title(record: Record) -> str:
    return f"Window of {duration(record.window.duration_us)}, {counted(record.window.steps, 'step')}"


def _largest_kernels(record: Record) -> Table:
    return tables.first(tables.kernels(record), TOP, _ALL, _KERNEL_COLUMNS)


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


# ---- the full report -------------------------------------------------------------------------------------------------


def report(record: Record, details: EventDetails | None) -> Document:
    """One page that explains a run to a reader who did not make it.

    Without details (no events available), the page says so where it would need them.
    """
    sections = [
        _verdict_section(record),
        _times_section(record),
        Section("What each step was used for", [Strip(schedule(record))], "schedule"),
        _timeline_section(details),
        _split_section(record),
        _tables_section(record),
        _launch_section(record, details),
        _roofline_section(record),
        _steps_section(record),
        _regions_section(record),
        Section("Who launched the large kernels", [Ways(list(map(_way, details.chains if details else ())))], "chains"),
        Section("Environment", [Facts("", environment(record))], "environment"),
        Section("What to do next", [Items("", record.verdict.advice, ordered=True)], "next"),
    ]
    short = f"{title(record)}: {record.verdict.regime}"
    blocks = [section for section in sections if section is not None]
    return Document(title(record), blocks, origin=origin(record), short_title=short, comment=False)


def _verdict_section(record: Record) -> Section:
    verdict = record.verdict
    messages = {flag.message for flag in record.quality}
    doubts = [reason for reason in verdict.reasons if reason not in messages]
    flags = [
        f"{code(flag.code)}{f' ({flag.count:,})' if flag.count > 1 else ''} {flag.message}" for flag in record.quality
    ]
    beside: list[Block] = [
        Items("Evidence", [item.text for item in verdict.evidence]),
        Items("Caveats" if doubts else "Data quality", [*doubts, *flags], warning=True),
    ]
    blocks: list[Block] = [
        Lead(verdict.summary),
        Chips([("", verdict.regime), *_chips(record)]),
        Beside(beside),
        Link("What to do next", "next"),
    ]
    return Section("Verdict", blocks, "verdict", headed=False)


def _times_section(record: Record) -> Section:
    shown, busy = bars(record), record.verdict.gpu_busy_fraction
    rest = "the most that could be saved at that stage" if busy is not None else ""
    blocks: list[Block] = [
        Bars("", shown, rest=rest, note=legend_of(record)) if shown else Paragraph("The step time is unknown.")
    ]
    if busy is not None:
        blocks.append(Paragraph(f"u = {percent(busy)}: the share of a step in which the GPU is busy."))
    if more := remarks(record):
        blocks.append(Paragraph(" ".join(more), "muted"))
    return Section("Per step", blocks, "times")


def _timeline_section(details: EventDetails | None) -> Section:
    lanes = details.lanes if details else None
    blocks: list[Block] = []
    if details is None or lanes is None:
        blocks.append(
            Paragraph(
                "Only the record is available, without its events: to see the timeline, give the trace, or the run's "
                "folder with its events.parquet."
            )
        )
    else:
        what = f"the busiest step, {lanes.step}" if lanes.step else "the whole recording (it has no steps)"
        cycle = f", in cycle {details.cycle + 1} of {details.cycles}" if details.cycles > 1 else ""
        arrows = " An arrow leads from a launch to its kernel." if len(lanes.links.call) else ""
        slower = "The profiler slows the host down, so host times are longer here than without it."
        text = f"It opens on {what}{cycle}. {slower}{arrows}"
        blocks += [Paragraph(text, "muted"), Timeline(lanes)]
    if details is not None:
        blocks.append(Items("What the host waited for", [_wait(wait) for wait in details.waits[:_WAITS]]))
    return Section("Timeline", blocks, "timeline")


def _wait(wait: Wait) -> str:
    share = wait.busy_us / wait.total_us if wait.total_us else 0.0
    busy = f"the GPU was busy for {percent(share)} of it"
    if share >= 0.5:
        text = f"{busy}: the host waits for work that has to be done, so removing the call would gain next to nothing"
    elif share >= 0.05:
        text = f"{busy}; the rest is the cost of the call and of what it delays"
    else:
        text = f"{busy}: there was nothing to wait for, so this is the cost of the call itself"
    return f"{code(plain(wait.name, 80))}: {duration(wait.total_us)} in {counted(wait.calls, 'call')}; {text}."


def _split_section(record: Record) -> Section | None:
    split = split_parts(record)
    if not split:
        return None
    window = record.window
    about = (
        f"{duration(window.duration_us)}, {counted(window.steps, 'step')}. Each moment counts once: copies and "
        "collectives count only where no kernel hides them."
    )
    idle = Shares("Idle time per step, by cause", idle_parts(record))
    return Section("Where the recorded time went", [Paragraph(about, "muted"), Shares("", split), idle], "split")


def _tables_section(record: Record) -> Section:
    totals, blocks = record.totals, list[Block]()
    if record.ops:
        total = f"Self CPU time total: {duration(totals.self_cpu_time_total_us)}, as torch counts it."
        blocks.append(Section("On the host", [Paragraph(total, "muted"), tables.operators(record)]))
    if record.kernels:
        total = f"Self CUDA time total: {duration(totals.self_cuda_time_total_us)}, as torch counts it."
        blocks.append(Section("On the GPU", [Paragraph(total, "muted"), tables.kernels(record)]))
    return Section("Operators and kernels", blocks, "tables")


def _launch_section(record: Record, details: EventDetails | None) -> Section | None:
    launch = record.launch
    if launch is None:
        return None
    deepest = "-" if launch.queue_depth_max is None else launch.queue_depth_max
    blocks: list[Block] = [
        Paragraph(
            f"Work starts {duration(launch.delay_median_us)} after its launch call (median; 95 % start within "
            f"{duration(launch.delay_p95_us)}). The queue was at most {deepest} deep. A launch call takes "
            f"{duration(launch.launch_call_mean_us)} under the profiler."
        ),
        Paragraph(
            "A long delay with a deep queue means that the host runs ahead of a busy GPU. A short delay with an empty "
            "queue means that the GPU waits for the host.",
            "muted",
        ),
    ]
    queue = details.queue if details else None
    if queue is not None:
        delay, depth = figures.delay_chart(queue), figures.depth_chart(queue)
        blocks.append(Beside([Figure(delay, "Launch delay"), Figure(depth, "Queue depth")]))
    return Section("Launches", blocks, "launches")


def _roofline_section(record: Record) -> Section | None:
    if not record.kernels:
        return None
    chart = figures.roofline_chart(record)
    if chart is None:
        return Section("Roofline", [Paragraph(_why_no_roofline(record))], "roofline")
    about = (
        "The lines show what this device attained with large matmuls and large copies. Each circle is a kernel: its "
        "area is the kernel's share of the GPU's time, its number the rank in the table. FLOPs and bytes are those of "
        "the operator that launched the kernel."
    )
    return Section("Roofline", [Paragraph(about, "muted"), Figure(chart, "Roofline")], "roofline")


def _why_no_roofline(record: Record) -> str:
    if record.ceilings is None:
        return "No roofline: this trace came without measured rates of the device (`proftrack run` measures them)."
    return "No roofline: no kernel has known FLOPs and bytes (operator shapes were not recorded or are unknown)."


def _steps_section(record: Record) -> Section | None:
    chart = figures.steps_chart(record)
    if chart is None:
        return None
    return Section("Recorded steps", [Figure(chart, "Steps"), tables.steps(record)], "steps")


def _regions_section(record: Record) -> Section:
    modules = Section("Modules", [tables.regions(record.modules, "module")])
    return Section("Regions", [tables.regions(record.regions, "region"), modules], "regions")


def _way(chain: Chain) -> Way:
    text = ""
    if not chain.links:
        text = "its launch was not recorded"
    elif chain.ways > 1:
        others = counted(chain.ways - 1, "other way", "other ways")
        text = f"{percent(chain.share)} of its time; {others}"
    return Way(links=chain.links, end=chain.kernel, text=text)
