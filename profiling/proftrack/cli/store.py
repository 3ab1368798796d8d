"""`python -m proftrack.cli.store`: set up the store that MLflow would use here; `make` calls it.

`mlflow run` writes to the store before our own process starts, and a new sqlite store breaks if several processes open
it at once. `mlflow run` also has to be given the MLflow experiment, and otherwise uses Default.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from proftrack import experiment as experiments
from proftrack.errors import ProftrackError
from proftrack.experiment import workload
from proftrack.store import connect as stores


@click.command()
@click.option("--serve", "port", type=click.IntRange(1, 65535), help="Open the MLflow UI for this store on this port.")
@click.option(
    "--experiment-id", "experiment", metavar="EXPERIMENT", help="Print the id of this experiment's MLflow experiment."
)
def command(port: int | None, experiment: str | None) -> None:
    """Set up the store that MLflow would use here; with --serve, open the MLflow UI for it."""
    store = stores.resolve()
    client = stores.connect(store)
    if experiment is not None:
        click.echo(stores.experiment_for(store, client, _name(experiment)))
    if port is None:
        return
    opening = store.open_command()
    if opening is None:
        click.echo(f"The store is {store.public}; the UI of a server is at the server's address.")
        return
    click.echo(f"{store.public} at http://127.0.0.1:{port} (stop with Ctrl-C)")
    words = [*shlex.split(opening), "--host", "127.0.0.1", "--port", str(port)]
    os.execvp(words[0], words)


def _name(reference: str) -> str:
    """The name of an experiment that is given as to `run`. Raises UsageError if there is none."""
    if ":" in reference and not Path(reference).exists():
        return workload.name_of(reference)
    return experiments.load(reference).name


def main() -> None:
    """Run the command; an error that the user can fix takes one line."""
    try:
        command(standalone_mode=True)
    except ProftrackError as error:
        click.echo(f"proftrack: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
