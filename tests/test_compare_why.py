"""Why a step time changed: parts that add up, what became of each, and the line that names the cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ADD, MM, TINY, Work, as_run, record_of, trace
from traces import TraceBuilder

from proftrack.analysis.pipeline import analyze_trace
from proftrack.compare import Comparison, Subject, compare
from proftrack.compare.kernels import library, new_name, tile
from proftrack.compare.match import match
from proftrack.compare.parts import PROFILER, Part, parts_of
from proftrack.record import Record
from proftrack.record.counters import Counters
from proftrack.record.figures import Idle
from proftrack.report import terminal
from proftrack.report.pages.comparison import page


def against(before: Record, after: Record, *across: str) -> Comparison:
    return compare(Subject(record=before, label="a"), Subject(record=after, label="b"), across=across)


def rows(comparison: Comparison) -> dict[tuple[str, str], tuple[str, float]]:
    """(part, name) -> what became of it, and its contribution."""
    return {(row.part, row.name): (row.status, round(row.change_us, 3)) for row in comparison.rows}


def assert_adds_up(comparison: Comparison) -> None:
    whole = sum(row.change_us for row in comparison.rows)
    assert whole == pytest.approx(comparison.step_time.change_us, rel=1e-6, abs=1e-6)
    if comparison.busy is not None:
        gpu = sum(row.change_us for row in comparison.rows if row.part == "gpu")
        assert gpu == pytest.approx(comparison.busy.change_us, rel=1e-6, abs=2e-3)


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_step() -> None:
    """T 250: 220 busy, and 30 idle, of which the trace has two thirds as dispatch."""
    record = record_of([MM, ADD], 250)
    idle = Idle(by_cause_us_per_step={"dispatch": 8.0, "host": 4.0}, largest=[])
    parts = parts_of(msgspec.structs.replace(record, idle=idle), 250)
    assert [(p.part, p.name, round(p.us, 6)) for p in parts] == [
        ("gpu", "gemm_256x128", 200.0),
        ("gpu", "elementwise_add", 20.0),
        ("idle", "dispatch", 20.0),
        ("idle", "host", 10.0),
    ]
    assert [p.calls for p in parts[:2]] == [1.0, 1.0]


def test_kernels_that_ran_slower_under_the_profiler_are_a_part_below_zero() -> None:
    parts = parts_of(record_of([MM, ADD], 210), 210)
    assert [(p.part, p.name, p.us) for p in parts[2:]] == [("profiler", PROFILER, -10.0)]


def test_idle_time_that_the_trace_does_not_show_has_no_cause() -> None:
    record = msgspec.structs.replace(record_of([MM], 250), idle=Idle(by_cause_us_per_step={}, largest=[]))
    assert [(p.name, p.us) for p in parts_of(record, 250)[1:]] == [("unknown", 50.0)]


def test_a_record_without_sites_has_its_kernels() -> None:
    record = msgspec.structs.replace(record_of([MM, ADD], 250), sites=[])
    assert [(p.name, p.operator, round(p.us, 3)) for p in parts_of(record, 250)[:2]] == [
        ("gemm_256x128", "", 200.0),
        ("elementwise_add", "", 20.0),
    ]


def test_without_a_gpu_the_parts_are_the_operators() -> None:
    """Two steps of 100: 60 in mm, 40 outside of it; a step takes 50 without the profiler."""
    host = TraceBuilder(sms=None)
    for number, at in ((2, 0), (3, 100)):
        host.step(number, at=at, dur=100).op("aten::mm", at=at + 5, dur=60)
    record = _analyzed(host, step_time_us=50)
    assert {p.name: round(p.us, 6) for p in parts_of(record, 50)} == {
        "aten::mm": 30.0,
        "Python outside of operators": 20.0,
    }


def _analyzed(builder: TraceBuilder, step_time_us: float | None = None, folder: str = "") -> Record:
    import tempfile

    with tempfile.TemporaryDirectory() as below:
        return analyze_trace(builder.write(Path(below) / "t.json"), step_time_us=step_time_us).record


# ---- what became of each ---------------------------------------------------------------------------------------------


def part(name: str, us: float, calls: float = 1, operator: str = "aten::mm", shapes: str = "[[8,8]]") -> Part:
    return Part(part="gpu", name=name, us=us, calls=calls, kind="matmul", operator=operator, shapes=shapes)


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (part("k", 10), part("k", 12), "slower"),
        (part("k", 12), part("k", 10), "faster"),
        (part("k", 10), part("k", 10.2), "same"),
        (part("k", 10, calls=1), part("k", 31, calls=3), "more calls"),
        (part("k", 31, calls=3), part("k", 10, calls=1), "fewer calls"),
        (part("k", 10), part("other", 10), "renamed"),
        (part("k", 10), None, "gone"),
        (None, part("k", 10), "added"),
    ],
)
def test_what_became_of_a_kernel(before: Part | None, after: Part | None, status: str) -> None:
    (row,) = match([before] if before else [], [after] if after else [])
    assert row.status == status
    assert row.change_us == (after.us if after else 0) - (before.us if before else 0)


def test_one_call_site_changes_its_kernel_where_others_keep_it() -> None:
    """The same kernel served two shapes; one of them has another tile now."""
    before = [part("gemm_128x128", 10, shapes="[1]"), part("gemm_128x128", 30, shapes="[2]")]
    after = [part("gemm_128x128", 10, shapes="[1]"), part("gemm_64x64", 35, shapes="[2]")]
    found = match(before, after)
    assert [(row.status, row.old_name, row.name, row.note) for row in found] == [
        ("renamed", "gemm_128x128", "gemm_64x64", "tile 128x128 -> 64x64"),
        ("same", "", "gemm_128x128", ""),
    ]


def test_work_without_a_known_operator_is_never_called_renamed() -> None:
    found = match([part("a", 10, operator="", shapes="")], [part("b", 10, operator="", shapes="")])
    assert sorted(row.status for row in found) == ["added", "gone"]


def test_other_shapes_and_another_operator_are_said() -> None:
    (shapes,) = match([part("k", 10, shapes="[1]")], [part("k", 20, shapes="[2]")])
    assert (shapes.status, shapes.old_shapes, shapes.note) == ("slower", "[1]", "other input shapes")
    (operator,) = match([part("k", 10)], [part("k", 10, operator="aten::addmm")])
    assert operator.note == "now launched by aten::addmm, before by aten::mm"


@given(st.data())
@settings(deadline=None)
def test_each_part_is_in_one_row(data: st.DataObject) -> None:
    draw = st.builds(
        part,
        st.sampled_from(["gemm_1x1", "gemm_2x2", "other"]),
        st.floats(0, 1000),
        st.integers(1, 5),
        st.sampled_from(["aten::mm", "aten::add", ""]),
        st.sampled_from(["[1]", "[2]"]),
    )
    unique = {"unique_by": lambda p: (p.operator, p.shapes, p.name), "max_size": 10}
    before, after = data.draw(st.lists(draw, **unique)), data.draw(st.lists(draw, **unique))  # type: ignore[arg-type]
    found = match(before, after)
    assert sum(row.before_us for row in found) == pytest.approx(sum(p.us for p in before))
    assert sum(row.after_us for row in found) == pytest.approx(sum(p.us for p in after))
    assert len(found) >= max(len(before), len(after))


# ---- contributions add up --------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_contributions_add_up_in_random_programs(data: st.DataObject) -> None:
    works = st.lists(
        st.tuples(
            st.sampled_from(["aten::mm", "aten::add", "aten::relu"]),
            st.sampled_from(["gemm", "elementwise", "reduce"]),
            st.integers(1, 300),
        ).map(lambda fields: Work(*fields)),
        min_size=1,
        max_size=6,
    )
    sides = [
        record_of(data.draw(works), data.draw(st.floats(5, 2000)), reads=data.draw(st.integers(0, 2))) for _ in range(2)
    ]
    assert_adds_up(against(*sides))


# ---- the line --------------------------------------------------------------------------------------------------------


def test_a_slower_kernel() -> None:
    found = against(record_of([MM, ADD], 222), record_of([MM._replace(us=230), ADD], 252))
    assert found.word == "regressed"
    assert found.headline.endswith("gemm_256x128 (aten::mm) is slower (200 us -> 230 us a step).")
    assert rows(found)["gpu", "gemm_256x128"] == ("slower", 30.0)
    assert_adds_up(found)


def test_three_more_launches_are_certain_even_where_the_time_is_not() -> None:
    found = against(record_of([MM, ADD], 222), record_of([MM, ADD, TINY, TINY, TINY], 229))
    assert found.word == "inconclusive"
    assert found.headline.endswith("3 more launches a step (2 -> 5), aten::relu.")
    assert rows(found)["gpu", "elementwise_relu"] == ("added", 6.0)
    assert {count.name: (count.before, count.after) for count in found.counts}["launches"] == (2, 5)


def test_a_value_that_is_read_back() -> None:
    """The copy of the value is a launch as well: the wait is the cause, and the copy its consequence."""
    found = against(record_of([MM, ADD], 222), record_of([MM, ADD], 260, reads=1))
    assert found.word == "regressed"
    assert found.headline.endswith("1 more wait for the GPU a step (0 -> 1), aten::item.")
    assert rows(found)["idle", "synchronization"][0] == "added"


def test_compiled() -> None:
    fused = Work("aten::addmm", "gemm_256x128_bias", 150)
    found = against(record_of([MM, ADD], 222), record_of([fused], 152, params={"compile": "default"}))
    assert found.word == "improved"
    assert ": compile none -> default; " in found.headline
    assert "gemm_256x128 + elementwise_add replaced by gemm_256x128_bias (220 us -> 150 us a step)" in found.headline


def test_another_tile() -> None:
    found = against(record_of([MM, ADD], 222), record_of([MM._replace(kernel="gemm_128x64", us=240), ADD], 262))
    assert "aten::mm: gemm_256x128 -> gemm_128x64, tile 256x128 -> 128x64 (200 us -> 240 us a step)" in found.headline


def test_nothing_stands_out() -> None:
    found = against(record_of([MM, ADD], 222), record_of([MM, ADD], 223, seed=1))
    assert found.word == "inconclusive"
    assert found.headline.endswith("no cause stands out in the traces.")


def test_across_a_parameter() -> None:
    before, after = record_of([MM, ADD], 222), record_of([MM._replace(us=260), ADD], 282, params={"n": 66})
    found = against(before, after, "n")
    assert ": params.n 64 -> 66; gemm_256x128 (aten::mm) is slower" in found.headline
    assert [(each.name, each.before, each.after) for each in found.across] == [("params.n", "64", "66")]


def test_a_parameter_that_only_one_run_has_is_absent_in_the_other() -> None:
    before, after = record_of([MM, ADD], 222), record_of([MM, ADD], 282, params={"n": 64, "causal": True})
    assert ": params.causal absent -> True;" in against(before, after, "causal").headline


def test_operators_on_the_host_that_came_and_went() -> None:
    found = against(record_of([MM, ADD], 222), record_of([MM, TINY], 222))
    assert {(row.name, row.status) for row in found.host} == {("aten::add", "gone"), ("aten::relu", "added")}


@pytest.mark.parametrize("mark", ["nn.Module: fc (Linear)", "proftrack: parameter group decay"])
def test_marks_are_part_of_their_steps(mark: str) -> None:
    """Only one of the traces has them: nothing on the host was added, and the step's own time stays what it was."""
    plain, marked = (TraceBuilder().step(2, at=0, dur=100) for _ in range(2))
    marked.op(mark, at=10, dur=60)
    for builder in (plain, marked):
        builder.op("aten::mm", at=20, dur=20)
    before, after = _analyzed(plain), _analyzed(marked)
    assert parts_of(before, 100) == parts_of(after, 100)
    for builder in (plain, marked):
        builder.work(1, launch=22, at=30, dur=40)
    assert against(_analyzed(plain), _analyzed(marked)).host == []


def test_what_only_an_outlier_calls_is_no_difference_of_its_steps() -> None:
    """Six steps of 100 us; in the candidate the fourth takes 5 ms and waits twelve times: no two waits per step."""

    def steps(*, longest: int, waits: int) -> TraceBuilder:
        builder, at = TraceBuilder(), 0
        for number in range(6):
            length = longest if number == 3 else 100
            builder.step(number, at=at, dur=length).work(number + 1, launch=at + 2, at=at + 10, dur=length - 20)
            for i in range(waits if number == 3 else 0):
                builder.sync(at=at + 100 + 10 * i, dur=5)
            at += length
        return builder

    found = against(_analyzed(steps(longest=100, waits=0)), _analyzed(steps(longest=5000, waits=12)))
    assert found.step_time.ratio == pytest.approx(1.0)
    assert {count.name for count in found.counts} == {"launches", "kernels"}
    assert "wait" not in found.headline
    assert any("outlier_steps" in note and note.startswith("The candidate:") for note in found.notes)


def test_calls_of_every_step_are_not_lost_to_rounding() -> None:
    """Each of 13 steps has a row of its own, and 13 times 1/13 is less than 1 in floating point."""

    def steps(count: int) -> TraceBuilder:
        builder = TraceBuilder()
        for number in range(count):
            at = 100 * number
            builder.step(number, at=at, dur=100).work(number + 1, launch=at + 2, at=at + 5, dur=80)
        return builder

    assert [row.name for row in against(_analyzed(steps(13)), _analyzed(steps(4))).host] == []


def test_a_cpu_program_is_explained_by_its_operators() -> None:
    def host(mm: float) -> Record:
        builder = TraceBuilder(sms=None)
        for number in range(2, 8):
            at = number * 1000
            builder.step(number, at=at, dur=100 + mm).op("aten::mm", at=at + 5, dur=mm)
        return _analyzed(builder, step_time_us=100 + mm)

    found = against(as_run(host(200), 300), as_run(host(800), 900))
    assert found.word == "regressed"
    assert found.headline.endswith("aten::mm is slower (200 us -> 800 us a step).")
    assert found.busy is None
    assert_adds_up(found)


# ---- hardware counters -----------------------------------------------------------------------------------------------


def counted(step_time_us: float = 222, us: float = 200, **figures: Any) -> Record:
    """A run whose GPU is busy all the time, 20 of 220 us of it with the addition.

    DRAM reaches 0.8 and tensor cores 0.9 of their peak on this device.
    """
    record = record_of([MM._replace(us=us), ADD], step_time_us)
    busy = msgspec.structs.replace(record.times, gpu_busy_per_step_us=step_time_us)
    counters = Counters(source="gpm", window_s=0.5, reachable={"dram": 0.8, "tensor": 0.9}, **figures)
    return msgspec.structs.replace(record, times=busy, counters=counters)


def test_units_energy_and_power_of_both_sides() -> None:
    """0.672 / 0.8 and 0.488 / 0.8; 0.099 / 0.9 twice; FP64 below 3 % on both sides."""
    before = counted(shares={"dram": 0.672, "tensor": 0.099, "fp64": 0.01}, energy_joules_per_step=0.03)
    after = counted(shares={"dram": 0.488, "tensor": 0.099, "fp64": 0.02}, energy_joules_per_step=0.024, power_watts=90)
    found = against(before, after)
    assert [(row.name, row.of, row.before, row.after) for row in found.counters] == [
        ("DRAM", "reachable", pytest.approx(0.84), pytest.approx(0.61)),
        ("tensor cores", "reachable", pytest.approx(0.11), pytest.approx(0.11)),
        ("energy per step", "", 0.03, 0.024),
        ("power", "", None, 90),
    ]
    text = terminal.text(page(found))
    for line in (
        r"DRAM, of reachable +84.0 % +61.0 % +-23.0 points",
        r"tensor cores, of reachable +11.0 % +11.0 % +\+0.0 points",
        r"energy per step +30.0 mJ +24.0 mJ +-20.0 %",
        r"power +absent +90.0 W +-$",
    ):
        assert re.search(line, text, re.M), line


def test_the_unit_whose_use_changed_most_is_in_the_first_line() -> None:
    before, after = counted(shares={"dram": 0.672, "tensor": 0.099}), counted(shares={"dram": 0.488, "tensor": 0.2})
    assert against(before, after).headline.endswith("DRAM 84.0 % to 61.0 % of reachable.")
    slower = against(before, counted(282, 260, shares={"dram": 0.488, "tensor": 0.099}))
    assert slower.headline.endswith(
        "gemm_256x128 (aten::mm) is slower (202 us -> 262 us a step); DRAM 84.0 % to 61.0 % of reachable."
    )


def test_it_stands_beside_what_was_changed_on_purpose_and_two_causes() -> None:
    before, more = counted(shares={"dram": 0.672}), record_of([MM._replace(us=260), ADD, TINY], 290, params={"n": 66})
    like = counted(290, 280, shares={"dram": 0.488})
    after = msgspec.structs.replace(more, counters=like.counters, times=like.times)
    headline = against(before, after, "n").headline
    assert ": params.n 64 -> 66; gemm_256x128 (aten::mm) is slower" in headline
    assert "1 more launch a step (2 -> 3), aten::relu" in headline
    assert headline.endswith("; DRAM 84.0 % to 61.0 % of reachable.")


def test_a_small_change_of_use_is_no_reason_nor_is_power() -> None:
    before = counted(shares={"dram": 0.672}, energy_joules_per_step=0.2, power_watts=700.0)
    after = counted(shares={"dram": 0.6}, energy_joules_per_step=2.0, power_watts=300.0)
    assert against(before, after).headline.endswith("no cause stands out in the traces.")


def test_one_side_without_counters() -> None:
    before = msgspec.structs.replace(counted(), counters=None)
    found = against(before, counted(shares={"dram": 0.488}, energy_joules_per_step=0.03))
    assert [(row.name, row.before, row.change) for row in found.counters] == [
        ("DRAM", None, None),
        ("energy per step", None, None),
    ]
    assert re.search(r"DRAM, of reachable +absent +61.0 % +-$", terminal.text(page(found)), re.M)
    assert "DRAM" not in found.headline
    assert against(before, before).counters == []


def test_shares_of_different_things_are_not_compared() -> None:
    after = counted(shares={"dram": 0.7})
    after = msgspec.structs.replace(after, counters=msgspec.structs.replace(after.counters, reachable={}))
    assert against(counted(shares={"dram": 0.4}), after).counters == []


# ---- bare traces -----------------------------------------------------------------------------------------------------


def test_a_trace_with_itself() -> None:
    record = _analyzed(trace([MM, ADD]))
    found = against(record, msgspec.structs.replace(record, source=msgspec.structs.replace(record.source, files=[])))
    assert (found.word, found.basis) == ("no difference", "profiled")
    assert all(row.change_us == 0 for row in found.rows)
    assert found.headline.endswith("both are the same measurement.")


def test_a_trace_may_be_inflated() -> None:
    """Dispatch that looks three times as long may be the profiler's: nothing is claimed, the traces are described."""
    before = _analyzed(trace([MM._replace(us=2), ADD._replace(us=1)], steps=6, host_us=20))
    after = _analyzed(trace([MM._replace(us=2), ADD._replace(us=1)], steps=6, host_us=60))
    found = against(before, after)
    assert (found.word, found.basis) == ("inconclusive", "profiled")
    assert any("profiling slows the host down" in note for note in found.notes)
    assert_adds_up(found)


def test_a_run_and_a_trace_are_compared_by_their_traces() -> None:
    found = against(record_of([MM, ADD], 222), _analyzed(trace([MM, ADD])))
    assert found.basis == "profiled"
    assert found.step_time.ratio == pytest.approx(1.0)


def test_a_trace_without_steps_claims_nothing() -> None:
    without = TraceBuilder().op("aten::mm", at=0, dur=10).work(1, launch=2, at=5, dur=900)
    found = against(_analyzed(trace([MM])), _analyzed(without))
    assert found.word == "inconclusive"
    assert any("no_steps" in note for note in found.notes)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of", "size"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "cuBLAS", "256x128"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", "cuBLAS", "128x64"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_nn_align8>()",
            "CUTLASS",
            "256x64",
        ),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_tilesize128x128x32_stage4", "cuDNN", "128x128"),
        ("triton_poi_fused_add_0", "Triton", None),
        ("void at::native::vectorized_elementwise_kernel<8, float>(int, float)", "ATen", None),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16", "rocBLAS or hipBLASLt", None),
        ("my_kernel", None, None),
    ],
)
def test_what_a_kernels_name_says(name: str, of: str | None, size: str | None) -> None:
    assert (library(name), tile(name)) == (of, size)


def test_what_a_new_name_means() -> None:
    nvjet = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz"
    assert new_name(nvjet, nvjet.replace("256x128", "128x64")) == "tile 256x128 -> 128x64"
    assert new_name(nvjet, "triton_tem_fused_mm_0") == "library cuBLAS -> Triton"
    assert new_name("a", "b") == "another kernel"
    assert new_name("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)") == "another kind of copy"
