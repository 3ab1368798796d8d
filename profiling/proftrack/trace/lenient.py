"""Reads one value that is not quite JSON, as long as its meaning needs no guessing.

torch writes names without escaping quotes (before 2.7 backslashes and control characters too) and numbers as bare
`nan` or `inf`; other tools write extra commas or leave them out. Everything else raises NotJson. One pass, no
backtracking: a string ends at the first place where it can end.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from proftrack.untrusted import MAX_LEVELS

_BLANK = re.compile(r"[ \t\r\n]*")
_BLANK_OR_COMMA = re.compile(r"[ \t\r\n,]*")
_TEXT = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"')
_KEY = re.compile(r'"((?:[^"\\\n]|\\.){0,1024})"[ \t\r\n]*:[ \t\r\n]*')
_WORD = re.compile(r'[^ \t\r\n,:"\[\]{}]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(
    r"[-+]?(?:nan|inf|infinity)(?:\((?:ind|snan)\))?|N/A|None|undefined|[-+]?1\.#\w+", re.IGNORECASE
)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|[\\"]')
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")

# What must follow the quote that closes a string: a quote inside a string is followed by something else.
_COMMA = r"[ \t\r\n]*(?:,[ \t\r\n]*)?"
_BEHIND_JSON = {"}": re.compile(r"[ \t\r\n]*[,}]"), "]": re.compile(r"[ \t\r\n]*[,\]]")}
_BEHIND_MEMBER = re.compile(rf'{_COMMA}(?:"[^"\n]{{0,64}}"[ \t\r\n]*:|\}}[ \t\r\n]*(?:[,\]}}]|\Z))')
_BEHIND_ITEM = re.compile(rf'[ \t\r\n]*,[ \t\r\n]*["0-9\[{{tfnN-]|{_COMMA}\][ \t\r\n]*(?:[,\]}}]|\Z)')
# An event's name is the string that tools fail to escape, and it may contain anything; but few keys can follow it.
_EVENT_KEYS = "ph|cat|name|pid|tid|ts|dur|tts|tdur|args|id|s|bp|cname|sf|stack"
_BEHIND_NAME = re.compile(rf'{_COMMA}(?:"(?:{_EVENT_KEYS})"[ \t\r\n]*:|\}}[ \t\r\n]*\Z)')


class NotJson(ValueError):
    """The meaning is unclear; `at_end`: perhaps because the text ends too early."""

    def __init__(self, what: str, *, at_end: bool = False) -> None:
        super().__init__(what)
        self.at_end = at_end


class Lenient:
    """Reader of the value in `text`. Numbers become int or Decimal, so that no digit is lost; NaN and the like None."""

    def __init__(self, text: str, *, is_event: bool = False) -> None:
        self.text = text
        self.faults: list[str] = []
        """What was not JSON, in text order."""
        self._is_event = is_event
        self._has_twice = False

    def whole(self) -> Any:
        """The value that the whole text holds. Raises NotJson if its meaning is unclear."""
        value, end = self.value(skip_blank(self.text, 0), 0)
        if skip_blank(self.text, end) != len(self.text):
            raise NotJson("more than one value")
        if self._has_twice and self.faults:
            raise NotJson("a key occurs twice")  # a string may have ended too early
        return value

    def value(self, position: int, depth: int) -> tuple[Any, int]:
        """The value that begins at `position`, and where it ends."""
        first = self.text[position : position + 1]
        if first in ("{", "[") and depth >= MAX_LEVELS:
            raise NotJson(f"nested deeper than {MAX_LEVELS} levels")
        if first == "{":
            return self._object(position + 1, depth + 1)
        if first == "[":
            return self._array(position + 1, depth + 1)
        if first == '"':
            return self._string(position, "]", _BEHIND_ITEM)
        return self._bare(position)

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        while True:
            position = self._separator(position, bool(members), "}")
            if self.text[position : position + 1] == "}":
                return members, position + 1
            match = _KEY.match(self.text, position)
            if match is None:
                raise NotJson("expected a key", at_end=position >= len(self.text))
            key, position = self._unescaped(match[1]), match.end()
            self._has_twice = self._has_twice or key in members
            if self.text[position : position + 1] == '"':
                is_name = self._is_event and depth == 1 and key == "name"
                members[key], position = self._string(position, "}", _BEHIND_NAME if is_name else _BEHIND_MEMBER)
            else:
                members[key], position = self.value(position, depth)

    def _array(self, position: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            position = self._separator(position, bool(items), "]")
            if self.text[position : position + 1] == "]":
                return items, position + 1
            item, position = self.value(position, depth)
            items.append(item)

    def _separator(self, position: int, between: bool, end: str) -> int:
        """Skip the separator between two parts of an object or array; in JSON that is one comma."""
        match = _BLANK_OR_COMMA.match(self.text, position)
        behind = match.end() if match else position
        commas = self.text.count(",", position, behind)
        if commas != (between and self.text[behind : behind + 1] != end):
            self.faults.append("an extra comma" if commas else "a missing comma")
        return behind

    def _string(self, position: int, closing: str, behind: re.Pattern[str]) -> tuple[str, int]:
        """A string in an object or array closed by `closing`: valid JSON, or up to the first quote before `behind`."""
        plain = _TEXT.match(self.text, position)
        if plain is not None and _BEHIND_JSON[closing].match(self.text, plain.end()):
            return self._unescaped(plain[1]), plain.end()
        close = position
        while (close := self.text.find('"', close + 1)) >= 0:
            if behind.match(self.text, close + 1):
                return self._unescaped(self.text[position + 1 : close]), close + 1
        raise NotJson("it is unclear where a string ends", at_end=True)

    def _unescaped(self, raw: str) -> str:
        def mended(match: re.Match[str]) -> str:
            if len(match[0]) > 1:
                return match[0]
            self.faults.append("an unescaped quote in a string" if match[0] == '"' else "a stray backslash in a string")
            return "\\" + match[0]

        if "\\" not in raw and '"' not in raw and not _CONTROL.search(raw):
            return raw
        if _CONTROL.search(raw):
            self.faults.append("a control character in a string")
        text: str = json.loads(f'"{_ESCAPE.sub(mended, raw)}"', strict=False)
        text, surrogates = _SURROGATE.subn("\ufffd", text)
        if surrogates:
            self.faults.append("a lone surrogate in a string")
        return text

    def _bare(self, position: int) -> tuple[Any, int]:
        match = _WORD.match(self.text, position)
        word = match[0] if match else ""
        end = position + len(word)
        if word in _LITERALS:
            return _LITERALS[word], end
        if _NO_NUMBER.fullmatch(word):
            self.faults.append(f"a bare {word}")
            return None, end
        if _NUMBER.fullmatch(word):
            return number(word), end
        raise NotJson(f"{word[:20]!r} is not a value" if word else "expected a value", at_end=end >= len(self.text))


_LITERALS = {"true": True, "false": False, "null": None}


def number(word: str) -> int | Decimal | None:
    """An integer as int and any other number as Decimal; None if it is too long or too large."""
    try:
        return int(word) if len(word) < 1000 and word.lstrip("-").isdigit() else Decimal(word)
    except InvalidOperation:
        return None


def skip_blank(text: str, position: int) -> int:
    """Where the whitespace that may begin at `position` ends."""
    match = _BLANK.match(text, position)
    return match.end() if match else position
