"""Columns of codes: small numbers that stand for a column's distinct values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from proftrack.trace.table import NONE, Codes, Ints

SPARSE = 4
"""A table of all possible keys is faster than a sort if it has at most this many times as many entries as rows."""


class Numbering(dict[Any, int]):
    """Gives each distinct key the next number on first use."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number

    def codes(self, keys: Sequence[Any]) -> Codes:
        """The number of each key. Raises TypeError if a key is not hashable."""
        if keys and keys[0] == keys[-1] and keys.count(keys[0]) == len(keys):  # one process, one thread
            return np.full(len(keys), self[keys[0]], dtype=np.int32)
        return np.fromiter(map(self.__getitem__, keys), dtype=np.int32, count=len(keys))

    def texts(self) -> tuple[Codes, list[str]]:
        """For each number, the number of its key as text, and the texts: 7 and "7" are the same text."""
        texts = Numbering()
        return texts.codes([str(key) for key in self]), list(texts)


def positions(keys: Sequence[Any], known: list[Any]) -> Codes:
    """The position of each key in `known`, which has each of its own once; keys that it lacks are added to it."""
    numbers = Numbering({key: number for number, key in enumerate(known)})
    codes = numbers.codes(keys)
    known += list(numbers)[len(known) :]
    return codes


def distinct(keys: Ints, bound: int) -> tuple[Ints, Ints]:
    """The distinct `keys` in order, all in 0 .. bound - 1, and each key's position among them."""
    if bound > SPARSE * len(keys) + 1024:
        unique, position = np.unique(keys, return_inverse=True)
        return unique, position.reshape(-1)  # only numpy 2.0 gives it the input's shape
    present = np.zeros(bound, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[keys]


def grouped(columns: Iterable[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """Groups rows with the same codes in all columns (NONE is a code too): one row per group, and each row's group."""
    group: Ints | None = None
    groups = 1
    for codes in columns:
        wide = int(codes.max(initial=NONE)) + 2
        keys = codes.astype(np.int64) + 1
        unique, group = distinct(keys if group is None else group * wide + keys, groups * wide)
        groups = len(unique)
    if group is None:
        raise ValueError("no columns to group by")
    first = np.zeros(groups, dtype=np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    return first, group


def grouped_values(columns: Iterable[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """The same for columns of any numbers, not only codes."""
    return grouped([np.unique(values, return_inverse=True)[1] for values in columns])


def paired(first: Codes, second: Codes) -> tuple[Codes, list[tuple[int, int]]]:
    """Two columns of codes combined into one, and the pair that each new code stands for."""
    rows, group = grouped((first, second))
    return group.astype(np.int32), list(zip(first[rows].tolist(), second[rows].tolist(), strict=True))
