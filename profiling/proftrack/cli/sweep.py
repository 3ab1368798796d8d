"""`proftrack sweep`: a workload at several points of its parameters, a parent run with a child for each."""

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
    with recorder.refusals_noted(mlflow=not no_mlflow):
        from proftrack.frontends.sweep import plan

        asked = plan.plan(experiment, overrides(pairs, device=device, budget=budget))
        plan.check_crossover(asked, find_crossover=find_crossover)
    from proftrack.frontends.sweep.run import run

    destination = recorder.Destination(output=output, mlflow=not no_mlflow, fresh=fresh, parent=parent)
    with ending():
        outcome = run(
            experiment,
            asked,
            destination,
            isolate=isolate,
            find_crossover=find_crossover,
            tolerance=tolerance,
            say=complain,
        )
    show_batch(outcome)
