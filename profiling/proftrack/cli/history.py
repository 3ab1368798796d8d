"""`proftrack history`: an experiment's runs over its commits, and where they changed."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proftrack.cli import output as out
from proftrack.errors import UsageError

if TYPE_CHECKING:
    from proftrack.compare.history import Change, History

_FORMS = click.Choice(["text", "markdown", "html", "csv", "json", "png"])


@click.command("history", context_settings=out.UNDERSCORES)
@click.argument("experiment")
@click.option("--metric", default="step_time_us", show_default=True, help="Which metric is looked at.")
@click.option("--format", "form", type=_FORMS, help="Default: what the file's name ends in, else text.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--branch", metavar="NAME", help="Only runs of this branch.")
@click.option("--dirty", is_flag=True, help="Also runs with uncommitted changes; everything is in order of time then.")
@click.option("--bisect-hint", is_flag=True, help="Print the git range of each change, for git bisect.")
def command(
    experiment: str,
    metric: str,
    form: str | None,
    output: str | None,
    branch: str | None,
    dirty: bool,
    bisect_hint: bool,
) -> None:
    """All comparable runs of an experiment over its commits, with the changes between them.

    Runs are comparable within a series (one fingerprint, the same parameters). A change is told from eight runs on;
    that of a count (launches and kernels a step) from the first run that has it.
    """
    from proftrack.store import history
    from proftrack.store.runs import Runs

    form = out.form_of(form, output, "text")
    found = history.collect(
        Runs.connect(),
        experiment,
        metric,
        branch=branch,
        dirty=dirty,
        environments=form in ("text", "markdown", "html"),
    )
    if bisect_hint:
        for line in _hints(found):
            click.echo(line)
        return
    _write(found, form, output)


def _write(found: History, form: str, output: str | None) -> None:
    from proftrack.report.pages import history

    if form == "png":
        if output is None or output == "-":
            raise UsageError("--format png needs a file", "name one with -o history.png")
        history.write_png(found, Path(output))
    elif form == "csv":
        from proftrack.report.spreadsheet import as_csv
        from proftrack.store.history import rows

        out.write(as_csv(rows(found)), output)
    else:
        out.show(history.page(found), form, found, output)


def _hints(found: History) -> list[str]:
    """The git range of each change, and the commands that find its commit."""
    changes = [change for history in found.series for change in history.changes if change.commits is not None]
    if not changes:
        return [f"No change between two commits was found in {found.experiment}."]
    groups = groupby(changes, key=lambda change: (change.before.run_id, change.after.run_id))
    return [line for _, alike in groups for line in _hint(found.experiment, list(alike))]


def _hint(experiment: str, alike: list[Change]) -> list[str]:
    change = alike[0]
    assert change.commits is not None
    before, after = change.commits.before, change.commits.after
    given = shlex.join(
        word for name, value in sorted(change.after.params.items()) for word in ("-P", f"{name}={value}")
    )
    measure = f"proftrack run {shlex.quote(experiment)} {given} || exit 125; "
    judge = f"proftrack gate HEAD --baseline {change.before.run_id}; c=$?; test $c -eq 3 && exit 1; "
    skip = "test $c -eq 0 || exit 125"  # git bisect: 125 cannot be told, 1 is bad
    return [
        f"# {', '.join(each.metric for each in alike)} changed in {before}..{after}",
        f"git bisect start {after} {before}",
        f"git bisect run sh -c {shlex.quote(measure + judge + skip)}",
    ]
