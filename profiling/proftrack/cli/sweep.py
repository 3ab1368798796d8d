"""`proftrack sweep`: a workload at several points of its parameters, a parent run with a child for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from proftrack import process
from proftrack.cli import grouped, options
from proftrack.cli.options import ParameterCommand, overrides
from proftrack.errors import ProftrackError
from proftrack.store import session


@click.command(
    "sweep",
    cls=ParameterCommand,
    epilog="EXPERIMENT is a YAML file, or a name under experiments/. A parameter with several values is swept: "
    "`proftrack sweep matmul_add -P n=64,512,4096 -P dtype=float32`; without one, what the experiment's `sweep` says. "
    "Points that are done, for the same code on the same machine, are not measured again.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option("-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE,...", help="Values; also as --KEY VALUE,...")
@options.device
@options.budget
@click.option("--find-crossover", is_flag=True, help="Bisect to where B reaches half of T.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=1, min_open=True),
    default=1.25,
    show_default=True,
    help="How far apart, as a factor, the two sides of the crossover may be.",
)
@click.option("--isolate", is_flag=True, help="Each point in a fresh process, which takes some seconds to start.")
@click.option("--fresh", is_flag=True, help="Measure points again that are done.")
@options.no_mlflow
@options.output("this folder: a new one, or that of an interrupted sweep, which goes on")
def command(
    experiment: str,
    pairs: tuple[str, ...],
    device: str | None,
    budget: float | None,
    find_crossover: bool,
    tolerance: float,
    isolate: bool,
    fresh: bool,
    no_mlflow: bool,
    output: Path | None,
) -> None:
    """Measure a workload at several points; show T, B and u over them, and where the regime changes."""
    parent = process.Parent()
    with _refusals_noted(no_mlflow=no_mlflow):
        from proftrack.frontends.sweep import plan

        given = overrides(pairs, device=device, budget=budget)
        asked = plan.plan(experiment, given)
        plan.check_crossover(asked, find_crossover=find_crossover)
    from proftrack.frontends.batch.shown import print_page
    from proftrack.frontends.sweep import measuring
    from proftrack.frontends.sweep.shown import page
    from proftrack.report.progress import progress

    with measuring.Measuring(asked.first, isolate=isolate, phase=progress().phase) as measurer:
        measurer.begin(asked.first)  # they load torch while this process loads MLflow
        from proftrack.frontends.sweep.run import Runner, group_of

        with _refusals_noted(no_mlflow=no_mlflow):
            group = group_of(asked)
        with grouped.place(group, output=output, no_mlflow=no_mlflow, fresh=fresh, parent=parent) as place:
            runner = Runner(experiment, asked, place.batch, measurer)
            with measurer:  # the processes end before anything is logged: an interruption must not leave them at work
                swept = runner.run(find_crossover=find_crossover, tolerance=tolerance)
    print_page(page(swept))
    for line in place.lines:
        click.echo(line)
    grouped.end(group)


@contextlib.contextmanager
def _refusals_noted(*, no_mlflow: bool) -> Iterator[None]:
    """Put what is refused before a run is opened into the run of `mlflow run`, where there is one."""
    try:
        yield
    except ProftrackError as error:
        if not no_mlflow:
            session.note_refusal(error)
        raise
