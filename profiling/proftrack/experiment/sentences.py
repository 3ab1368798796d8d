"""How an experiment file is refused: one sentence with the key, the value and what is allowed."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from proftrack.errors import UsageError

_SHOWN = 80


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


def show(value: Any) -> str:
    """A value as it can stand in a sentence: one line, not too long."""
    text = value if isinstance(value, str) and value.isprintable() and value.strip() else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where a known word is close, whatever its case; else nothing."""
    words = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return f"; did you mean {words[close[0]]}?" if close else ""


def no_such_file(path: Path) -> str:
    """The sentence about a file that is not there, with the name in its folder that comes closest."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [each.name for each in path.parent.iterdir()]
    return f"{path}: no such file{meant(path.name, names)}"
