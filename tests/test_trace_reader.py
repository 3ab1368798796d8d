"""Reading trace files: whole ones in any shape, broken ones with a repair, an error or `salvage`; never less unsaid."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from traces import TraceBuilder, clean, rows_of, table_of

from proftrack.analysis.pipeline import analyze_trace
from proftrack.errors import TraceError
from proftrack.trace import reader
from proftrack.trace.reader import read
from proftrack.trace.table import EventTable


def names(table: EventTable) -> list[str]:
    return [table.names[n] for n in table.name]


def written(tmp_path: Path, data: bytes, name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


# -- shapes of whole files

EVENTS = b'[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1.5,"dur":2.25,"args":{}}]'
SHAPES = {
    "compact": b'{"traceEvents":' + EVENTS + b"}",
    "list at the root": EVENTS,
    "byte order mark": b'\xef\xbb\xbf{"traceEvents":' + EVENTS + b"}",
    "blanks around": b'\n\t {"traceEvents" : ' + EVENTS + b"\r\n }\n\n",
    "odd spacing": b'{"traceEvents":' + EVENTS.replace(b",", b" , ").replace(b":", b" :\n") + b" } ",
    "keys behind": b'{"traceEvents":' + EVENTS + b',"deviceProperties":[{"id":0},{"id":1}],"x":{"y":[{},{}]}}',
    "unknown keys before": b'{"a":[{"traceEvents":[{"ph":"X"}]}],"b":"\\"traceEvents\\": [","traceEvents":'
    + EVENTS
    + b"}",
    "duplicate keys": b'{"a":1,"a":2,"traceEvents":' + EVENTS.replace(b'"ph"', b'"ph":"M","ph"') + b',"a":3}',
    "other phases": b'{"traceEvents":[{"ph":"M"},{},' + EVENTS[1:-1] + b',{"ph":"i","ts":"x"}]}',
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_file_is_read_without_a_flag(shape: str, tmp_path: Path) -> None:
    table = read(written(tmp_path, SHAPES[shape])).table
    assert names(table) == ["a"]
    assert table.origin_ns == 1500
    assert table.dur.tolist() == [2250]
    assert table.notes.repaired == 0
    assert table.notes.partial is None


def test_keys_before_and_behind_the_events_are_both_kept() -> None:
    table = table_of(
        b'{"deviceProperties":[{"id":0,"name":"G","numSms":9}],"traceEvents":'
        + EVENTS
        + b',"baseTimeNanoseconds":5,"distributedInfo":{"rank":3},"cuda_runtime_version":13000}'
    )
    assert table.meta.device(0) == {"id": 0, "name": "G", "numSms": 9}
    assert table.meta.base_time_ns == 5
    assert table.meta.distributed == {"rank": 3}
    assert table.meta.fields["cuda_runtime_version"] == 13000


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.trace", "no_ending"])
@pytest.mark.parametrize("packed", [True, False])
def test_compression_is_told_by_content_not_by_name(name: str, packed: bool, tmp_path: Path) -> None:
    text = clean().json()
    path = written(tmp_path, gzip.compress(text) if packed else text, name)
    assert rows_of(read(path).table) == rows_of(clean().table())


def test_several_gzip_members_and_padding(tmp_path: Path) -> None:
    text = clean().json()
    cuts = (0, 1, 700, 700, len(text))
    data = b"".join(gzip.compress(text[a:b]) for a, b in itertools.pairwise(cuts)) + b"\0" * 512
    assert rows_of(read(written(tmp_path, data)).table) == rows_of(clean().table())


# -- the same table however it is cut


@pytest.mark.parametrize("batch", [1, 50, 200, 1000])
@pytest.mark.parametrize("indent", [None, 0, 1, 4])
def test_the_table_does_not_depend_on_the_batch_size(
    batch: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = (
        clean().op("}, {", at=3, dur=1).op("]}, [", at=4, dur=1, Input_Dims=[[1, 2], [3]], x=[{"a": 1}, {"name": 2}])
    )
    path = trace.write(tmp_path / "t.json", indent)
    whole = read(path).table
    monkeypatch.setattr(reader, "BATCH_BYTES", batch)
    monkeypatch.setattr("proftrack.trace.source.CHUNK_BYTES", batch)
    cut = read(path).table
    assert rows_of(cut) == rows_of(whole)
    assert cut.notes == whole.notes
    assert cut.notes.repaired == 0


@pytest.mark.parametrize("separator", [b",", b" ,", b"\n  ,\n", b",\t\r\n "])
def test_a_comma_may_stand_anywhere_between_events(
    separator: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 200)
    monkeypatch.setattr("proftrack.trace.source.CHUNK_BYTES", 64)
    events = [f'{{"ph":"X","cat":"cpu_op","name":"n{i}","ts":{i},"dur":1}}'.encode() for i in range(50)]
    table = read(written(tmp_path, b'{"traceEvents":[' + separator.join(events) + b"]}")).table
    assert names(table) == [f"n{i}" for i in range(50)]
    assert table.notes.repaired == 0


# -- what is mended


def with_names(*raw: bytes, style: str = "torch 2.13") -> bytes:
    """Events with names that are put between quotes as they are, as torch does."""
    patterns = {
        "torch 2.13": b'  {\n    "ph": "X",\n    "cat": "user_annotation",\n    "name": "%s",\n    "pid": 1,\n'
        b'    "tid": 1,\n    "ts": 5126585184358.821,\n    "dur": 1.500\n    ,\n'
        b'    "args": {\n      "External id": 1, "Ev Idx": 0\n    }\n  }',
        "torch 2.6": b'  {\n    "ph": "X", "cat": "user_annotation", "name": "%s", "pid": 1, "tid": 1,\n'
        b'    "ts": 5126585184358.821, "dur": 1.500,\n'
        b'    "args": {\n      "External id": 1, "Ev Idx": 0\n    }\n  }',
        "compact": b'{"name":"%s","ph":"X","cat":"user_annotation","pid":1,"tid":1,"ts":5126585184358.821,"dur":1.500}',
    }
    events = [patterns[style].replace(b"%s", name) for name in (b"before", *raw, b"behind")]
    return b'{\n "traceEvents": [\n' + b",\n".join(events) + b'\n ],\n "traceName": "t.json"\n}\n'


RAW_NAMES = {
    b'quote " in': 'quote " in',
    b'all "quoted"': 'all "quoted"',
    b'"': '"',
    b'""': '""',
    b'{"device": "cpu"}(12): run': '{"device": "cpu"}(12): run',
    b'f("x", "y": 2)': 'f("x", "y": 2)',
    b'a, "ph": "X"': 'a, "ph": "X"',
    b'a, "name": "b"': 'a, "name": "b"',
    b'"], [}': '"], [}',
    b"C:\\path": "C:\\path",
    b"end\\": "end\\",
    b"\\x\\u12": "\\x\\u12",
    b"tab\there": "tab\there",
    b"new\nline": "new\nline",
    b"nul\x00 esc\x1b[31m": "nul\x00 esc\x1b[31m",
    b"caf\xe9": "caf\ufffd",
    b"\xff\xfe": "\ufffd\ufffd",
    b"\\ud800 alone": "\ufffd alone",
    b'"nan": nan, inf': '"nan": nan, inf',
}


@pytest.mark.parametrize("style", ["torch 2.13", "torch 2.6", "compact"])
@pytest.mark.parametrize("raw", RAW_NAMES, ids=repr)
def test_names_that_break_the_json_are_mended(raw: bytes, style: str) -> None:
    table = table_of(with_names(raw, style=style))
    assert names(table) == ["before", RAW_NAMES[raw], "behind"]
    assert (table.ts + table.origin_ns).tolist() == [5126585184358821] * 3
    assert table.dur.tolist() == [1500] * 3
    assert table.notes.repaired == 1
    assert table.notes.repaired_example is not None
    assert "line" in table.notes.repaired_example
    assert table.notes.partial is None


def test_every_broken_name_in_one_file_whatever_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, with_names(*RAW_NAMES))
    whole = read(path).table
    assert names(whole) == ["before", *RAW_NAMES.values(), "behind"]
    assert whole.notes.repaired == len(RAW_NAMES)
    for batch in (1, 100, 350, 2000):
        monkeypatch.setattr(reader, "BATCH_BYTES", batch)
        monkeypatch.setattr("proftrack.trace.source.CHUNK_BYTES", batch)
        table = read(path).table
        assert rows_of(table) == rows_of(whole)
        assert table.notes == whole.notes


@pytest.mark.parametrize(
    ("broken", "args"),
    [
        (b'{"External id": 7, "Process Group": "a "b" c", "x": 1}', {"external_id": 7}),
        (b'{"External id": 7, "path": "C:\\dir\\", "x": 1}', {"external_id": 7}),
        (b'{"External id": 7, "bandwidth": inf}', {"external_id": 7}),
        (b'{"External id": 7, "a": -nan(ind), "b": N/A, "c": None, "d": 1.#INF}', {"external_id": 7}),
        (b'{"a": nan, "External id": 7}', {"external_id": 7}),
        (b'{"External id": 7,}', {"external_id": 7}),
        (b'{, "External id": 7}', {"external_id": 7}),
        (b'{"External id": 7,, "Ev Idx": 9}', {"external_id": 7, "ev_idx": 9}),
        (b'{"External id": 7 "Ev Idx": 9}', {"external_id": 7, "ev_idx": 9}),
        (b'{"x": "y" "External id": 7}', {"external_id": 7}),
        (b'{"x": [1, 2,], "External id": 7}', {"external_id": 7}),
        (b'{"x": ["a "quoted" b", "c"], "External id": 7}', {"external_id": 7}),
        (b'{"x": [{"y": 1} {"z": nan}], "External id": 7}', {"external_id": 7}),
    ],
)
def test_faults_in_the_arguments_are_mended(broken: bytes, args: dict[str, int]) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":%s}'
    ok = event.replace(b"%s", b"{}")
    table = table_of(b'{"traceEvents":[' + b",\n".join([ok, event.replace(b"%s", broken), ok]) + b"]}")
    assert len(table) == 3
    assert {key: int(getattr(table, key)[1]) for key in args} == args
    assert table.notes.repaired == 1
    assert table.dur.tolist() == [2000] * 3


@pytest.mark.parametrize(
    ("joined", "repairs"),
    [
        (b"%s,%s,%s,", 1),
        (b",%s,%s,%s", 1),
        (b"%s,,%s,%s", 1),
        (b"%s,%s %s", 1),
        (b"%s%s%s", 2),
        (b",%s,,,%s\n%s,", 5),
    ],
)
@pytest.mark.parametrize("batch", [1, 60, 1 << 20])
def test_commas_over_or_missing_between_events(
    joined: bytes, repairs: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", batch)
    monkeypatch.setattr("proftrack.trace.source.CHUNK_BYTES", batch)
    events = joined
    for name in (b"a", b"b", b"c"):
        events = events.replace(b"%s", b'{"ph":"X","name":"' + name + b'","ts":1,"dur":1}', 1)
    for text in (b'{"traceEvents":[' + events + b"]}", b"[" + events + b"]"):
        table = table_of(text)
        assert names(table) == ["a", "b", "c"]
        assert table.notes.repaired == repairs


@pytest.mark.parametrize(
    "text",
    [
        b'{"bw": nan, "traceEvents": %s}',
        b'{"traceName": "C:\\dir\\", "traceEvents": %s}',
        b'{"traceName": "a "b" c", "traceEvents": %s}',
        b'{"a": 1,, "traceEvents": %s}',
        b'{"a": 1 "traceEvents": %s}',
        b'{"traceEvents": %s, "bw": inf}',
        b'{"traceEvents": %s, "traceName": "a "b" c"}',
        b'{"traceEvents": %s, "traceName": "tab\there",}',
        b'{"traceEvents": %s "traceName": "x"}',
        b'{"traceEvents": %s}\n{"and": "more"}',
        b'{"traceEvents": %s}garbage',
        b"%s garbage",
    ],
)
def test_faults_around_the_events_are_mended(text: bytes) -> None:
    table = table_of(text.replace(b"%s", EVENTS))
    assert names(table) == ["a"]
    assert table.notes.repaired >= 1


def test_numbers_around_the_events_that_no_machine_wrote_are_left_out() -> None:
    table = table_of(
        b'{"a":1e999,"b":' + b"9" * 5000 + b',"c":18446744073709551616,"d":-5,"deviceProperties":[{"id":[1]},{"id":0,'
        b'"numSms":1e400},7],"distributedInfo":{"rank":1e999},"baseTimeNanoseconds":"x","traceEvents":' + EVENTS + b"}"
    )
    assert table.meta.fields == {"d": -5}
    assert table.meta.device_properties == [{}, {"id": 0}]
    assert table.meta.distributed == {"rank": None}
    assert table.meta.base_time_ns is None


def test_a_broken_key_beside_the_events_does_not_cost_the_others() -> None:
    table = table_of(b'{"a": 7, "b": nan, "c": "x"y", "traceEvents": ' + EVENTS + b', "d": inf, "e": 8}')
    fields = table.meta.fields
    assert (fields["a"], fields["c"], fields["e"]) == (7, 'x"y', 8)


# -- types that cannot be


def test_numbers_written_as_text_are_numbers() -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": "0", "tid": "7", "ts": "1000.125", "dur": "2"}
    text = json.dumps({"traceEvents": [{**event, "args": {"correlation": "12", "device": "1", "bytes": "64"}}]})
    table = table_of(text.encode())
    assert rows_of(table)[0][4:6] == (1_000_125, 2000)
    assert table.correlation.tolist() == [12]
    assert table.lanes == [(1, "7")]
    assert table.size.tolist() == [64]
    assert table.notes.repaired == 0


def test_a_file_with_all_times_as_text_takes_the_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr("proftrack.trace.repair.walk", forbidden)
    events = [{"ph": "X", "name": "a", "ts": str(i), "dur": "1"} for i in range(100)]
    assert len(table_of(json.dumps({"traceEvents": events}).encode())) == 100


def test_ids_beyond_53_and_64_bits_stay_apart_and_keep_their_joins() -> None:
    ids = [2**53 + 1, 2**53 + 2, 2**63 + 5, 2**64 + 7, 2**64 + 8, 10**30]
    trace = TraceBuilder()
    for i, correlation in enumerate(ids):
        trace.work(correlation, launch=i * 10, at=i * 10 + 2, dur=3)
    table = trace.table()
    assert len(set(table.correlation.tolist())) == len(ids)
    assert trace.measures().totals.gpu_events_without_launch == 0


@pytest.mark.parametrize("value", [None, [1], [], {}, {"a": 1}, "", "x", 1.5, True, 1e300, -1, [[1], [2]]])
@pytest.mark.parametrize(
    "key", ["correlation", "External id", "Ev Idx", "device", "stream", "grid", "bytes", "Input Dims"]
)
def test_arguments_of_any_type_do_not_matter_to_the_rest(key: str, value: Any) -> None:
    trace = TraceBuilder().op("a", at=0, dur=10).kernel("k", at=1, dur=2)
    for event in trace.events:
        event["args"][key] = value
    table = trace.table()
    assert names(table) == ["a", "k"]
    assert table.dur.tolist() == [10_000, 2000]
    trace.measures()


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [1], {"a": 1}, "x"])
@pytest.mark.parametrize("key", ["name", "cat", "pid", "tid", "args", "ph"])
def test_fields_of_any_type_do_not_matter_to_the_rest(key: str, value: Any) -> None:
    trace = TraceBuilder().op("a", at=0, dur=10).op("b", at=20, dur=10).kernel("k", at=1, dur=2)
    trace.events[1][key] = value
    table = trace.table()
    expected = ["a", "b" if key != "name" else value if isinstance(value, str) else json.dumps(value), "k"]
    if key == "ph":
        expected = ["a", "k"]
    assert names(table) == expected
    trace.measures()


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize(
    "text", ["null", '""', '"x"', "[1]", "{}", "true", "-1e99", "1e400", "1e9999999999", "9" * 5000, "absent"]
)
def test_times_that_cannot_be_are_counted_and_cost_nothing_else(key: str, text: str) -> None:
    event = '{"ph":"X","cat":"kernel","name":"k","ts":5,"dur":2,"args":{}}'
    field = f'"{key}":{5 if key == "ts" else 2},'
    broken = event.replace(field, "" if text == "absent" else f'"{key}":{text},')
    assert broken != event
    table = table_of(f'{{"traceEvents":[{event},{broken},{event}]}}'.encode())
    assert table.valid.tolist() == [True, False, True]
    assert table.notes.repaired == 0


def test_a_thread_is_one_whether_its_id_is_a_number_or_a_text() -> None:
    trace = TraceBuilder().op("a", at=0, dur=10, thread=5).op("b", at=2, dur=3, thread="5")
    table = trace.table()
    assert table.thread[0] == table.thread[1]
    assert {op.name: op.self_cpu_time_us for op in trace.measures().ops} == {"a": 7, "b": 3}


# -- what cannot be read

WHOLE = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}'


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"   \n ", "only whitespace"),
        (b"<html><body>404</body></html>", "not a JSON trace"),
        (b"\x00\x01\x02\x03", "not a JSON trace"),
        (b"PK\x03\x04zip", "not a JSON trace"),
        (b"\xff\xfe{\x00", "not a JSON trace"),
        (b'"traceEvents"', "not a JSON trace"),
        (b"17", "not a JSON trace"),
        (b"{}", "contains no"),
        (b'{"a": {"traceEvents": [1]}}', "contains no"),
        (b'{"traceEvents": null}', "null"),
        (b'{"traceEvents": {"ph": "X"}}', "not a list"),
        (b'{"traceEvents": "x\x1b[31m"}', "not a list"),
        (b'{"a": 1, "traceEven', "byte 19, line 1"),
        (b'{"a": 1,\n', "line 2"),
        (b'{"a": {1}}', "not valid JSON"),
        (gzip.compress(b"", mtime=0), "only whitespace"),
        (b"\x1f\x8b\x08garbage", "gzip"),
        (b"\x1f\x8b", "gzip"),
    ],
)
def test_what_is_no_trace_is_refused_with_one_sentence(data: bytes, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, data)
    for salvage in (False, True):
        message = error_of(path, salvage=salvage)
        assert says in message
        assert "\x1b" not in message


def test_missing_files_folders_and_pipes(tmp_path: Path) -> None:
    assert "No such file" in error_of(tmp_path / "missing.json")
    assert "folder" in error_of(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    assert "pipe" in error_of(tmp_path / "pipe.json")
    assert "cannot be read" in error_of(tmp_path / ("x" * 300))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, SHAPES["compact"])

    def denied(self: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        assert "Permission denied" in error_of(path)
    monkeypatch.setattr(Path, "stat", denied)
    assert "Permission denied" in error_of(path)


@pytest.mark.parametrize(
    "events", [b"", b'{"ph":"M","name":"process_name","pid":1,"args":{"name":"python"}}', b'{"ph":"i","ts":5},{}']
)
def test_without_complete_events_there_is_nothing_to_analyze(events: bytes, tmp_path: Path) -> None:
    for text in (b'{"traceEvents":[' + events + b"]}", b"[" + events + b"]"):
        path = written(tmp_path, text)
        assert len(read(path).table) == 0
        with pytest.raises(TraceError, match="no complete events"):
            analyze_trace(path)


@pytest.mark.parametrize("junk", [b"null", b"17", b'"text"', b"[1, 2]", b"true"])
def test_events_that_are_no_objects(junk: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, b'{"traceEvents":[\n' + WHOLE + b",\n" + junk + b",\n" + WHOLE + b'],"x":1}')
    message = error_of(path)
    assert f"byte {17 + len(WHOLE) + 2}, line 3" in message
    table = read(path, salvage=True).table
    assert names(table) == ["a", "a"]
    assert table.notes.skipped == 1
    assert "line 3" in (table.notes.partial or "")
    assert table.meta.fields == {"x": 1}


@pytest.mark.parametrize(
    "broken",
    [
        b'{"ph":"X","cat":"cpu_op","name":"b","ts":1,"dur":2',  # no closing brace
        b'{"ph":"X","cat":"cpu_op","name":"b","ts":12abc,"dur":2}',
        b'{"ph":"X","cat":"cpu_op","name":"b","ts":,"dur":2}',
        b'{"ph":"X","cat":"cpu_op","name" "b","ts":1,"dur":2}',
        b'{"ph":"X","cat":"cpu_op",name:"b","ts":1,"dur":2}',
        b'{"ph":"X","args":{"a":[1,2},"name":"b","ts":1,"dur":2}',
        b'{"ph":"X","name":"b","args":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}",
        b'{"ph":"X","name":"b","args":{"x":' + b"[" * 300_000 + b"}}",
        b"}",
        b"]",
        b"\x00\x00\x00",
        b"@#!",
        b'{"ph":"X","cat":"cpu_op","name":"}, {"ph": "X", "cat": "kernel"","pid":1,"ts":1,"dur":2}',
        b'{"ph":"X","name":"f("a", "ts": 3)","pid":1,"ts":1,"dur":2}',
    ],
    ids=lambda b: b[:40],
)
@pytest.mark.parametrize("batch", [100, 1 << 20])
def test_what_needs_a_guess_is_an_error_and_salvage_reads_the_others(
    broken: bytes, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", batch)
    monkeypatch.setattr("proftrack.trace.source.CHUNK_BYTES", batch)
    events = [WHOLE, WHOLE, broken, *[WHOLE] * 12]
    path = written(tmp_path, b'{\n"traceEvents":[\n' + b",\n".join(events) + b'],"x":1}')
    message = error_of(path)
    assert "line 5" in message
    assert "--salvage" in message
    table = read(path, salvage=True).table
    assert names(table).count("a") == 14
    assert table.notes.skipped >= 1
    assert table.notes.partial is not None
    assert table.meta.fields == {"x": 1}


def test_a_second_list_of_events_is_not_lost_silently(tmp_path: Path) -> None:
    for text in (
        b'{"traceEvents":[%s],"traceEvents":[%s]}',
        b'{"traceEvents":[%s]}\n{"traceEvents":[%s]}',
        b"[%s]\n[%s]",
        b'{"traceEvents":[%s]],%s}',
        b'{"traceEvents":[%s],%s]}',
    ):
        path = written(tmp_path, text.replace(b"%s", WHOLE))
        assert "--salvage" in error_of(path)
        table = read(path, salvage=True).table
        assert len(table) >= 1
        assert table.notes.partial is not None


# -- truncation


def test_truncation_at_any_byte_is_an_error_and_salvage_keeps_what_is_whole(tmp_path: Path) -> None:
    trace = TraceBuilder().op("a", at=0, dur=9).work(1, launch=1, at=3, dur=5).op("b", at=10, dur=2)
    text = trace.member(deviceProperties=[]).json(None)
    ends = [i + 1 for i in range(len(text)) if text[i : i + 1] == b"}" and _is_event_end(text, i)]
    assert len(ends) == 4
    for cut in [*range(0, len(text), 2), *range(len(text) - 60, len(text))]:
        path = written(tmp_path, text[:cut])
        message = error_of(path)
        if cut > 100:
            assert f"byte {cut}" in message
        if text.index(b'"traceEvents": [') + 16 <= cut:
            table = read(path, salvage=True).table
            assert len(table) == sum(end <= cut for end in ends)
            assert table.notes.partial is not None
    assert read(written(tmp_path, text)).table.notes.partial is None


def _is_event_end(text: bytes, i: int) -> bool:
    return text[i - 1 : i] == b"}" and text.index(b'"traceEvents"') < i < text.index(b'"traceName"')


def test_truncation_of_a_list_root(tmp_path: Path) -> None:
    text = b"[" + b", ".join([WHOLE] * 3) + b"]"
    for cut in range(1, len(text)):
        path = written(tmp_path, text[:cut])
        assert error_of(path)
        assert len(read(path, salvage=True).table) == text[:cut].count(b'"dur":2}')


def test_truncation_of_gzip_at_any_byte(tmp_path: Path) -> None:
    text = clean().json()
    data = gzip.compress(text)
    for cut in range(1, len(data)):
        path = written(tmp_path, data[:cut], "t.json.gz")
        try:
            table = read(path).table
        except TraceError:
            continue
        # Only the check sum and some bits before it are missing: all of the JSON is there, and that is said.
        assert cut >= len(data) - 12
        assert rows_of(table) == rows_of(clean().table())
        assert table.notes.repaired == 1


def test_bytes_behind_a_gzip_stream_are_said(tmp_path: Path) -> None:
    table = read(written(tmp_path, gzip.compress(clean().json()) + b"garbage")).table
    assert rows_of(table) == rows_of(clean().table())
    assert table.notes.repaired == 1
    assert "not gzip" in (table.notes.repaired_example or "")


def test_a_gzip_file_with_a_wrong_check_sum_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(clean().json()))
    data[-8] ^= 1
    path = written(tmp_path, bytes(data), "t.json.gz")
    assert "damaged" in error_of(path)
    assert "damaged" in (read(path, salvage=True).table.notes.partial or "")


# -- bounds


def test_max_bytes_bounds_what_is_inside(tmp_path: Path) -> None:
    path = clean().write(tmp_path / "t.json.gz")
    size = len(clean().json())
    assert "--max-bytes" in error_of(path, max_bytes=size - 1)
    assert len(read(path, max_bytes=size).table) == 10


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"", b"\0" * 1024),
        (b"", b" " * 1024),
        (b'{"a":"', b"x" * 1024),
        (b'{"a":', b"[" * 1024),
        (b'{"traceEvents":[', b"{}," * 512),
        (b'{"traceEvents":[', b" " * 1024),
        (b'{"traceEvents":[{"ph":"X","name":"', b"x" * 1024),
        (b'{"traceEvents":[{"ph":"X","name":"a" b', b"x" * 1024),
        (b'{"traceEvents":[{},', b"[" * 1024),
        (b'{"traceEvents":[],"a":"', b"x" * 1024),
        (b'{"traceEvents":[]}', b" " * 1024),
    ],
    ids=lambda b: b[:24],
)
def test_a_bomb_is_refused_early(head: bytes, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proftrack.trace.source.RATIO_FROM_BYTES", 4 << 20)
    monkeypatch.setattr(reader, "MAX_EVENT_BYTES", 4 << 20)
    monkeypatch.setattr(reader, "MAX_MEMBERS_BYTES", 4 << 20)
    path = written(tmp_path, gzip.compress(head + body * (16 << 10), 9), "t.json.gz")
    begin = time.process_time()
    error_of(path)
    assert time.process_time() - begin < 5


# -- speed of the slow path


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each batch that the slow path has walked, in bytes: work that a busy machine cannot change."""
    lengths: list[int] = []
    walk = reader.repair.walk

    def counting(data: bytes, **options: Any) -> Any:
        lengths.append(len(data))
        return walk(data, **options)

    monkeypatch.setattr(reader.repair, "walk", counting)
    return lengths


def test_one_broken_event_costs_one_batch_not_the_file(tmp_path: Path, walked: list[int]) -> None:
    events = [WHOLE] * 60_000
    events[30_000] = WHOLE.replace(b'"a"', b'"a"b"')
    text = b'{"traceEvents":[' + b",".join(events) + b"]}"
    table = read(written(tmp_path, text)).table
    assert len(table) == 60_000
    assert table.notes.repaired == 1
    assert sum(walked) <= 3 * reader.BATCH_BYTES


def test_a_file_of_broken_events_only_is_walked_once(tmp_path: Path, walked: list[int]) -> None:
    text = b'{"traceEvents":[' + b",".join([WHOLE.replace(b'"a"', b'"a"b"')] * 60_000) + b"]}"
    assert len(text) > 3 * reader.BATCH_BYTES
    assert read(written(tmp_path, text)).table.notes.repaired == 60_000
    assert sum(walked) <= 2 * len(text)


def test_a_header_of_megabytes(tmp_path: Path) -> None:
    big = json.dumps({f"k{i}": "x" * 1000 for i in range(3000)}).encode()[:-1]
    table = read(written(tmp_path, big + b', "n": 7, "traceEvents": ' + EVENTS + b"}")).table
    assert names(table) == ["a"]
    assert table.meta.fields["n"] == 7
    assert table.notes.repaired == 0
    many = b'{"a":1' + b',"a":1' * 100_000 + b',"traceEvents": ' + EVENTS + b"}"
    begin = time.process_time()
    assert names(read(written(tmp_path, many)).table) == ["a"]
    assert time.process_time() - begin < 5
