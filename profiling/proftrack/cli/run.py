"""`proftrack run`: profile a workload, find what limits it, log the run folder as one MLflow run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proftrack import process, recorder
from proftrack.cli import options
from proftrack.cli.ending import complain, ending
from proftrack.cli.options import ParameterCommand, overrides
from proftrack.errors import UsageError
from proftrack.git import NO_DIFF_VARIABLE

if TYPE_CHECKING:
    from proftrack.experiment import Experiment
    from proftrack.recorder import Recorded


class _RunCommand(ParameterCommand):
    """`run`: everything after -m MODULE or SCRIPT.py belongs to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the program's arguments off before they are parsed as ours."""
        own_args, script = _split(args, self.own_options(ctx)[0])
        ctx.obj = {**(ctx.obj or {}), "program": script}
        return super().parse_args(ctx, own_args)


def _split(args: list[str], flags: set[str]) -> tuple[list[str], tuple[str, list[str], bool] | None]:
    """Our arguments, and the program's: (target, arguments, whether it is a module), or None."""
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
    "package.module:build, file.py:build. Its parameters are those of the workload, and the settings of the schedule, "
    "the profiler and the timing: `proftrack run matmul_add --n 4096 --active 5`. To profile a whole program, "
    "unchanged: `proftrack run -m package.module ARGUMENTS` or `proftrack run script.py ARGUMENTS`. Its steps are "
    "those of its optimizer, or the calls of --step.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option(
    "-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE", help="Set a parameter; or write --KEY VALUE."
)
@click.option(
    "-m", "--module", "module", metavar="MODULE ...", help="Profile a module as a program, with its arguments."
)
@click.option("--step", metavar="MODULE:FUNCTION", help="For a program: each call of this function is a step.")
@click.option("--stop", is_flag=True, help="For a program: end it once its steps are recorded.")
@click.option("--list", "listed", is_flag=True, help="List the experiments, their parameters and sweeps.")
@options.device
@options.budget
@click.option(
    "--counters",
    type=click.Choice(["auto", "ncu", "none"]),
    help="Hardware counters: of the whole step where the GPU has them (auto, the default), also of the largest "
    "kernels, replayed under Nsight Compute (ncu), or none.",
)
@options.no_mlflow
@options.output()
@click.option(
    "--no-calibrate",
    is_flag=True,
    help="Skip measuring the device's attainable rates; without them there is no roofline time R.",
)
@click.option("--no-diff", is_flag=True, help="Record that the code differs from its commit, but not the diff.")
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
    counters: str | None,
    no_mlflow: bool,
    output: Path | None,
    no_calibrate: bool,
    no_diff: bool,
) -> None:
    """Profile a workload, say what limits its speed, and log one MLflow run."""
    if listed:
        from proftrack.cli.catalog import print_catalog

        print_catalog()
        return
    if no_diff:
        os.environ[NO_DIFF_VARIABLE] = "1"
    script = ctx.obj["program"]
    if module is not None:
        raise UsageError("-m needs a module", "write proftrack run -m package.module ARGUMENTS")
    if script is not None:
        sys.exit(
            _run_program(
                script,
                overrides(pairs, device=device, budget=budget, counters=counters),
                step=step,
                stop=stop,
                no_mlflow=no_mlflow,
                output=output,
                calibrate=not no_calibrate,
            )
        )
    if step is not None or stop:
        raise UsageError("--step and --stop need a program", "name one: -m MODULE or SCRIPT.py")
    # Before the slow imports, so that the parent's end during them is noticed.
    parent = process.Parent()
    with recorder.refusals_noted(mlflow=not no_mlflow):
        described = _load(experiment, overrides(pairs, device=device, budget=budget, counters=counters))
    plan = recorder.Plan(experiment=described, output=output, mlflow=not no_mlflow, parent=parent)
    from proftrack.frontends import experiment as frontend

    with ending():
        recorded = frontend.run(plan, calibrate=not no_calibrate, say=complain)
    if recorded is not None:
        _show(recorded)


def _load(reference: str, given: dict[str, str]) -> Experiment:
    from proftrack import experiment

    if ":" in reference and not Path(reference).exists():
        from proftrack.experiment import workload

        return workload.described(reference, given)
    return experiment.load(reference, given)


def _run_program(
    program_args: tuple[str, list[str], bool],
    given: dict[str, str],
    *,
    step: str | None,
    stop: bool,
    no_mlflow: bool,
    output: Path | None,
    calibrate: bool,
) -> int:
    """Profile a program; returns its exit code, or 1 if nothing was recorded."""
    from proftrack.frontends import script

    target, arguments, is_module = program_args
    program = script.Program(target, arguments, is_module=is_module)
    profile = script.profile_of(program, given, output=output, mlflow=not no_mlflow, calibrate=calibrate)
    return script.run(program, profile, step=step, stop=stop)


def _show(recorded: Recorded) -> None:
    from proftrack.report import terminal
    from proftrack.report.pages import ranks, run

    terminal.show(run.result(recorded.record))
    if recorded.joint is not None:
        terminal.show(ranks.page(recorded.joint))
    click.echo()
    for line in recorded.lines:
        click.echo(line)
    git = recorded.record.environment.git
    if git is not None and git.dirty:
        difference = "untracked files" if git.untracked_only else "uncommitted changes"
        terminal.print_note(
            "Code",
            f"has {difference}: history shows this run only with --dirty, and gate uses it as a baseline only if it is "
            "marked as one",
        )
