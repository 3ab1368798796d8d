"""What the terminal shows: the verdict first, then the figures it rests on. Plain text where it is piped."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from proftrack.record import Record
from proftrack.report.units import duration, percent, plain

TOP = 5
_BAR = 30
_STYLE = {"high": "bold green", "medium": "bold yellow", "low": "bold red"}


def console() -> Console:
    """stdout; 80 columns where that is no terminal. rich honours NO_COLOR itself."""
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 100)


def print_result(record: Record) -> None:
    """What `proftrack run` says at its end: verdict, times, the largest kernels."""
    out = console()
    _verdict(out, record)
    _times(out, record)
    _kernels(out, record)


def print_record(record: Record) -> None:
    """What `proftrack analyze` says: the same, with idle time by cause, the split and operators."""
    out = console()
    _verdict(out, record)
    _times(out, record)
    _split(out, record)
    _idle(out, record)
    _kernels(out, record)
    _ops(out, record)
    _quality(out, record)


def _verdict(out: Console, record: Record) -> None:
    verdict = record.verdict
    style = "bold red" if verdict.regime == "inconclusive" else _STYLE[verdict.confidence]
    out.print()
    out.print(Text(verdict.summary, style=style))
    out.print(f"confidence {verdict.confidence}, step time {verdict.basis}, cause {escape(verdict.cause or '-')}")
    for reason in verdict.reasons:
        out.print(Text(f"  ? {reason}"))
    for item in verdict.evidence:
        out.print(Text(f"  - {item.text}"))
    for line in verdict.advice:
        out.print(Text(f"  > {line}"))


def _times(out: Console, record: Record) -> None:
    times, verdict = record.times, record.verdict
    rows = [
        ("T  step time", times.step_time_us),
        ("   step latency", times.step_latency_us),
        ("B  GPU busy", times.gpu_busy_per_step_us),
        ("R  roofline", times.roofline_time_us),
    ]
    known = [(name, us) for name, us in rows if us is not None]
    longest = max((us for _, us in known), default=0.0)
    out.print()
    for name, us in known:
        bar = "#" * max(1, round(_BAR * us / longest)) if longest else ""
        out.print(Text(f"{name:<16}{duration(us):>10}  {bar}"))
    if verdict.gpu_busy_fraction is not None:
        out.print(Text(f"{'u  B / T':<16}{percent(verdict.gpu_busy_fraction):>10}"))


def _split(out: Console, record: Record) -> None:
    split, whole = record.split, record.window.duration_us
    if split is None or not whole:
        return
    parts = (
        ("compute", split.compute_us),
        ("exposed communication", split.exposed_communication_us),
        ("exposed copies", split.exposed_copy_us),
        ("idle", split.idle_us),
    )
    out.print()
    steps = record.window.steps
    out.print(Text(f"Window of {duration(whole)}, {steps} step{'' if steps == 1 else 's'}:"))
    for name, us in parts:
        if us:
            out.print(
                Text(f"  {name:<22}{duration(us):>10} {percent(us / whole):>8}  {'#' * round(_BAR * us / whole)}")
            )


def _idle(out: Console, record: Record) -> None:
    causes = sorted(record.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    if not causes:
        return
    out.print()
    out.print(Text("GPU idle a step, by cause (profiled):"))
    whole = sum(us for _, us in causes)
    for cause, us in causes:
        out.print(Text(f"  {cause:<22}{duration(us):>10} {percent(us / whole):>8}  {'#' * round(_BAR * us / whole)}"))


def _kernels(out: Console, record: Record) -> None:
    if not record.kernels:
        return
    table = _table("GPU work", "share", "total", "calls", "mean", "limit")
    for kernel in record.kernels[:TOP]:
        table.add_row(
            Text(plain(kernel.name, 60)),
            percent(kernel.share),
            duration(kernel.total_us),
            str(kernel.calls),
            duration(kernel.mean_us),
            kernel.limit,
        )
    out.print()
    out.print(table)


def _ops(out: Console, record: Record) -> None:
    ops = sorted(record.ops, key=lambda o: -o.self_cpu_time_us)[:TOP]
    if not ops:
        return
    table = _table("Host rows by self CPU", "share", "self CPU", "calls", "self CUDA")
    whole = record.totals.self_cpu_time_total_us
    for op in ops:
        table.add_row(
            Text(plain(op.name, 60)),
            percent(op.self_cpu_time_us / whole if whole else None),
            duration(op.self_cpu_time_us),
            str(op.calls),
            duration(op.self_cuda_time_us) if op.self_cuda_time_us else "-",
        )
    out.print()
    out.print(table)


def _quality(out: Console, record: Record) -> None:
    if not record.quality:
        return
    out.print()
    for flag in record.quality:
        out.print(Text(f"! {flag.code} ({flag.count}): {plain(flag.message, 400)}", style="yellow"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="ellipsis", no_wrap=True, ratio=1)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
