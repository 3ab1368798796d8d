"""`proftrack sync`: log runs to MLflow that were kept in folders."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from proftrack import rundir
from proftrack.errors import UsageError
from proftrack.signals import Interrupted
from proftrack.store import connect as stores
from proftrack.store import folders, lifecycle, links
from proftrack.store.folders import Failure
from proftrack.store.sync import Outcome

_OUTCOMES = {"logged": "logged", "finished": "logged (rest of an earlier attempt)", "known": "already in this store"}


@click.command("sync", epilog="Without FOLDER, the runs kept in ./proftrack-runs (or $PROFTRACK_SPOOL) are logged.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
def command(folder: Path | None) -> None:
    """Log runs to MLflow that were kept in a folder, without MLflow or because the store could not be reached.

    FOLDER is a run folder, or contains several. Each run is logged once, with its own times and environment. The runs
    of a sweep or of variants become the children of one parent run.
    """
    root = folder if folder is not None else rundir.spool_root()
    try:
        run_folders = folders.find(root)
    except UsageError:
        if folder is not None:
            raise
        click.echo(f"There is nothing to log in {root}.")
        return
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    exit_codes = [0]
    last: Outcome | None = None
    try:
        for done in folders.log(store, client, run_folders, discard=folder is None):
            if isinstance(done, Failure):
                exit_codes.append(done.exit_code)
                click.echo(f"proftrack: {done.sentence}", err=True)
                continue
            for last in done:
                click.echo(f"{_OUTCOMES[last.did]}: {last.folder} as run {last.run_id}")
            if folder is None and last is not None and not last.whole:
                click.echo(f"kept: {last.folder} has files that its run lacks or that differ; remove it if not needed")
    except Interrupted as stop:
        click.echo(f"proftrack: stopped by {stop.reason}; run sync again to continue", err=True)
        sys.exit(stop.exit_code)
    if last is not None:
        for line in links.lines(store, last.experiment_id, last.run_id, last.artifact_uri):
            click.echo(line)
    if max(exit_codes):
        sys.exit(max(exit_codes))
