"""One limit of nesting for all that others wrote, the same on every Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import make_record

from proftrack import record as records
from proftrack import untrusted
from proftrack.errors import ProftrackError, TraceError, UsageError
from proftrack.experiment.file import read as read_experiment
from proftrack.experiment.file import scalar
from proftrack.trace.reader import read
from proftrack.untrusted import MAX_LEVELS, TooDeepError, levels


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"", 0),
        (b'"[[["', 0),
        (b"[]", 1),
        (b'{"a": [1, {"b": []}], "c": [[]]}', 4),
        (rb'["\"[[", "]]]", {"\\": [1]}]', 3),
        (b'["]", ["]", ["]", []]]]', 4),
    ],
)
def test_levels(text: bytes, count: int) -> None:
    assert levels(text) == count


def _deepest(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_deepest, inside), default=0)


@given(st.recursive(st.integers() | st.text('[]{}"\\x'), lambda v: st.lists(v) | st.dictionaries(st.text('["\\'), v)))
def test_levels_are_those_of_the_value(value: Any) -> None:
    assert levels(json.dumps(value).encode()) == _deepest(value)
    assert untrusted.decode(json.dumps(value).encode()) == value


def nested(count: int, middle: str = "") -> str:
    return "[" * count + middle + "]" * count


def test_the_limit_is_exact() -> None:
    assert levels(msgspec.json.encode(untrusted.decode(nested(MAX_LEVELS).encode()))) == MAX_LEVELS
    for count in (MAX_LEVELS + 1, 600, 5_000, 200_000):
        with pytest.raises(TooDeepError, match=f"nested deeper than {MAX_LEVELS} levels"):
            untrusted.decode(nested(count).encode())


EVENT = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":2,"args":{"x":%s}}'


@pytest.mark.parametrize("where", ["unknown", "raw"])
def test_events(where: str, tmp_path: Path) -> None:
    """An event and its args are two levels."""
    path = tmp_path / "trace.json"
    event = EVENT if where == "unknown" else EVENT.replace('"x"', '"Input Dims"')

    def write(count: int) -> None:
        events = [EVENT % (1, "0"), event % (5, nested(count)), EVENT % (9, "0")]
        path.write_text('{"traceEvents":[\n' + ",\n".join(events) + '\n],"x":1}')

    write(MAX_LEVELS - 2)
    assert len(read(path).table) == 3
    for count in (MAX_LEVELS - 1, 600, 3_000, 200_000):
        write(count)
        with pytest.raises(TraceError, match=f"line 3: .*nested deeper than {MAX_LEVELS} levels.*--salvage"):
            read(path)
        table = read(path, salvage=True).table
        assert (len(table), table.notes.skipped, table.meta.fields) == (2, 1, {"x": 1})


@pytest.mark.parametrize("before", [True, False])
def test_keys_beside_the_events(before: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def write(count: int) -> None:
        members = [f'"x":{nested(count)}', '"traceEvents":[\n' + EVENT % (1, "0") + "]"]
        path.write_text("{" + ",".join(members if before else members[::-1]) + "}")

    write(MAX_LEVELS)
    assert len(read(path).table) == 1
    for count in (MAX_LEVELS + 1, 600, 3_000, 50_000):
        write(count)
        with pytest.raises(TraceError, match=f"nested deeper than {MAX_LEVELS} levels.*--salvage"):
            read(path)
        assert len(read(path, salvage=True).table) == 1


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    data = json.loads(records.dump(make_record()))
    assert _deepest(data) < 10
    for count in (MAX_LEVELS + 1, 600, 3_000, 200_000):
        path.write_text(json.dumps(data).replace('"params": {', f'"params": {{"deep": {nested(count)}, ', 1))
        with pytest.raises(ProftrackError, match="nested deeper than any record"):
            records.load(path)


def test_experiments(tmp_path: Path) -> None:
    """The document and its params are two levels."""
    path = tmp_path / "own.yaml"
    path.write_text(f"params:\n  x: {nested(MAX_LEVELS - 2)}\n")
    assert levels(json.dumps(read_experiment(path)).encode()) == MAX_LEVELS
    for count in (MAX_LEVELS - 1, 400, 5_000):
        path.write_text(f"params:\n  x: {nested(count)}\n")
        with pytest.raises(UsageError, match=f"own.yaml:2: not valid YAML: nested deeper than {MAX_LEVELS} levels"):
            read_experiment(path)


def test_values_on_the_command_line() -> None:
    assert levels(json.dumps(scalar(nested(MAX_LEVELS))).encode()) == MAX_LEVELS
    for count in (MAX_LEVELS + 1, 400, 5_000):
        assert scalar(nested(count)) == nested(count)
