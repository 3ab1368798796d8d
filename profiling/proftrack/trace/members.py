"""The root object's keys around its event array, read one by one, so that a broken one does not cost the others."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from proftrack.trace.lenient import Lenient, skip_blank
from proftrack.untrusted import is_too_deep

EVENTS = "traceEvents"
MAX_MEMBERS = 10_000
"""Of the root object; torch writes some thirty."""

_KEY = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.){0,1024})"[ \t\r\n]*:[ \t\r\n]*')
_EVENTS_KEY = re.compile(rf'"{EVENTS}"[ \t\r\n]*:[ \t\r\n]*\[')
_SCANNER = json.JSONDecoder(strict=False)
_NEAR_END = 64
"""A fault this close to the end of the data read so far may only mean that the rest is missing."""


class Scan(NamedTuple):
    """Members of an object, as far as the text goes."""

    members: dict[str, Any]
    position: int
    """Just after the last member that was read."""
    state: str
    """events: `position` is after the `[` of the event array. closed: after the object's `}`. more: the text ends
    inside a member. broken: the text that follows is not JSON."""
    faults: list[str]
    """What was repaired."""


def scan(data: bytes, position: int, *, at_end: bool, after_member: bool = False) -> Scan:
    """Read members from `position` on, which is after the object's `{` or, with `after_member`, after a value."""
    text = data.decode("latin-1")  # one character per byte: offsets stay those of the file
    members: dict[str, Any] = {}
    faults: list[str] = []
    for _ in range(MAX_MEMBERS):
        here, commas = _separator(text, position)
        if text.startswith("}", here):
            faults += ["an extra comma"] * bool(commas)
            return Scan(members, here + 1, "closed", faults)
        try:
            key, start, end = _member(text, here, at_end)
        except _NoMember as fault:
            return Scan(members, position, "more" if fault.is_short and not at_end else "broken", faults)
        if commas != after_member:
            faults.append("an extra comma" if commas else "a missing comma")
        if end is None:
            return Scan(members, start + 1, "events", faults)
        members[key] = _value(data[start:end], faults)
        position, after_member = end, True
    return Scan(members, position, "broken", faults)


class _NoMember(Exception):
    """There is no member at this position; `is_short`: perhaps because the text ends inside it."""

    def __init__(self, is_short: bool) -> None:
        super().__init__()
        self.is_short = is_short


def _member(text: str, here: int, at_end: bool) -> tuple[str, int, int | None]:
    """A member's key, and the start and end of its value; the end is None for the event array, not read here."""
    match = _KEY.match(text, here)
    if match is None:
        raise _NoMember(len(text) - here < _NEAR_END or text.find('"', here + 1) < 0)
    start = match.end()
    if match[1] == EVENTS and text.startswith("[", start):
        return EVENTS, start, None
    try:
        key = json.loads(f'"{match[1]}"')
    except ValueError as error:
        raise _NoMember(False) from error
    try:
        _, end = _SCANNER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        is_short = error.msg.startswith("Unterminated string") or error.pos > len(text) - _NEAR_END
        raise _NoMember(is_short and not _is_too_deep(text[start : error.pos])) from error
    except (ValueError, RecursionError) as error:
        raise _NoMember(False) from error
    if _is_too_deep(text[start:end]):
        raise _NoMember(False)
    behind = skip_blank(text, end)
    if behind == len(text) and not at_end:
        raise _NoMember(True)  # a number may continue
    if text[behind : behind + 1] not in (",", "}", "") and not _KEY.match(text, behind):
        raise _NoMember(len(text) - behind < _NEAR_END)
    return key, start, end


def _is_too_deep(text: str) -> bool:
    return is_too_deep(text.encode("latin-1"))


def mended(data: bytes, start: int, end: int) -> dict[str, Any]:
    """The members in [start, end), with their faults repaired. Raises ValueError if that needs guessing."""
    text = data[start:end].decode("utf-8", "replace").strip(" \t\r\n,")
    value = Lenient("{" + text + "}").whole()
    if not isinstance(value, dict):
        raise ValueError("no members")
    plain: dict[str, Any] = _value(json.dumps(value, default=float).encode(), [])
    return plain


def find_events(data: bytes, position: int) -> tuple[int, int] | None:
    """Where after `position` the key of an event array begins, and where its first event may begin."""
    match = _EVENTS_KEY.search(data.decode("latin-1"), position)
    return match.span() if match else None


def _separator(text: str, position: int) -> tuple[int, int]:
    """Where the next member begins, and how many commas precede it."""
    commas = 0
    position = skip_blank(text, position)
    while text.startswith(",", position):
        commas, position = commas + 1, skip_blank(text, position + 1)
    return position, commas


def _value(piece: bytes, faults: list[str]) -> Any:
    """A value as a Python object; NaN, infinities and integers over 64 bits become None."""

    def no_number(word: str) -> None:
        faults.append(f"a bare {word}")

    hooks: dict[str, Any] = {"parse_constant": no_number, "parse_int": _whole, "parse_float": _finite}
    text = piece.decode("utf-8", "replace")
    try:
        return json.loads(text, **hooks)
    except ValueError:
        faults.append("a control character")
        return json.loads(text, strict=False, **hooks)


def _whole(word: str) -> int | None:
    return int(word) if len(word) < 20 and abs(int(word)) < 2**63 else None


def _finite(word: str) -> float | None:
    number = float(word)
    return number if math.isfinite(number) else None
