"""Reads one JSON value that is not quite JSON, where what was meant needs no guess.

torch writes names without escaping quotes (before 2.7 backslashes and control characters too) and numbers as bare
`nan` or `inf`; other tools leave commas over or out. Everything else raises NotJson. One
pass, no backtracking: the first place where a text can end is where it ends.
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

# What must stand behind the quote that closes a text: a quote inside a text has something else behind it.
_COMMA = r"[ \t\r\n]*(?:,[ \t\r\n]*)?"
_BEHIND_JSON = {"}": re.compile(r"[ \t\r\n]*[,}]"), "]": re.compile(r"[ \t\r\n]*[,\]]")}
_BEHIND_MEMBER = re.compile(rf'{_COMMA}(?:"[^"\n]{{0,64}}"[ \t\r\n]*:|\}}[ \t\r\n]*(?:[,\]}}]|\Z))')
_BEHIND_ITEM = re.compile(rf'[ \t\r\n]*,[ \t\r\n]*["0-9\[{{tfnN-]|{_COMMA}\][ \t\r\n]*(?:[,\]}}]|\Z)')
# The name of an event is the text that nobody escapes, and anything may stand in it; but the keys behind it are few.
_EVENT_KEYS = "ph|cat|name|pid|tid|ts|dur|tts|tdur|args|id|s|bp|cname|sf|stack"
_BEHIND_NAME = re.compile(rf'{_COMMA}(?:"(?:{_EVENT_KEYS})"[ \t\r\n]*:|\}}[ \t\r\n]*\Z)')


class NotJson(ValueError):
    """It is not clear what was meant; `at_end`: perhaps because the text ends too early."""

    def __init__(self, what: str, *, at_end: bool = False) -> None:
        super().__init__(what)
        self.at_end = at_end


class Lenient:
    """One value of `text`. Numbers come as int or Decimal, so that no digit is lost; what is no number as None."""

    def __init__(self, text: str, *, is_event: bool = False) -> None:
        self.text = text
        self.faults: list[str] = []
        """What was not JSON, in the order of the text."""
        self._is_event = is_event
        self._has_twice = False

    def whole(self) -> Any:
        """The value that is the whole text. Raises NotJson where it is not clear what was meant."""
        value, end = self.value(_blank(self.text, 0), 0)
        if _blank(self.text, end) != len(self.text):
            raise NotJson("more than one value")
        if self._has_twice and self.faults:
            raise NotJson("a key stands there twice")  # a text may have ended too early
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
                raise NotJson("a key was expected", at_end=position >= len(self.text))
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
        """Skip what separates two parts of an object or array: one comma, in JSON."""
        match = _BLANK_OR_COMMA.match(self.text, position)
        behind = match.end() if match else position
        commas = self.text.count(",", position, behind)
        if commas != (between and self.text[behind : behind + 1] != end):
            self.faults.append("a comma over" if commas else "a missing comma")
        return behind

    def _string(self, position: int, closing: str, behind: re.Pattern[str]) -> tuple[str, int]:
        """A text in an object or array that `closing` ends: JSON's own, else up to the first quote before `behind`."""
        plain = _TEXT.match(self.text, position)
        if plain is not None and _BEHIND_JSON[closing].match(self.text, plain.end()):
            return self._unescaped(plain[1]), plain.end()
        close = position
        while (close := self.text.find('"', close + 1)) >= 0:
            if behind.match(self.text, close + 1):
                return self._unescaped(self.text[position + 1 : close]), close + 1
        raise NotJson("no end of a text is certain", at_end=True)

    def _unescaped(self, raw: str) -> str:
        def mended(match: re.Match[str]) -> str:
            if len(match[0]) > 1:
                return match[0]
            self.faults.append("a quote inside a text" if match[0] == '"' else "a backslash inside a text")
            return "\\" + match[0]

        if "\\" not in raw and '"' not in raw and not _CONTROL.search(raw):
            return raw
        if _CONTROL.search(raw):
            self.faults.append("a control character inside a text")
        text: str = json.loads(f'"{_ESCAPE.sub(mended, raw)}"', strict=False)
        whole, lone = _SURROGATE.subn("\ufffd", text)
        if lone:
            self.faults.append("half a character inside a text")
        return whole

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
        what = f"{word[:20]!r} is no value" if word else "a value was expected"
        raise NotJson(what, at_end=end >= len(self.text))


_LITERALS = {"true": True, "false": False, "null": None}


def number(word: str) -> int | Decimal | None:
    """An integer as int and any other number as Decimal; None where it is too long or too large to be one."""
    try:
        return int(word) if len(word) < 1000 and word.lstrip("-").isdigit() else Decimal(word)
    except InvalidOperation:
        return None


def _blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position
