"""`proftrack analyze`: judge existing traces, without torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proftrack.errors import ProftrackError, UsageError

if TYPE_CHECKING:
    from proftrack.analysis import RankAnalysis
    from proftrack.joint import Joint

_TRACES = ("*.json", "*.json.gz")


def _list_flags(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from proftrack.measures.quality import FLAGS

    for code, text in FLAGS.items():
        click.echo(f"{code}\n    {text}")
    ctx.exit()


@click.command("analyze")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step-time-us", type=click.FloatRange(min=0, min_open=True), help="Step time without the profiler.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the record as JSON to a file, or to stdout (-).")
@click.option("--kernel", metavar="NAME", help="Show how kernels whose name holds NAME came to be launched.")
@click.option("--log", "log_it", is_flag=True, help="Log each record to MLflow as a run.")
@click.option("--rank-from", metavar="REGEX", help="Take the rank from file names: one group, such as 'rank(\\d+)'.")
@click.option("--salvage", is_flag=True, help="Read what is whole in a broken file.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Largest JSON that may be inside (default 8 GiB).")
@click.option(
    "--list-flags", is_flag=True, is_eager=True, expose_value=False, callback=_list_flags, help="Explain every flag."
)
def command(
    traces: tuple[Path, ...],
    step_time_us: float | None,
    json_to: str | None,
    kernel: str | None,
    log_it: bool,
    rank_from: str | None,
    salvage: bool,
    max_bytes: int | None,
) -> None:
    """Read torch.profiler traces (.json or .json.gz), measure them and judge what holds their steps back.

    A folder stands for the traces in it. Several traces are taken as the ranks of one run: one record each, and a joint
    one. Without --step-time-us the verdict rests on the traces' own, inflated step times and says so.
    """
    from proftrack.analysis import analyze_traces
    from proftrack.report.progress import waiting

    files = _files(traces)
    with waiting(f"reading {len(files)} trace{'' if len(files) == 1 else 's'}"):
        found = analyze_traces(
            files,
            step_time_us=step_time_us,
            salvage=salvage,
            max_bytes=max_bytes,
            rank_from=rank_from,
            processes=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        )
    found, joint = _in_company(found)
    if json_to is not None:
        _write_json(found, joint, json_to)
    if log_it:
        _log(found)
    if json_to != "-":
        _show(found, joint, kernel)


def _files(given: tuple[Path, ...]) -> list[Path]:
    """The trace files that the arguments name; of a folder those that it holds itself."""
    files: list[Path] = []
    for path in given:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted({file for pattern in _TRACES for file in path.glob(pattern)})
        if not inside:
            raise UsageError(f"{path}: no .json or .json.gz file in this folder; name a trace or its folder")
        files += inside
    doubled = {path for path in files if files.count(path) > 1}
    if doubled:
        raise UsageError(f"{sorted(doubled)[0]}: given twice; name each trace once")
    return files


def _write_json(found: list[RankAnalysis], joint: Joint | None, target: str) -> None:
    """One record as it is; several with what they say together."""
    import msgspec

    from proftrack.record import dump

    if joint is None:
        data = dump(found[0].record)
    else:
        document = {"joint": joint, "records": [each.record for each in found]}
        data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    if target == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    try:
        Path(target).write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"--json {target}: cannot be written ({error.strerror}); name another file") from error


def _in_company(found: list[RankAnalysis]) -> tuple[list[RankAnalysis], Joint | None]:
    """Several ranks with what they say together. Traces without a rank count in the order of their names."""
    if len(found) == 1:
        return found, None
    from proftrack.joint import Part, in_company, join

    numbers = [number if each.rank is None else each.rank for number, each in enumerate(found)]
    joint = join(
        [
            Part(rank=number, record=each.record, collectives=each.collectives)
            for number, each in zip(numbers, found, strict=True)
        ]
    )
    told = [in_company(each.record, number, joint) for number, each in zip(numbers, found, strict=True)]
    return [each._replace(record=record) for each, record in zip(found, told, strict=True)], joint


def _show(found: list[RankAnalysis], joint: Joint | None, kernel: str | None) -> None:
    from proftrack.report.joint import print_joint
    from proftrack.report.terminal import print_record

    if kernel is not None:
        _show_kernel(found, kernel)
    elif joint is None:
        print_record(found[0].record)
    else:
        print_joint(joint)


def _show_kernel(found: list[RankAnalysis], wanted: str) -> None:
    """The chains that launched the kernels of that name, largest first."""
    from proftrack.measures.view import view
    from proftrack.report.chains import chains
    from proftrack.report.joint import print_chains

    shown = 0
    for each in found:
        kernels = [k for k in each.record.kernels if wanted.lower() in k.name.lower()]
        shown += len(kernels)
        if kernels:
            print_chains([c for table in each.tables for c in chains(view(table), kernels)], kernels)
    if not shown:
        names = ", ".join(k.name[:40] for k in found[0].record.kernels[:3])
        raise UsageError(f"--kernel {wanted}: no GPU work of that name; the largest are {names or 'none at all'}")


def _log(found: list[RankAnalysis]) -> None:
    from proftrack.tracking.traces import log_traces

    failures: list[ProftrackError] = []
    for each in found:
        try:
            for line in log_traces(each):
                click.echo(line, err=True)
        except ProftrackError as error:
            failures.append(error)
            click.echo(f"proftrack: {error}", err=True)
    if failures:
        sys.exit(failures[0].exit_code)
