"""`proftrack report`: show a run, a record or a trace as one page."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proftrack.cli import browser
from proftrack.cli import output as out
from proftrack.errors import UsageError
from proftrack.rundir.layout import REPORT
from proftrack.store.references import Readable, References

if TYPE_CHECKING:
    from proftrack.report.document import Document


@click.command("report")
@click.argument("what", metavar="RUN|RECORD|TRACE")
@click.option(
    "-o", "--output", metavar="FILE", help="Write to this file, or to stdout (-). Default for html: report.html."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "text", "markdown", "json"]),
    help="Default: from the ending of the file's name, else html.",
)
@click.option("--open", "open_it", is_flag=True, help="Show the page in the browser (html only).")
def command(what: str, output: str | None, form: str | None, open_it: bool) -> None:
    """Show an MLflow run, a run folder, a record.json or a trace on one page: verdict, timeline, tables.

    The HTML is one file that needs no network. text, markdown and json go to stdout unless --output names a file.
    """
    from proftrack.report.progress import waiting

    form = form or _form_of(output)
    if open_it and (form != "html" or output == "-"):
        raise UsageError(
            f"--open shows html in the browser, not {form if form != 'html' else 'stdout'}", "leave --open out"
        )
    with waiting(f"reading {what}"):
        readable = References().read(what)
    document = _document(readable, form)
    if output == "-" or (output is None and form != "html"):
        out.show(document, form, readable.record, None)
        return
    target = _target(output, open_it)
    out.write(out.render(document, form, readable.record), str(target))
    click.echo(f"Report  {target}")
    if open_it and not browser.show(target.as_uri()):
        click.echo("There is no browser here: open the file elsewhere", err=True)


def _form_of(output: str | None) -> str:
    ending = Path(output or "").suffix.lower()
    return {".txt": "text", ".md": "markdown", ".json": "json"}.get(ending, "html")


def _document(readable: Readable, form: str) -> Document:
    from proftrack.report.pages import run

    record = readable.record
    if form == "html":
        from proftrack.report.events import details
        from proftrack.report.pages import full

        return full.report(record, details(readable.tables, record.kernels))
    return run.summary(record) if form == "markdown" else run.overview(record)


def _target(output: str | None, open_it: bool) -> Path:
    """The file that was named, else report.html: in a temporary folder if it is only to be shown, else here."""
    folder = Path(tempfile.mkdtemp(prefix="proftrack-")) if output is None and open_it else Path()
    return (folder / (output or REPORT)).absolute()
