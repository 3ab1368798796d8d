"""`proftrack analyze`: judge existing traces, without torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proftrack.analysis import trace_files
from proftrack.errors import ProftrackError, UsageError
from proftrack.threads import usable_cpus

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis, JointAnalysis
    from proftrack.analysis.trace_files import TraceFiles
    from proftrack.record.ranks import Joint

_RESULT = re.compile(rb'^\s*\{\s*"(schema_version|joint)"\s*:')
"""How what --json writes begins."""


def _list_flags(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from proftrack.measures.quality import FLAGS

    for code, text in FLAGS.items():
        click.echo(f"{code}\n    {text}")
    ctx.exit()


@click.command("analyze")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step-time-us", type=float, help="Step time without the profiler.")
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
    if kernel is not None and json_to == "-":
        raise UsageError(
            "--kernel and --json - both write to stdout", "name a file for --json, or leave one of them out"
        )
    files = trace_files.find(traces)
    if json_to is not None:
        _refuse_overwriting((p for p in files.paths if not (p in files.from_folders and _is_result(p))), json_to)
    ranks, joint = _analyzed(
        files,
        step_time_us=step_time_us,
        salvage=salvage,
        max_bytes=max_bytes,
        rank_from=rank_from,
        processes=len(usable_cpus()),
    )
    if json_to is not None:
        _refuse_overwriting((path for each in ranks for path in each.paths), json_to)
        _write_json(ranks, joint, json_to)
    if log_it:
        _log(ranks)
    if json_to != "-":
        _show(ranks, joint, kernel)


def _analyzed(files: TraceFiles, **options: Any) -> JointAnalysis:
    """The ranks and their comparison; a line for each file that was left out of a folder."""
    from proftrack.analysis.pipeline import analyze_traces
    from proftrack.report.progress import waiting
    from proftrack.text import counted, plain

    left_out: list[Path] = []
    try:
        with waiting(f"reading {counted(len(files.paths), 'trace')}"):
            return analyze_traces(files, on_left_out=left_out.append, **options)
    finally:
        for path in left_out:
            click.echo(f"proftrack: {plain(str(path), 600)}: left out, for it is no trace", err=True)


def _refuse_overwriting(read: Iterable[Path], target: str) -> None:
    """No trace that is read may be written over. What --json once wrote into a folder is none of its traces."""
    if any(_same_file(path, Path(target)) for path in read):
        raise UsageError(f"--json {target}: is one of the traces to read", "name another file")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False  # one of them is not there


def _is_result(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _RESULT.match(file.read(4096)) is not None
    except OSError:
        return False


def _write_json(ranks: list[Analysis], joint: Joint | None, target: str) -> None:
    """One record as it is; several with what they say together."""
    import msgspec

    from proftrack.record import dump

    if joint is None:
        data = dump(ranks[0].record)
    else:
        document = {"joint": joint, "records": [each.record for each in ranks]}
        data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    if target == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    try:
        Path(target).write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"--json {target}: cannot be written ({error.strerror})", "name another file") from error


def _show(ranks: list[Analysis], joint: Joint | None, kernel: str | None) -> None:
    from proftrack.report import terminal
    from proftrack.report.pages import ranks as together
    from proftrack.report.pages.run import overview

    if kernel is not None:
        _show_kernel(ranks, kernel)
    elif joint is None:
        terminal.show(overview(ranks[0].record))
    else:
        terminal.show(together.page(joint))


def _show_kernel(ranks: list[Analysis], wanted: str) -> None:
    """The chains that launched the kernels of that name, largest first."""
    from proftrack.measures.view import view
    from proftrack.report import terminal
    from proftrack.report.chains import chains_of_cycles
    from proftrack.report.pages.kernel import page
    from proftrack.text import brief

    shown = 0
    for each in ranks:
        kernels = [k for k in each.record.kernels if wanted.lower() in k.name.lower()]
        shown += len(kernels)
        if kernels:
            chains = chains_of_cycles((view(table) for table in each.tables), kernels)
            terminal.show(page(chains, kernels, each.rank if len(ranks) > 1 else None))
    if not shown:
        largest = sorted((k for each in ranks for k in each.record.kernels), key=lambda k: -k.total_us)
        names = ", ".join(brief(name, 80) for name in list(dict.fromkeys(k.name for k in largest))[:3])
        raise UsageError(f"--kernel {wanted}: no GPU work of that name", f"the largest are {names or 'none at all'}")


def _log(ranks: list[Analysis]) -> None:
    from proftrack.frontends.traces import log_traces

    failures: list[ProftrackError] = []
    for each in ranks:
        try:
            for line in log_traces(each):
                click.echo(line, err=True)
        except ProftrackError as error:
            failures.append(error)
            click.echo(f"proftrack: {error}", err=True)
    if failures:
        sys.exit(failures[0].exit_code)
