"""Options whose names only the experiment knows: `--n 4096` and `--n=4096` mean `-P n=4096`.

`mlflow run` appends what MLproject does not declare as `--KEY VALUE`, so both ways of writing must do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from proftrack.errors import UsageError

device = click.option(
    "--device", metavar="auto|cuda|cpu", help="Where the workload runs, instead of what its file says."
)
budget = click.option(
    "--budget",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Time that the measurement may take (60, or timing.budget_seconds of its file).",
)
no_mlflow = click.option(
    "--no-mlflow", is_flag=True, help="Keep everything in a folder; `proftrack sync` logs it later."
)


def output(folder: str = "this new folder, whether it is logged or not") -> Callable[[Any], Any]:
    """`--output FOLDER` of a command that measures; `folder` says which it may be."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--output", type=kind, metavar="FOLDER", help=f"Keep everything in {folder}.")


def overrides(pairs: Iterable[str], *, device: str | None = None, budget: float | None = None) -> dict[str, str]:
    """The parameters that a command was given, `--device` and `--budget` among them.

    Raises UsageError as `parameters` does.
    """
    own = {"device": device, "budget_seconds": None if budget is None else f"{budget:g}"}
    return parameters([*pairs, *(f"{key}={value}" for key, value in own.items() if value is not None)])


class ParameterCommand(click.Command):
    """A command that takes options it does not know as parameters of its experiment, `-P KEY=VALUE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write unknown options as -P before click sees them."""
        return super().parse_args(ctx, self._rewrite(ctx, args))

    def _rewrite(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags, valued = self.own_options(ctx)
        rewritten: list[str] = []
        rest = deque(args)
        while rest:
            argument = rest.popleft()
            name, equals, value = argument.partition("=")
            if argument == "--":
                return [*rewritten, argument, *rest]
            if argument in valued:
                rewritten += [argument, _value_of(argument, rest)]
            elif (flag := name.replace("_", "-")) in flags:
                rewritten += [flag] if _said(value if equals else None, rest) else []
            elif not name.startswith("--") or name in valued:
                rewritten.append(argument)
            else:
                key = name.removeprefix("--")
                rewritten += ["-P", f"{key}={value if equals else _value_of(name, rest)}"]
        return rewritten

    def own_options(self, ctx: click.Context) -> tuple[set[str], set[str]]:
        """The option strings that take no value, and those that take one."""
        flags: set[str] = set(ctx.help_option_names)
        valued: set[str] = set()
        for parameter in self.params:
            if isinstance(parameter, click.Option):
                names = {*parameter.opts, *parameter.secondary_opts}
                (flags if parameter.is_flag else valued).update(names)
        return flags, valued


def _said(value: str | None, rest: deque[str]) -> bool:
    """Whether a flag is on: alone, or with the value that `mlflow run -P flag=true` gives it."""
    if value is None:
        value = rest.popleft() if rest and rest[0].lower() in ("true", "false") else "true"
    return value.lower() != "false"


def _value_of(option: str, rest: deque[str]) -> str:
    value = rest.popleft() if rest else None
    if value is None or value.startswith("--"):
        raise UsageError(
            f"{option} has no value; write {option} VALUE, or {option}=VALUE for a value that starts with --"
        )
    return value


def parameters(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises UsageError for a text without a key or without `=`, and for two values of one key.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not (key and equals):
            raise UsageError(f"-P {pair}: not a parameter; write it as -P name=value")
        if found.setdefault(key, value) != value:
            raise UsageError(f"{key} is given twice, as {found[key]} and as {value}; give it once")
    return found
