"""The charts of a record: launches over the window, the roofline, the steps."""

from __future__ import annotations

import numpy as np

from proftrack.record import Record
from proftrack.record.figures import Kernel
from proftrack.report.charts import (
    HEIGHT,
    Chart,
    Scale,
    Shape,
    Tick,
    decades,
    polyline,
    round_ticks,
    steps_path,
    x_scale,
    y_scale,
)
from proftrack.report.queue import BINS, Floats, Queue
from proftrack.text import duration, number, plain, scaled

LABELLED = 8
"""Kernels that the roofline plot numbers."""
MOST_STEPS = 60
"""More recorded steps are drawn as lines."""


def delay_chart(queue: Queue) -> Chart:
    """Launch delay over the window: median and largest of each part."""
    span = (queue.high - queue.low) / 1000
    x, ticks = _time_axis(span)
    largest = float(np.nanmax(queue.delay_max_us))
    top = round_ticks(largest)
    y = y_scale(0, top[-1])
    return Chart(
        summary=f"Launch delay over the window of {duration(span)}, largest {duration(largest)}",
        x_label="time in the window",
        y_label="launch delay",
        x_ticks=ticks,
        y_ticks=[Tick(y(v), duration(v)) for v in top],
        shapes=[
            Shape(kind="path", style="c-soft", path=_spikes(queue.delay_max_us, x, y, span)),
            Shape(kind="path", style="c-strong", path=_spikes(queue.delay_median_us, x, y, span)),
        ],
    )


def _spikes(values: Floats, x: Scale, y: Scale, span: float) -> str:
    """A bar for each part of the window in which something started."""
    width = span / BINS
    bars = []
    for i in np.flatnonzero(~np.isnan(values)).tolist():
        left, right, top = x(i * width), x((i + 1) * width), y(float(values[i]))
        bars.append(f"M{left:g} {y.first:g}V{top:g}H{right:g}V{y.first:g}Z")
    return "".join(bars)


def depth_chart(queue: Queue) -> Chart:
    """Queue depth over the window."""
    span = (queue.high - queue.low) / 1000
    x, ticks = _time_axis(span)
    top = [v for v in round_ticks(float(queue.depth_max.max())) if v == int(v)]
    y = y_scale(0, top[-1])
    edges = [x(i * span / BINS) for i in range(BINS + 1)]
    levels = [y(v) for v in queue.depth_max.tolist()]
    return Chart(
        summary=f"Queue depth over the window of {duration(span)}, deepest {int(queue.depth_max.max())}",
        x_label="time in the window",
        y_label="launched, not started",
        x_ticks=ticks,
        y_ticks=[Tick(y(v), f"{v:,.0f}") for v in top],
        shapes=[Shape(kind="path", style="c-strong", path=steps_path(edges, levels, y.first))],
    )


def _time_axis(span_us: float) -> tuple[Scale, list[Tick]]:
    x = x_scale(0, span_us)
    return x, [Tick(x(v), duration(v)) for v in round_ticks(span_us) if v <= span_us]


# ---- roofline --------------------------------------------------------------------------------------------------------


def plotted(kernels: list[Kernel]) -> list[tuple[int, Kernel]]:
    """The kernels that have a place on the plot (FLOPs and bytes are known), with their rank among all."""
    return [(rank, k) for rank, k in enumerate(kernels, start=1) if k.intensity and k.flops and k.total_us]


def rate(kernel: Kernel) -> float:
    """FLOP/s that it attained."""
    return (kernel.flops or 0) / kernel.total_us * 1e6


def roofline_chart(record: Record) -> Chart | None:
    """The device's attainable rates and the large kernels under them (Williams et al., 2009). None without ceilings."""
    ceilings, kernels = record.ceilings, plotted(record.kernels)
    if ceilings is None or not kernels:
        return None
    intensities = [k.intensity or 0.0 for _, k in kernels]
    lines = roofs(record)
    ridges = [flops / ceilings.bytes_per_s for flops in lines.values()]
    low = 10 ** np.floor(np.log10(min([*intensities, *ridges]) / 2))
    high = 10 ** np.ceil(np.log10(max([*intensities, *ridges]) * 2))
    best = max(lines.values())
    bottom = 10 ** np.floor(np.log10(min([low * ceilings.bytes_per_s, *(rate(k) for _, k in kernels)])))
    height = HEIGHT * 1.5
    x, y = x_scale(low, high, log=True), y_scale(bottom, best * 2.5, height=height, log=True)
    shapes = []
    for dtype, flops in lines.items():
        ridge = flops / ceilings.bytes_per_s
        points = [(x(low), y(low * ceilings.bytes_per_s)), (x(ridge), y(flops)), (x(high), y(flops))]
        shapes.append(Shape(kind="path", style="c-line", path=polyline(points)))
        # Left of the ridge and above the slope there can be no kernel.
        label = f"{dtype} {scaled(flops, 'FLOP/s')}"
        shapes.append(Shape(kind="text", style="c-end", x=x(ridge) - 6, y=y(flops) + 4, text=label))
    middle = (low * max(ridges)) ** 0.5
    memory = scaled(ceilings.bytes_per_s, "B/s")
    at = (x(middle) - 8, y(middle * ceilings.bytes_per_s))
    shapes.append(Shape(kind="text", style="c-end", x=at[0], y=at[1], text=memory))
    shapes += _points(kernels, x, y)
    return Chart(
        summary=f"Roofline of {ceilings.device}: {len(kernels)} kernels by FLOPs a byte and attained FLOP/s",
        x_label="FLOPs a byte (log)",
        y_label="FLOP/s (log)",
        x_ticks=[Tick(x(v), f"{v:g}") for v in decades(low, high)],
        y_ticks=[Tick(y(v), scaled(v, "")) for v in decades(bottom, best * 2.5)],
        shapes=shapes,
        height=height,
        bottom=y.first,
    )


def roofs(record: Record) -> dict[str, float]:
    """The rates of the types that the step computes in; all of them where that is not known."""
    assert record.ceilings is not None
    known = record.ceilings.flops_per_s
    used = set(record.work.flops_by_dtype) if record.work else set()
    return {dtype: rate for dtype, rate in known.items() if dtype in used} or known


def _points(kernels: list[tuple[int, Kernel]], x: Scale, y: Scale) -> list[Shape]:
    """Circles whose area is the kernel's share of the GPU's time; the largest are numbered as in the table."""
    out: list[Shape] = []
    for place, (rank, kernel) in enumerate(kernels[: 5 * LABELLED]):
        at = (x(kernel.intensity or 0.0), y(rate(kernel)))
        radius = round(4 + 12 * kernel.share**0.5, 1)
        per_byte = number(kernel.intensity or 0.0)
        hint = f"{plain(kernel.name, 120)}: {per_byte} FLOPs a byte, {scaled(rate(kernel), 'FLOP/s')}"
        out.append(Shape(kind="circle", style=f"c-{kernel.limit}", x=at[0], y=at[1], width=radius, text=hint))
        if place < LABELLED:
            out.append(Shape(kind="text", style="c-mid", x=at[0], y=at[1] - radius - 3, text=str(rank)))
    return out


# ---- steps -----------------------------------------------------------------------------------------------------------


def steps_chart(record: Record) -> Chart | None:
    """Each recorded step's host interval and own GPU time, against T and B. None without steps."""
    steps = record.per_step
    if not steps:
        return None
    gpu = [s.self_cuda_time_us or 0.0 for s in steps]
    known = (("T", record.step_time_us), ("B", record.times.gpu_busy_per_step_us))
    lines = [(name, us) for name, us in known if us]
    top = round_ticks(max([*(s.host_us for s in steps), *gpu, *(us for _, us in lines)]))
    x, y = x_scale(0, len(steps)), y_scale(0, top[-1])
    shapes: list[Shape] = []
    if len(steps) <= MOST_STEPS:
        for i, step in enumerate(steps):
            for style, us, left in (("c-host", step.host_us, 0.16), ("c-gpu", gpu[i], 0.52)):
                text = f"step {step.step}: {duration(us)}"
                width = x(i + left + 0.32) - x(i + left)
                bar = Shape(
                    kind="rect", style=style, x=x(i + left), y=y(us), width=width, height=y.first - y(us), text=text
                )
                shapes.append(bar)
    else:
        for style, values in (("c-host-line", [s.host_us for s in steps]), ("c-gpu-line", gpu)):
            path = polyline([(x(i + 0.5), y(v)) for i, v in enumerate(values)])
            shapes.append(Shape(kind="path", style=style, path=path))
    for name, us in lines:
        path = polyline([(x(0), y(us)), (x(len(steps)), y(us))])
        shapes.append(Shape(kind="path", style=f"c-{name.lower()}", path=path))
        side = ("c-end", x(len(steps)) - 2) if name == "T" else ("c-start", x(0) + 2)  # T and B may be the same
        shapes.append(Shape(kind="text", style=side[0], x=side[1], y=y(us) - 3, text=f"{name} {duration(us)}"))
    every = max(1, len(steps) // 12)
    return Chart(
        summary=f"Host interval and own GPU time of {len(steps)} recorded steps",
        x_label="recorded step (ProfilerStep number)",
        y_label="time",
        x_ticks=[Tick(x(i + 0.5), str(s.step)) for i, s in enumerate(steps) if i % every == 0],
        y_ticks=[Tick(y(v), duration(v)) for v in top],
        shapes=shapes,
    )
