"""The rank, the stage and the process that a trace file belongs to, from its contents or its name."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count, filterfalse
from pathlib import Path, PurePath

from proftrack.errors import UsageError
from proftrack.trace.groups import count_of

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"([0-9]{1,18})")
_TENSOR_PARALLEL = re.compile(r"(?<![a-z0-9])TP[-_]?(\d{1,18})(?!\d)", re.IGNORECASE)
_STAGE = re.compile(
    r"(?<![a-z0-9])(DRAFT[-_]EXTEND|TARGET[-_]VERIFY|EXTEND|PREFILL|DECODE|MIXED)(?![a-z0-9])", re.IGNORECASE
)
"""Serving engines write one trace for each stage of a rank: `...-TP-0-EXTEND.trace.json.gz`, `...-TP-0-DECODE...`."""
_WORD = re.compile(r"[^\W\d_]+")
_WORKER = re.compile(r"^(?P<worker>.+?)[._](?P<time>\d{10,})(?:\.cycle\d+)?(?=\.)")
_CYCLE = re.compile(r"\.cycle\d+(?=\.)")
LARGEST_RANK = 10**18 - 1
"""A larger number cannot be a rank."""


def stated_rank(value: object) -> int | None:
    """The rank in a trace's `distributedInfo`: a number, or one written as text. None for anything else."""
    rank = count_of(value)
    return rank if rank is not None and rank <= LARGEST_RANK else None


def numbered(ranks: Sequence[int | None]) -> list[int]:
    """The ranks, with unknown ones numbered in order by the numbers that are free."""
    free = filterfalse({rank for rank in ranks if rank is not None}.__contains__, count())
    return [next(free) if rank is None else rank for rank in ranks]


def below_common(paths: Sequence[Path]) -> dict[Path, PurePath]:
    """Each path relative to the folder that all are in: what tells the files of several folders apart."""
    folders = {path: path.parent.absolute() for path in paths}
    try:
        common = os.path.commonpath(set(folders.values()))
    except ValueError:  # on different drives
        return {path: PurePath(path.name) for path in paths}
    return {path: PurePath(os.path.relpath(folder, common)) / path.name for path, folder in folders.items()}


def rank_of(
    path: PurePath, distributed_rank: int | None, pattern: str | None = None, *, shared_name: bool = False
) -> int | None:
    """The rank of a trace: by `pattern` (one group), else as the trace says, else by its name or its folder's.

    `path` is relative to the folder that all files are in. A pattern is matched on the file's name, then on the path;
    on the path alone if the name is the same in other folders (`shared_name`).
    Raises UsageError if the pattern is not a regular expression with a group of digits, or does not match.
    """
    if pattern is not None:
        texts = [path.as_posix()] if shared_name else [path.name, path.as_posix()]
        return _by_pattern(texts, pattern)
    if distributed_rank is not None:
        return distributed_rank
    folders = path.parent.parts[::-1]
    names = [*folders, path.name] if shared_name else [path.name, *folders]
    match = next(filter(None, map(_RANK_IN_NAME.search, names)), None)
    if match is None and shared_name and folders:
        match = _NUMBER.fullmatch(folders[0])
    return int(match[1]) if match else None


def _by_pattern(texts: Sequence[str], pattern: str) -> int:
    try:
        match = next(filter(None, (re.search(pattern, text) for text in texts)), None)
        if match is None:
            raise UsageError(
                f"--rank-from {pattern!r} does not match {texts[-1]}", "give a pattern that matches every file"
            )
        rank = int(match[1])
    except (re.error, IndexError, ValueError) as error:
        problem = f"--rank-from {pattern!r} is not a regular expression with one group of digits ({error})"
        raise UsageError(problem, "write, for example, 'rank(\\d+)'") from error
    if not 0 <= rank <= LARGEST_RANK:
        raise UsageError(
            f"--rank-from {pattern!r} takes {rank} from {texts[-1]}, which is not a rank",
            "give a pattern that matches a rank",
        )
    return rank


def stages_of(paths: Iterable[PurePath]) -> dict[PurePath, str | None]:
    """The stage in each file's path, in capitals; None for all if they have no more than one stage."""
    found = {path: _STAGE.findall(path.as_posix()) for path in paths}
    stages = {path: words[-1].upper().replace("-", "_") if words else None for path, words in found.items()}
    return stages if len(set(stages.values()) - {None}) > 1 else dict.fromkeys(stages)


def kinds_of(members: Sequence[tuple[PurePath, int | None]]) -> list[str | None]:
    """What tells the files of each rank apart if their names differ in words (`rank0_train`, `rank0_eval`).

    Such files are no cycles of one process. None for all unless every rank has a file with each of the words.
    """
    words = [tuple(_WORD.findall(path.as_posix())) for path, _ in members]
    of_rank: defaultdict[int | None, set[tuple[str, ...]]] = defaultdict(set)
    for (_, rank), each in zip(members, words, strict=True):
        of_rank[rank].add(each)
    if len(of_rank) < 2 or None in of_rank or any(each != set(words) for each in of_rank.values()):
        return [None] * len(members)
    common = set.intersection(*map(set, words))
    return ["_".join(word for word in each if word not in common).upper() or None for each in words]


def by_tensor_parallel(names: Sequence[tuple[str, str | None]]) -> list[int | None]:
    """The number after TP in each name, given with its stage: a rank if it is there once in each stage. Else None."""
    numbers = [(int(match[1]) if (match := _TENSOR_PARALLEL.search(name)) else None) for name, _ in names]
    each = Counter(zip(numbers, (stage for _, stage in names), strict=True))
    return numbers if None not in numbers and max(each.values(), default=0) == 1 else [None] * len(names)


def worker_of(path: PurePath) -> str:
    """The part of the path that all traces of one process share; torch writes HOST_PID.TIME.pt.trace.json per cycle."""
    name = _CYCLE.sub("", path.name)
    match = _WORKER.match(name)
    return (path.parent / (match["worker"] if match else name)).as_posix()
