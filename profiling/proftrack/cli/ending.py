"""What a command that measures says at its end, early or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from proftrack.errors import ProftrackError
from proftrack.signals import Interrupted, farewell

if TYPE_CHECKING:
    from proftrack.frontends.batch.shown import Outcome


@contextmanager
def ending() -> Iterator[None]:
    """Exit with the code of an interruption that ends the block, after a line about it; other errors propagate.

    If the process ends without its main thread, the line about the error is printed here as well.
    """
    try:
        with farewell(_print_error):
            yield
    except Interrupted as stop:
        _print_error(stop)
        sys.exit(stop.exit_code)


def _print_error(error: BaseException) -> None:
    if isinstance(error, Interrupted):
        click.echo(f"proftrack: stopped by {error.reason}", err=True)
    elif isinstance(error, ProftrackError):
        click.echo(f"proftrack: {error}", err=True)


def complain(sentence: str) -> None:
    """Print a sentence about a run that failed, in the form of all errors."""
    click.echo(f"proftrack: {sentence}", err=True)


def show_batch(outcome: Outcome) -> None:
    """Show the result of a sweep or of variants. Raises ProftrackError if a part failed; everything else is kept."""
    from proftrack.report import terminal

    terminal.show(outcome.page)
    for line in outcome.lines:
        click.echo(line)
    if outcome.error is not None:
        raise ProftrackError(outcome.error)
