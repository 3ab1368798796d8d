"""`proftrack sync`: log what runs kept in folders."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from proftrack.errors import ProftrackError, UsageError
from proftrack.rundir import run_folders
from proftrack.signals import Interrupted
from proftrack.store import batch as groups
from proftrack.store import connect as stores
from proftrack.store import lifecycle, links
from proftrack.store import sync as syncing
from proftrack.store.address import Store

_SAID = {"logged": "logged", "finished": "logged (the rest of a run begun earlier)", "known": "in this store already"}


@click.command("sync", epilog="Without FOLDER: what runs kept in ./proftrack-runs (or $PROFTRACK_SPOOL) is logged.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
def command(folder: Path | None) -> None:
    """Log what was kept in a folder: no MLflow on that machine, or the store was away.

    FOLDER is a run's folder or holds several. Each is logged once, with the times and the environment of its run; those
    of a sweep, or of variants, as the children of one parent run.
    """
    root = folder if folder is not None else run_folders.spool_root()
    grouped = groups.find(root)
    try:
        alone = _alone(root, grouped)
    except UsageError:
        if folder is not None:
            raise
        click.echo(f"Nothing waits to be logged in {root}.")
        return
    moved = groups.of_runs(alone)
    parts = groups.in_order(grouped, moved)
    found = [*parts, *(each for each in alone if not any(each in below for below in parts.values()))]
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    exit_codes: list[int] = []
    last: syncing.Outcome | None = None
    for each in found:
        try:
            if each in grouped:
                for last in groups.sync_group(store, client, each, moved):
                    click.echo(f"{_SAID[last.did]}: {last.folder} as run {last.run_id}")
                if folder is None and last is not None and last.whole:
                    run_folders.discard(each)
                elif folder is None:
                    click.echo(
                        f"kept: {each} has files that its run has not, or has otherwise; remove it if you need none"
                    )
                continue
            last = syncing.sync_folder(store, client, each)
        except Interrupted as stop:
            click.echo(f"proftrack: stopped by {stop.reason}; sync goes on from here", err=True)
            sys.exit(stop.exit_code)
        except ProftrackError as error:
            exit_codes.append(error.exit_code)
            click.echo(f"proftrack: {error}", err=True)
            continue
        except (OSError, MemoryError) as error:
            exit_codes.append(1)
            why = "too large for this machine's memory" if isinstance(error, MemoryError) else error.strerror or error
            click.echo(f"proftrack: {each}: cannot be logged ({why}); the others are", err=True)
            continue
        click.echo(f"{_SAID[last.did]}: {each} as run {last.run_id}")
        if folder is None:
            run_folders.discard(each)
    _show(store, last)
    if exit_codes:
        sys.exit(max(exit_codes))


def _alone(root: Path, grouped: list[Path]) -> list[Path]:
    """The run folders that belong to no group."""
    try:
        found = run_folders.find(root)
    except UsageError:
        if not grouped:
            raise
        return []
    return [each for each in found if not any(each.is_relative_to(group) for group in grouped)]


def _show(store: Store, last: syncing.Outcome | None) -> None:
    if last is not None:
        for line in links.lines(store, last.experiment_id, last.run_id, last.artifact_uri):
            click.echo(line)
