"""`proftrack sweep`: measure a workload at several points; a parent run with a child for each."""

from __future__ import annotations

from pathlib import Path

import click

from proftrack import process, recorder
from proftrack.cli import options
from proftrack.cli.ending import complain, ending, show_batch
from proftrack.cli.options import ParameterCommand, overrides


@click.command(
    "sweep",
    cls=ParameterCommand,
    epilog="EXPERIMENT is a YAML file, or a name under experiments/. A parameter with several values is swept: "
    "`proftrack sweep matmul_add -P n=64,512,4096 -P dtype=float32`. Without one, the experiment's `sweep` is used. "
    "Points already measured, with the same code on the same machine, are not measured again.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option(
    "-P",
    "--param",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Set a parameter to one or more values; or write --KEY VALUE,...",
)
@options.device
@options.budget
@click.option("--find-crossover", is_flag=True, help="Bisect for the parameter value at which B reaches half of T.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=1, min_open=True),
    default=1.25,
    show_default=True,
    help="Stop bisecting once both sides of the crossover are within this factor.",
)
@click.option(
    "--isolate", is_flag=True, help="Measure each point in a fresh process, which takes some seconds to start."
)
@click.option("--fresh", is_flag=True, help="Measure all points again, even those already measured.")
@options.no_mlflow
@options.output("this folder: a new one, or that of an interrupted sweep to resume")
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
    """Measure a workload at several points of its parameters and show where its regime changes.

    For each point you get T, the step time; B, the part of it in which the GPU works; and u = B / T.
    """
    parent = process.Parent()
    with recorder.refusals_noted(mlflow=not no_mlflow):
        from proftrack.frontends.sweep import plan

        points = plan.plan(experiment, overrides(pairs, device=device, budget=budget))
        plan.check_crossover(points, find_crossover=find_crossover)
    from proftrack.frontends.sweep.run import run

    destination = recorder.Destination(output=output, mlflow=not no_mlflow, fresh=fresh, parent=parent)
    with ending():
        outcome = run(
            experiment,
            points,
            destination,
            isolate=isolate,
            find_crossover=find_crossover,
            tolerance=tolerance,
            say=complain,
        )
    show_batch(outcome)
