"""Pieces of the sentences that refuse something: a value as it was given, and what was probably meant."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SHOWN = 80


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
