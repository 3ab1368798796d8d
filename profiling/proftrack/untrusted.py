"""How deeply an untrusted document may be nested: one limit of our own, since Python's differs between versions.

Python 3.10 and 3.11 stop a decoder's recursion at about 1,000 levels, minus those of the caller, 3.12 and 3.13 at about
10,000, 3.14 at the end of the stack: one version would read a file that the next one refuses.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_LEVELS = 100
"""Nested lists and objects. An event of a trace has five levels, a record seven."""

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_QUOTE, _UP, _DOWN = 0, 1, 0xFF
"""Change of the level at a character, as an int8: a quote 0, an opening bracket +1, a closing one -1."""
_STEPS = bytes.maketrans(b'"[{]}', bytes([_QUOTE, _UP, _UP, _DOWN, _DOWN]))


class TooDeepError(msgspec.DecodeError):
    """Nested deeper than MAX_LEVELS."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_LEVELS} levels")


def levels(data: bytes) -> int:
    """The deepest level of lists and objects; exact for valid JSON. A megabyte takes about 1 ms."""
    import numpy as np

    if b"\\" in data:
        data = _ESCAPED.sub(b"", data)
    steps = np.frombuffer(data.translate(_STEPS, _OTHERS), np.int8)
    # Odd inside a text. As int32 because numpy adds up int8 six times slower; logical_xor.accumulate is slower, too.
    quotes = np.cumsum((steps == _QUOTE).view(np.int8), dtype=np.int32)
    return int(np.cumsum(steps * (~quotes & 1), dtype=np.int32).max(initial=0))


def is_too_deep(data: bytes) -> bool:
    """Whether the JSON in `data` is nested deeper than MAX_LEVELS."""
    return levels(data) > MAX_LEVELS


def decode(data: bytes, type: Any = Any) -> Any:
    """Decode an untrusted JSON document. Raises TooDeepError, msgspec.DecodeError (also for wrong types)."""
    if is_too_deep(data):
        raise TooDeepError
    return msgspec.json.decode(data, type=type)
