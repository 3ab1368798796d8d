"""Walks a batch that does not decode, event by event, and repairs the events that need no guessing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from proftrack.trace.lenient import Lenient, NotJson
from proftrack.trace.marks import argument
from proftrack.trace.rows import EXACT_ROW, Args, ExactRow
from proftrack.trace.table import NONE
from proftrack.trace.values import ABSENT
from proftrack.untrusted import is_too_deep

LOOK_AHEAD = 4096
"""Bytes after a `]` that show whether it ends the events or is among them."""
SHORT = 1 << 14
"""Nearly every event is shorter."""
MAX_TRIES = 8
"""How many possible ends of a broken event are tried: bounds the work for one that cannot be repaired."""

_NO_ARGS = Args()
_BLANK = re.compile(rb"[ \t\r\n]*")
_KEYS = rb'\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|tts|tdur|args|id|s|bp|cname|sf)"[ \t\r\n]*:'
_EVENT = re.compile(_KEYS)
_COMMA = rb"[ \t\r\n]*(?:,[ \t\r\n]*)?"
_ARRAY_END = rb'\][ \t\r\n]*(?:\}|,[ \t\r\n]*"[^"\n]{1,64}"[ \t\r\n]*:'
# The last byte of an event is followed by the next event or the end of the array; at the file's end also by nothing.
_EVENT_END = re.compile(rb"\}(?=" + _COMMA + rb"(?:" + _KEYS + rb"|" + _ARRAY_END + rb")))")
_EVENT_END_LAST = re.compile(rb"\}(?=" + _COMMA + rb"(?:" + _KEYS + rb"|" + _ARRAY_END + rb"|[ \t\r\n]*\Z)))")
_ARRAY_ENDS = re.compile(_ARRAY_END + rb")")
_ENCODER = msgspec.json.Encoder(decimal_format="number")  # as written: a float64 of an epoch time is off by 125 ns
_SCANNER = json.JSONDecoder(strict=False)


class Event(NamedTuple):
    """A row read from bytes [start, end) of the batch."""

    start: int
    end: int
    row: ExactRow
    fault: str | None
    """What was not JSON and was repaired."""


class Fault(NamedTuple):
    """A harmless fault between events: an extra or a missing comma."""

    start: int
    what: str


class Lost(NamedTuple):
    """Bytes [start, end) that cannot be read as an event."""

    start: int
    end: int
    why: str


class Rest(NamedTuple):
    """The batch ends here, inside an event or before it is clear what follows it."""

    start: int
    after_comma: bool = False


class ArrayEnd(NamedTuple):
    """The event array ends just before `end`."""

    end: int


def walk(data: bytes, *, at_end: bool, after_comma: bool) -> Iterator[Event | Fault | Lost | Rest | ArrayEnd]:
    """The contents of the batch `data`, in order; the last item is a Rest or an ArrayEnd.

    `at_end`: the file ends with this batch. `after_comma`: a comma precedes the batch.
    """
    text = data.decode("latin-1")  # one character per byte: offsets stay those of the file
    position = _blank(data, 0)
    while position < len(data):
        byte = data[position : position + 1]
        if byte == b"]" and not at_end and len(data) - position < LOOK_AHEAD:
            break
        if byte == b"]" and not in_the_midst(data, position):
            if after_comma:
                yield Fault(position, "an extra comma before the end of the events")
            yield ArrayEnd(position + 1)
            return
        if byte == b",":
            yield Fault(position, "an extra comma between events")
            position = _blank(data, position + 1)
            continue
        event = _event(data, text, position, at_end)
        if isinstance(event, Rest):
            break
        behind = _blank(data, event.end)
        comma = data[behind : behind + 1] == b","
        following = _blank(data, behind + 1) if comma else behind
        if following == len(data) and not at_end:
            break  # only the next batch shows whether a comma is missing or extra
        yield event
        after_comma = comma
        if not comma and isinstance(event, Event) and data[following : following + 1] not in (b"]", b""):
            yield Fault(event.end, "a missing comma between events")
        position = following
    yield Rest(position, after_comma)


def holds_events(data: bytes) -> bool:
    """Whether anything in these bytes looks like the beginning of an event."""
    return _EVENT.search(data) is not None


def in_the_midst(data: bytes, position: int) -> bool:
    """Whether events continue after the `]` at this offset, so that it does not end them."""
    return _EVENT.search(data, position) is not None and not _ARRAY_ENDS.match(data, position)


def _event(data: bytes, text: str, start: int, at_end: bool) -> Event | Lost | Rest:
    """The event that begins at `start`."""
    end = _end_of_json(text, start)
    if end is None or is_too_deep(data[start:end]):
        return _broken_event(data, start, at_end)
    piece = data[start:end]
    try:
        row = EXACT_ROW.decode(piece)
        piece.decode("utf-8")  # also what the decoder skips
        return Event(start, end, row, None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        return Event(start, end, *mend(piece))
    except NotJson as error:
        return Lost(start, end, f"not an event ({error})")


def _end_of_json(text: str, start: int) -> int | None:
    """Where the JSON value at `start` ends; None if it is not valid JSON."""
    for size in (SHORT, len(text)):
        try:
            # Only part of the text: an error counts the lines before it, which is slow for many errors in a long text.
            return start + _SCANNER.raw_decode(text[start : start + size])[1]
        except json.JSONDecodeError as error:
            if len(text) - start <= size or (error.pos < SHORT - 100 and not error.msg.startswith("Unterminated")):
                return None
        except (ValueError, RecursionError):
            return None
    return None


def _broken_event(data: bytes, start: int, at_end: bool) -> Event | Lost | Rest:
    """An event that is not JSON: it ends at the first possible end up to which it can be repaired."""
    if data[start : start + 1] != b"{":
        following = _EVENT.search(data, start)
        if following is None and not at_end:
            return Rest(start)
        return Lost(start, following.start() if following else len(data), "not an event")
    ends: list[int] = []
    why, is_certain = "", False
    for match in (_EVENT_END_LAST if at_end else _EVENT_END).finditer(data, start):
        ends.append(match.end())
        try:
            return Event(start, match.end(), *mend(data[start : match.end()]))
        except NotJson as error:
            why = why or f"not a valid event ({error}) and cannot be repaired without guessing"
            is_certain = not error.at_end or len(ends) == MAX_TRIES
        if is_certain:
            break
    if ends and (at_end or is_certain):
        following = _EVENT.search(data, start + 1, ends[0])
        return Lost(start, following.start() if following else ends[0], why)
    return Rest(start)


def mend(piece: bytes) -> tuple[ExactRow, str | None]:
    """One event as a row, and its first fault, if any. Raises NotJson if repairing it would need guessing."""
    event, faults = _read(piece)
    return _row(event), faults[0] if faults else None


def mended(piece: bytes) -> bytes:
    """The same event as JSON, with all its members. Raises NotJson if repairing it would need guessing."""
    return _ENCODER.encode(_read(piece)[0])


def arguments(data: bytes, found: list[Event]) -> list[Raw]:
    """The arguments of events of the batch `data`, as JSON."""
    pieces = [(data[event.start : event.end], event.fault) for event in found]
    return [argument(mended(piece) if fault else piece) for piece, fault in pieces]


def _read(piece: bytes) -> tuple[dict[str, Any], list[str]]:
    faults = []
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        text = piece.decode("utf-8", "replace")
        faults.append("bytes that are not UTF-8")
    reader = Lenient(text, is_event=True)
    event = reader.whole()
    if not isinstance(event, dict):
        raise NotJson(f"{text[:20]!r} is not an object")
    return event, faults + reader.faults


def _row(event: dict[str, Any]) -> ExactRow:
    """A typed row; values of impossible types are left out."""
    args = event.get("args")
    return ExactRow(
        ph=_as_text(event.get("ph", "")),
        cat=_as_text(event.get("cat", "")),
        name=_as_text(event.get("name", "")),
        pid=_as_label(event.get("pid")),
        tid=_as_label(event.get("tid")),
        ts=_as_time(event.get("ts")),
        dur=_as_time(event.get("dur")),
        args=_args(args) if isinstance(args, dict) else None,
        id=_as_argument(event.get("id", NONE)),
    )


def _args(values: dict[str, Any]) -> Args:
    known = {f.name: values[f.encode_name] for f in msgspec.structs.fields(Args) if f.encode_name in values}
    for name, value in known.items():
        if getattr(_NO_ARGS, name) is ABSENT:
            known[name] = Raw(json.dumps(value, default=float).encode())
        else:
            known[name] = _as_argument(value)
    return Args(**known)


def _as_argument(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value  # a Decimal as an int may have a billion digits


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, Decimal) else json.dumps(value, default=float)


def _as_label(value: Any) -> int | str | None:
    return value if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)) else str(value)


def _as_time(value: Any) -> Raw:
    """The value's text, for `exact_ns`; anything other than a number or a text is not a time."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, str)):
        return ABSENT
    return Raw(str(value).encode("utf-8", "replace"))


def _blank(data: bytes, position: int) -> int:
    match = _BLANK.match(data, position)
    return match.end() if match else position
