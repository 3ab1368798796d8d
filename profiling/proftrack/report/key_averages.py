"""tables/key_averages.txt: torch's `key_averages().table()` with its columns and footers, made from the measures.

torch itself takes about 50 us per event for this: 17 s on a trace of 380,000 events.
"""

from __future__ import annotations

from typing import NamedTuple

from proftrack.record import Record
from proftrack.text import plain, torch_time

ROW_LIMIT = 100
NAME_WIDTH = 55
_SPACING = "  "


class _Row(NamedTuple):
    name: str
    self_cpu: float
    cpu: float
    self_cuda: float
    cuda: float
    calls: int


def table(record: Record, *, row_limit: int = ROW_LIMIT) -> str:
    """The first `row_limit` rows as text, sorted by self CUDA time (by self CPU time without a GPU)."""
    has_gpu = record.totals.self_cuda_time_total_us is not None
    rows = [
        _Row(o.name, o.self_cpu_time_us, o.cpu_time_us, o.self_cuda_time_us, o.cuda_time_us, o.calls)
        for o in record.ops
    ]
    rows += [_Row(k.name, 0.0, 0.0, k.total_us, k.total_us, k.calls) for k in record.kernels]
    rows.sort(key=lambda r: (-(r.self_cuda if has_gpu else r.self_cpu), r.name))
    header = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
    header += ["Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg"] if has_gpu else []
    header.append("# of Calls")
    cells = [_cells(record, row, has_gpu) for row in rows[:row_limit]]
    return "\n".join([*_grid(header, cells), *_footer(record), ""])


def _cells(record: Record, row: _Row, has_gpu: bool) -> list[str]:
    totals = record.totals
    cpu_total, cuda_total = totals.self_cpu_time_total_us or 0.0, totals.self_cuda_time_total_us or 0.0
    cells = [
        plain(row.name, NAME_WIDTH),
        _share(row.self_cpu, cpu_total),
        torch_time(row.self_cpu),
        _share(row.cpu, cpu_total),
        torch_time(row.cpu),
        torch_time(row.cpu / row.calls),
    ]
    if has_gpu:
        cells += [
            torch_time(row.self_cuda),
            _share(row.self_cuda, cuda_total),
            torch_time(row.cuda),
            torch_time(row.cuda / row.calls),
        ]
    return [*cells, str(row.calls)]


def _grid(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = _SPACING.join("-" * width for width in widths)
    lines = [_SPACING.join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return [rule, _SPACING.join(h.rjust(w) for h, w in zip(header, widths, strict=True)), rule, *lines, rule]


def _footer(record: Record) -> list[str]:
    lines = [f"Self CPU time total: {torch_time(record.totals.self_cpu_time_total_us or 0.0)}"]
    if record.totals.self_cuda_time_total_us is not None:
        lines.append(f"Self CUDA time total: {torch_time(record.totals.self_cuda_time_total_us)}")
    return lines


def _share(part: float, whole: float) -> str:
    return f"{part * 100 / whole:.2f}%" if whole else "0.00%"
