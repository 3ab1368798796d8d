"""`proftrack prune`: delete old traces from the store, never records or baselines."""

from __future__ import annotations

import click


@click.command("prune")
@click.option("--older-than", "age", required=True, metavar="AGE", help="Minimum age, such as 12h, 90d, 4w, 6m or 1y.")
@click.option("--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def command(age: str, experiment: str | None, dry_run: bool) -> None:
    """Delete the traces of runs that ended longer than AGE ago.

    Records, tables and events stay, and so do the traces of baselines.
    """
    from proftrack.store import prune
    from proftrack.store.runs import Runs
    from proftrack.text import counted, moment, plain, scaled

    limit = prune.age_ms(age)
    runs = Runs.connect()
    number = total = 0
    for pruned in prune.old_traces(runs, limit, experiment=experiment):
        if not dry_run:
            prune.drop(runs, pruned)
        number, total = number + 1, total + pruned.bytes
        when, size = moment(pruned.run.started_ms * 1_000_000), scaled(pruned.bytes, "B")
        files = counted(pruned.files, "trace")
        click.echo(f"{pruned.run.run_id}  {when}  {files}, {size}  {plain(pruned.run.name, 80)}")
    verb = "would be deleted" if dry_run else "deleted"
    click.echo(f"Traces of {counted(number, 'run')} {verb}, {scaled(total, 'B')}")
