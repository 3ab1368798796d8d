"""What a trace holds besides complete events: memory instants, counters and flows."""

from __future__ import annotations

import copy
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import BACKWARD, MAIN, TraceBuilder, rows_of, table_of

from proftrack.trace.parquet import read_events, write_events
from proftrack.trace.reader import read
from proftrack.trace.table import NONE, EventTable

DATA = Path(__file__).parent / "data"
EPOCH_US = 1712195495507783
"""Decimals of such a time do not fit a float64."""


def memory_of(table: EventTable) -> list[tuple[Any, ...]]:
    m = table.memory
    if m is None:
        return []
    columns = (m.ts, m.valid, m.bytes, m.allocated, m.reserved, m.device_type, m.device, m.address, m.ev_idx)
    threads = [table.threads[thread] for thread in m.thread]
    return list(zip(*(column.tolist() for column in columns), threads, strict=True))


def counters_of(table: EventTable) -> list[tuple[Any, ...]]:
    c = table.counters
    if c is None:
        return []
    names, series = ([c.names[code] for code in codes] for codes in (c.name, c.series))
    values = [None if math.isnan(value) else value for value in c.value.tolist()]
    return list(
        zip(c.ts.tolist(), c.valid.tolist(), names, series, values, [table.threads[t] for t in c.thread], strict=True)
    )


def flows_of(table: EventTable) -> list[tuple[Any, ...]]:
    f = table.flows
    if f is None:
        return []
    categories = [f.categories[code] for code in f.category]
    threads = [table.threads[thread] for thread in f.thread]
    return list(
        zip(f.ts.tolist(), f.valid.tolist(), f.id.tolist(), categories, f.is_end.tolist(), threads, strict=True)
    )


def marks_of(table: EventTable) -> tuple[list[Any], list[Any], list[Any]]:
    return memory_of(table), counters_of(table), flows_of(table)


def mixed(at: float = 0) -> TraceBuilder:
    """An operator of 10 us that allocates 512 bytes, launches a kernel and counts.

    host      0 aten::mm [ 2 [memory] +512   3 cudaLaunchKernel -.   9.5 [memory] -512 ]   20 load
    stream 7                                                     '-> 5 gemm
    """
    trace = TraceBuilder().op("aten::mm", at=at, dur=10)
    gpu = {"Addr": 139631351211712, "Device_Id": 0, "Device_Type": 1, "Total_Reserved": 2048}
    trace.memory(512, at=at + 2, Total_Allocated=1024, Ev_Idx=7, **gpu)
    trace.launch(at=at + 3, correlation=4).arrow("s", at=at + 3, id=4)
    trace.kernel(at=at + 5, dur=2, correlation=4).arrow("f", at=at + 5, id=4, pid=0, thread=7)
    trace.memory(-512, at=at + 9.5, Total_Allocated=512, Ev_Idx=8, **gpu)
    return trace.counter("load", at=at + 20, pid=3, thread=None, args={"cpu": 12, "gpu": 0.5})


GPU = (2048, 1, 0, 139631351211712)
EXPECTED = (
    [
        (2000, True, 512, 1024, *GPU, 7, ("100", str(MAIN))),
        (9500, True, -512, 512, *GPU, 8, ("100", str(MAIN))),
    ],
    [(20000, True, "load", "cpu", 12.0, ("3", "None")), (20000, True, "load", "gpu", 0.5, ("3", "None"))],
    [(3000, True, 4, "ac2g", False, ("100", str(MAIN))), (5000, True, 4, "ac2g", True, ("0", "7"))],
)


def test_each_in_columns_of_its_own() -> None:
    table = mixed().table()
    assert [table.names[code] for code in table.name] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert marks_of(table) == EXPECTED
    assert table.threads == [("100", str(MAIN)), ("0", "7"), ("3", "None")]  # those of complete events first


def test_none_where_the_file_has_none() -> None:
    table = TraceBuilder().op("a", at=0, dur=1).table()
    assert (table.memory, table.counters, table.flows) == (None, None, None)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_broken_event_costs_the_others_nothing(indent: int | None) -> None:
    text = mixed().json(indent).replace(b'"aten::mm"', b'"aten::"mm""')
    table = table_of(text)
    assert table.notes.repaired == 1
    assert marks_of(table) == EXPECTED


def test_marks_that_are_broken_themselves() -> None:
    """Names and values that are not quite JSON, as in complete events."""
    trace = mixed().counter("a", at=30, args={"x": "NAN", "y": 3}).counter("b", at=31, args={"x": 1})
    text = trace.json(None).replace(b'"NAN"', b"nan").replace(b'"b"', b'"b"b"').replace(b'"ac2g"', b'"a\\c2g"', 1)
    table = table_of(text)
    memory, counters, flows = marks_of(table)
    assert memory == EXPECTED[0]
    main = ("100", str(MAIN))
    assert counters[2:] == [
        (30000, True, "a", "x", None, main),
        (30000, True, "a", "y", 3.0, main),
        (31000, True, 'b"b', "x", 1.0, main),
    ]
    assert [category for *_, category, _, _ in flows] == ["a\\c2g", "ac2g"]


@pytest.mark.parametrize("end", [b'{"ph": "i", "na', b'{"ph": "i", "name": "[memory]", "args": {"Bytes": 5'])
def test_a_file_that_ends_early_keeps_those_before(end: bytes) -> None:
    text = mixed().json(None)
    cut = text[: text.index(b'], "traceName"')] + b", " + end
    table = table_of(cut, salvage=True)
    assert table.notes.skipped == 1
    assert marks_of(table) == EXPECTED


# -- times


def with_times(form: str) -> bytes:
    """Flows, memory and a counter at .001 us after whole ones, in each way in which files write times."""
    trace = TraceBuilder().op("a", at="T0", dur=10)
    trace.arrow("s", at="T1", id=1).memory(8, at="T2").counter("c", at="T3", args={"v": 1}).arrow("f", at="T4", id=1)
    text = trace.json(None)
    for i in range(5):
        whole = (EPOCH_US if form != "relative" else 100) + i
        quote = '"' if form == "text" else ""
        text = text.replace(f'"T{i}"'.encode(), f"{quote}{whole}.00{i and 1}{quote}".encode())
    return text


@pytest.mark.parametrize("form", ["relative", "epoch", "text"])
def test_times_are_exact_to_the_nanosecond(form: str) -> None:
    table = table_of(with_times(form))
    assert table.memory is not None and table.counters is not None and table.flows is not None
    assert table.flows.ts.tolist() == [1001, 4001]
    assert table.memory.ts.tolist() == [2001]
    assert table.counters.ts.tolist() == [3001]


def test_only_a_flows_time_needs_all_its_digits() -> None:
    """Complete events with whole microseconds fit a float64; that of a flow does not."""
    trace = TraceBuilder().op("a", at=EPOCH_US, dur=10).arrow("s", at="T", id=1)
    table = table_of(trace.json(None).replace(b'"T"', f"{EPOCH_US}.125".encode()))
    assert table.flows is not None
    assert (table.ts.tolist(), table.flows.ts.tolist()) == ([0], [125])


@pytest.mark.parametrize("at", [None, "", "x", [1], True, 1e300, -1e300, 10**400, -(10**14), 10**14])
def test_times_that_cannot_be_are_told(at: Any) -> None:
    trace = TraceBuilder().op("a", at=5, dur=10).memory(8, at=at).counter("c", at=at, args={"v": 1})
    trace.arrow("s", at=at, id=1).arrow("f", at=6, id=1)
    table = trace.table()
    assert table.valid.tolist() == [True]
    memory, counters, flows = marks_of(table)
    assert [row[:2] for row in memory + counters] == [(NONE, False)] * 2
    assert [row[:2] for row in flows] == [(NONE, False), (1000, True)]


def test_a_mark_before_the_first_complete_event_moves_nothing() -> None:
    table = TraceBuilder().memory(8, at=4.999).op("a", at=5, dur=10).table()
    assert table.memory is not None
    assert (table.origin_ns, table.ts.tolist()) == (5000, [0])
    assert (table.memory.ts.tolist(), table.memory.valid.tolist()) == ([-1], [True])


# -- values of any type


@pytest.mark.parametrize(
    ("given", "number"),
    [(7, 7), ("7", 7), (2**53 + 1, 2**53 + 1), (2**64 + 5, 5), (10**30, 5076944270305263616), (None, NONE)],
)
def test_ids_of_flows(given: Any, number: int) -> None:
    trace = TraceBuilder().op("a", at=0, dur=1).arrow("s", at=1, id=given).arrow("f", at=2, id=given)
    assert [row[2] for row in flows_of(trace.table())] == [number, number]


def test_ids_that_are_no_numbers_still_join() -> None:
    trace = TraceBuilder().op("a", at=0, dur=1)
    for phase in "sf":
        for id in ("0x1a", "0x1b", "a"):
            trace.arrow(phase, at=1, id=id)
    ids = [row[2] for row in flows_of(trace.table())]
    assert ids[:3] == ids[3:]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("id", [[1], {"a": 1}, 1.5, True, 1e300])
def test_ids_of_any_type_do_not_matter_to_the_rest(id: Any) -> None:
    table = TraceBuilder().op("a", at=0, dur=1).arrow("s", at=1, id=id).arrow("f", at=2, id=3).table()
    assert [row[2] for row in flows_of(table)][1] == 3


def test_a_point_on_the_way_of_a_flow_is_an_end() -> None:
    trace = TraceBuilder().op("a", at=0, dur=1)
    for phase in "stf":
        trace.arrow(phase, at=1, id=1)
    assert [row[4] for row in flows_of(trace.table())] == [False, True, True]


def test_old_torch_says_less_of_memory() -> None:
    """1.8 to 1.11 wrote neither address nor totals."""
    trace = TraceBuilder().op("a", at=0, dur=1).memory(-8, at=1, Device_Type=0, Device_Id=-1)
    assert memory_of(trace.table()) == [(1000, True, -8, NONE, NONE, 0, NONE, NONE, NONE, ("100", str(MAIN)))]


@pytest.mark.parametrize("args", [None, {}, [], "x", 5])
def test_memory_without_arguments(args: Any) -> None:
    trace = TraceBuilder().op("a", at=0, dur=1).event(ph="i", name="[memory]", pid=1, tid=1, ts=1, args=args)
    nothing = (NONE,) * 6
    assert memory_of(trace.table()) == [(1000, True, 0, *nothing, ("1", "1"))]


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, "x", 1.5, True, 1e300, -3, 10**30])
@pytest.mark.parametrize("key", ["Addr", "Bytes", "Total_Allocated", "Total_Reserved", "Device_Type", "Device_Id"])
def test_arguments_of_memory_of_any_type(key: str, value: Any) -> None:
    table = TraceBuilder().op("a", at=0, dur=1).memory(4, at=1, **{key: value}).memory(5, at=2).table()
    assert table.memory is not None
    assert table.memory.bytes[1] == 5
    write_events([table], Path("/dev/null"))


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, 0), ("x", 0), ("-", 0), ([1], 0), (1e300, 0), ("-16", -16), ("16", 16), (-2.0, -2), ("9" * 5000, 0)],
)
def test_sizes_of_memory(given: Any, size: int) -> None:
    assert memory_of(TraceBuilder().op("a", at=0, dur=1).memory(given, at=1).table())[0][2] == size


def test_numbers_as_text() -> None:
    trace = TraceBuilder().op("a", at=0, dur=1)
    trace.memory("-16", at="1.5", Total_Allocated="32", Device_Id="1", Device_Type="1", Ev_Idx="9")
    trace.counter("c", at="2", args={"v": "2.5"})
    assert memory_of(trace.table()) == [(1500, True, -16, 32, NONE, 1, 1, NONE, 9, ("100", str(MAIN)))]
    assert counters_of(trace.table()) == [(2000, True, "c", "v", 2.5, ("100", str(MAIN)))]


def test_counters_of_other_tools() -> None:
    """Several series, nested, null and odd values; arguments that are none."""
    odd = {"a": 1, "b": None, "c": {"d": 2}, "e": [3], "f": "x", "g": True, "h": 10**400, "": -0.5}
    odd |= {"nan": "nan", "inf": "inf", "-inf": "-1e999"}
    trace = TraceBuilder().op("x", at=0, dur=1).counter("odd", at=1, args=odd)
    for args in (None, {}, [], [1], "x", 5):
        trace.counter("none", at=2, args=args)
    trace.event(ph="C", name="bare", ts=3)
    values = {series: value for _, _, name, series, value, _ in counters_of(trace.table()) if name == "odd"}
    assert values == {**dict.fromkeys((*"bcefgh", "nan", "inf", "-inf")), "a": 1.0, "": -0.5}
    assert {name for _, _, name, *_ in counters_of(trace.table())} == {"odd"}


def test_counters_without_a_value_are_none() -> None:
    assert TraceBuilder().op("x", at=0, dur=1).counter("none", at=2, args={}).table().counters is None


def test_other_instants_are_left_out() -> None:
    trace = TraceBuilder().op("x", at=0, dur=1).event(ph="i", name="Iteration Start", pid="T", tid="t", ts=1, s="g")
    assert trace.table().memory is None
    assert trace.table().threads == [("100", str(MAIN))]


def test_a_phase_of_no_known_kind_does_not_take_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the slow path was taken")

    monkeypatch.setattr("proftrack.trace.repair.walk", forbidden)
    trace = mixed().event(ph="new", name="x", ts=1)
    assert marks_of(trace.table()) == EXPECTED
    assert rows_of(trace.table()) == rows_of(mixed().table())


# -- tables


def test_a_file_written_twice_has_each_once() -> None:
    trace = mixed()
    trace.counter("nan", at=25, args={"v": None})
    once = trace.table()
    trace.events += copy.deepcopy(trace.events)
    table = trace.table()
    assert table.notes.duplicates == 3
    assert marks_of(table) == marks_of(once)


def test_equal_marks_of_a_file_written_once_are_several() -> None:
    trace = TraceBuilder().op("a", at=0, dur=1).memory(8, at=1).memory(8, at=1)
    assert len(memory_of(trace.table())) == 2


def test_a_part_of_the_table_has_all_of_them() -> None:
    table = mixed().table()
    assert marks_of(table.take(np.array([0]))) == EXPECTED


def test_marks_alone() -> None:
    """No complete event that could tell when the recording was."""
    table = TraceBuilder().memory(8, at=1).counter("c", at=2, args={"v": 1}).arrow("s", at=3, id=1).table()
    assert len(table) == 0
    assert [[row[:2] for row in rows] for rows in marks_of(table)] == [[(t, True)] for t in (1000, 2000, 3000)]


@pytest.mark.parametrize("name", ["mlp_train", "llama_train"])
def test_flows_of_a_real_trace_lead_to_its_work(name: str) -> None:
    """torch writes an end at the beginning of all GPU work, with its correlation as id."""
    table = read(DATA / f"{name}.json.gz").table
    work = table.gpu_work
    begins = set(
        zip(table.thread[work].tolist(), table.ts[work].tolist(), table.correlation[work].tolist(), strict=True)
    )
    assert table.flows is not None
    ends = table.flows.is_end & (table.flows.category == table.flows.categories.index("ac2g"))
    flows = zip(
        *(column[ends].tolist() for column in (table.flows.thread, table.flows.ts, table.flows.id)), strict=True
    )
    assert len(begins - set(flows)) <= 1  # the last one's flow was cut


# -- whatever else is in the file, the complete events are the same

MARKS = [
    {"ph": "s", "id": 1, "pid": 7, "tid": 8, "ts": 3.25, "cat": "fwdbwd", "name": "fwdbwd"},
    {"ph": "f", "id": 1, "pid": 100, "tid": BACKWARD, "ts": 5, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
    {"ph": "s", "id": "x", "pid": "CPU functions", "tid": 0, "ts": None, "cat": "cpu_to_cuda", "name": "a"},
    {"ph": "i", "name": "[memory]", "pid": 100, "tid": MAIN, "ts": -4, "args": {"Bytes": 4, "Total Allocated": 4}},
    {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "t", "ts": 4, "s": "g"},
    {"ph": "C", "name": "gpu", "pid": 9, "ts": 6.5, "args": {"a": 1, "b": None}},
    {"ph": "C", "name": "odd", "pid": 9, "ts": "6.5", "args": [1]},
    {"ph": "M", "name": "thread_name", "pid": 100, "tid": MAIN, "args": {"name": "main"}},
    {"ph": "b", "cat": "async", "name": "request", "id": "0x1", "pid": 5, "tid": 5, "ts": 1},
    {"name": "no phase"},
]


@given(st.lists(st.tuples(st.sampled_from(MARKS), st.integers(0, 3)), max_size=8))
def test_any_interleaving_gives_the_same_complete_events(marks: list[tuple[dict[str, Any], int]]) -> None:
    trace = mixed()
    trace.events = [event for event in trace.events if event["ph"] == "X"]
    expected = trace.table()
    for event, place in marks:
        trace.events.insert(place, event)
    table = trace.table()
    assert rows_of(table) == rows_of(expected)
    assert table.threads[: len(expected.threads)] == expected.threads
    assert (table.ts == expected.ts).all() and (table.kind == expected.kind).all()


# -- as a file


def write_and_read(tables: list[EventTable], folder: Path) -> list[EventTable]:
    write_events(tables, folder / "events.parquet")
    return read_events(folder / "events.parquet")


def test_events_parquet_keeps_them(tmp_path: Path) -> None:
    plain = TraceBuilder().op("aten::relu", at=0, dur=1, Sequence_number=3, Fwd_thread_id=0).table()
    tables = [mixed().table(), plain, mixed(at=3).table()]
    back = write_and_read(tables, tmp_path)
    for before, after in zip(tables, back, strict=True):
        assert marks_of(after) == marks_of(before)
        shown, expected = rows_of(after), rows_of(before)
        assert [row[:4] + row[5:12] for row in shown] == [row[:4] + row[5:12] for row in expected]
        assert (after.names, after.categories) == (before.names, before.categories)
        assert after.sequence.tolist() == before.sequence.tolist()


def test_impossible_times_stay_impossible(tmp_path: Path) -> None:
    trace = TraceBuilder().op("a", at=5, dur=1).memory(8, at=4.999).memory(8, at=None).arrow("s", at="x", id=-1)
    [back] = write_and_read([trace.table()], tmp_path)
    assert [row[:2] for row in memory_of(back)] == [(-1, True), (NONE, False)]
    assert flows_of(back)[0][:3] == (NONE, False, -1)


def test_sums_over_all_rows_are_those_of_complete_events(tmp_path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = mixed().table()
    write_events([table], tmp_path / "events.parquet")
    rows = pq.read_table(tmp_path / "events.parquet")
    assert pc.sum(rows["dur_ns"]).as_py() == 13_000
    assert pc.mean(rows["dur_ns"]).as_py() == 13_000 / 3
    assert pc.count(rows["dur_ns"]).as_py() == 3
    assert pc.sum(rows["bytes"]).as_py() is None  # a copy's bytes, not those of memory
    assert pc.count(rows["correlation"]).as_py() == 2  # a flow joins with nothing by accident
    assert rows["phase"].to_pylist() == ["X", "X", "X", "i", "i", "C", "C", "s", "f"]
    assert rows["kind"].to_pylist()[3:] == ["memory", "memory", "counter", "counter", "flow", "flow"]
    assert pc.max(rows["allocated_bytes"]).as_py() == 1024


def test_all_columns_are_there_without_such_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_events([TraceBuilder().op("a", at=0, dur=1).table()], tmp_path / "plain.parquet")
    write_events([mixed().table()], tmp_path / "mixed.parquet")
    assert pq.read_schema(tmp_path / "plain.parquet") == pq.read_schema(tmp_path / "mixed.parquet")


def test_a_file_of_an_older_version_has_only_complete_events(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "events.parquet"
    write_events([TraceBuilder().op("a", at=0, dur=1).work(1, launch=2, at=5, dur=3).table()], path)
    new = ["phase", "flow", "address", "memory_bytes", "allocated_bytes", "reserved_bytes", "device_type", "series"]
    pq.write_table(pq.read_table(path).drop_columns([*new, "value", "sequence", "forward_thread"]), path)
    [back] = read_events(path)
    assert [back.names[code] for code in back.name] == ["a", "cudaLaunchKernel", "gemm"]
    assert (back.memory, back.counters, back.flows) == (None, None, None)
    assert back.sequence.tolist() == [NONE] * 3


def test_a_kind_of_a_newer_version_is_another(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "events.parquet"
    write_events([TraceBuilder().op("a", at=0, dur=1).table()], path)
    rows = pq.read_table(path)
    place = rows.column_names.index("kind")
    pq.write_table(rows.set_column(place, "kind", pa.array(["quantum_op"]).dictionary_encode()), path)
    [back] = read_events(path)
    assert back.kind.tolist() == [0]


def test_memory_of_a_real_trace() -> None:
    """All that a decoder of the whole file finds."""
    path = DATA / "tracelens_h100_qwen.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e["name"] == "[memory]"]
    memory = read(path).table.memory
    assert memory is not None
    for column, key in {
        "bytes": "Bytes",
        "allocated": "Total Allocated",
        "address": "Addr",
        "ev_idx": "Ev Idx",
    }.items():
        assert getattr(memory, column).tolist() == [event["args"][key] for event in events]
    assert len(memory) == 2450
    assert memory.reserved[memory.device_type == 1].max() == 2_629_828_608
    assert set(memory.device[memory.device_type == 0].tolist()) == {NONE}
