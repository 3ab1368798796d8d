"""The charts of a record: launches over the window, counters, the roofline, the steps, the split of the window."""

from __future__ import annotations

import numpy as np

from proftrack.record import Record
from proftrack.record.counters import UNIT_NAMES, Counters, Unit
from proftrack.record.figures import Kernel, Step
from proftrack.report.charts import (
    HEIGHT,
    Axis,
    Box,
    Chart,
    Dot,
    Key,
    Line,
    Mark,
    Stairs,
    Tick,
    Words,
    decades,
    round_ticks,
)
from proftrack.report.document import Share
from proftrack.report.pages.times import idle_parts, split_parts
from proftrack.report.queue import BINS, Floats, Queue
from proftrack.report.svg import WIDTH
from proftrack.report.tiles import Tile, tiles
from proftrack.text import brief, duration, number, percent, plain, scaled

LABELLED = 8
"""Number of kernels labelled in the roofline."""
MOST_STEPS = 60
"""Above this, recorded steps are drawn as lines instead of bars."""
_STEP_LABELS = 12
_CUT_AT = 0.9
"""Share of the height at which the bars of a step that T and B leave out end, so that there is room above them."""
_ROW = 24.0
"""Height of the row of a unit."""
_LABEL = 28
"""Room for words beyond a bar of 100 %, in its unit."""
_READABLE = 14
"""Share of the width, in per cent, that a part needs to have its name inside it."""
_TILE, _TILE_GAP = 18.0, 0.08
"""Height of a level of the icicle, and the part of it that separates it from the next."""
_CHAR = 5.4
"""Width of a character, rather too wide than too narrow."""
_PERCENT = [Tick(at, str(at)) for at in range(0, 101, 20)]


# ---- launches --------------------------------------------------------------------------------------------------------


def delay_chart(queue: Queue) -> Chart:
    """Launch delay over the window: median and largest of each bin."""
    span = (queue.high - queue.low) / 1000
    largest = float(np.nanmax(queue.delay_max_us))
    return Chart(
        summary=f"Launch delay over the window of {duration(span)}, largest {duration(largest)}",
        x=_time_axis(span),
        y=_durations("launch delay", largest),
        marks=[_stairs("largest", queue.delay_max_us, span), _stairs("typical", queue.delay_median_us, span)],
    )


def depth_chart(queue: Queue) -> Chart:
    """Queue depth over the window."""
    span = (queue.high - queue.low) / 1000
    deepest = int(queue.depth_max.max())
    top = [v for v in round_ticks(deepest) if v == int(v)]
    return Chart(
        summary=f"Queue depth over the window of {duration(span)}, deepest {deepest}",
        x=_time_axis(span),
        y=Axis(label="launched, not started", low=0, high=top[-1], ticks=[Tick(v, f"{v:,.0f}") for v in top]),
        marks=[_stairs("typical", queue.depth_max, span)],
    )


def _stairs(style: str, values: Floats, span: float) -> Stairs:
    """A level for each bin of the window, with a gap where nothing started."""
    levels = [None if np.isnan(value) else value for value in values.tolist()]
    return Stairs(style=style, edges=[i * span / BINS for i in range(BINS + 1)], levels=levels)


def _time_axis(span_us: float) -> Axis:
    ticks = [Tick(v, duration(v)) for v in round_ticks(span_us) if v <= span_us]
    return Axis(label="time in the window", low=0, high=span_us, ticks=ticks)


def _durations(label: str, high_us: float) -> Axis:
    """An axis from 0 to a round number of microseconds."""
    ticks = round_ticks(high_us)
    return Axis(label=label, low=0, high=ticks[-1], ticks=[Tick(v, duration(v)) for v in ticks])


# ---- counters --------------------------------------------------------------------------------------------------------


def units_of(record: Record) -> list[Unit]:
    """The units that were counted: what is active first, then the others by use, parts of the tensor cores last."""
    shares = record.counters.shares if record.counters is not None else {}
    units = [unit for unit in UNIT_NAMES if unit in shares]
    return sorted(units, key=lambda unit: (_GROUP.get(unit, 1), -shares[unit] if unit not in _GROUP else 0.0))


_GROUP: dict[Unit, int] = {"sm_active": 0, "occupancy": 0, "hmma": 2, "imma": 2, "dmma": 2}


def counters_chart(record: Record) -> Chart | None:
    """A bar for each unit, as counted and while the GPU is busy, with a line at what is reachable. None without any."""
    counters = record.counters
    units = [unit for unit in units_of(record) if _GROUP.get(unit) != 2]
    if counters is None or not units:
        return None
    busy = record.counted_busy_fraction
    top = len(units)
    rows = list(zip(units, (top - i - 0.5 for i in range(top)), strict=True))
    marks = [mark for unit, middle in rows for mark in _use(counters, unit, busy, middle)]
    styles = {mark.style for mark in marks if not isinstance(mark, Words)}
    keys = [
        Key("counted", "over all of the time"),
        Key("while-busy", f"while the GPU is busy (u = {percent(busy)})"),
        Key("reachable", "reachable on this device"),
    ]
    return Chart(
        summary=f"Use of units of the GPU: {', '.join(_said(counters, unit) for unit in units)}",
        title="hardware counters",
        x=Axis(label="share of the peak (%)", low=0, high=100 + _LABEL, ticks=_PERCENT),
        y=Axis(label="", low=0, high=top, ticks=[Tick(middle, UNIT_NAMES[unit]) for unit, middle in rows], grid=False),
        marks=marks,
        key=[key for key in keys if key.style in styles],
        height=_ROW * top + 50,
    )


def _use(counters: Counters, unit: Unit, busy: float | None, middle: float) -> list[Mark]:
    share, most = 100 * counters.shares[unit], 100 * (counters.reach(unit) or 0.0)
    while_busy = min(share / busy, 100.0) if busy else share
    low, high, hint = middle - 0.32, middle + 0.32, _said(counters, unit)
    marks: list[Mark] = [Box(style="counted", left=0, right=share, low=low, high=high, hint=hint)]
    if percent(while_busy / 100) != percent(share / 100):
        marks.append(Box(style="while-busy", left=share, right=while_busy, low=low, high=high, hint=hint))
    if most:
        line = [(most, middle - 0.42), (most, middle + 0.42)]
        marks.append(Line(style="reachable", points=line, hint=f"{percent(most / 100)} is reachable"))
    use = counters.utilization(unit, busy) if busy and most else None
    if use is not None:
        marks.append(Words(text=f"{percent(use)} of reachable", x=max(while_busy, most), y=middle, dx=6, dy=4))
    return marks


def _said(counters: Counters, unit: Unit) -> str:
    most = counters.reach(unit)
    reach = f" ({percent(most)} reachable)" if most else ""
    return f"{UNIT_NAMES[unit]} {percent(counters.shares[unit])}{reach}"


# ---- roofline --------------------------------------------------------------------------------------------------------


def roofline_chart(record: Record) -> Chart | None:
    """The device's attainable rates and the large kernels below them (Williams et al., 2009). None without ceilings."""
    ceilings, kernels = record.ceilings, _plotted(record.kernels)
    if ceilings is None or not kernels:
        return None
    memory = ceilings.bytes_per_s
    ridges = {dtype: flops / memory for dtype, flops in _roofs(record).items()}
    intensities = [k.intensity or 0.0 for _, k in kernels]
    low = 10 ** np.floor(np.log10(min([*intensities, *ridges.values()]) / 2))
    high = 10 ** np.ceil(np.log10(max([*intensities, *ridges.values()]) * 2))
    bottom = 10 ** np.floor(np.log10(min([low * memory, *(_rate(k) for _, k in kernels)])))
    top = max(ridges.values()) * memory * 2.5
    marks: list[Mark] = []
    for dtype, ridge in ridges.items():
        flops = ridge * memory
        marks.append(Line(style="roof", points=[(low, low * memory), (ridge, flops), (high, flops)]))
        # No kernel can be left of the ridge and above the slope, so the label is never covered.
        marks.append(Words(text=f"{dtype} {scaled(flops, 'FLOP/s')}", x=ridge, y=flops, anchor="end", dx=-6, dy=4))
    middle = (low * max(ridges.values())) ** 0.5
    marks.append(Words(text=scaled(memory, "B/s"), x=middle, y=middle * memory, anchor="end", dx=-8))
    return Chart(
        summary=f"Roofline of {ceilings.device}: {len(kernels)} kernels by FLOPs per byte and attained FLOP/s",
        title=f"roofline of {plain(ceilings.device, 40)}, memory {scaled(memory, 'B/s')}",
        x=Axis(
            label="FLOPs per byte", low=low, high=high, ticks=[Tick(v, f"{v:g}") for v in decades(low, high)], log=True
        ),
        y=Axis(
            label="FLOP/s", low=bottom, high=top, ticks=[Tick(v, scaled(v, "")) for v in decades(bottom, top)], log=True
        ),
        marks=[*marks, *_dots(kernels)],
        height=HEIGHT * 1.5,
    )


def _plotted(kernels: list[Kernel]) -> list[tuple[int, Kernel]]:
    """The kernels with known FLOPs and bytes, each with its rank among all kernels."""
    return [(rank, k) for rank, k in enumerate(kernels, start=1) if k.intensity and k.flops and k.total_us]


def _rate(kernel: Kernel) -> float:
    """Attained FLOP/s."""
    return (kernel.flops or 0) / kernel.total_us * 1e6


def _roofs(record: Record) -> dict[str, float]:
    """The rates of the types that the step computes in; all rates if the types are unknown."""
    assert record.ceilings is not None
    rates = record.ceilings.flops_per_s
    used = set(record.work.flops_by_dtype) if record.work else set()
    return {dtype: rate for dtype, rate in rates.items() if dtype in used} or rates


def _dots(kernels: list[tuple[int, Kernel]]) -> list[Dot]:
    """Circles with an area by the kernel's share of GPU time; the largest are numbered as in the table."""
    return [
        Dot(
            style=kernel.limit,
            x=kernel.intensity or 0.0,
            y=_rate(kernel),
            radius=round(4 + 12 * kernel.share**0.5, 1),
            hint=f"{plain(kernel.name, 120)}: {number(kernel.intensity or 0.0)} FLOPs per byte, "
            f"{scaled(_rate(kernel), 'FLOP/s')}",
            text=str(rank) if place < LABELLED else "",
            name=f"{rank} {brief(kernel.name, 44)}, {percent(kernel.share)}" if place < LABELLED else "",
        )
        for place, (rank, kernel) in enumerate(kernels[: 5 * LABELLED])
    ]


# ---- steps -----------------------------------------------------------------------------------------------------------


def steps_chart(record: Record) -> Chart | None:
    """Each recorded step's host interval and own GPU time, compared with T and B. None without steps.

    The scale is that of the typical steps, since an outlier may be a thousand times as long: it is cut off, with its
    time above it.
    """
    steps = record.per_step
    if not steps:
        return None
    levels = [("T", "step-time", record.step_time_us), ("B", "gpu-busy", record.times.gpu_busy_per_step_us)]
    lines = [(name, style, us) for name, style, us in levels if us]
    typical = [us for step in record.typical_steps for us in (step.host_us, step.self_cuda_time_us or 0.0)]
    outliers = [(i, step) for i, step in enumerate(steps) if step.outlier is not None]
    y = _durations("time", max([*typical, *(us for _, _, us in lines)]) * (1.25 if outliers else 1))
    edge = _CUT_AT * y.high if outliers else y.high
    marks = _steps_up_to(edge, steps)
    for name, style, us in lines:
        marks.append(Line(style=style, points=[(0, us), (len(steps), us)]))
        label = f"{name} {duration(us)}"  # T on the right and B on the left: the two may be equal
        if name == "T":
            marks.append(Words(text=label, x=len(steps), y=us, anchor="end", dx=-2, dy=-3))
        else:
            marks.append(Words(text=label, x=0, y=us, dx=2, dy=-3))
    for i, step in outliers:
        text = f"{duration(step.host_us)}, left out"
        marks.append(Words(text=text, x=i + 0.5, y=min(step.host_us, edge), anchor="middle", dy=-3))
    every = max(1, len(steps) // _STEP_LABELS)
    gpu_key = [Key("gpu", "GPU time of the work it launched")]
    return Chart(
        summary=f"Host interval and own GPU time of {len(steps)} recorded steps",
        title="recorded steps",
        x=Axis(
            label="recorded step (ProfilerStep number)",
            low=0,
            high=len(steps),
            ticks=[Tick(i + 0.5, str(s.step)) for i, s in enumerate(steps) if i % every == 0],
        ),
        y=y,
        marks=marks,
        key=[
            Key("host", "the step on the host, profiler overhead included"),
            *(gpu_key if record.totals.self_cuda_time_total_us is not None else []),
        ],
    )


def _steps_up_to(edge: float, steps: list[Step]) -> list[Mark]:
    """Host interval and own GPU time of each step as bars, or of many steps as lines; none is higher than `edge`."""
    host, gpu = [s.host_us for s in steps], [s.self_cuda_time_us or 0.0 for s in steps]
    marks: list[Mark] = []
    if len(steps) > MOST_STEPS:
        for style, values in (("host-line", host), ("gpu-line", gpu)):
            marks.append(Line(style=style, points=[(i + 0.5, min(us, edge)) for i, us in enumerate(values)]))
        return marks
    for i, step in enumerate(steps):
        for style, us, left in (("host", host[i], i + 0.16), ("gpu", gpu[i], i + 0.52)):
            hint = f"step {step.step}: {duration(us)}"
            marks.append(Box(style=style, left=left, right=left + 0.32, low=0, high=min(us, edge), hint=hint))
    return marks


# ---- the window ------------------------------------------------------------------------------------------------------


def window_chart(record: Record) -> Chart | None:
    """The window's exclusive parts as a bar, with idle time by cause as a second bar below. None without a split."""
    split, idle = split_parts(record), idle_parts(record)
    if not split:
        return None
    rows = [("window", split), *([("idle per step, by cause", idle)] if idle else [])]
    top = len(rows)
    return Chart(
        summary="The window as exclusive parts",
        title=f"window of {duration(record.window.duration_us)}",
        x=Axis(label="share (%)", low=0, high=100, ticks=_PERCENT),
        y=Axis(label="", low=0, high=top, ticks=[Tick(top - i - 0.5, label) for i, (label, _) in enumerate(rows)]),
        marks=[_stretch(part, top - i - 0.5) for i, (_, parts) in enumerate(rows) for part in parts],
        height=120.0 if idle else 80.0,
    )


def modules_chart(record: Record) -> Chart | None:
    """The modules as an icicle; None without any."""
    icicle = tiles(record)
    if icicle is None:
        return None
    depth = icicle.depth
    return Chart(
        summary=f"{icicle.what}{icicle.per} by pass and module",
        title=f"{icicle.what}{icicle.per} by module, {duration(icicle.tiles[0].us)}",
        x=Axis(label="share (%)", low=0, high=100, ticks=_PERCENT),
        y=Axis(label="", low=0, high=depth, ticks=[], grid=False),
        marks=[_tile(tile, depth - tile.depth) for tile in icicle.drawn],
        key=[Key(part.style, f"{part.label} {percent(part.share / 100)}") for part in icicle.passes],
        height=_TILE * depth + 50,
    )


def _tile(tile: Tile, top: int) -> Box:
    width = WIDTH * 0.85 * tile.share
    name, room = plain(tile.name, 80), int(width / _CHAR) - 1
    text = name if len(name) <= room else f"{name[: room - 1]}…" if room > 2 else ""
    gap = min(0.1 * tile.share, 0.0015)
    left, right = 100 * tile.start, 100 * (tile.start + tile.share - gap)
    return Box(style=tile.style, left=left, right=right, low=top - 1 + _TILE_GAP, high=top, hint=tile.hint, text=text)


def _stretch(part: Share, middle: float) -> Box:
    text = f"{part.short or part.label}\n{part.value}, {percent(part.share / 100)}" if part.share >= _READABLE else ""
    hint = f"{part.label}: {part.value}"
    right = part.start + part.share
    return Box(
        style=part.style, left=part.start, right=right, low=middle - 0.35, high=middle + 0.35, hint=hint, text=text
    )
