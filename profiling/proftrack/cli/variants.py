"""`proftrack variants`: the same workload in several ways, measured in turns; keep the faster one."""

from __future__ import annotations

from pathlib import Path

import click

from proftrack import process, recorder
from proftrack.cli import options
from proftrack.cli.ending import complain, ending, show_batch
from proftrack.cli.options import ParameterCommand, overrides


@click.command(
    "variants",
    cls=ParameterCommand,
    epilog="Names: eager, compile, compile-reduce-overhead, compile-max-autotune, cuda-graph, those of the "
    "experiment's `variants`, and several of them joined by +: `proftrack variants mlp --variants "
    "for-loop,foreach,fused+cuda-graph`.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option("-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE", help="A parameter; also as --KEY VALUE.")
@click.option(
    "--variants",
    "names",
    default="eager,compile,cuda-graph",
    show_default=True,
    metavar="NAME,...",
    help="What is measured; the first is what the others are held against.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME:KEY=VALUE,...",
    help="A variant of your own: a name for parameter values.",
)
@click.option("--rounds", type=click.IntRange(min=3), default=20, show_default=True, help="Turns that each takes.")
@click.option("--isolate", is_flag=True, help="Each in five fresh processes instead of all in one.")
@options.device
@options.budget
@options.no_mlflow
@options.output()
def command(
    experiment: str,
    pairs: tuple[str, ...],
    names: str,
    sets: tuple[str, ...],
    rounds: int,
    isolate: bool,
    device: str | None,
    budget: float | None,
    no_mlflow: bool,
    output: Path | None,
) -> None:
    """Measure a workload in several ways, in turns; say which is faster and what it costs to have."""
    parent = process.Parent()
    with recorder.refusals_noted(mlflow=not no_mlflow):
        from proftrack.frontends.variants.names import variants

        given = overrides(pairs, device=device, budget=budget)
        asked = variants(experiment, names, given, sets)
    from proftrack.frontends.variants.run import run

    destination = recorder.Destination(output=output, mlflow=not no_mlflow, fresh=True, parent=parent)
    with ending():
        outcome = run(
            experiment, asked, destination, given=given, sets=sets, rounds=rounds, isolated=isolate, say=complain
        )
    show_batch(outcome)
