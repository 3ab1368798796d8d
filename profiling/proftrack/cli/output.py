"""Writes a page to stdout or to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack.errors import UsageError

if TYPE_CHECKING:
    from proftrack.report.document import Document

UNDERSCORES = {"token_normalize_func": lambda name: name.replace("_", "-")}
"""`mlflow run -P noise_floor=3` arrives as --noise_floor 3."""


def render(document: Document, form: str, data: msgspec.Struct) -> str:
    """A page as text, markdown or html, or its data as json."""
    from proftrack.report import html, markdown, terminal

    if form == "json":
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
    if form == "text":
        return terminal.text(document)
    return markdown.render(document) if form == "markdown" else html.render(document)


def show(document: Document, form: str, data: msgspec.Struct, output: str | None) -> None:
    """Write a page in a format to `output`, else to stdout. Raises UsageError as `write` does."""
    if form == "text" and output is None:
        from proftrack.report import terminal

        terminal.show(document)
    else:
        write(render(document, form, data), output)


def write(text: str, output: str | None) -> None:
    """Write to the file `output`, else to stdout. Raises UsageError if the file cannot be written."""
    if output is None or output == "-":
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
        return
    try:
        Path(output).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror})", "name another file with -o") from error


def form_of(form: str | None, output: str | None, default: str) -> str:
    """The format given, else that of the output file's extension, else `default`."""
    endings = {".txt": "text", ".md": "markdown", ".html": "html", ".json": "json", ".csv": "csv", ".png": "png"}
    return form or endings.get(Path(output or "").suffix.lower(), default)
