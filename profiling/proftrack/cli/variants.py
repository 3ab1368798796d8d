"""`proftrack variants`: the same workload in several ways, measured in turns; keep the faster one."""

from __future__ import annotations

from pathlib import Path

import click

from proftrack import process
from proftrack.cli import grouped, options
from proftrack.cli.options import ParameterCommand, overrides
from proftrack.errors import ProftrackError
from proftrack.store import session


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
    try:
        from proftrack.frontends.variants import names as naming
        from proftrack.frontends.variants.run import group_of

        given = overrides(pairs, device=device, budget=budget)
        asked = naming.variants(experiment, names, given, sets)
        group = group_of(asked)
    except ProftrackError as error:
        if not no_mlflow:
            session.note_refusal(error)
        raise
    from proftrack.frontends.batch.shown import print_page
    from proftrack.frontends.variants import isolate as isolating
    from proftrack.frontends.variants import measure as measuring
    from proftrack.frontends.variants.run import run
    from proftrack.frontends.variants.shown import page
    from proftrack.report.progress import progress

    shown = progress()
    with grouped.place(group, output=output, no_mlflow=no_mlflow, fresh=True, parent=parent) as place:
        found = run(
            asked,
            place.batch,
            (
                lambda folder_of: isolating.measure(
                    asked, folder_of, shown, reference=experiment, given=given, sets=sets, work=place.batch.folder
                )
            )
            if isolate
            else (lambda folder_of: measuring.measure(asked, folder_of, shown, rounds=rounds)),
            isolated=isolate,
        )
    print_page(page(found))
    for line in place.lines:
        click.echo(line)
    grouped.end(group)
