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

from proftrack import process
from proftrack.cli import options
from proftrack.cli.ending import ending
from proftrack.cli.options import ParameterCommand, overrides
from proftrack.errors import ProftrackError, UsageError
from proftrack.git import NO_DIFF_VARIABLE
from proftrack.rundir import run_folders
from proftrack.signals import Interrupts, abort
from proftrack.store import links, session

if TYPE_CHECKING:
    from proftrack.experiment import Experiment
    from proftrack.record import Record
    from proftrack.record.ranks import Joint


class _RunCommand(ParameterCommand):
    """`run`, behind whose -m MODULE, or SCRIPT.py, everything is the program's own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the program's arguments away before anybody reads them as ours."""
        own, script = _split(args, self.own_options(ctx)[0])
        ctx.obj = {**(ctx.obj or {}), "program": script}
        return super().parse_args(ctx, own)


def _split(args: list[str], flags: set[str]) -> tuple[list[str], tuple[str, list[str], bool] | None]:
    """Our arguments, and (target, arguments, is a module) of a program."""
    for index, argument in enumerate(args):
        if argument == "--":
            break
        if argument in ("-m", "--module") and index + 1 < len(args):
            return args[:index], (args[index + 1], args[index + 2 :], True)
        before = args[index - 1] if index else ""
        is_value = before.startswith("-") and "=" not in before and before not in flags
        if argument.endswith(".py") and not argument.startswith("-") and not is_value:
            return args[:index], (argument, args[index + 1 :], False)
    return args, None


@click.command(
    "run",
    cls=_RunCommand,
    epilog="EXPERIMENT is a YAML file, a name under experiments/ (--list shows them), or a build function: "
    "package.module:build, file.py:build. Parameters are those of its workload, then the settings of its schedule, "
    "profiler and timing: `proftrack run matmul_add --n 4096 --active 5`. A whole program, unchanged, runs with "
    "`proftrack run -m package.module ARGUMENTS` or `proftrack run script.py ARGUMENTS`: its steps are those of its "
    "optimizer, or the calls of --step.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option("-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE", help="A parameter; also as --KEY VALUE.")
@click.option("-m", "--module", "module", metavar="MODULE ...", help="Run a module as a program, with its arguments.")
@click.option("--step", metavar="MODULE:FUNCTION", help="Of a program: each call of this is a step.")
@click.option("--stop", is_flag=True, help="End the program once its steps are recorded.")
@click.option("--list", "listed", is_flag=True, help="Show the experiments, their parameters and sweeps.")
@options.device
@options.budget
@options.no_mlflow
@options.output()
@click.option("--no-calibrate", is_flag=True, help="Leave the device's ceilings, and so the roofline time R, out.")
@click.option("--no-diff", is_flag=True, help="Record that the code differs from its commit, but not how.")
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    pairs: tuple[str, ...],
    module: str | None,
    step: str | None,
    stop: bool,
    listed: bool,
    device: str | None,
    budget: float | None,
    no_mlflow: bool,
    output: Path | None,
    no_calibrate: bool,
    no_diff: bool,
) -> None:
    """Profile a workload, say what holds it back, and log one MLflow run."""
    if listed:
        from proftrack.cli.catalog import print_catalog

        print_catalog()
        return
    if no_diff:
        os.environ[NO_DIFF_VARIABLE] = "1"
    script = ctx.obj["program"]
    if module is not None:
        raise UsageError("-m has no module behind it; write proftrack run -m package.module ARGUMENTS")
    if script is not None:
        sys.exit(
            _run_program(
                script,
                overrides(pairs, device=device, budget=budget),
                step=step,
                stop=stop,
                no_mlflow=no_mlflow,
                output=output,
                calibrate=not no_calibrate,
            )
        )
    if step is not None or stop:
        raise UsageError("--step and --stop are about a program; name one with -m MODULE, or SCRIPT.py")
    # Before the slow imports: what happens to the parent meanwhile is seen.
    parent = process.Parent()
    try:
        asked = _load(experiment, overrides(pairs, device=device, budget=budget))
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            _run_as_rank(asked, output, no_mlflow=no_mlflow, calibrate=not no_calibrate)
            return
        folder = run_folders.new_folder(output, asked.name)
    except ProftrackError as error:
        if not no_mlflow:
            session.note_refusal(error)
        raise
    with _kept(folder, temporary=output is None):
        if no_mlflow:
            with Interrupts():
                record = _measure(asked, folder, calibrate=not no_calibrate)
            run = None
        else:
            record, run = _measure_and_log(asked, folder, parent, calibrate=not no_calibrate)
        lines = _where(run, folder, output)
    _show(record, lines)


def _where(run: session.Session | None, folder: Path, output: Path | None) -> list[str]:
    """Where everything is; a folder that is no longer needed is removed."""
    if run is None:
        return links.kept(folder)
    lines = links.lines(run.store, run.experiment_id, run.run_id, run.artifact_uri)
    if output is not None:
        return [*lines, f"Kept    {folder}"]
    run_folders.discard(folder)
    return lines


def _load(reference: str, given: dict[str, str]) -> Experiment:
    from proftrack import experiment

    if ":" in reference and not Path(reference).exists():
        from proftrack.experiment import workload

        return workload.described(reference, given)
    return experiment.load(reference, given)


def _run_program(
    asked: tuple[str, list[str], bool],
    given: dict[str, str],
    *,
    step: str | None,
    stop: bool,
    no_mlflow: bool,
    output: Path | None,
    calibrate: bool,
) -> int:
    """A program under the profile; returns its exit code, or 1 where nothing was recorded."""
    from proftrack.frontends import script

    target, arguments, is_module = asked
    found = script.Program(target, arguments, is_module=is_module)
    profile = script.profile_of(found, given, output=output, mlflow=not no_mlflow, calibrate=calibrate)
    return script.run(found, profile, step=step, stop=stop)


def _run_as_rank(asked: Experiment, output: Path | None, *, no_mlflow: bool, calibrate: bool) -> None:
    """One rank of several, started by torchrun; rank 0 alone shows what came of it."""
    from proftrack.frontends.distributed import run as running
    from proftrack.frontends.distributed.team import join_team

    team = join_team()
    assert team is not None  # WORLD_SIZE says so
    if team.rank != 0:
        running.follow(team, asked, calibrate=calibrate)
        return
    with running.told(team):
        folder = run_folders.new_folder(output, asked.name)
        with _kept(folder, temporary=output is None):
            found = running.lead(team, asked, folder, no_mlflow=no_mlflow, calibrate=calibrate)
            lines = _where(found.session, folder, output)
    _show(found.record, lines, found.joint)


def _measure_and_log(
    asked: Experiment, folder: Path, parent: process.Parent, *, calibrate: bool
) -> tuple[Record, session.Session]:
    """The run is opened first: a store that cannot be used is found out before minutes of GPU time are spent."""
    from proftrack.store import upload

    with run_folders.locked(folder):
        with session.open_run(asked.name, asked.display_name, parent=parent) as run:
            upload.begin(run, folder)
            record = _measure(asked, folder, calibrate=calibrate)
            upload.log_folder(run, folder)
        upload.mark_logged(run, folder)
    return record, run


def _measure(asked: Experiment, folder: Path, *, calibrate: bool) -> Record:
    """Capture, analyse and keep: afterwards the folder holds everything that there is to log."""
    from proftrack.capture import capture
    from proftrack.recorder import keep
    from proftrack.report.progress import progress

    captured = capture(asked, output=folder, progress=progress(), calibrate=calibrate, on_overrun=abort)
    return keep(captured, captured.experiment, folder, code=asked.path.parent)


@contextmanager
def _kept(folder: Path, *, temporary: bool) -> Iterator[None]:
    """Say where the measurements are when something fails after they were taken; remove a folder without any."""

    def say(error: BaseException) -> None:
        if (folder / run_folders.RECORD).is_file():
            text = f"proftrack: nothing is lost, everything measured is in {folder}; log it later with: proftrack sync "
            click.echo(text + shlex.quote(str(folder)), err=True)
        elif isinstance(error, KeyboardInterrupt) or not run_folders.holds_measurements(folder):
            if temporary:
                run_folders.discard(folder)
        else:
            click.echo(f"proftrack: the traces recorded so far are in {folder / 'trace'}", err=True)

    with ending(say):
        yield


def _show(record: Record, lines: list[str], joint: Joint | None = None) -> None:
    from proftrack.report import terminal
    from proftrack.report.pages import ranks, run

    terminal.show(run.result(record))
    if joint is not None:
        terminal.show(ranks.page(joint))
    click.echo()
    for line in lines:
        click.echo(line)
    git = record.environment.git
    if git is not None and git.dirty:
        what = "untracked files" if git.untracked_only else "uncommitted changes"
        terminal.print_note(
            "Code",
            f"has {what}: history shows this run with --dirty only, and gate takes it as a baseline only where it is "
            "marked as one",
        )
