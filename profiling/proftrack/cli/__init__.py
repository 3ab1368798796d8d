"""The command line: a command is a module, and one line in COMMANDS.

    run, sweep, variants      commands that measure
    analyze, report, open     commands about one run or trace
    compare, gate, history    commands about several runs
    baseline, prune, sync     commands that change the store
    doctor                    the command that checks what is needed
    options                   options that commands share, and options that only the experiment knows
    output                    pages to stdout or to a file, in the form that was asked for
    ending                    what is printed when a measurement ends, or is cut short
    catalog                   `run --list`
    handover, browser         a trace handed to Perfetto's UI in the user's browser
    store                     `python -m proftrack.cli.store`, which `make` calls

Commands are imported when called: `--help` stays quick, and only the commands that need torch, mlflow or pandas
import them.
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
"""Maximum length of an error, in characters: it may quote names and paths, which are untrusted text."""

# (command, module that defines `command`, one line of help)
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("run", "proftrack.cli.run", "Profile a workload, find what limits it, log one MLflow run."),
    ("sweep", "proftrack.cli.sweep", "Measure a workload over parameter values; see its regime change."),
    ("variants", "proftrack.cli.variants", "Compare variants of a workload: eager, compile, CUDA graph, ..."),
    ("analyze", "proftrack.cli.analyze", "Find what limits the steps of an existing trace, without torch."),
    ("report", "proftrack.cli.report", "Show a run, record or trace as HTML, text, Markdown or JSON."),
    ("open", "proftrack.cli.open", "Open a run's trace in the Perfetto UI."),
    ("compare", "proftrack.cli.compare", "Say whether a run is faster or slower than another, and why."),
    ("gate", "proftrack.cli.gate", "Check a run against a baseline: exit 0 pass, 3 fail, 4 inconclusive."),
    ("history", "proftrack.cli.history", "Show an experiment's runs over its commits, and what changed."),
    ("baseline", "proftrack.cli.baseline", "Mark a run as a baseline for `gate` and `compare`."),
    ("prune", "proftrack.cli.prune", "Delete old traces from the store, never records or baselines."),
    ("sync", "proftrack.cli.sync", "Log runs to MLflow that were kept in folders."),
    ("doctor", "proftrack.cli.doctor", "Check the store, disk, GPU and profiler; say how to fix problems."),
)


class _Lazy(click.Group):
    """A group that imports its commands when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        modules = {name: module for name, module, _ in COMMANDS}
        return importlib.import_module(modules[cmd_name]).command if cmd_name in modules else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Reject an unknown command with a suggestion."""
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise _no_command(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their one-liners, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in COMMANDS])


def _no_command(word: str, commands: list[str]) -> UsageError:
    from proftrack.experiment.file import catalog
    from proftrack.text import meant

    if word.endswith((".yaml", ".yml", ".py")) or word in [path.stem for path in catalog()]:
        return UsageError(f"{word}: an experiment, not a command", f"did you mean proftrack run {word}?")
    if word.endswith((".json", ".json.gz")):
        return UsageError(f"{word}: a trace, not a command", f"did you mean proftrack analyze {word}?")
    suggestion = meant(word, commands)
    return UsageError(f"{word}: no such command{suggestion}", None if suggestion else "see proftrack --help")


def _sentence(error: click.ClickException) -> str:
    """A usage error of click as one sentence that says what to write instead."""
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    command = context.command_path
    if isinstance(error, click.MissingParameter) and error.param is not None:
        missing = error.param.human_readable_name
        return f"{missing} is missing; write {command} {missing} (see {command} --help)"
    if isinstance(error, click.NoSuchOption):
        from proftrack.text import meant

        parameters = context.command.get_params(context)
        options = [name for parameter in parameters for name in parameter.opts if name[:2] == "--"]
        suggestion = meant(error.option_name, options)
        return f"{error.option_name}: {command} has no such option{suggestion or f'; see {command} --help'}"
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="proftrack")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def group(ctx: click.Context, debug: bool) -> None:
    """Track torch.profiler results in MLflow: see what limits a PyTorch program, and since when."""


def main(args: list[str] | None = None) -> Any:
    """Entry point of the console script. Exit codes: 0 done, 1 failed (one line on stderr), 2 usage, 3 and 4 `gate`."""
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
        problem = plain(f"{type(error).__name__}: {error}", _LONGEST)
        click.echo(f"proftrack: {problem} (a bug in proftrack; run it with --debug to see where)", err=True)
        sys.exit(1)
    sys.exit(0)
