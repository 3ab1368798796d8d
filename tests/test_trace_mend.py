"""A mended copy: valid JSON with every event that the reader keeps, and all their arguments."""

from __future__ import annotations

import gzip
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from run_folders import make_record, write_folder
from traces import TraceBuilder, rows_of

from proftrack.errors import NotATraceError, TraceError
from proftrack.measures.quality import flag
from proftrack.store.references import References
from proftrack.trace.mend import is_valid, write_mended
from proftrack.trace.reader import read


def trace() -> TraceBuilder:
    """Five events with arguments that the reader keeps and others that it skips."""
    made = TraceBuilder().member(baseTimeNanoseconds=1695835536000000000, traceName="made")
    made.row("user_annotation", "ProfilerStep#1", 100.5, 90, Ev_Idx=0, note="a b")
    made.row("user_annotation", "region", 101.125, 80, Ev_Idx=1)
    made.row("cpu_op", "aten::mm", 102, 10, Ev_Idx=2, Input_Dims=[[2, 3], [3, 4]], deep={"a": [1, {"b": 2}]})
    return made.work(7, launch=104.001, at=110, dur=40.25)


TEXT = trace().json().decode()


def changed(old: str, new: str) -> bytes:
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode()


# How the file is broken, and how many events are whole.
BROKEN: dict[str, tuple[bytes, int]] = {
    "a quote in a name": (changed('"region"', '"re"gi"on"'), 5),
    "a backslash in a name": (changed('"region"', '"C:\\Users"'), 5),
    "a line break in a name": (changed('"region"', '"re\ngion"'), 5),
    "a quote in an argument that the reader skips": (changed('"a b"', '"a "b" c"'), 5),
    "a control character in an argument that the reader skips": (changed('"a b"', '"a\x01b"'), 5),
    "a number that is none": (changed("90,", '90,\n   "extra": nan,'), 5),
    "an infinity among the arguments": (changed('"a b"', "-Infinity"), 5),
    "a missing comma between events": (
        changed('},\n  {\n   "ph": "X",\n   "cat": "cpu_op"', '}\n  {\n   "ph": "X",\n   "cat": "cpu_op"'),
        5,
    ),
    "an extra comma at the end": (changed("\n ],", ",\n ],"), 5),
    "an extra comma among the members": (changed('"traceName"', ', "traceName"'), 5),
    "bytes that are not UTF-8 in a name": (TEXT.encode().replace(b'"region"', b'"re\xffgion"'), 5),
    "bytes that are not UTF-8 where the reader skips": (TEXT.encode().replace(b'"a b"', b'"a \xff b"'), 5),
    "cut inside the last event": (TEXT[: TEXT.rindex('"grid"')].encode(), 4),
    "cut between the events": (TEXT[: TEXT.index('"cuda_runtime"') - 20].encode(), 3),
}


def strictly(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("what", BROKEN)
def test_the_copy_is_valid_and_holds_what_the_reader_read(tmp_path: Path, what: str, compressed: bool) -> None:
    text, events = BROKEN[what]
    path, copy = tmp_path / "broken.json", tmp_path / "copy.json"
    path.write_bytes(gzip.compress(text) if compressed else text)
    notes = write_mended(path, copy)
    written = copy.read_bytes()
    document = strictly(gzip.decompress(written) if compressed else written)
    assert len(document["traceEvents"]) == events
    assert (notes.partial is not None) is (events < 5)
    seen, again = read(path, salvage=events < 5), read(copy)
    assert rows_of(again.table) == rows_of(seen.table)
    assert again.table.meta == seen.table.meta
    assert (again.table.notes.repaired, again.events) == (0, seen.events)
    assert is_valid(copy)
    if events < 5:
        with pytest.raises(TraceError):
            is_valid(path)
        return
    assert not is_valid(path)
    assert seen.table.notes.repaired > 0


def test_arguments_and_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """A broken event is written anew, its neighbours byte by byte: 125 ns of an epoch time do not fit a float64."""
    text = changed('"name": "region"', '"name": "a"b"').replace(b"101.125", b"1695835536123456.789")
    (tmp_path / "t.json").write_bytes(text)
    write_mended(tmp_path / "t.json", tmp_path / "copy.json")
    written = (tmp_path / "copy.json").read_bytes()
    assert b"1695835536123456.789" in written
    events = {event["name"]: event for event in strictly(written)["traceEvents"]}
    assert events["aten::mm"] == json.loads(TEXT)["traceEvents"][2]
    assert events['a"b']["args"] == {"Ev Idx": 1}


def test_a_list_of_events_becomes_an_object(tmp_path: Path) -> None:
    events = json.dumps(json.loads(TEXT)["traceEvents"]).replace('"region"', '"re"gion"')
    (tmp_path / "t.json").write_text(events)
    write_mended(tmp_path / "t.json", tmp_path / "copy.json")
    assert [e["name"] for e in strictly((tmp_path / "copy.json").read_bytes())["traceEvents"]][:2] == [
        "ProfilerStep#1",
        're"gion',
    ]


def test_many_batches_and_a_fault_in_the_midst(tmp_path: Path) -> None:
    """Three batches of a megabyte; the events around the broken one are in batches that decode."""
    made = TraceBuilder()
    for i in range(20_000):
        made.op(f"aten::op{i % 50}" if i != 9_000 else "BROKEN", at=i, dur=0.5, note="x" * 40)
    (tmp_path / "t.json").write_bytes(made.json(indent=None).replace(b'"BROKEN"', b'"bro"ken"'))
    write_mended(tmp_path / "t.json", tmp_path / "copy.json")
    events = strictly((tmp_path / "copy.json").read_bytes())["traceEvents"]
    made.events[9_000]["name"] = 'bro"ken'
    assert events == made.events


# ---- the trace that `proftrack open` shows ---------------------------------------------------------------------------


def opened(path: Path) -> tuple[bytes, str, bool]:
    """The bytes that are handed over, the remark, and whether they are the file itself."""
    with ExitStack() as kept:
        found, remark = References().trace(str(path), None, kept)
        return found.read_bytes(), remark, found == path


def test_a_valid_file_is_shown_itself(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "t.pt.trace.json.gz")
    assert opened(path) == (path.read_bytes(), "", True)


def test_a_broken_one_is_shown_mended_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(BROKEN["a quote in a name"][0])
    text, remark, same = opened(path)
    assert not same
    assert strictly(text)["traceEvents"][1]["name"] == 're"gi"on'
    assert remark == "t.json is not valid JSON: a copy mended in 1 place is shown"
    path.write_bytes(BROKEN["cut inside the last event"][0])
    text, remark, _ = opened(path)
    assert len(strictly(text)["traceEvents"]) == 4
    assert remark.startswith("t.json is broken: only the events that can be read are shown")


def test_the_record_of_a_run_says_whether_its_trace_is_read_first(tmp_path: Path) -> None:
    """A record without the flags: the trace is handed over unread. With one, and without a record, it is mended."""
    for name, quality in (("valid", []), ("repaired", [flag("repaired_json", 1)])):
        write_folder(tmp_path / name, make_record(quality=quality))
    for name in ("valid", "repaired", "without"):
        traces = tmp_path / name / "trace"
        traces.mkdir(parents=True, exist_ok=True)
        for file in traces.iterdir():
            file.unlink()
        (traces / "t.json").write_bytes(BROKEN["a quote in a name"][0])
    for name, same in (("valid", True), ("repaired", False), ("without", False)):
        with ExitStack() as kept:
            found, remark = References().trace(str(tmp_path / name), None, kept)
            assert (found == tmp_path / name / "trace" / "t.json", not remark) == (same, same)


@pytest.mark.parametrize("content", [b"\x0a\x12 a trace of another kind", b'{"nodes": []}', b"\x1f\x8b damaged"])
def test_what_is_no_trace_of_torchs_is_left_to_the_viewer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.perfetto"
    path.write_bytes(content)
    assert opened(path) == (content, "", True)


def test_another_kind_of_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"nodes": []}')
    with pytest.raises(NotATraceError):
        is_valid(tmp_path / "t.json")
