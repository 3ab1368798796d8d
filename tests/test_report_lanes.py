"""What the timeline holds: values worked out by hand on traces made by hand. Times in microseconds unless said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traces import BACKWARD, TraceBuilder, clean

from proftrack.report.events import EventDetails, details
from proftrack.report.timeline import lanes as report_lanes
from proftrack.report.timeline import rows as lane_rows
from proftrack.report.timeline.bars import bars
from proftrack.report.timeline.lanes import STYLES, Lanes
from proftrack.report.timeline.thinning import Marks, thin
from proftrack.trace.table import NONE, EventTable


def scene_of(trace: TraceBuilder) -> EventDetails:
    table = trace.table()
    found = details([table], trace.measures().kernels)
    assert found is not None
    return found


def lanes_of(trace: TraceBuilder) -> Lanes:
    lanes = scene_of(trace).lanes
    assert lanes is not None
    return lanes


def rows(lanes: Lanes) -> list[tuple[Any, ...]]:
    """(row, start, duration, style, name, self time) of every mark, in microseconds of the trace."""
    marks = lanes.marks
    return [
        (
            int(marks.row[i]),
            marks.start[i] / 1000,
            marks.dur[i] / 1000,
            STYLES[marks.style[i]],
            lanes.names[marks.name[i]] if marks.name[i] != NONE else None,
            marks.self_ns[i] / 1000 if marks.self_ns[i] != NONE else None,
        )
        for i in range(len(marks.row))
    ]


def test_rows_and_marks_of_a_clean_trace() -> None:
    lanes = lanes_of(clean())
    assert [(g.label, g.kind, g.first, g.rows) for g in lanes.groups] == [
        ("Host thread 101: operators and regions", "operators", 0, 3),
        ("Host thread 101: runtime calls", "calls", 3, 1),
        ("GPU 0, stream 7", "gpu", 4, 1),
        ("GPU idle, by cause", "idle", 5, 1),
    ]
    assert [row for row in rows(lanes) if row[1] < 100 and row[0] < 5] == [
        (0, 0, 100, "region", "ProfilerStep#2", 10),
        (1, 5, 90, "region", "forward", 80),
        (2, 8, 10, "operator", "aten::mm", 9),
        (3, 10, 1, "launch", "cudaLaunchKernel", 1),
        (4, 15, 40, "arithmetic", "gemm", None),
    ]
    # Idle: before the first kernel, between the two (55 to 115), and behind the second until the step ends.
    assert [row[:4] for row in rows(lanes) if row[0] == 5] == [
        (5, 0, 15, "idle-dispatch"),
        (5, 55, 60, "idle-dispatch"),
        (5, 155, 45, "idle-dispatch"),
    ]
    assert lanes.notes == []


def test_it_opens_on_the_step_with_most_gpu_work_to_the_end_of_that_work() -> None:
    trace = TraceBuilder()
    trace.step(1, at=0, dur=10).work(1, launch=2, at=5, dur=3)
    trace.step(2, at=10, dur=10).work(2, launch=12, at=30, dur=50)
    trace.step(3, at=20, dur=70).work(3, launch=25, at=85, dur=1)
    trace.step(4, at=90, dur=60)  # 10, 70, 10 and 60 us: none is over three times the median
    lanes = lanes_of(trace)
    assert lanes.step == "ProfilerStep#2"
    assert lanes.focus == (10_000, 80_000)
    assert (lanes.low, lanes.high) == (0, 150_000)


def test_it_opens_on_a_typical_step() -> None:
    """The third of four steps takes 400 us of GPU time, the others 20 us, 30 us and 20 us."""
    trace, at = TraceBuilder(), 0
    for number, busy in enumerate((20, 30, 400, 20)):
        trace.step(number, at=at, dur=busy + 10).work(number + 1, launch=at + 2, at=at + 5, dur=busy)
        at += busy + 10
    assert lanes_of(trace).step == "ProfilerStep#1"


def test_without_gpu_work_it_opens_on_the_longest_step() -> None:
    trace = TraceBuilder().step(1, at=0, dur=10).step(2, at=10, dur=30).op("aten::mm", at=12, dur=5)
    lanes = lanes_of(trace)
    assert (lanes.step, lanes.focus) == ("ProfilerStep#2", (10_000, 40_000))
    assert {g.kind for g in lanes.groups} == {"operators"}


def test_without_steps_it_shows_the_whole_recording() -> None:
    lanes = lanes_of(TraceBuilder().op("aten::mm", at=5, dur=10).work(1, launch=7, at=20, dur=15))
    assert lanes.step is None
    assert lanes.focus == (lanes.low, lanes.high) == (0, 30_000)  # the table's clock starts with the first event


def test_a_wait_behind_the_steps_is_shown_with_what_the_gpu_did_in_it() -> None:
    """The same call: in one trace the GPU works in all of it but a tenth, in the other not at all."""
    busy = TraceBuilder().step(1, at=0, dur=20).work(1, launch=5, at=10, dur=99).sync(at=20, dur=100)
    idle = TraceBuilder().step(1, at=0, dur=20).work(1, launch=5, at=10, dur=9).sync(at=20, dur=100)
    for trace, permille, us in ((busy, 890, 89.0), (idle, 0, 0.0)):
        seen = scene_of(trace)
        assert seen.lanes is not None
        marks = seen.lanes.marks
        wait = int(np.flatnonzero(marks.style == STYLES.index("wait"))[0])
        assert marks.busy_permille[wait] == permille
        assert seen.lanes.high == 120_000
        [row] = seen.waits
        assert (row.name, row.calls, row.total_us, row.busy_us) == ("cudaDeviceSynchronize", 1, 100.0, us)


def test_links_lead_from_a_launch_to_its_work() -> None:
    lanes = lanes_of(clean())
    names = [lanes.names[n] for n in lanes.marks.name[lanes.links.work]]
    assert names == ["gemm", "gemm"]
    assert lanes.marks.start[lanes.links.call].tolist() == [10_000, 110_000]
    assert lanes.links.called.tolist() == [11_000, 111_000]


def test_a_graph_launch_leads_to_all_that_it_replays() -> None:
    trace = TraceBuilder().step(1, at=0, dur=20).launch(at=5, correlation=1, name="cudaGraphLaunch")
    for i in range(3):
        trace.kernel(f"k{i}", at=10 + 3 * i, dur=2, correlation=1)
    lanes = lanes_of(trace)
    assert len(lanes.links.work) == 3
    assert len(set(lanes.links.call.tolist())) == 1


def test_threads_streams_and_devices_have_rows_of_their_own() -> None:
    trace = TraceBuilder(devices=2).step(1, at=0, dur=50)
    trace.op("aten::backward", at=10, dur=10, thread=BACKWARD)
    trace.work(1, launch=2, at=5, dur=3, stream=7).work(2, launch=4, at=6, dur=3, stream=20)
    trace.work(3, launch=6, at=8, dur=30, device=1, stream=7)
    labels = [g.label for g in lanes_of(trace).groups]
    assert labels == [
        "Host thread 101: operators and regions",
        "Host thread 101: runtime calls",
        "Host thread 102: operators and regions",
        "GPU 0, stream 7",
        "GPU 0, stream 20",
        "GPU 1, stream 7",
        "GPU idle, by cause",
    ]


def test_what_is_nested_too_deep_or_in_too_many_threads_is_said() -> None:
    trace = TraceBuilder().step(1, at=0, dur=1000)
    for depth in range(20):
        trace.op(f"op{depth}", at=1 + depth, dur=900 - 2 * depth)
    for thread in range(10):
        trace.op("aten::mm", at=10, dur=10, thread=500 + thread)
    lanes = lanes_of(trace)
    assert lanes.groups[0].rows == lane_rows.DEEPEST
    assert "5 more threads are not shown." in lanes.notes
    assert any(note.startswith("5 more rows") for note in lanes.notes)  # a step and 20 operators, 16 rows


def test_a_nameless_table_has_no_lanes() -> None:
    table: EventTable = TraceBuilder().row("cpu_op", "x", -5, -1).table()
    assert details([table], []) is None
    assert details([], []) is None


# ---- thinning --------------------------------------------------------------------------------------------------------


def marks_of(starts: list[int], durs: list[int], row: int = 0, style: int = 1) -> Marks:
    count = len(starts)
    same = np.full(count, 1, dtype=np.int64)
    start, dur = np.array(starts, dtype=np.int64), np.array(durs, dtype=np.int64)
    own = np.ones(count, dtype=bool)
    name, event = np.zeros(count, dtype=np.int64), np.arange(count)
    return Marks(row * same, start, dur, style * same, name, dur.copy(), own, NONE * same, event, same)


def test_few_marks_stay_as_they_are() -> None:
    marks = marks_of([0, 10], [5, 5])
    thinned = thin(marks, 2, np.zeros(2, dtype=bool), 100)
    assert thinned.marks is marks
    assert thinned.resolution_ns == 0


def test_short_neighbours_become_one_mark_that_counts_them() -> None:
    starts = [0, 1000, 2000, 50_000, 100_000]
    marks = marks_of(starts, [100, 100, 100, 40_000, 100])
    thinned = thin(marks, 3, np.zeros(5, dtype=bool), 4_000_000)
    found = thinned.marks
    # In parts of 1,000 ns each is alone, in parts of 2,000 the first two are together, in parts of 4,000 all three.
    assert thinned.resolution_ns == 4000
    assert found.start.tolist() == [0, 50_000, 100_000]
    assert found.dur.tolist() == [2100, 40_000, 100]
    assert found.events.tolist() == [3, 1, 1]
    assert found.self_ns.tolist() == [300, 40_000, 100]
    assert found.name.tolist() == [NONE, 0, 0]
    assert thinned.place.tolist() == [0, 0, 0, 1, 2]


def test_what_is_to_be_kept_is_kept() -> None:
    marks = marks_of([i * 10 for i in range(100)], [5] * 100)
    keep = np.arange(100) >= 90
    thinned = thin(marks, 20, keep, 1000)
    assert (thinned.marks.events == 1).sum() >= 10
    assert thinned.marks.start[thinned.marks.events == 1].tolist()[-10:] == [900 + 10 * i for i in range(10)]
    assert thinned.marks.events.sum() == 100


def test_marks_of_different_rows_and_styles_are_never_joined() -> None:
    parts = [marks_of([0, 1], [1, 1], row=0, style=1), marks_of([0, 1], [1, 1], row=0, style=2)]
    parts.append(marks_of([0, 1], [1, 1], row=1, style=1))
    marks = Marks._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
    thinned = thin(marks, 3, np.zeros(6, dtype=bool), 1000)
    assert thinned.marks.events.tolist() == [2, 2, 2]


def test_a_large_step_is_thinned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_lanes, "BUDGET", 400)
    monkeypatch.setattr(report_lanes, "CLOSE_UP", 40)
    trace = TraceBuilder().step(1, at=0, dur=10_000)
    for i in range(500):
        trace.op("aten::add", at=10 + 20 * i, dur=10).work(i + 1, launch=12 + 20 * i, at=15 + 20 * i, dur=2)
    lanes = lanes_of(trace)
    assert len(lanes.marks.row) <= 400
    assert lanes.marks.events.sum() == 1 + 3 * 500 + 501  # the gaps before, between and behind the kernels
    assert lanes.notes[0].startswith("2,002 events are drawn as")
    assert lanes.close_up is not None
    low, high = lanes.close_up
    inside = (lanes.marks.start >= low) & (lanes.marks.start < high)
    assert inside.sum() >= 40
    assert (lanes.marks.events[inside & (lanes.marks.start + lanes.marks.dur < high)] == 1).all()
    # Links of joined marks lead to the marks that stand for them.
    assert set(lanes.links.work.tolist()) <= set(
        np.flatnonzero(lanes.marks.style >= STYLES.index("arithmetic")).tolist()
    )


# ---- bars of a picture -----------------------------------------------------------------------------------------------


def test_narrow_marks_become_columns_as_high_as_the_time_they_fill() -> None:
    trace = TraceBuilder().step(1, at=0, dur=1000)
    for i in range(100):  # a kernel of 1 us every 10 us, for all of the second half
        trace.work(i + 1, launch=1 + i, at=500 + 5 * i, dur=1)
    lanes = lanes_of(trace)
    drawn = bars(lanes, 0, 1_000_000, 100)  # 10 us a pixel: two kernels of 1 us each
    gpu = next(group.first for group in lanes.groups if group.kind == "gpu")
    mine = drawn.row == gpu
    assert mine.sum() == 50
    assert drawn.height[mine] == pytest.approx(0.2)
    assert drawn.width_us[mine] == pytest.approx(10)
    assert drawn.left_us[mine].min() == pytest.approx(500)


# ---- launches --------------------------------------------------------------------------------------------------------


def test_launch_delay_and_queue_depth_over_the_window() -> None:
    """Four launches at once behind a kernel of 60: the queue is four deep, and drains as they start.

    call   1-2  2-3  3-4  4-5          | window 0 to 120, 240 parts of 0.5
    starts 2    62   72   82
    """
    trace = TraceBuilder().step(1, at=0, dur=120)
    for i, (at, dur) in enumerate(((2, 60), (62, 10), (72, 10), (82, 10))):
        trace.launch(at=1 + i, correlation=i + 1).kernel(at=at, dur=dur, correlation=i + 1)
    found = scene_of(trace).queue
    assert found is not None
    assert (found.low, found.high) == (0, 120_000)
    started = np.flatnonzero(~np.isnan(found.delay_max_us)).tolist()
    assert started == [4, 124, 144, 164]
    assert found.delay_max_us[started].tolist() == [0, 59, 68, 77]
    depth = found.depth_max.tolist()
    assert depth[:6] == [0, 0, 0, 0, 0, 0]  # the first starts the moment its call ends
    assert depth[10] == depth[123] == 3  # three wait from 5 to 62
    assert depth[125:144] == [2] * 19
    assert depth[145:164] == [1] * 19
    assert max(depth) == 3
    assert depth[165:] == [0] * 75


def test_the_chain_that_launched_a_kernel() -> None:
    trace = TraceBuilder().step(1, at=0, dur=100).region("forward", at=1, dur=60)
    trace.op("aten::linear", at=2, dur=20).op("aten::mm", at=3, dur=10).work(1, launch=5, at=20, dur=30)
    trace.op("aten::mm", at=70, dur=10).work(2, launch=72, at=80, dur=10)
    [chain] = scene_of(trace).chains
    assert chain.kernel == "gemm"
    assert chain.links == ["forward", "aten::linear", "aten::mm", "cudaLaunchKernel"]
    assert (chain.share, chain.ways) == (0.75, 2)


def test_modules_are_regions_in_the_lanes_and_no_part_of_chains() -> None:
    """Two layers launch the same kernel in the same way."""
    trace = TraceBuilder().step(1, at=0, dur=100)
    for number, at in enumerate((0, 40), 1):
        trace.op(f"nn.Module: layers.{number} (Linear)", at=at + 1, dur=30).op("aten::mm", at=at + 2, dur=10)
        trace.work(number, launch=at + 3, at=at + 10, dur=20)
    [chain] = scene_of(trace).chains
    assert (chain.links, chain.ways) == (["aten::mm", "cudaLaunchKernel"], 1)
    assert {row[3] for row in rows(lanes_of(trace)) if "nn.Module" in str(row[4])} == {"region"}


def test_a_kernel_without_a_launch_has_no_chain() -> None:
    trace = TraceBuilder().step(1, at=0, dur=100).op("aten::mm", at=1, dur=5).kernel(at=20, dur=30)
    [chain] = scene_of(trace).chains
    assert chain.links == []
