"""Options that only the experiment defines: `--n 4096` and `--n=4096` mean `-P n=4096`.

`mlflow run` appends what MLproject does not declare as `--KEY VALUE`, so both spellings must work. A misspelt option
(`--parm n=256`) or a parameter without its -P (`N=256`) is rejected with a suggestion.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from proftrack.errors import ProftrackError, UsageError
from proftrack.text import meant

device = click.option("--device", metavar="auto|cuda|cpu", help="Where the workload runs; overrides its file.")
budget = click.option(
    "--budget",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Time limit for the measurement (default: timing.budget_seconds of the file, else 60).",
)
no_mlflow = click.option(
    "--no-mlflow",
    is_flag=True,
    help="Do not log to MLflow: keep everything in a folder, which `proftrack sync` can log later.",
)


def output(folder: str = "this new folder, even if it is also logged") -> Callable[[Any], Any]:
    """`--output FOLDER` of a command that measures; `folder` describes it in the help."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--output", type=kind, metavar="FOLDER", help=f"Keep everything in {folder}.")


def overrides(
    pairs: Iterable[str], *, device: str | None = None, budget: float | None = None, counters: str | None = None
) -> dict[str, str]:
    """The parameters given to a command, including `--device`, `--budget` and `--counters`.

    Raises UsageError as `parameters` does.
    """
    options = {"device": device, "budget_seconds": None if budget is None else f"{budget:g}", "counters": counters}
    return parameters([*pairs, *(f"{key}={value}" for key, value in options.items() if value is not None)])


class _Arguments(NamedTuple):
    """A command line rewritten for click, and what was not recognized in it."""

    rewritten: list[str]
    unknown: list[tuple[str, str]]
    """Options that the command does not define, with their values: parameters of its experiment, or misspelt."""
    bare: list[str]
    """`KEY=VALUE` without a -P before it."""


class ParameterCommand(click.Command):
    """A command that treats unknown options as parameters of its experiment, `-P KEY=VALUE`.

    click's ignore_unknown_options would leave them among the arguments, where `--n --fresh small` means n=small.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite unknown options as -P before click sees them; reject misspelt ones."""
        arguments = self._rewrite(ctx, args)
        rest = super().parse_args(ctx, arguments.rewritten)
        if arguments.bare or arguments.unknown:
            names = _names(str(ctx.params.get("experiment")))
            if arguments.bare:
                _refuse_bare(arguments.bare[0], names or [])
            for option, value in arguments.unknown if names is not None else ():
                self._refuse_misspelt(ctx, option, value, names or [])
        return rest

    def _refuse_misspelt(self, ctx: click.Context, option: str, value: str, names: Sequence[str]) -> None:
        """Reject an unknown option that resembles one of ours more than a parameter; the experiment rejects others."""
        key = option.removeprefix("--").replace("-", "_")
        if key in names or key.removeprefix("params.") in names:
            return
        flags, valued = self.own_options(ctx)
        own_names = [name for name in (*flags, *valued) if name.startswith("--")]
        close = difflib.get_close_matches(option, [*own_names, *(f"--{name}" for name in names)], n=1, cutoff=0.75)
        if close and close[0] in own_names:
            suggestion = f"{close[0]} {value}" if close[0] in valued else close[0]
            raise UsageError(f"{option}: neither an option nor a parameter", f"did you mean {suggestion}?")

    def _rewrite(self, ctx: click.Context, args: list[str]) -> _Arguments:
        """Put -P before parameters, and remove the `true` that `mlflow run` adds to flags."""
        flags, valued = self.own_options(ctx)
        rewritten, unknown, bare = _Arguments([], [], [])
        rest = deque(args)
        while rest:
            argument = rest.popleft()
            name, equals, value = argument.partition("=")
            if argument == "--":
                rewritten += [argument, *rest]
                break
            if argument in valued:
                rewritten += [argument, _value_of(argument, rest)]
            elif (flag := name.replace("_", "-")) in flags:
                rewritten += [flag] if _is_on(value if equals else None, rest) else []
            elif equals and name.isidentifier() and not Path(argument).exists():
                bare.append(argument)
            elif not name.startswith("--") or name in valued:
                rewritten.append(argument)
            else:
                value = value if equals else _value_of(name, rest, flags)
                unknown.append((name, value))
                rewritten += ["-P", f"{name.removeprefix('--')}={value}"]
        return _Arguments(rewritten, unknown, bare)

    def own_options(self, ctx: click.Context) -> tuple[set[str], set[str]]:
        """The option strings that take no value, and those that take one."""
        flags: set[str] = set(ctx.help_option_names)
        valued: set[str] = set()
        for parameter in self.params:
            if isinstance(parameter, click.Option):
                names = {*parameter.opts, *parameter.secondary_opts}
                (flags if parameter.is_flag else valued).update(names)
        return flags, valued


def _names(reference: str) -> list[str] | None:
    """The parameters and settings of an experiment; None if it cannot be loaded."""
    from proftrack import experiment
    from proftrack.experiment.overrides import BARE, SETTINGS

    try:
        return [*experiment.load(reference).params, *BARE, *SETTINGS]
    except ProftrackError:
        return None


def _refuse_bare(pair: str, names: Iterable[str]) -> NoReturn:
    key, _, value = pair.partition("=")
    name = next((name for name in names if name.lower() == key.lower()), key)
    raise UsageError(f"{pair}: a parameter needs -P before it", f"did you mean -P {name}={value}?")


def _is_on(value: str | None, rest: deque[str]) -> bool:
    """Whether a flag is on: given alone, or with the value that `mlflow run -P flag=true` adds."""
    if value is None:
        value = rest.popleft() if rest and rest[0].lower() in ("true", "false") else "true"
    return value.lower() != "false"


def _value_of(option: str, rest: deque[str], flags: Iterable[str] = ()) -> str:
    """The value after an option. If there is none, one of `flags`, which take no value, may have been meant."""
    value = rest.popleft() if rest else None
    if value is None or value.startswith("--"):
        how = f"write {option} VALUE, or {option}=VALUE for a value that starts with --"
        raise UsageError(f"{option} has no value", f"{how}{meant(option, flags)}")
    return value


def parameters(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises UsageError for a text without a key or without `=`, and for two values for one key.
    """
    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not (key and equals):
            raise UsageError(f"-P {pair}: not a parameter", "write it as -P name=value")
        if texts.setdefault(key, value) != value:
            raise UsageError(f"{key} is given twice, as {texts[key]} and as {value}", "give it once")
    return texts
