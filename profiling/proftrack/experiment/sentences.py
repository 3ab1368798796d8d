"""How an experiment file is refused: one sentence with the key, the value and what is allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from proftrack.errors import UsageError
from proftrack.text import meant, show


class Refusal:
    """Raises UsageError about one file: `refuse(problem)`, with a suggestion where a known word is close."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, problem: str, word: str = "", known: Iterable[str] = ()) -> NoReturn:
        """Refuse; `word` is what was given, `known` what could have been meant."""
        raise UsageError(f"{self.path}: {problem}{meant(word, known)}")

    def unknown_keys(self, given: Mapping[Any, Any], known: Iterable[str], noun: str) -> None:
        """Refuse the first key that is not among `known`."""
        known = list(known)
        for key in given:
            if key not in known:
                self(f"unknown {noun} {show(key)}; allowed: {', '.join(known) or 'none'}", str(key), known)


def no_such_file(path: Path) -> str:
    """The sentence about a file that is not there, with the name in its folder that comes closest."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [each.name for each in path.parent.iterdir()]
    return f"{path}: no such file{meant(path.name, names)}"
