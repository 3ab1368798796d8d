"""Columns of codes: grouped the same way as numpy's own sort would, whichever way is taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proftrack.trace.codes import Numbering, distinct, grouped, paired, positions
from proftrack.trace.reader import read
from proftrack.trace.table import NONE

CODES = st.integers(NONE, 5)


@given(st.lists(st.integers(0, 99)), st.sampled_from([100, 10**6]))
def test_distinct_is_numpys_unique(keys: list[int], bound: int) -> None:
    array = np.array(keys, dtype=np.int64)
    unique, position = distinct(array, bound)
    wanted, inverse = np.unique(array, return_inverse=True)
    assert (unique.tolist(), position.tolist()) == (wanted.tolist(), inverse.tolist())


@given(st.lists(st.tuples(CODES, CODES, CODES)))
def test_groups_are_the_distinct_rows(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], dtype=np.int32) for i in range(3)]
    first, group = grouped(columns)
    assert [rows[i] for i in first.tolist()] == sorted(set(rows))
    assert [rows[first[g]] for g in group.tolist()] == rows


def test_positions_add_what_is_not_known() -> None:
    known = ["b", "a"]
    assert positions(["a", "c", "c", "b", "d"], known).tolist() == [1, 2, 2, 0, 3]
    assert known == ["b", "a", "c", "d"]
    assert positions([], known).tolist() == []


def test_groups_of_nothing() -> None:
    with pytest.raises(ValueError, match="no columns"):
        grouped([])


def test_pairs_stand_for_their_codes() -> None:
    code, pairs = paired(np.array([1, 0, 1], dtype=np.int32), np.array([2, NONE, 2], dtype=np.int32))
    assert (code.tolist(), pairs) == ([1, 0, 1], [(0, NONE), (1, 2)])


@pytest.mark.parametrize("keys", [["a"] * 3, ["a", "b", "a"], []])
def test_numbers_in_the_order_of_asking(keys: list[str]) -> None:
    numbering = Numbering()
    assert numbering.codes(["b"]).tolist() == [0]
    wanted = {"b": 0, "a": 1}
    assert numbering.codes(keys).tolist() == [wanted[key] for key in keys]


def test_seven_and_its_text_are_one() -> None:
    numbering = Numbering()
    assert numbering.codes([7, "7", 8]).tolist() == [0, 1, 2]
    codes, texts = numbering.texts()
    assert (codes.tolist(), texts) == ([0, 0, 1], ["7", "8"])


@pytest.mark.parametrize(
    ("device", "stream", "grid", "wanted"),
    [
        (0, 7, [4, 2, 1], (0, "7", 8)),
        ("0", "7", [4, 2], (0, "7", 8)),
        (None, None, None, (3, "9", NONE)),  # old traces: pid and tid
        (-1, [1], "4", (NONE, "[1]", NONE)),
        (5000, {"a": 1}, [2**62, 4], (NONE, "{'a': 1}", NONE)),
        (1.5, True, [1.5, 2, 3], (NONE, "True", NONE)),
    ],
)
def test_device_stream_and_grid_of_any_type(
    device: object, stream: object, grid: object, wanted: tuple[int, str, int], tmp_path: Path
) -> None:
    args = {"device": device, "stream": stream, "grid": grid, "correlation": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 9, "ts": 1, "dur": 2, "args": args}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [kernel, kernel]}))
    table = read(tmp_path / "t.json").table
    [lane] = {table.lanes[code] for code in table.lane.tolist()}
    assert (*lane, *set(table.blocks.tolist())) == wanted
    assert set(table.device.tolist()) == {wanted[0]}
