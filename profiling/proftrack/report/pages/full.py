"""The full report of a record, and how its kernels are launched: the pages that need the events themselves."""

from __future__ import annotations

from proftrack.record import Record
from proftrack.record.counters import KernelCounters
from proftrack.record.figures import Kernel, Occupancy
from proftrack.report import figures
from proftrack.report.chains import LARGE, Chain, Wait
from proftrack.report.document import (
    Bars,
    Beside,
    Block,
    Chips,
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
    Timeline,
    Way,
    Ways,
    code,
)
from proftrack.report.events import EventDetails
from proftrack.report.pages import counters, modules, tables
from proftrack.report.pages.environment import environment, origin, title
from proftrack.report.pages.run import chips
from proftrack.report.pages.times import bars, idle_parts, legend_of, remarks, schedule, split_parts, window_steps
from proftrack.text import counted, duration, listed, number, percent, plain

_WAITS = 100
_USED = 0.05
"""A pipe that is used less says little about a kernel."""


def report(record: Record, details: EventDetails | None) -> Document:
    """One page that explains a run to a reader who did not make it.

    Without details (no events available), the page says so where it would need them.
    """
    sections = [
        _verdict_section(record),
        _times_section(record),
        counters.section(record),
        Section("What each step was used for", [Strip(schedule(record))], "schedule"),
        _timeline_section(record, details),
        _split_section(record),
        modules.section(record),
        _tables_section(record),
        _launch_section(record, details),
        _roofline_section(record),
        _steps_section(record),
        _regions_section(record),
        Section("Who launched the large kernels", [Ways(_ways(record, details))], "chains"),
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
        Chips([("", verdict.regime), *chips(record)]),
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


def _timeline_section(record: Record, details: EventDetails | None) -> Section:
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
        typical = "typical " if record.window.outlier_steps else ""
        what = f"the busiest {typical}step, {lanes.step}" if lanes.step else "the whole recording (it has no steps)"
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
    about = (
        f"{window_steps(record)}. Each moment counts once: copies and collectives count only where no kernel hides "
        "them."
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
        blocks += _occupancy(record)
    if record.replay is not None:
        about = (
            f"The largest kernels, each launch of one step replayed alone with cold caches by {record.replay.tool}. "
            "Shares are of the hardware's peak while the kernel runs; use of tensor cores is time, not useful FLOPs. "
            "Possible: the occupancy that registers, shared memory and block size allow. Over least: the bytes moved, "
            "divided by those that the operator must move; well above 1, data is fetched more than once."
        )
        shown = [Paragraph(record.replay.problem)] if record.replay.problem else []
        blocks.append(
            Section("Replayed kernels", [Paragraph(about, "muted"), tables.replayed(record, by_site=True), *shown])
        )
    return Section("Operators and kernels", blocks, "tables")


def _occupancy(record: Record) -> list[Block]:
    about = (
        "Derived from the registers, shared memory, block and grid of the launches and the limits of the device; not "
        "measured. Of a kernel with different launches, means weighed by time, and the block that takes most of it. A "
        "matmul on tensor cores needs few warps: a low occupancy is no fault by itself."
    )
    table = tables.occupancy(record)
    return (
        [Section("How far kernels can fill the GPU (derived)", [Paragraph(about, "muted"), table])]
        if table.rows
        else []
    )


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
    return Section("Regions", [tables.regions(record.regions, "region")], "regions")


def _ways(record: Record, details: EventDetails | None) -> list[Way]:
    counters = {kernel.name: kernel.counters for kernel in record.kernels}
    return [_way(chain, counters.get(chain.kernel)) for chain in (details.chains if details else ())]


def _way(chain: Chain, counters: KernelCounters | None) -> Way:
    text = ""
    if not chain.links:
        text = "its launch was not recorded"
    elif chain.ways > 1:
        others = counted(chain.ways - 1, "other way", "other ways")
        text = f"{percent(chain.share)} of its time; {others}"
    if counters is not None:
        used = ", ".join(f"{unit} {percent(share)}" for unit, share in counters.shares.items() if share >= _USED)
        text = "; ".join(filter(None, [text, f"replayed: {used}" if used else ""]))
    return Way(links=chain.links, end=chain.kernel, text=text)


# ---- how kernels are launched ----------------------------------------------------------------------------------------


def launches(chains: list[Chain], kernels: list[Kernel], rank: int | None = None) -> Document:
    """One kernel after the other; `rank` names the rank if there are several."""
    prefix = "" if rank is None else f"rank {rank}: "
    by_name = {kernel.name: kernel for kernel in kernels}
    blocks: list[Block] = []
    for chain in chains:
        kernel = by_name[chain.kernel]
        about = f"{duration(kernel.total_us)} in {counted(kernel.calls, 'call')}, {percent(kernel.share)}"
        blocks += [Lead(plain(kernel.name)), Paragraph(f"  {prefix}{about}, {kernel.limit}")]
        blocks += _filled(kernel.occupancy) if kernel.occupancy else []
        blocks += [Ways([_launched(chain)])]
    if len(kernels) > LARGE:
        blocks.append(Lead(f"{prefix}and {counted(len(kernels) - LARGE, 'more kernel')} with that name"))
    return Document("How kernels are launched", blocks)


def _filled(occupancy: Occupancy) -> list[Block]:
    """How far its launches can fill the GPU, and why not further."""
    place = f"{percent(occupancy.theoretical)} of the room for warps, {number(occupancy.waves)} waves"
    last = f" (the last one filled to {percent(occupancy.last_wave_share)})" if occupancy.waves > 1 else ""
    limits = listed(occupancy.limited_by)
    lines = (f"{place}{last}, limited by {limits} (derived)", tables.block_of(occupancy))
    return [Paragraph(f"  {line}") for line in lines]


def _launched(chain: Chain) -> Way:
    if not chain.links:
        return Way(links=[], end="", text="its launch was not recorded")
    more = f"launched like this for {percent(chain.share)} of its time; {chain.ways} ways in total"
    more = more if chain.ways > 1 else ""
    return Way(links=chain.links, end="", text=more)
