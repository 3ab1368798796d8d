"""How deeply a document of others may be nested: one limit, ours, since each Python's own is another.

Python 3.10 and 3.11 end a decoder's recursion at some 1,000 levels less the caller's own, 3.12 and 3.13 at some 10,000,
3.14 where the stack ends: the same file would be read by one and refused by the next.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_LEVELS = 100
"""Of lists and objects in each other. An event of a trace has five, a record seven."""

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_QUOTE, _UP, _DOWN = 0, 1, 0xFF
"""What a mark does to the level, as an int8: a quote nothing, an opening bracket +1, a closing one -1."""
_STEPS = bytes.maketrans(b'"[{]}', bytes([_QUOTE, _UP, _UP, _DOWN, _DOWN]))


class TooDeepError(msgspec.DecodeError):
    """Nested deeper than MAX_LEVELS."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_LEVELS} levels")


def levels(data: bytes) -> int:
    """Levels of the deepest list or object; exact for valid JSON. A megabyte takes about 1 ms."""
    import numpy as np

    if b"\\" in data:
        data = _ESCAPED.sub(b"", data)
    steps = np.frombuffer(data.translate(_STEPS, _OTHERS), np.int8)
    # Odd: inside a text. Wraps, and stays odd; a sum is several times faster than numpy's logical_xor.accumulate.
    quotes = np.cumsum((steps == _QUOTE).view(np.int8), dtype=np.int8)
    return int(np.cumsum(steps * (~quotes & 1), dtype=np.int32).max(initial=0))


def is_too_deep(data: bytes) -> bool:
    """Whether the JSON in `data` is nested deeper than MAX_LEVELS."""
    return levels(data) > MAX_LEVELS


def decode(data: bytes, type: Any = Any) -> Any:
    """A JSON document that others may have written. Raises TooDeepError, msgspec.DecodeError (also for wrong types)."""
    if is_too_deep(data):
        raise TooDeepError
    return msgspec.json.decode(data, type=type)
