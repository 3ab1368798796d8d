"""`proftrack variants`: measure variants of a workload in turns, and say which is faster."""

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
    epilog="Variants are eager, compile, compile-reduce-overhead, compile-max-autotune, cuda-graph, and those under "
    "`variants` in the experiment. Join several with +: `proftrack variants mlp --variants "
    "for-loop,foreach,fused+cuda-graph`.",
)
@click.argument("experiment", default="matmul_add", metavar="[EXPERIMENT]")
@click.option(
    "-P", "--param", "pairs", multiple=True, metavar="KEY=VALUE", help="Set a parameter; or write --KEY VALUE."
)
@click.option(
    "--variants",
    "names",
    default="eager,compile,cuda-graph",
    show_default=True,
    metavar="NAME,...",
    help="Variants to measure; the others are compared with the first.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME:KEY=VALUE,...",
    help="Define a variant: a name for parameter values.",
)
@click.option("--rounds", type=click.IntRange(min=3), default=20, show_default=True, help="Turns for each variant.")
@click.option("--isolate", is_flag=True, help="Measure each variant in five fresh processes instead of all in one.")
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
    """Measure variants of a workload in turns; say which is faster and what it costs."""
    parent = process.Parent()
    with recorder.refusals_noted(mlflow=not no_mlflow):
        from proftrack.frontends.variants.names import variants

        given = overrides(pairs, device=device, budget=budget)
        chosen = variants(experiment, names, given, sets)
    from proftrack.frontends.variants.run import run

    destination = recorder.Destination(output=output, mlflow=not no_mlflow, fresh=True, parent=parent)
    with ending():
        outcome = run(
            experiment, chosen, destination, given=given, sets=sets, rounds=rounds, isolated=isolate, say=complain
        )
    show_batch(outcome)
