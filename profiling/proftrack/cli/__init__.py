"""The command line: a command is a module, and one line in COMMANDS.

Commands are imported when they are called, so that `--help` stays quick and torch, mlflow and pandas are imported by
those that need them only.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from proftrack import __version__
from proftrack.errors import ProftrackError, UsageError
from proftrack.text import plain

_LONGEST = 4000
"""Characters of an error: it may quote names and paths, which are untrusted text."""

# (command, module that defines `command`, one line of help)
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("run", "proftrack.cli.run", "Profile a workload, judge it, log one MLflow run."),
    ("sweep", "proftrack.cli.sweep", "Measure a workload at several points; find where its regime changes."),
    ("variants", "proftrack.cli.variants", "Measure a workload in several ways, in turns; keep the faster one."),
    ("analyze", "proftrack.cli.analyze", "Judge an existing trace, without torch."),
    ("report", "proftrack.cli.report", "One page about a run, a record or a trace: HTML, text, Markdown, JSON."),
    ("open", "proftrack.cli.open", "Show a run's trace in Perfetto's UI."),
    ("compare", "proftrack.cli.compare", "Say whether a run is faster or slower than another, and why."),
    ("gate", "proftrack.cli.gate", "Hold a run against its baseline: exit 0 pass, 3 fail, 4 inconclusive."),
    ("history", "proftrack.cli.history", "An experiment's runs over its commits, and where they changed."),
    ("baseline", "proftrack.cli.baseline", "Mark a run as one that others are held against."),
    ("prune", "proftrack.cli.prune", "Drop old traces from the store, never records or baselines."),
    ("sync", "proftrack.cli.sync", "Log to MLflow what a run kept in a folder."),
    ("doctor", "proftrack.cli.doctor", "Look at the store, the disk, the GPU, the profiler; say how to mend them."),
)


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        modules = {name: module for name, module, _ in COMMANDS}
        return importlib.import_module(modules[cmd_name]).command if cmd_name in modules else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a word that is no command with what was meant."""
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise UsageError(_no_command(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from their one-liners: no command is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in COMMANDS])


def _no_command(word: str, commands: list[str]) -> str:
    from proftrack.experiment.file import catalog
    from proftrack.text import meant

    if word.endswith((".yaml", ".yml", ".py")) or word in [path.stem for path in catalog()]:
        return f"{word}: an experiment, not a command; did you mean proftrack run {word}?"
    if word.endswith((".json", ".json.gz")):
        return f"{word}: a trace, not a command; did you mean proftrack analyze {word}?"
    close = meant(word, commands)
    return f"{word}: no such command{close or '; proftrack --help lists them'}"


def _sentence(error: click.ClickException) -> str:
    """What click refuses, in one sentence that says what to write."""
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    command = context.command_path
    if isinstance(error, click.MissingParameter) and error.param is not None:
        wanted = error.param.human_readable_name
        return f"{wanted} is missing; write {command} {wanted} ({command} --help says more)"
    if isinstance(error, click.NoSuchOption):
        from proftrack.text import meant

        options = [name for each in context.command.get_params(context) for name in each.opts if name[:2] == "--"]
        close = meant(error.option_name, options)
        return f"{error.option_name}: {command} has no such option{close or f'; {command} --help lists them'}"
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; {command} --help says more"


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="proftrack")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def group(ctx: click.Context, debug: bool) -> None:
    """Track torch.profiler results in MLflow: what holds a PyTorch program back, and since when."""


def main(args: list[str] | None = None) -> Any:
    """Entry point of the console script. Exits: 0 done, 1 failed (one line on stderr), 2 usage, 3 and 4 by `gate`."""
    arguments = sys.argv[1:] if args is None else args
    debug = "--debug" in arguments
    try:
        group.main(args=arguments, prog_name="proftrack", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        click.echo(f"proftrack: {plain(_sentence(error), _LONGEST)}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("proftrack: interrupted", err=True)
        sys.exit(130)
    except ProftrackError as error:
        if debug:
            raise
        click.echo(f"proftrack: {plain(str(error), _LONGEST)}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            raise
        what = plain(f"{type(error).__name__}: {error}", _LONGEST)
        click.echo(f"proftrack: {what} (a bug in proftrack: --debug shows where)", err=True)
        sys.exit(1)
    sys.exit(0)
