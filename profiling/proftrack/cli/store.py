"""`python -m proftrack.cli.store`: the store that MLflow would use here, made whole; `make` calls it.

`mlflow run` writes to the store before our own process starts, and a new sqlite store that several processes touch at
once breaks. It has to be told the MLflow experiment, too, and otherwise takes Default.
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
@click.option("--serve", "port", type=click.IntRange(1, 65535), help="Open MLflow's UI on this store, at this port.")
@click.option("--experiment-id", "experiment", metavar="EXPERIMENT", help="Print the id of its MLflow experiment.")
def command(port: int | None, experiment: str | None) -> None:
    """Make the store whole that MLflow would use here; with --serve, open MLflow's UI on it."""
    found = stores.resolve()
    client = stores.connect(found)
    if experiment is not None:
        click.echo(stores.experiment_for(found, client, _name(experiment)))
    if port is None:
        return
    opening = found.open_command()
    if opening is None:
        click.echo(f"The store is {found.public}; a server's UI is at its own address.")
        return
    click.echo(f"{found.public} at http://127.0.0.1:{port} (Ctrl-C ends it)")
    words = [*shlex.split(opening), "--host", "127.0.0.1", "--port", str(port)]
    os.execvp(words[0], words)


def _name(reference: str) -> str:
    """The name of an experiment as `run` understands it. Raises UsageError where there is no such experiment."""
    if ":" in reference and not Path(reference).exists():
        return workload.name_of(reference)
    return experiments.load(reference).name


def main() -> None:
    """Run the command; one line for what a user can mend."""
    try:
        command(standalone_mode=True)
    except ProftrackError as error:
        click.echo(f"proftrack: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
