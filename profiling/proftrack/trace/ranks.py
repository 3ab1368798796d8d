"""The rank that a trace file belongs to, from its contents or its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, filterfalse
from pathlib import Path

from proftrack.errors import UsageError

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_WORKER = re.compile(r"^(?P<worker>.+?)[._](?P<time>\d{10,})(?:\.cycle\d+)?(?=\.)")
_CYCLE = re.compile(r"\.cycle\d+(?=\.)")
LARGEST_RANK = 10**18 - 1
"""A larger number cannot be a rank."""


def stated_rank(value: object) -> int | None:
    """The rank in a trace's `distributedInfo`: a number, or one written as text. None for anything else."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_RANK:
        return value
    return None


def numbered(ranks: Sequence[int | None]) -> list[int]:
    """The ranks, with unknown ones numbered in order by the numbers that are free."""
    free = filterfalse({rank for rank in ranks if rank is not None}.__contains__, count())
    return [next(free) if rank is None else rank for rank in ranks]


def rank_of(path: Path, distributed_rank: int | None, pattern: str | None = None) -> int | None:
    """The rank of a trace: by `pattern` (one group, on the file name), else as the trace says, else by its name.

    Raises UsageError if the pattern is not a regular expression with a group of digits, or does not match.
    """
    if pattern is not None:
        return _by_pattern(path, pattern)
    if distributed_rank is not None:
        return distributed_rank
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


def _by_pattern(path: Path, pattern: str) -> int:
    try:
        match = re.search(pattern, path.name)
        if match is None:
            raise UsageError(
                f"--rank-from {pattern!r} does not match {path.name}", "give a pattern that matches every file"
            )
        rank = int(match[1])
    except (re.error, IndexError, ValueError) as error:
        problem = f"--rank-from {pattern!r} is not a regular expression with one group of digits ({error})"
        raise UsageError(problem, "write, for example, 'rank(\\d+)'") from error
    if not 0 <= rank <= LARGEST_RANK:
        raise UsageError(
            f"--rank-from {pattern!r} takes {rank} from {path.name}, which is not a rank",
            "give a pattern that matches a rank",
        )
    return rank


def worker_of(path: Path) -> str:
    """The part of the name that all traces of one process share; torch writes HOST_PID.TIME.pt.trace.json per cycle."""
    name = _CYCLE.sub("", path.name)
    match = _WORKER.match(name)
    return match["worker"] if match else name
