"""Values as a file writes them, as numbers: times, ids and sizes, of any type."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from msgspec import Raw

from proftrack.trace.table import NONE, Ints

Column = Sequence[Any]
"""One field of many rows, as decoded."""
ABSENT = Raw()
"""Value of a Raw field that the file does not have."""
FLOAT_IS_EXACT_BELOW_US = 2.0**43
"""Below this a float64 of microseconds is off by less than half a nanosecond."""
INVALID = np.iinfo(np.int64).min
"""A time that is none, in nanoseconds of the file's clock."""
LIMIT = 2**62
"""Times, sizes and counts from here on are not real."""
MAX_DEVICES = 1024
"""More GPUs than any host has."""


def exact_ns(text: bytes) -> int:
    """Nanoseconds of a JSON number (or a string with one) in microseconds; `INVALID` for anything else."""
    text = text.strip(b'"')
    whole, _, part = text.partition(b".")
    try:
        if len(part) == 3:  # as torch writes it
            return _bounded_ns(int(whole + part))
        if not part:
            return _bounded_ns(int(whole) * 1000)
        raise ValueError
    except ValueError:
        return _ns_of_decimal(text)


def _ns_of_decimal(text: bytes) -> int:
    """Nanoseconds of a number with an exponent, or with more or fewer than three decimals."""
    try:
        us = Decimal(text.decode("ascii", "replace"))
        # Converting a huge exponent to int takes forever, and the number is out of range anyway.
        return _bounded_ns(int((us * 1000).to_integral_value())) if us.is_finite() and us.adjusted() < 20 else INVALID
    except ArithmeticError:
        return INVALID


def _bounded_ns(value: int) -> int:
    return value if -LIMIT < value < LIMIT else INVALID


class InexactTimes(Exception):
    """These rows have a time that a float64 cannot represent to the nanosecond: decode them as ExactRow."""


def exact_times(values: Column) -> Ints:
    """Nanoseconds of microseconds as raw JSON; INVALID for anything else."""
    return np.array([exact_ns(bytes(value)) for value in values], dtype=np.int64)


def ns_of_floats(values: Column) -> Ints:
    """Nanoseconds of microseconds, integer and fraction apart so that no product exceeds 2**53. Raises InexactTimes."""
    try:
        us = np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:  # an integer of hundreds of digits
        raise InexactTimes from None
    size = np.abs(us)
    usual = bool(size.max(initial=0.0) < FLOAT_IS_EXACT_BELOW_US)  # False if one is NaN
    if not usual:
        bad = ~(size < LIMIT / 1000)
        us[bad] = 0.0
        # A float may have been rounded to a whole number: what matters is that it was written with decimals.
        if (np.abs(us) >= FLOAT_IS_EXACT_BELOW_US).any() and any(type(v) is float for v in values):
            raise InexactTimes
    whole = np.floor(us)
    ns = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    if not usual:
        ns[bad] = INVALID
    return ns


def int64(values: Column) -> Ints:
    """Ids of any type."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (OverflowError, TypeError, ValueError):
        return np.array([_as_id(v) for v in values], dtype=np.int64)


def _as_id(value: Any) -> int:
    """An id of any type as int64. Ids over 63 bits wrap or hash, so that joins still work."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return hash(value) if isinstance(value, str) else NONE
    return (number + 2**63) % 2**64 - 2**63


def size_of(value: Any) -> int:
    """A size or a count; NONE for anything that is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    return int(value) if isinstance(value, (int, float)) and 0 <= value < LIMIT else NONE


def devices(values: list[Any]) -> Ints:
    """Numbers of devices; NONE for anything that is none. The usual case, all of them integers, is one operation."""
    numbers = np.array(values) if set(map(type, values)) <= {int} else None
    if numbers is None or numbers.dtype != np.int64:
        numbers = np.array([_as_device(value) for value in values], dtype=np.int64)
    return np.where((numbers >= 0) & (numbers < MAX_DEVICES), numbers, NONE)


def _as_device(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:5])
    return value if isinstance(value, int) and 0 <= value < MAX_DEVICES else NONE
