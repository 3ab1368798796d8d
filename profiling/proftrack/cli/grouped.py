"""What `sweep` and `variants` share: a folder for the whole, a parent run where there is a store, and their ends."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from proftrack import process, rundir
from proftrack.cli.ending import ending
from proftrack.errors import ProftrackError
from proftrack.frontends.batch.keeping import InFolder, InStore
from proftrack.frontends.batch.ongoing import Ongoing
from proftrack.rundir import batch as rundir_batch
from proftrack.rundir.batch import Group
from proftrack.signals import Interrupted, Interrupts
from proftrack.store import batch as groups
from proftrack.store import links
from proftrack.store.session import Session
from proftrack.text import counted


class Place:
    """A batch, and after it has ended, the lines that say where all is."""

    def __init__(self, batch: Ongoing) -> None:
        self.batch = batch
        self.lines: list[str] = []


@contextlib.contextmanager
def place(
    group: Group, *, output: Path | None, no_mlflow: bool, fresh: bool, parent: process.Parent
) -> Iterator[Place]:
    """A folder and, unless `no_mlflow`, a parent run, for the block that measures the group's parts.

    A folder `output` that holds an interrupted group of the same key is gone on with. After the block everything is
    logged that is known, and the run ends: FINISHED where nothing failed. Raises UsageError for a folder that cannot be
    used, StoreError for a store; ProftrackError says what failed in the block.
    """
    folder = rundir_batch.begin(group, output, fresh=fresh)
    rundir_batch.save(folder, group)
    with _told_where(folder, output, no_mlflow=no_mlflow):
        if no_mlflow:
            found = Place(Ongoing(group, folder, InFolder(folder)))
            with Interrupts():
                yield found
            found.lines = [f"Kept    {folder}", f"Log it  proftrack sync {shlex.quote(str(folder))}"]
            return
        with groups.open_parent(group, fresh=fresh, parent=parent) as opened:
            keeping = InStore(opened, group, folder, keep=output is not None, fresh=fresh)
            found = Place(Ongoing(group, folder, keeping))
            with _logged(opened, group, folder):
                yield found
            if keeping.failures:
                raise keeping.failures[0]
            groups.close(opened, group)
        found.lines = links.lines(  # report and traces are the children's
            opened.store, opened.experiment_id, opened.run_id, opened.artifact_uri, profile=False
        )
        if output is None:
            rundir.discard(folder)
        else:
            found.lines.append(f"Kept    {folder}")


def end(group: Group) -> None:
    """Exit 1 where a part failed. Everything was kept, logged and shown before."""
    if group.error is not None:
        click.echo(f"proftrack: {group.error}", err=True)
        sys.exit(1)


@contextlib.contextmanager
def _logged(opened: Session, group: Group, folder: Path) -> Iterator[None]:
    """Put what is known into the parent run, also where the block was cut short."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProftrackError):
            groups.log_parent(opened, group, folder)
        raise
    groups.log_parent(opened, group, folder)


@contextlib.contextmanager
def _told_where(folder: Path, output: Path | None, *, no_mlflow: bool) -> Iterator[None]:
    """Say where the parts are that were measured, when the command ends before its time."""

    def say(error: BaseException) -> None:
        whole = [path for path in folder.rglob("record.json") if path.is_file()]
        if whole:
            again = f"the same command with --output {shlex.quote(str(folder))} goes on from there"
            rest = f"log them with: proftrack sync {shlex.quote(str(folder))}"
            click.echo(f"proftrack: {counted(len(whole), 'part')} kept in {folder}; {again}, or {rest}", err=True)
        elif output is None:
            rundir.discard(folder)
        if not whole and not no_mlflow and isinstance(error, Interrupted):
            click.echo("proftrack: what was done is logged; the same command goes on from there", err=True)

    with ending(say):
        yield
