"""`proftrack analyze`: judge an existing trace, without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("analyze")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--step-time-us", type=click.FloatRange(min=0, min_open=True), help="Step time without the profiler.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the record as JSON to a file, or to stdout (-).")
@click.option("--salvage", is_flag=True, help="Read what is whole in a broken file.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Largest JSON that may be inside (default 8 GiB).")
def command(trace: Path, step_time_us: float | None, json_to: str | None, salvage: bool, max_bytes: int | None) -> None:
    """Read a torch.profiler trace (.json or .json.gz), measure it and judge what holds its steps back.

    Without --step-time-us the verdict rests on the trace's own, inflated step times and says so.
    """
    from proftrack.analysis import analyze_trace
    from proftrack.record import dump

    record = analyze_trace(trace, step_time_us=step_time_us, salvage=salvage, max_bytes=max_bytes).record
    if json_to == "-":
        sys.stdout.buffer.write(dump(record) + b"\n")
        return
    if json_to is not None:
        Path(json_to).write_bytes(dump(record) + b"\n")
    from proftrack.report.terminal import print_record

    print_record(record)
