"""The tables of a record: operators, kernels, steps, regions. Names are cut but still untrusted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proftrack.record import Record
from proftrack.record.counters import KernelCounters, Unit
from proftrack.record.figures import Kernel, Occupancy, Region, Site
from proftrack.report.document import Cell, Column, Table
from proftrack.text import brief, counted, duration, factor, listed, number, percent, plain, scaled

_MODULES, _SHAPES = 2, 80
ROWS = 100
"""Rows of one table."""
_NAME, _SHORT = 160, 60


def _time(us: float | None) -> Cell:
    return Cell(text=duration(us), value=us)


def _count(number: int | None) -> Cell:
    return Cell(text="-" if number is None else f"{number:,}", value=number)


def _share(fraction: float | None) -> Cell:
    return Cell(text=percent(fraction), value=fraction)


def _name(name: str, limit: int = _NAME) -> Cell:
    shown = plain(name, limit)
    return Cell(text=shown, hint=plain(name, 3 * limit) if len(name) > limit else "")


def _short(kernel: str) -> Cell:
    return Cell(text=brief(kernel, _SHORT), hint=plain(kernel, 3 * _NAME))


def _table(title: str, columns: list[Column], rows: list[list[Cell]], count: int, share: float | None = None) -> Table:
    """A table of the first of `count` rows; `share` is the part of the time that the others take."""
    cut = count - len(rows)
    left = f", {percent(share)} of the time" if share is not None else ""
    note = f"{counted(cut, 'more row')}{left}, in record.json." if cut else ""
    return Table(title, columns, rows, note=note, most=ROWS, folded=False, sortable=True, cut=cut)


def first(table: Table, most: int, more: str, wanted: Sequence[str] = ()) -> Table:
    """The first rows of a table, with the columns of these labels.

    `more` is the note for the remaining rows: {} stands for how many there are, {shown} for what the full report shows.
    """
    labels = [column.label for column in table.columns]
    at = [labels.index(label) for label in wanted if label in labels] or range(len(labels))
    left = len(table.rows) + table.cut - most
    shown = f"{len(table.rows)}, and record.json all" if table.cut else "all"
    return msgspec.structs.replace(
        table,
        heads=[table.heads[i] for i in at],
        rows=[[row[i] for i in at] for row in table.rows[:most]],
        note=more.format(counted(left, "more row"), shown=shown) if left > 0 else "",
    )


def kernels(record: Record, title: str = "") -> Table:
    """All GPU work by name."""
    all_kernels, total = record.kernels, record.totals.self_cuda_time_total_us or 0.0
    columns = [
        Column(label="#", hint="rank by total time, as numbered in the roofline plot"),
        Column(label="GPU work", kind="code"),
        Column(label="kind", kind="word"),
        Column(label="limit", kind="word", hint="what limits it: arithmetic, memory bandwidth, too few blocks, ..."),
        Column(label="share", hint="share of the self CUDA time total"),
        Column(label="total"),
        Column(label="calls"),
        Column(label="mean"),
        Column(label="max"),
        Column(label="blocks", hint="thread blocks of its longest launch"),
        Column(label="over roofline", hint="its time divided by the least this device needs for its FLOPs and bytes"),
    ]
    rows = [
        [
            _count(rank),
            _name(k.name),
            Cell(text=k.kind),
            Cell(text=k.limit),
            _share(k.share),
            _time(k.total_us),
            _count(k.calls),
            _time(k.mean_us),
            _time(k.max_us),
            _count(k.blocks),
            _over(k.total_us, k.roofline_us),
        ]
        for rank, k in enumerate(all_kernels[:ROWS], start=1)
    ]
    left = sum(k.total_us for k in all_kernels[ROWS:]) / total if total else None
    return _table(title, columns, rows, len(all_kernels), left)


def occupancy(record: Record) -> Table:
    """How far the kernels' launches can fill the GPU, as far as that can be derived."""
    known = [(rank, k, k.occupancy) for rank, k in enumerate(record.kernels, start=1) if k.occupancy is not None]
    columns = [
        Column(label="#", hint="rank by total time, as in the table of all GPU work"),
        Column(label="kernel", kind="code"),
        Column(label="share", hint="share of the self CUDA time total"),
        Column(label="occupancy", hint="warps that can run on a multiprocessor at a time, of the most it holds"),
        Column(label="at most", hint="the same over the whole GPU: a small grid leaves multiprocessors without blocks"),
        Column(label="waves", hint="blocks over those that the GPU can run at a time"),
        Column(label="last wave", hint="how far the last wave fills the GPU"),
        Column(label="limited by", kind="text", hint="what lets no more warps run at a time; of several, all"),
        Column(
            label="blocks", kind="text", hint="what each of them needs, and how many a multiprocessor can run at a time"
        ),
    ]
    rows = [
        [
            _count(rank),
            _short(kernel.name),
            _share(kernel.share),
            _share(found.theoretical),
            _share(found.at_most),
            Cell(text=number(found.waves), value=found.waves),
            _share(found.last_wave_share),
            Cell(text=listed(found.limited_by)),
            Cell(text=block_of(found), value=found.blocks_per_sm),
        ]
        for rank, kernel, found in known[:ROWS]
    ]
    return _table("", columns, rows, len(known))


def block_of(occupancy: Occupancy) -> str:
    """What a block of a kernel needs, and how many of them fit."""
    shared = f", {scaled(occupancy.shared_bytes, 'B')} of shared memory" if occupancy.shared_bytes else ""
    return (
        f"{counted(occupancy.block_threads, 'thread')} with {counted(occupancy.registers, 'register')}{shared}: "
        f"{counted(occupancy.blocks_per_sm, 'block')} on a multiprocessor"
    )


def _over(us: float, roofline_us: float | None) -> Cell:
    value = us / roofline_us if roofline_us else None
    return Cell(text=factor(value), value=value)


def replayed(record: Record, title: str = "", *, by_site: bool = False) -> Table:
    """The kernels that were replayed; with `by_site`, a row for each operator and shapes that launched one."""
    columns = [
        Column(label="GPU work", kind="code"),
        Column(label="launched by", kind="text", hint="the operator and its input shapes"),
        Column(label="launches", hint="how many were replayed"),
        Column(label="mean", hint="time of a launch, replayed alone with cold caches"),
        Column(label="DRAM", hint="share of the peak bandwidth of memory"),
        *(Column(label=unit, hint=hint) for unit, hint in _PIPES.items()),
        Column(label="occupancy", hint="warps that a multiprocessor held, of the most that it can hold"),
        Column(label="possible", hint="the occupancy that registers, shared memory and block size allow"),
        Column(label="waves", hint="blocks over what all multiprocessors hold at once"),
        Column(label="moved", hint="bytes between memory and L2, for each launch"),
        Column(label="over least", hint="the bytes moved, divided by the least that the operator must move"),
    ]
    rows = [
        [
            _short(kernel.name),
            _name(_launched_by(sites), 200),
            _count(c.launches),
            _time(c.duration_us),
            *(_share(c.shares.get(unit)) for unit in ("dram", *_PIPES)),
            _share(c.achieved_occupancy),
            _share(c.theoretical_occupancy),
            Cell(text=_waves(c.waves), value=c.waves),
            Cell(text=scaled(c.dram_bytes, "B"), value=c.dram_bytes),
            _over(c.dram_bytes or 0, _least_bytes(kernel) if len(sites) < 2 and c is kernel.counters else None),
        ]
        for kernel, c, sites in _replayed_rows(record, by_site)
    ]
    return _table(title, columns, rows, len(rows))


def _waves(waves: float | None) -> str:
    """ncu gives two decimals, and a launched kernel has more than no wave."""
    return "-" if waves is None else number(waves) if waves else "<0.01"


_PIPES: dict[Unit, str] = {
    "tensor": "share of the tensor cores' peak",
    "fp32": "share of the FMA pipes' peak",
    "fp64": "share of the FP64 pipes' peak",
    "integer": "share of the ALU pipes' peak: integers, logic, comparisons",
}


def _replayed_rows(record: Record, by_site: bool) -> list[tuple[Kernel, KernelCounters, list[Site]]]:
    """Kernels with their counters and what launched them, a site at a time if that is wanted and known."""
    out: list[tuple[Kernel, KernelCounters, list[Site]]] = []
    for kernel in record.kernels:
        if kernel.counters is None:
            continue
        sites = [site for site in record.sites if site.kernel == kernel.name]
        counted = [(kernel, site.counters, [site]) for site in sites if site.counters is not None]
        out += counted if by_site and len(counted) > 1 else [(kernel, kernel.counters, sites)]
    return out


def _launched_by(sites: Sequence[Site]) -> str:
    """The operator and the shapes with most time, and how many others there are."""
    if not sites:
        return ""
    site, more = sites[0], len(sites) - 1
    modules = [*site.modules[:_MODULES], *([counted(n, "other")] if (n := len(site.modules) - _MODULES) > 0 else [])]
    inside = f" in {listed(modules)}" if modules else ""
    what = f"{site.operator or '-'} {plain(site.shapes, _SHAPES)}".strip()
    return what + inside + (f" and {counted(more, 'other')}" if more else "")


def _least_bytes(kernel: Kernel) -> float | None:
    return kernel.bytes / kernel.calls if kernel.bytes else None


def operators(record: Record, title: str = "") -> Table:
    """Host rows by name, largest self CPU time first."""
    ops = sorted(record.ops, key=lambda op: -op.self_cpu_time_us)
    cpu, cuda = record.totals.self_cpu_time_total_us, record.totals.self_cuda_time_total_us
    gpu = [Column(label="self CUDA", hint="GPU time of the work it launched itself"), Column(label="CUDA total")]
    columns = [
        Column(label="operator, region or call", kind="code"),
        Column(label="category", kind="word"),
        Column(label="share", hint="share of the self CPU time total"),
        Column(label="self CPU", hint="its time minus the time of its children"),
        Column(label="CPU total"),
        Column(label="calls"),
        Column(label="mean", hint="self CPU time per call"),
        *(gpu if cuda is not None else []),
    ]
    rows = [
        [
            _name(op.name),
            Cell(text=plain(op.category, 40)),
            _share(op.self_cpu_time_us / cpu if cpu else None),
            _time(op.self_cpu_time_us),
            _time(op.cpu_time_us),
            _count(op.calls),
            _time(op.self_cpu_time_us / op.calls),
            *([_time(op.self_cuda_time_us), _time(op.cuda_time_us)] if cuda is not None else []),
        ]
        for op in ops[:ROWS]
    ]
    left = sum(op.self_cpu_time_us for op in ops[ROWS:]) / cpu if cpu else None
    return _table(title, columns, rows, len(ops), left)


def steps(record: Record, title: str = "") -> Table:
    """The recorded steps; without a GPU, only the host's columns; which are outliers if there are any."""
    gpu = record.totals.self_cuda_time_total_us is not None
    outliers = record.window.outlier_steps > 0
    on_gpu = [
        Column(label="self CUDA", hint="GPU time of the work the step launched, whenever it ran"),
        Column(label="kernels"),
        Column(label="GPU events"),
        Column(label="launches"),
    ]
    left_out = Column(
        label="left out of T and B", kind="code", hint="a step that is not like the others, and what filled it"
    )
    columns = [
        Column(label="step"),
        Column(label="host", hint="length of the ProfilerStep row, profiler included"),
        Column(label="self CPU", hint="self time of the host rows inside the step"),
        *(on_gpu if gpu else []),
        *([left_out] if outliers else []),
    ]
    rows = [
        [
            _count(s.step),
            _time(s.host_us),
            _time(s.self_cpu_time_us),
            *([_time(s.self_cuda_time_us), _count(s.kernels), _count(s.gpu_events), _count(s.launches)] if gpu else []),
            *([_name("" if s.outlier is None else s.outlier or "unknown")] if outliers else []),
        ]
        for s in record.per_step[:ROWS]
    ]
    return _table(title, columns, rows, len(record.per_step))


def regions(regions_: list[Region], what: str, title: str = "") -> Table:
    """record_function regions, or module calls; without a GPU, only the host's columns."""
    gpu = any(region.gpu_busy_us is not None for region in regions_)
    columns = [
        Column(label=what, kind="code"),
        Column(label="calls"),
        Column(label="host total", hint="time from its start to its end on the host"),
        Column(label="GPU busy", hint="union of the GPU work launched during it, by any thread"),
        Column(label="launches"),
    ]
    rows = [
        [_name(r.name), _count(r.calls), _time(r.cpu_time_us), _time(r.gpu_busy_us), _count(r.launches)]
        for r in regions_[:ROWS]
    ]
    shown = len(columns) if gpu else 3
    return _table(title, columns[:shown], [row[:shown] for row in rows], len(regions_))
