"""`proftrack baseline`: the runs that other runs are compared with."""

from __future__ import annotations

import click

from proftrack.errors import UsageError


@click.command("baseline", epilog="Without RUN, the command lists the baselines of this store.")
@click.argument("run", required=False)
@click.option("--remove", is_flag=True, help="Remove the mark from the run.")
def command(run: str | None, remove: bool) -> None:
    """Mark a run as a baseline: `gate` and `compare` prefer it, and `prune` never deletes its traces.

    If there are several comparable baselines, the newest one is used.
    """
    from proftrack.store import baselines, keys
    from proftrack.store.runs import Runs, may_be_run_id
    from proftrack.text import moment, plain

    if run is None and remove:
        raise UsageError("--remove needs a run id", "write proftrack baseline RUN --remove")
    if run is not None and not may_be_run_id(run):
        raise UsageError(f"{run}: not a run id", "give the id of a run: 32 hex digits, or at least the first 8")
    runs = Runs.connect()
    if run is None:
        marked = baselines.marked(runs)
        for baseline in marked:
            started = moment(baseline.started_ms * 1_000_000)
            click.echo("  ".join((baseline.run_id, started, (baseline.commit or "-")[:12], plain(baseline.name))))
        if not marked:
            click.echo("No run is marked as a baseline; mark one with: proftrack baseline RUN")
        return
    chosen = runs.get(run)
    if remove:
        runs.untag(chosen, keys.BASELINE_TAG)
        click.echo(f"Run {chosen.run_id} is no longer a baseline")
        return
    if chosen.status != "FINISHED" or not chosen.fingerprint:
        raise UsageError(
            f"{run}: its status is {chosen.status}, or it has no profile", "mark a FINISHED run that has one"
        )
    runs.tag(chosen, {keys.BASELINE_TAG: "true"})
    click.echo(f"Run {chosen.run_id} is a baseline for {plain(chosen.name)} (fingerprint {chosen.fingerprint})")
