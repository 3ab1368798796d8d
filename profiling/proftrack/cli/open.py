"""`proftrack open`: show a trace in the Perfetto UI, handed over on this machine."""

from __future__ import annotations

from contextlib import ExitStack

import click

from proftrack.cli.handover import PERFETTO_PORT, Handover
from proftrack.store.references import References


@click.command("open")
@click.argument("what", metavar="RUN|TRACE")
@click.option("--cycle", type=click.IntRange(min=1), help="Active window to show, if the run has several (default 1).")
@click.option("--by-page", is_flag=True, help="Hand it over through a local page (needed for Safari).")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--wait", "seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, help="Seconds to wait (default 60)."
)
def command(what: str, cycle: int | None, by_page: bool, no_browser: bool, seconds: float) -> None:
    """Show a trace in ui.perfetto.dev. It goes from this machine to the browser and nowhere else.

    A trace that is not valid JSON is handed over as a mended copy. The command ends once the trace was fetched, or
    after a minute. If the browser runs on another machine, forward the port from there first: ssh -L
    9001:127.0.0.1:9001 HOST.
    """
    from proftrack.report.progress import waiting

    with ExitStack() as resources:
        with waiting(f"reading {what}"):
            trace, remark = References().trace(what, cycle, resources)
        if remark:
            click.echo(remark, err=True)
        handover = resources.enter_context(Handover(trace, by_page=by_page))
        if handover.by_page and not by_page:
            click.echo(f"Port {PERFETTO_PORT} is in use: the trace goes through a local page instead", err=True)
        opened = not no_browser and handover.open_browser()
        click.echo(f"{'Opened' if opened else 'Open'}  {handover.address}")
        if handover.wait(seconds):
            click.echo(f"{trace.name} was handed over")
        else:
            click.echo(f"{trace.name} was not fetched within {seconds:g} s; run the command again", err=True)
            raise SystemExit(1)
