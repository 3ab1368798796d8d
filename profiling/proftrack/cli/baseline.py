"""`proftrack baseline`: which runs others are held against."""

from __future__ import annotations

import click

from proftrack.errors import UsageError


@click.command("baseline", epilog="Without RUN: the baselines of this store are listed.")
@click.argument("run", required=False)
@click.option("--remove", is_flag=True, help="Take the mark from the run.")
def command(run: str | None, remove: bool) -> None:
    """Mark a run as a baseline: `gate` and `compare` prefer it, and `prune` never drops its traces.

    Of several comparable baselines the newest counts.
    """
    from proftrack.store import baselines, keys
    from proftrack.store.runs import Runs, may_be_run_id
    from proftrack.text import moment, plain

    if run is None and remove:
        raise UsageError("--remove needs the id of a run")
    if run is not None and not may_be_run_id(run):
        raise UsageError(
            f"{run}: not a run id", "a baseline is marked by its id (32 hex digits, or the first 8 or more)"
        )
    runs = Runs.connect()
    if run is None:
        found = baselines.marked(runs)
        for each in found:
            words = (each.run_id, moment(each.started_ms * 1_000_000), (each.commit or "-")[:12], plain(each.name))
            click.echo("  ".join(words))
        if not found:
            click.echo("No run is marked as a baseline; mark one with: proftrack baseline RUN")
        return
    chosen = runs.get(run)
    if remove:
        runs.untag(chosen, keys.BASELINE_TAG)
        click.echo(f"Run {chosen.run_id} is no longer a baseline")
        return
    if chosen.status != "FINISHED" or not chosen.fingerprint:
        raise UsageError(f"{run}: is {chosen.status} or holds no profile", "only a FINISHED run can be a baseline")
    runs.tag(chosen, {keys.BASELINE_TAG: "true"})
    click.echo(f"Run {chosen.run_id} is a baseline for {plain(chosen.name)} (fingerprint {chosen.fingerprint})")
