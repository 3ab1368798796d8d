"""Hardware counters and energy: in sentences, and as a section with a bar for each unit. Nothing without counters."""

from __future__ import annotations

from itertools import groupby

from proftrack.record import Record
from proftrack.record.counters import LEAST_USE, UNIT_NAMES
from proftrack.report import figures
from proftrack.report.document import Block, Cell, Column, Facts, Figure, Paragraph, Section, Table
from proftrack.text import figure, percent, scaled

_MOST = 4
_LINKS = {"pcie": "PCIe", "nvlink": "NVLink"}
_MEANING = (
    "A bar is the share of the unit's peak; the line is what the loads that measure this device's ceilings reach, "
    "where one of them loads the unit. Use of tensor cores is time in which they are given work, not useful FLOPs; use "
    "of DRAM includes what is read again."
)


def sentences(record: Record) -> list[str]:
    """The units that are used most while the GPU is busy; energy and power."""
    return [*_use(record), *_energy(record)]


def block(record: Record) -> list[Block]:
    """The sentences as one paragraph."""
    text = " ".join(sentences(record))
    return [Paragraph(text)] if text else []


def section(record: Record) -> Section | None:
    """Every unit as a bar and in a table; energy, and traffic over the links."""
    chart = figures.counters_chart(record)
    if record.counters is None:
        return None
    seconds = record.counters.window_s
    about = f"Counted over {figure('_us', seconds * 1e6)} of steps back to back, without the profiler."
    blocks: list[Block] = [Paragraph(f"{about} {_MEANING}" if chart else about, "muted")]
    if chart is not None:
        blocks += [Figure(chart, "Use of each unit"), _table(record)]
    return Section("Hardware counters", [*blocks, Facts("", _facts(record))], "counters")


def _use(record: Record) -> list[str]:
    counters, used = record.counters, record.utilizations
    if counters is None or not used:
        return []
    named = [unit for unit, use in used.items() if use >= LEAST_USE][:_MOST]
    if not named:
        return [f"While the GPU is busy, neither DRAM nor a pipe reaches {LEAST_USE * 100:g} %."]
    parts = [
        f"{', '.join(f'{UNIT_NAMES[unit]} {percent(used[unit])}' for unit in units)} of {of}"
        for of, units in groupby(named, key=counters.of)
    ]
    return [f"While the GPU is busy: {'; '.join(parts)}."]


def _energy(record: Record) -> list[str]:
    counters = record.counters
    if counters is None or counters.energy_joules_per_step is None:
        return []
    power = f", {figure('power_watts', counters.power_watts)}" if counters.power_watts is not None else ""
    token = f", {figure('joules', record.joules_per_token)} per token" if record.joules_per_token is not None else ""
    return [f"Energy: {figure('joules', counters.energy_joules_per_step)} per step{token}{power}."]


def _facts(record: Record) -> list[tuple[str, str]]:
    counters = record.counters
    assert counters is not None
    rows = [
        ("energy per step", counters.energy_joules_per_step, "joules"),
        ("power", counters.power_watts, "power_watts"),
        ("energy per token", record.joules_per_token, "joules"),
    ]
    facts = [(name, figure(metric, value)) for name, value, metric in rows if value is not None]
    for link, name in _LINKS.items():
        sent, received = (counters.link_bytes_per_s.get(f"{link}_{way}") for way in ("tx", "rx"))
        if sent or received:
            facts.append((name, f"{scaled(sent, 'B/s')} from the GPU, {scaled(received, 'B/s')} to it"))
    return facts


def _table(record: Record) -> Table:
    counters, busy = record.counters, record.counted_busy_fraction
    assert counters is not None
    columns = [
        Column(label="unit", kind="word"),
        Column(label="counted", hint="share of its peak, idle time included"),
        Column(label="while busy", hint="the same divided by u, the share of the time in which the GPU is busy"),
        Column(label="reachable", hint="what the loads that measure the ceilings reach"),
        Column(label="of reachable", hint="while busy, divided by reachable; at most 100 %"),
    ]
    rows = []
    for unit in figures.units_of(record):
        share, most = counters.shares[unit], counters.reach(unit)
        use = record.utilization(unit) if most else None
        while_busy = min(share / busy, 1.0) if busy else None
        rows.append([Cell(text=UNIT_NAMES[unit]), *map(_share, (share, while_busy, most, use))])
    return Table("", columns, rows, most=len(rows), sortable=True)


def _share(value: float | None) -> Cell:
    return Cell(text=percent(value), value=value)
