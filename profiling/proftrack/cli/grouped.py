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
from proftrack.errors import ProftrackError, UsageError
from proftrack.frontends.sweep.keeping import InFolder, InStore
from proftrack.signals import Interrupted, Interrupts
from proftrack.store import batch as groups
from proftrack.store import links
from proftrack.store.batch import Group
from proftrack.store.session import Session
from proftrack.text import counted

Keeping = InFolder | InStore


class Place:
    """Where a group is kept: its folder, and after it has ended, the lines that say where all is."""

    def __init__(self, group: Group, folder: Path, keeping: Keeping) -> None:
        self.group, self.folder, self.keeping = group, folder, keeping
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
    folder, group = _folder(group, output, fresh=fresh)
    groups.save(folder, group)
    with _told_where(folder, output, no_mlflow=no_mlflow):
        if no_mlflow:
            found = Place(group, folder, InFolder(folder))
            with Interrupts():
                yield found
            found.lines = [f"Kept    {folder}", f"Log it  proftrack sync {shlex.quote(str(folder))}"]
            return
        with groups.open_parent(group, fresh=fresh, parent=parent) as opened:
            keeping = InStore(opened, group, folder, keep=output is not None, fresh=fresh)
            found = Place(group, folder, keeping)
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


def _folder(group: Group, output: Path | None, *, fresh: bool) -> tuple[Path, Group]:
    """The group's folder, and the group: the one that was begun in it, where there is one."""
    if output is None or not (output / groups.FILE).is_file():
        folder = rundir.new_folder(output, f"{group.experiment}-{group.kind}")
        # Inside of a repository it must not make the code look changed: a sweep that goes on would be another one.
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        return folder, group
    begun = groups.load(output)
    if begun.kind != group.kind or begun.key != group.key:
        raise UsageError(
            f"--output {output}: holds another {begun.kind if begun.kind == 'sweep' else 'set of variants'} (its code, "
            "machine or parameters differ); name a new folder"
        )
    if fresh:
        raise UsageError(f"--output {output}: holds this {group.kind} already; name a new folder to measure it --fresh")
    group.id, group.started_ns, group.parts = begun.id, begun.started_ns, begun.parts
    return output.absolute(), group


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
