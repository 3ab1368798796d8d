"""The command line in this process, and how long tests wait for another one."""

from __future__ import annotations

import pytest

from proftrack.cli import main

PATIENCE_S = 600
"""A wait that ends in a failure: long enough for a slow machine with much else to do, so none is a measure of speed."""


def call(*arguments: str) -> int:
    """The exit code of `proftrack ARGUMENTS`."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)
