"""The process groups that a trace states: in its metadata (`distributedInfo`), and beside each collective."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

LARGEST_GROUP = 10**6
"""A larger number cannot be a number of ranks."""
_MOST_DIGITS = 20
"""Of a number written as text; Python refuses to convert thousands."""
_SHORTENED = re.compile(r"\s*\[(?P<first>[\d,\s]+),\s*\.\.\.,\s*(?P<last>\d{1,18})\s*\]\s*")


def count_of(value: object) -> int | None:
    """A rank, a number of ranks, or a sequence number, that may be written as text. None for anything else."""
    if isinstance(value, str) and len(value) <= _MOST_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def world_size(distributed: dict[str, Any] | None) -> int | None:
    """How many ranks the run had; None if the trace does not say."""
    size = count_of((distributed or {}).get("world_size"))
    return size if size and size <= LARGEST_GROUP else None


def ranks_in(value: object, size: int | None = None) -> tuple[int, ...] | None:
    """The ranks of a list, or of one written as text (`[0, 1]`), in order. None if it is not a list.

    A list of more than thirty is shortened (`[0, 2, ..., 126]`): its ranks follow if they are evenly spaced and as many
    as `size` says.
    """
    if isinstance(value, str) and (shortened := _SHORTENED.fullmatch(value[:10_000])):
        return _evenly_spaced(shortened["first"], int(shortened["last"]), size)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list):
        return None
    ranks = [count_of(item) for item in value]
    return tuple(sorted({rank for rank in ranks if rank is not None})) if None not in ranks and ranks else None


def _evenly_spaced(first: str, last: int, size: int | None) -> tuple[int, ...] | None:
    numbers = [count_of(rank.strip()) for rank in first.split(",")]
    shown = [rank for rank in numbers if rank is not None]
    steps = {after - before for before, after in pairwise(shown)} or {1}
    step = steps.pop()
    whole = range(shown[0], last + 1, step) if step > 0 and shown else range(0)
    if None in numbers or steps or size is None or size > LARGEST_GROUP or len(whole) != size or whole[-1] != last:
        return None
    return tuple(whole)


def configured(distributed: dict[str, Any] | None) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that this rank is in, by the group's name (`pg_config`); groups of one rank left out."""
    listed = (distributed or {}).get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        ranks, size = ranks_in(entry.get("ranks")), count_of(entry.get("pg_size"))
        if ranks is None and size is not None and size == world_size(distributed):
            ranks = tuple(range(size))
        if ranks is not None and len(ranks) > 1:
            groups[str(entry.get("pg_name"))] = ranks
    return groups
