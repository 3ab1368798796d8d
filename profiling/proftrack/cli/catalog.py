"""`proftrack run --list`: the experiments that a bare name can refer to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from proftrack.errors import ProftrackError

if TYPE_CHECKING:
    from proftrack.experiment import Experiment


def print_catalog() -> None:
    """Print each experiment: its description, its parameters and their defaults, its sweep and its variants."""
    from rich.markup import escape
    from rich.padding import Padding

    from proftrack import experiment
    from proftrack.experiment.file import catalog
    from proftrack.report.terminal import console

    out = console()
    paths = catalog()
    for path in paths:
        try:
            loaded = experiment.load(str(path))
        except ProftrackError as error:
            out.print(f"[bold]{escape(path.stem)}[/bold]")
            out.print(Padding(escape(str(error)), (0, 0, 1, 4)))
            continue
        out.print(f"[bold]{escape(loaded.name)}[/bold]  {escape(str(path))}")
        for line in _about(loaded):
            out.print(Padding(escape(line), (0, 0, 0, 4)))
        out.print()
    if not paths:
        out.print("No experiments/ folder with YAML files was found here.")


def _about(experiment: Experiment) -> Iterator[str]:
    if experiment.description:
        yield experiment.description
    yield "params    " + (" ".join(f"{key}={_text(value)}" for key, value in experiment.params.items()) or "none")
    for key, allowed in experiment.choices.items():
        yield f"choices   {key}={','.join(map(_text, allowed))}"
    for key, points in experiment.sweep.items():
        yield f"sweep     {key}={','.join(map(_text, points))}"
    if experiment.variants:
        yield f"variants  {', '.join(experiment.variants)}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
