"""Events that are not valid JSON: cut out one by one, and mended where that needs no guess.

torch writes names without escaping quotes, backslashes and control characters, and numbers as bare `inf` or `nan`;
other tools leave commas over or out. Each mend below undoes one of these; what still is not JSON is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from proftrack.events.rows import EXACT_ROW, ExactRow

_ENCODER = msgspec.json.Encoder(decimal_format="number")

_BETWEEN_EVENTS = re.compile(rb'[}\]]\s*,?\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
_ARRAY_END = re.compile(rb'\}\s*,?\s*\](?=\s*(?:$|\}\s*$|,\s*"[\w .-]+"\s*:))')
_BLANK = re.compile(rb"[\s,]*")
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_SCANNER = json.JSONDecoder(strict=False)

_BARE = re.compile(r"(?<=[:\[,])(\s*)(?:[-+]?(?:nan|inf|infinity)(?:\(ind\))?|N/A|None|undefined)(?=\s*[,}\]])", re.I)
_COMMA_BEFORE_END = re.compile(r",(\s*[}\]])")
_COMMA_MISSING = re.compile(r'(?<=["\d\]}])(\s+)(?="[\w .%()/-]+"\s*:)')
_DOUBLE_COMMA = re.compile(r",(\s*,)+")
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_VALUE = re.compile(
    r"""(?P<key>"(?:[^"\\\n]|\\.){1,64}"\s*:\s*)"      # a key and the quote that opens its text
        (?P<text>.*?)"                                 # the shortest text whose closing quote ...
        (?=\s*(?:,\s*"[\w .%()/-]{1,64}"\s*:           # ... has the next key behind it,
              |\}\s*(?:[,\]}]|$)))                     # ... or the end of an object that something may follow
    """,
    re.VERBOSE | re.DOTALL,
)


class Piece(NamedTuple):
    """One event's text within a batch."""

    start: int
    text: bytes
    complete: bool
    """False for the last piece of a batch that ends inside it."""


def split_events(data: bytes) -> tuple[list[Piece], int | None]:
    """Cut a batch of events into pieces, trusting its JSON only as far as it goes.

    Returns the pieces and, where the event array ends in this batch, the offset behind its `]` (else None).
    """
    text = data.decode("latin-1")  # one character a byte: offsets stay those of the file
    pieces: list[Piece] = []
    position = _skip(data, 0)
    while position < len(data):
        if data[position : position + 1] == b"]":
            return pieces, position + 1
        try:
            _, end = _SCANNER.raw_decode(text, position)
            pieces.append(Piece(position, data[position:end], True))
        except (ValueError, RecursionError):
            end, complete, last = _guessed_end(data, position)
            pieces.append(Piece(position, data[position:end], complete))
            if last is not None:
                return pieces, last
        position = _skip(data, end)
    return pieces, None


def _skip(data: bytes, position: int) -> int:
    """The next byte that is neither blank nor a comma."""
    match = _BLANK.match(data, position)
    return match.end() if match else position


def _guessed_end(data: bytes, start: int) -> tuple[int, bool, int | None]:
    """Where an event that is not JSON ends: before the next one, or before the end of the array.

    Returns its end, whether it is known to be complete, and the offset behind the array's `]` where that follows.
    """
    gap = _BETWEEN_EVENTS.search(data, start + 1)
    while gap is not None and not _balanced(data[start : gap.start() + 1]):
        gap = _BETWEEN_EVENTS.search(data, gap.start() + 1)
    if gap is not None:
        return gap.start() + 1, True, None
    if last := _ARRAY_END.search(data, start):
        return last.start() + 1, True, last.end()
    return len(data), False, None


def _balanced(text: bytes) -> bool:
    """Whether an event may end here: one that is nested in another's arguments does not end it."""
    bare = _STRING.sub(b"", text)
    return bare.count(b"{") <= bare.count(b"}")


def mend(text: bytes) -> tuple[ExactRow, bool]:
    """One event as a row, and whether its JSON had to be mended. Raises ValueError where it cannot be."""
    for number, candidate in enumerate(_candidates(text)):
        try:
            event = json.loads(candidate, strict=False, parse_float=Decimal, parse_constant=_no_constant)
        except (ValueError, RecursionError, InvalidOperation):
            continue
        if not isinstance(event, dict):
            raise ValueError("an event must be an object")
        return _row_of(event), number > 0
    raise ValueError("not valid JSON, and no repair of it is certain")


def _no_constant(_: str) -> None:
    """Bare NaN and Infinity, which Python's reader accepts: a figure that is none."""


def _row_of(event: dict[str, Any]) -> ExactRow:
    """A typed row; a value of a type that cannot be is left out."""
    for key in ("ph", "cat", "name"):
        if not isinstance(event.get(key, ""), str):
            event[key] = str(event[key])
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), (int, str, NoneType)):
            event[key] = str(event[key])
    if not isinstance(event.get("args", {}), dict):
        del event["args"]
    return EXACT_ROW.decode(_ENCODER.encode(event))


def _candidates(text: bytes) -> Iterator[str]:
    plain = text.decode("utf-8", "replace")
    if "�" not in plain or text.decode("utf-8", "ignore") == plain:
        yield plain
    else:
        yield ""  # not UTF-8: what follows is a mended text
        yield plain
    mended = _BARE.sub(r"\1null", plain)
    yield mended
    mended = _COMMA_MISSING.sub(r",\1", _DOUBLE_COMMA.sub(",", _COMMA_BEFORE_END.sub(r"\1", mended)))
    yield mended
    quoted = _VALUE.sub(_escape_value, mended)
    yield quoted
    yield _BAD_ESCAPE.sub(_escaped, quoted)


def _escape_value(match: re.Match[str]) -> str:
    """A key and its text, with the quotes and backslashes inside the text escaped."""
    text = _BARE_QUOTE.sub(_escaped, match["text"])
    return f'{match["key"]}"{_BAD_ESCAPE.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]
