"""What a command that measures says when it ends before its time, however it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from proftrack.errors import ProftrackError
from proftrack.signals import Interrupted, farewell

if TYPE_CHECKING:
    from proftrack.frontends.batch.shown import Outcome


@contextmanager
def ending(say: Callable[[BaseException], None] = lambda _: None) -> Iterator[None]:
    """Have `say` called with what ends the block, also where the process goes without the main thread.

    An interruption then ends the process, with its exit code; other errors pass.
    """
    try:
        with farewell(lambda error: _all_said(say, error)):
            yield
    except BaseException as error:
        say(error)
        if isinstance(error, Interrupted):
            click.echo(f"proftrack: stopped by {error.reason}", err=True)
            sys.exit(error.exit_code)
        raise


def _all_said(say: Callable[[BaseException], None], error: BaseException) -> None:
    """With the sentences that the command line would say."""
    say(error)
    if isinstance(error, Interrupted):
        click.echo(f"proftrack: stopped by {error.reason}", err=True)
    elif isinstance(error, ProftrackError):
        click.echo(f"proftrack: {error}", err=True)


def complain(sentence: str) -> None:
    """Show what is left of a run that failed, as all sentences about failures are."""
    click.echo(f"proftrack: {sentence}", err=True)


def show_batch(outcome: Outcome) -> None:
    """Show what came of a sweep, or of variants. Raises ProftrackError where a part failed: everything else is kept."""
    from proftrack.frontends.batch.shown import print_page

    print_page(outcome.page)
    for line in outcome.lines:
        click.echo(line)
    if outcome.error is not None:
        raise ProftrackError(outcome.error)
