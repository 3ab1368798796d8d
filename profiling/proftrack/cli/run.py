"""`proftrack run`: profile a workload, judge it, keep it in a folder, log the folder as one MLflow run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proftrack.cli.options import ParameterCommand, parameters
from proftrack.errors import ProftrackError
from proftrack.git import NO_DIFF_VARIABLE
from proftrack.tracking import process, session, spool, where
from proftrack.tracking.signals import Interrupted, Interrupts

if TYPE_CHECKING:
    from proftrack.experiment import Experiment
    from proftrack.record import Record

_GIT_DIFF_BYTES = 1_000_000


@click.command(
    "run",
    cls=ParameterCommand,
    epilog="EXPERIMENT is a YAML file, or a name under experiments/. Parameters are those of its workload, then the "
    "settings of its schedule, profiler and timing: `proftrack run matmul_add --n 4096 --active 5`.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option("-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE", help="A parameter; also as --KEY VALUE.")
@click.option("--device", metavar="auto|cuda|cpu", help="Where the workload runs, instead of what its file says.")
@click.option("--no-mlflow", is_flag=True, help="Keep everything in a folder; `proftrack sync` logs it later.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep everything in this new folder, whether it is logged or not.",
)
@click.option("--no-diff", is_flag=True, help="Record that the code differs from its commit, but not how.")
def command(
    experiment: str, pairs: tuple[str, ...], device: str | None, no_mlflow: bool, output: Path | None, no_diff: bool
) -> None:
    """Profile a workload, say what holds it back, and log one MLflow run."""
    if no_diff:
        os.environ[NO_DIFF_VARIABLE] = "1"
    # Before the slow imports: what happens to the parent meanwhile is seen.
    parent = process.Parent()
    try:
        asked = _load(experiment, pairs, device)
        folder = spool.new_folder(output, asked.name)
    except ProftrackError as error:
        if not no_mlflow:
            session.note_refusal(error)
        raise
    with _kept(folder, temporary=output is None):
        if no_mlflow:
            with Interrupts():
                record = _measure(asked, folder)
            lines = [f"Kept    {folder}", f"Log it  proftrack sync {shlex.quote(str(folder))}"]
        else:
            record, run = _measure_and_log(asked, folder, parent)
            lines = where.lines(run.store, run.experiment_id, run.run_id, run.artifact_uri)
            if output is None:
                spool.discard(folder)
            else:
                lines.append(f"Kept    {folder}")
    _show(record, lines)


def _load(reference: str, pairs: tuple[str, ...], device: str | None) -> Experiment:
    from proftrack import experiment

    overrides = parameters([*pairs, *([f"device={device}"] if device is not None else [])])
    return experiment.load(reference, overrides)


def _measure_and_log(asked: Experiment, folder: Path, parent: process.Parent) -> tuple[Record, session.Session]:
    """The run is opened first: a store that cannot be used is found out before minutes of GPU time are spent."""
    from proftrack.tracking import log

    with spool.locked(folder):
        with session.open_run(asked.name, asked.display_name, parent=parent) as run:
            log.begin(run, folder)
            record = _measure(asked, folder)
            log.log_folder(run, folder)
        log.mark_logged(run, folder)
    return record, run


def _measure(asked: Experiment, folder: Path) -> Record:
    """Capture, analyse and keep: afterwards the folder holds everything that there is to log."""
    from proftrack import environment
    from proftrack import folder as run_folder
    from proftrack.analysis import analyze_capture
    from proftrack.capture import capture
    from proftrack.report.progress import progress

    code = asked.path.parent
    captured = capture(asked, output=folder, progress=progress())
    facts = environment.collect(captured.device, code=code)
    analysis = analyze_capture(captured, asked, facts)
    return run_folder.write(analysis, folder, diff=environment.git_diff(code, _GIT_DIFF_BYTES))


@contextmanager
def _kept(folder: Path, *, temporary: bool) -> Iterator[None]:
    """Say where the measurements are when something fails after they were taken; remove a folder without any."""
    try:
        yield
    except BaseException as error:
        if (folder / spool.RECORD).is_file():
            text = f"proftrack: nothing is lost, everything measured is in {folder}; log it later with: proftrack sync "
            click.echo(text + shlex.quote(str(folder)), err=True)
        elif isinstance(error, KeyboardInterrupt) or not spool.holds_measurements(folder):
            if temporary:
                spool.discard(folder)
        else:
            click.echo(f"proftrack: the traces recorded so far are in {folder / 'trace'}", err=True)
        if isinstance(error, Interrupted):
            click.echo(f"proftrack: stopped by {error.reason}", err=True)
            sys.exit(error.exit_code)
        raise


def _show(record: Record, lines: list[str]) -> None:
    from proftrack.report.terminal import print_result

    print_result(record)
    for line in lines:
        click.echo(line)
