"""`proftrack report`: show a run, a record or a trace as one page."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from proftrack.cli import browser
from proftrack.errors import UsageError
from proftrack.store.references import Readable, References


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
    to_stdout = output == "-" or (output is None and form != "html")
    if to_stdout and form == "text":
        from proftrack.report import terminal
        from proftrack.report.pages.run import overview

        terminal.show(overview(readable.record))  # in the width and colours of the terminal
        return
    text = _RENDER[form](readable)
    if to_stdout:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        return
    target = _write(text, output, open_it)
    click.echo(f"Report  {target}")
    if open_it and not browser.show(target.as_uri()):
        click.echo("There is no browser here: open the file elsewhere", err=True)


def _form_of(output: str | None) -> str:
    ending = Path(output or "").suffix.lower()
    return {".txt": "text", ".md": "markdown", ".json": "json"}.get(ending, "html")


def _html(readable: Readable) -> str:
    from proftrack.report import html
    from proftrack.report.events import details
    from proftrack.report.pages.run import report

    return html.render(report(readable.record, details(readable.tables, readable.record.kernels)))


def _text(readable: Readable) -> str:
    from proftrack.report import terminal
    from proftrack.report.pages.run import overview

    return terminal.text(overview(readable.record))


def _markdown(readable: Readable) -> str:
    from proftrack.report import markdown
    from proftrack.report.pages.run import summary

    return markdown.render(summary(readable.record))


def _json(readable: Readable) -> str:
    from proftrack.record import dump

    return dump(readable.record).decode() + "\n"


_RENDER: dict[str, Callable[[Readable], str]] = {"html": _html, "text": _text, "markdown": _markdown, "json": _json}


def _write(text: str, output: str | None, open_it: bool) -> Path:
    """Write to `output`, else to report.html: in a temporary folder if it is only to be shown, else here."""
    if output is None and open_it:
        target = Path(tempfile.mkdtemp(prefix="proftrack-")) / "report.html"
    else:
        target = Path(output or "report.html")
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror})", "name another file with -o") from error
    return target.absolute()
