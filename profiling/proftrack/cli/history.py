"""`proftrack history`: an experiment's runs over its commits, and what changed."""

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
@click.option("--metric", default="step_time_us", show_default=True, help="The metric to show.")
@click.option("--format", "form", type=_FORMS, help="Default: from the ending of the file's name, else text.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--branch", metavar="NAME", help="Only runs on this branch.")
@click.option("--dirty", is_flag=True, help="Include runs with uncommitted changes; all runs are then sorted by time.")
@click.option("--bisect-hint", is_flag=True, help="Print git bisect commands for the commits of each change.")
def command(
    experiment: str,
    metric: str,
    form: str | None,
    output: str | None,
    branch: str | None,
    dirty: bool,
    bisect_hint: bool,
) -> None:
    """Show all comparable runs of an experiment over its commits, and the changes between them.

    Runs are comparable within a series (one fingerprint, the same parameters). Changes are detected from eight runs on;
    a change of a count (launches or kernels per step) from the first run that has it.
    """
    from proftrack.store import history
    from proftrack.store.runs import Runs

    form = out.form_of(form, output, "text")
    collected = history.collect(
        Runs.connect(),
        experiment,
        metric,
        branch=branch,
        dirty=dirty,
        environments=form in ("text", "markdown", "html"),
    )
    if bisect_hint:
        for line in _hints(collected):
            click.echo(line)
        return
    _write(collected, form, output)


def _write(collected: History, form: str, output: str | None) -> None:
    from proftrack.report.pages import history

    if form == "png":
        if output is None or output == "-":
            raise UsageError("--format png needs a file", "name one with -o history.png")
        history.write_png(collected, Path(output))
    elif form == "csv":
        from proftrack.store.history import rows

        out.write(history.as_csv(rows(collected)), output)
    else:
        out.show(history.page(collected), form, collected, output)


def _hints(collected: History) -> list[str]:
    """The git range of each change, and the commands that find the commit behind it."""
    changes = [change for history in collected.series for change in history.changes if change.commits is not None]
    if not changes:
        return [f"No change between two commits was found in {collected.experiment}."]
    groups = groupby(changes, key=lambda change: (change.before.run_id, change.after.run_id))
    return [line for _, same_range in groups for line in _hint(collected.experiment, list(same_range))]


def _hint(experiment: str, changes: list[Change]) -> list[str]:
    change = changes[0]
    assert change.commits is not None
    before, after = change.commits.before, change.commits.after
    parameters = shlex.join(
        word for name, value in sorted(change.after.params.items()) for word in ("-P", f"{name}={value}")
    )
    measure = f"proftrack run {shlex.quote(experiment)} {parameters} || exit 125; "
    judge = f"proftrack gate HEAD --baseline {change.before.run_id}; c=$?; test $c -eq 3 && exit 1; "
    skip = "test $c -eq 0 || exit 125"  # git bisect: 125 means cannot be tested, 1 means bad
    return [
        f"# {', '.join(each.metric for each in changes)} changed in {before}..{after}",
        f"git bisect start {after} {before}",
        f"git bisect run sh -c {shlex.quote(measure + judge + skip)}",
    ]
