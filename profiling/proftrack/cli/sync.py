"""`proftrack sync`: log what runs kept in folders."""

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

_SAID = {"logged": "logged", "finished": "logged (the rest of a run begun earlier)", "known": "in this store already"}


@click.command("sync", epilog="Without FOLDER: what runs kept in ./proftrack-runs (or $PROFTRACK_SPOOL) is logged.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
def command(folder: Path | None) -> None:
    """Log what was kept in a folder: no MLflow on that machine, or the store was away.

    FOLDER is a run's folder or holds several. Each is logged once, with the times and the environment of its run; those
    of a sweep, or of variants, as the children of one parent run.
    """
    root = folder if folder is not None else rundir.spool_root()
    try:
        found = folders.find(root)
    except UsageError:
        if folder is not None:
            raise
        click.echo(f"Nothing waits to be logged in {root}.")
        return
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    exit_codes = [0]
    last: Outcome | None = None
    try:
        for done in folders.log(store, client, found, discard=folder is None):
            if isinstance(done, Failure):
                exit_codes.append(done.exit_code)
                click.echo(f"proftrack: {done.sentence}", err=True)
                continue
            for last in done:
                click.echo(f"{_SAID[last.did]}: {last.folder} as run {last.run_id}")
            if folder is None and last is not None and not last.whole:
                click.echo(
                    f"kept: {last.folder} has files that its run has not, or has otherwise; remove it if you need none"
                )
    except Interrupted as stop:
        click.echo(f"proftrack: stopped by {stop.reason}; sync goes on from here", err=True)
        sys.exit(stop.exit_code)
    if last is not None:
        for line in links.lines(store, last.experiment_id, last.run_id, last.artifact_uri):
            click.echo(line)
    if max(exit_codes):
        sys.exit(max(exit_codes))
