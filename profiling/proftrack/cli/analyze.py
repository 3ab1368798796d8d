"""`proftrack analyze`: find what limits the steps of existing traces, without torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proftrack.analysis import trace_files
from proftrack.errors import ProftrackError, UsageError
from proftrack.rundir.layout import RECORD
from proftrack.threads import usable_cpus

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis, JointAnalysis
    from proftrack.analysis.trace_files import TraceFiles
    from proftrack.record import Record
    from proftrack.record.ranks import Joint

_RESULT = re.compile(rb'^\s*\{\s*"(schema_version|joint)"\s*:')
"""The beginning of the output of --json."""


def _list_flags(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if not requested or ctx.resilient_parsing:
        return
    from proftrack.measures.quality import FLAGS

    for code, text in FLAGS.items():
        click.echo(f"{code}\n    {text}")
    ctx.exit()


@click.command("analyze")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step-time-us", type=float, help="Step time without the profiler, in microseconds.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the record as JSON to a file, or to stdout (-).")
@click.option("--kernel", metavar="NAME", help="Show what launched the kernels that have NAME in their name.")
@click.option(
    "--module",
    metavar="NAME",
    help="Show one module, optimizer or region, or several (layers.*.mlp), of a trace, record or run.",
)
@click.option("--log", "log_it", is_flag=True, help="Log each record to MLflow as a run.")
@click.option(
    "--rank-from", metavar="REGEX", help="Regex for the rank in a file name or path: one group, as in 'rank(\\d+)'."
)
@click.option(
    "--captured-in",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Trace (or folder of traces) of the capture of the CUDA graphs that TRACE replays: names their kernels.",
)
@click.option("--salvage", is_flag=True, help="Read what is intact in a damaged file.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Largest uncompressed JSON to read (default 8 GiB).")
@click.option(
    "--list-flags",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_flags,
    help="Explain every data quality flag, and exit.",
)
def command(
    traces: tuple[Path, ...],
    step_time_us: float | None,
    json_to: str | None,
    kernel: str | None,
    module: str | None,
    log_it: bool,
    rank_from: str | None,
    captured_in: tuple[Path, ...],
    salvage: bool,
    max_bytes: int | None,
) -> None:
    """Read torch.profiler traces (.json or .json.gz), measure them and say what limits their steps.

    A folder stands for the traces in it. Several traces are treated as the ranks of one run: you get one record for
    each, and one that joins them. Without --step-time-us the verdict is based on the step times in the traces, which
    the profiler inflates, and says so.
    """
    if kernel is not None and module is not None:
        raise UsageError("--kernel and --module show two things", "drop one of them")
    shown = "--kernel" if kernel is not None else "--module" if module is not None else None
    if shown is not None and json_to == "-":
        raise UsageError(f"{shown} and --json - both write to stdout", "name a file for --json, or drop one of them")
    if module is not None and (record := _saved(traces)) is not None:
        if json_to is not None or log_it:
            raise UsageError(f"{traces[0]}: analyzed before, so it is not written again", "drop --json and --log")
        if captured_in:
            raise UsageError(
                f"--captured-in {captured_in[0]}: {traces[0]} was analyzed before, so that no trace is read",
                "name its trace, or drop --captured-in",
            )
        _show_module([(None, record)], module)
        return
    files = trace_files.find(traces)
    if json_to is not None:
        named = (p for p in files.paths if not (p in files.from_folders and _is_result(p)))
        _refuse_overwriting((*named, *captured_in), json_to)
    ranks, joint = _analyzed(
        files,
        step_time_us=step_time_us,
        salvage=salvage,
        max_bytes=max_bytes,
        rank_from=rank_from,
        processes=len(usable_cpus()),
        captured_in=captured_in,
    )
    if json_to is not None:
        _refuse_overwriting((path for rank in ranks for path in rank.paths), json_to)
        _write_json(ranks, joint, json_to)
    if log_it:
        _log(ranks)
    if json_to != "-":
        _show(ranks, joint, kernel, module)


def _analyzed(files: TraceFiles, **options: Any) -> JointAnalysis:
    """Analyze the ranks and compare them; print a line for each file of a folder that was skipped."""
    from proftrack.analysis.pipeline import analyze_traces
    from proftrack.report.progress import waiting
    from proftrack.text import counted, plain

    skipped: list[Path] = []
    try:
        with waiting(f"reading {counted(len(files.paths), 'trace')}"):
            return analyze_traces(files, on_left_out=skipped.append, **options)
    finally:
        for path in skipped:
            click.echo(f"proftrack: {plain(str(path), 600)}: skipped, not a trace", err=True)


def _refuse_overwriting(read: Iterable[Path], target: str) -> None:
    """Refuse a target that is one of the traces. Earlier output of --json in a folder does not count as a trace."""
    if any(_same_file(path, Path(target)) for path in read):
        raise UsageError(f"--json {target}: would overwrite a trace that is read", "name another file")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False  # one of them does not exist


def _is_result(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _RESULT.match(file.read(4096)) is not None
    except OSError:
        return False


def _write_json(ranks: list[Analysis], joint: Joint | None, target: str) -> None:
    """Write a single record as it is; several together with their comparison."""
    import msgspec

    from proftrack.record import dump

    if joint is None:
        data = dump(ranks[0].record)
    else:
        document = {"joint": joint, "records": [rank.record for rank in ranks]}
        data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    if target == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    try:
        Path(target).write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"--json {target}: cannot be written ({error.strerror})", "name another file") from error


def _show(ranks: list[Analysis], joint: Joint | None, kernel: str | None, module: str | None) -> None:
    from proftrack.report import terminal
    from proftrack.report.pages import ranks as ranks_page
    from proftrack.report.pages.run import overview

    if kernel is not None:
        _show_kernel(ranks, kernel)
    elif module is not None:
        _show_module([(rank.rank if len(ranks) > 1 else None, rank.record) for rank in ranks], module)
    elif joint is None:
        terminal.show(overview(ranks[0].record))
    else:
        terminal.show(ranks_page.page(joint))


def _show_kernel(ranks: list[Analysis], part_of_name: str) -> None:
    """Show the call chains that launched the kernels with this in their names, largest first."""
    from proftrack.measures.view import view
    from proftrack.report import terminal
    from proftrack.report.chains import chains_of_cycles
    from proftrack.report.pages.full import launches
    from proftrack.text import brief

    shown = 0
    for rank in ranks:
        kernels = [k for k in rank.record.kernels if part_of_name.lower() in k.name.lower()]
        shown += len(kernels)
        if kernels:
            chains = chains_of_cycles((view(table) for table in rank.tables), kernels)
            terminal.show(launches(chains, kernels, rank.rank if len(ranks) > 1 else None))
    if not shown:
        largest = sorted((k for rank in ranks for k in rank.record.kernels), key=lambda k: -k.total_us)
        names = ", ".join(brief(name, 80) for name in list(dict.fromkeys(k.name for k in largest))[:3])
        raise UsageError(
            f"--kernel {part_of_name}: {'no GPU work with that name' if names else 'there is no GPU work'}",
            f"name another; the largest are {names}" if names else "leave --kernel out",
        )


def _saved(given: tuple[Path, ...]) -> Record | None:
    """The record that a single argument names: its file, a run folder, or a run of the store. None for traces."""
    from proftrack.store.references import References, kind_of
    from proftrack.store.runs import may_be_run_id

    reference = str(given[0])
    kind = kind_of(reference)
    is_traces = kind == "trace" or (kind == "folder" and not (given[0] / RECORD).is_file())
    if len(given) > 1 or is_traces or (kind == "name" and not may_be_run_id(reference)):
        return None
    return References().subject(reference).subject.record


def _show_module(records: list[tuple[int | None, Record]], name: str) -> None:
    """Show what a name stands for in each record, with its rank; refuse one that stands for nothing or for several."""
    from proftrack.record.owners import matching
    from proftrack.report import terminal
    from proftrack.report.pages.modules import one

    found = [(rank, record, matching(record.modules, name)) for rank, record in records]
    if not any(nodes for _, _, nodes in found):
        raise _unknown_module([record for _, record, _ in found], name)
    for rank, record, nodes in found:
        if len(nodes) > 1 and "*" not in name and any(node.class_name != name for node in nodes):
            raise _several_modules([node.path for node in nodes], name)
        if nodes:
            terminal.show(one(record, nodes, name, rank))


def _unknown_module(records: list[Record], name: str) -> UsageError:
    import difflib

    from proftrack.record.modules import has_modules
    from proftrack.record.owners import forest, walk
    from proftrack.report.pages.modules import without_modules
    from proftrack.text import plain

    nodes = [node for record in records for node in walk(forest(record.modules))]
    if not any(has_modules(record.modules) for record in records):
        why, remedy = without_modules(records[0])
        others = ", ".join(plain(node.path, 80) for node in nodes[:3] if node.path)
        return UsageError(
            f"--module {name}: {why}", f"{remedy}, or name another owner ({others})" if others else remedy
        )
    known = dict.fromkeys(word for node in nodes for word in (node.path, node.name, node.class_name) if word)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or list(known)[:3]
    return UsageError(
        f"--module {name}: no module, optimizer or region with that name",
        f"name another, like {', '.join(plain(word, 80) for word in near)}",
    )


def _several_modules(paths: list[str], name: str) -> UsageError:
    from proftrack.text import plain

    some = ", ".join(plain(path, 80) for path in paths[:3])
    return UsageError(
        f"--module {name}: {len(paths)} modules end in that ({some}{', ...' if len(paths) > 3 else ''})",
        f"name one of them, or all as **.{name} or their class",
    )


def _log(ranks: list[Analysis]) -> None:
    from proftrack.frontends.traces import log_traces

    failures: list[ProftrackError] = []
    for rank in ranks:
        try:
            for line in log_traces(rank):
                click.echo(line, err=True)
        except ProftrackError as error:
            failures.append(error)
            click.echo(f"proftrack: {error}", err=True)
    if failures:
        sys.exit(failures[0].exit_code)
