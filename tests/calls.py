"""The command line in this process, and how long tests wait for another one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from proftrack.cli import main

PATIENCE_S = 600
"""A wait that ends in a failure: long enough for a slow machine with much else to do, so none is a measure of speed."""


class Shown(NamedTuple):
    """How a command ended, and all that it wrote."""

    code: int
    out: str
    err: str


def call(*arguments: str | Path) -> int:
    """The exit code of `proftrack ARGUMENTS`."""
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return int(stop.value.code or 0)


def show(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Shown:
    """The same with what it wrote; what was written before is dropped."""
    capsys.readouterr()
    code = call(*arguments)
    return Shown(code, *capsys.readouterr())
