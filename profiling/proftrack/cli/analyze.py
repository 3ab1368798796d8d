"""`proftrack analyze`: judge existing traces, without torch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proftrack.errors import NotATraceError, NotFoundError, ProftrackError, UsageError
from proftrack.experiment.sentences import no_such_file

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import RankAnalysis
    from proftrack.record.ranks import Joint

_TRACES = ("*.json", "*.json.gz")
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
        raise UsageError("--kernel and --json - both write to stdout; name a file for --json, or leave one of them out")
    files, in_folders = _files(traces)
    if json_to is not None:
        _refuse_overwriting(files, in_folders, json_to)
    found = _analyzed(
        files,
        in_folders,
        step_time_us=step_time_us,
        salvage=salvage,
        max_bytes=max_bytes,
        rank_from=rank_from,
        processes=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    if json_to is not None:
        _refuse_overwriting([path for each in found for path in each.paths], set(), json_to)
    found, joint = _in_company(found)
    if json_to is not None:
        _write_json(found, joint, json_to)
    if log_it:
        _log(found)
    if json_to != "-":
        _show(found, joint, kernel)


def _files(given: tuple[Path, ...]) -> tuple[list[Path], set[Path]]:
    """The trace files that the arguments name, and which of them are there for their folder's sake."""
    files: list[Path] = []
    in_folders: set[Path] = set()
    for path in given:
        if not path.exists():
            raise NotFoundError(no_such_file(path))
        if not path.is_dir():
            files.append(path)
            continue
        inside = {file for pattern in _TRACES for file in path.glob(pattern)}
        if not inside:
            raise UsageError(f"{path}: no .json or .json.gz file in this folder; name a trace or its folder")
        # Small ones first: what is no trace is small, and is found before much is read.
        files += sorted(inside, key=lambda file: (file.stat().st_size if file.is_file() else 0, file))
        in_folders |= inside
    doubled = {path for path in files if files.count(path) > 1}
    if doubled:
        raise UsageError(f"{sorted(doubled)[0]}: given twice; name each trace once")
    return files, in_folders


def _refuse_overwriting(files: list[Path], in_folders: set[Path], target: str) -> None:
    """No trace that is read may be written over. What --json once wrote into a folder is none of its traces."""
    for path in files:
        if _same_file(path, Path(target)) and not (path in in_folders and _is_result(path)):
            raise UsageError(f"--json {target}: is one of the traces to read; name another file")


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


def _analyzed(files: list[Path], in_folders: set[Path], **options: Any) -> list[RankAnalysis]:
    """The traces' analyses; a folder's JSON that is no trace is left out, and said so."""
    from proftrack.analysis.pipeline import analyze_traces
    from proftrack.report.progress import waiting
    from proftrack.text import counted, plain

    while True:
        try:
            with waiting(f"reading {counted(len(files), 'trace')}"):
                return analyze_traces(files, **options)
        except NotATraceError as error:
            if error.path not in in_folders:
                raise
            files = [path for path in files if path != error.path]
            if not files:
                raise UsageError(f"{error.path.parent}: no JSON in this folder is a trace; name a trace") from error
            click.echo(f"proftrack: {plain(str(error.path), 600)}: left out, for it is no trace", err=True)


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
    """Several ranks with what they say together. Those not known take the free numbers, in the order of their names."""
    if len(found) == 1:
        return found, None
    from proftrack.analysis.ranks import Part, in_company, join

    numbers = _numbers(found)
    joint = join(
        [
            Part(rank=number, record=each.record, collectives=each.collectives, assumed=each.rank is None)
            for number, each in zip(numbers, found, strict=True)
        ]
    )
    told = [in_company(each.record, number, joint) for number, each in zip(numbers, found, strict=True)]
    return [each._replace(record=record) for each, record in zip(found, told, strict=True)], joint


def _numbers(found: list[RankAnalysis]) -> list[int]:
    from proftrack.trace.ranks import numbered

    return numbered([each.rank for each in found])


def _show(found: list[RankAnalysis], joint: Joint | None, kernel: str | None) -> None:
    from proftrack.report import terminal
    from proftrack.report.pages import ranks, run

    if kernel is not None:
        _show_kernel(found, kernel)
    elif joint is None:
        terminal.show(run.overview(found[0].record))
    else:
        terminal.show(ranks.page(joint))


def _show_kernel(found: list[RankAnalysis], wanted: str) -> None:
    """The chains that launched the kernels of that name, largest first."""
    from proftrack.measures.view import view
    from proftrack.report import terminal
    from proftrack.report.chains import chains_of_cycles
    from proftrack.report.pages.kernel import page
    from proftrack.text import brief

    shown = 0
    for number, each in zip(_numbers(found), found, strict=True):
        kernels = [k for k in each.record.kernels if wanted.lower() in k.name.lower()]
        shown += len(kernels)
        if kernels:
            chains = chains_of_cycles((view(table) for table in each.tables), kernels)
            terminal.show(page(chains, kernels, number if len(found) > 1 else None))
    if not shown:
        largest = sorted((k for each in found for k in each.record.kernels), key=lambda k: -k.total_us)
        names = ", ".join(brief(name, 80) for name in list(dict.fromkeys(k.name for k in largest))[:3])
        raise UsageError(f"--kernel {wanted}: no GPU work of that name; the largest are {names or 'none at all'}")


def _log(found: list[RankAnalysis]) -> None:
    from proftrack.store.traces import log_traces

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
