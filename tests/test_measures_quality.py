"""Every quality flag: raised by a trace made for it, and by no clean one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from traces import TraceBuilder, clean, flags, table_of

from proftrack.measures import measure, quality
from proftrack.measures.quality import FLAGS
from proftrack.measures.view import view
from proftrack.record.figures import EXCLUDED_REGION
from proftrack.verdict.context import Context
from proftrack.verdict.judge import judge


def steps(count: int, kernels: int = 1, *, dur: float = 100) -> TraceBuilder:
    """Steps in one region each, with kernels of 10 us."""
    trace = TraceBuilder()
    for s in range(count):
        at = s * dur
        trace.step(s, at=at, dur=dur).region("forward", at=at, dur=dur)
        for k in range(kernels):
            trace.work(1 + s * kernels + k, launch=at + 2 * k + 1, at=at + 12 * k + 5, dur=10)
    return trace


def graph(trace: TraceBuilder, correlation: int, at: float, kernels: int, first: str = "k0") -> TraceBuilder:
    trace.launch(at=at, correlation=correlation, name="cudaGraphLaunch")
    for i in range(kernels):
        trace.kernel(first if i == 0 else f"k{i}", at=at + 2 + 2 * i, dur=1, correlation=correlation)
    return trace


def with_graphs(*kernels: tuple[int, ...]) -> TraceBuilder:
    """A step for each tuple, in which graphs with so many kernels are replayed."""
    trace = TraceBuilder()
    for s, counts in enumerate(kernels):
        trace.step(s, at=s * 1000, dur=1000).region("forward", at=s * 1000, dur=1000)
        for i, count in enumerate(counts):
            graph(trace, 1 + s * 10 + i, s * 1000 + i * 100, count, first=f"first of {i}")
    return trace


RAISED: dict[str, tuple[Callable[[], TraceBuilder], str, int]] = {
    "no step": (lambda: TraceBuilder().op("a", at=0, dur=10), "no_steps", 1),
    "a context created in the only step": (
        lambda: (
            TraceBuilder()
            .step(0, at=0, dur=90_000)
            .call("cudaFree", at=1, dur=50_000)
            .work(1, launch=60_000, at=60_009, dur=9)
        ),
        "cold_start",
        1,
    ),
    "a step ten times as long": (lambda: steps(4, dur=1000).step(4, at=4000, dur=10_000), "outlier_steps", 1),
    "a step with ten times the GPU work": (
        lambda: steps(4).step(4, at=400, dur=100).work(99, launch=410, at=420, dur=100),
        "uneven_steps",
        1,
    ),
    "a step without GPU work": (lambda: steps(4).step(4, at=400, dur=100), "uneven_steps", 1),
    "steps of two processes": (lambda: steps(2).step(7, at=5, dur=100, pid=77), "several_processes", 2),
    "launches without kernels": (lambda: clean().launch(at=50, correlation=77), "launches_without_gpu_work", 1),
    "no kernels at all": (
        lambda: TraceBuilder().step(0, at=0, dur=9).launch(at=1, correlation=1).launch(at=3, correlation=2),
        "gpu_not_measured",
        2,
    ),
    "leaked work": (lambda: clean().kernel("old", at=-50, dur=60), "work_before_window", 1),
    "a queue that was not recorded": (
        lambda: TraceBuilder().step(0, at=0, dur=90).region("f", at=0, dur=9).work(1, launch=1, at=40, dur=5),
        "work_before_window",
        1,
    ),
    "a kernel before its launch": (lambda: clean().work(9, launch=60, at=59, dur=5), "gpu_before_launch", 1),
    "overlap on a stream": (lambda: clean().work(9, launch=20, at=50, dur=10), "overlapping_on_stream", 1),
    "several in one": (
        lambda: clean().work(8, launch=20, at=53, dur=5).work(9, launch=21, at=54, dur=5),
        "overlapping_on_stream",
        2,
    ),
    "work that outlives its successor": (
        lambda: clean().work(9, launch=20, at=30, dur=10),
        "impossible_durations",
        1,
    ),
    "an operator twice": (
        lambda: clean().op("x", at=50, dur=5, External_id=3).op("x", at=50, dur=5, External_id=3),
        "duplicate_rows",
        1,
    ),
    "a kernel without a launch": (lambda: clean().kernel("x", at=60, dur=5), "gpu_work_without_launch", 1),
    "a kernel at ts 0": (
        lambda: TraceBuilder().step(0, at=9e9, dur=50).kernel("x", at=0, dur=5),
        "invalid_timestamps",
        1,
    ),
    "a negative duration": (lambda: clean().work(9, launch=60, at=61, dur=-5), "invalid_timestamps", 1),
    "a last step that was not recorded to its end": (
        lambda: steps(3, 4).step(3, at=300, dur=100).launch(at=301, correlation=91).launch(at=303, correlation=92),
        "partial_window",
        2,
    ),
    "a replay without kernels": (lambda: with_graphs((6,), (0,), (6,)), "under_recorded_graphs", 1),
    "a replay recorded in part": (lambda: with_graphs((6, 20), (6, 20), (6, 9)), "under_recorded_graphs", 1),
    "a lone replay without kernels": (
        lambda: graph(clean(), 50, 60, 0),
        "under_recorded_graphs",
        1,
    ),
    "replays recorded in part, without steps": (
        lambda: graph(graph(TraceBuilder().op("a", at=0, dur=9), 1, 10, 30), 2, 200, 9),
        "under_recorded_graphs",
        1,
    ),
    "compilation": (
        lambda: clean().region("compile_fx.<locals>.compile_inner", at=50, dur=9),
        "recompiled_in_window",
        1,
    ),
    "autotuning": (lambda: clean().op("benchmark_all_configs", at=50, dur=9), "recompiled_in_window", 1),
    "evaluation in a step": (
        lambda: clean().region("validation", at=130, dur=40),
        "evaluation_in_steps",
        1,
    ),
    "what the loop's owner left out in every step": (
        lambda: clean().region(EXCLUDED_REGION, at=20, dur=20).region(EXCLUDED_REGION, at=130, dur=40),
        "evaluation_in_steps",
        2,
    ),
    "no region": (
        lambda: TraceBuilder().step(0, at=0, dur=90).op("a", at=0, dur=9).work(1, launch=1, at=5, dur=5),
        "no_region",
        1,
    ),
}


@pytest.mark.parametrize("what", RAISED)
def test_the_flag_is_raised_with_its_count_and_sentence(what: str) -> None:
    build, code, count = RAISED[what]
    measures = build().measures()
    assert flags(measures).get(code) == count
    message = next(f.message for f in measures.flags if f.code == code)
    assert message.startswith(FLAGS[code])
    assert [f.code for f in measures.flags] == [c for c in FLAGS if c in flags(measures)]


NOT_RAISED: dict[str, tuple[Callable[[], TraceBuilder], str]] = {
    "steps a little uneven": (
        lambda: steps(4).step(4, at=400, dur=250).work(99, launch=410, at=420, dur=25),
        "uneven_steps",
    ),
    "graphs of several sizes": (lambda: with_graphs((2, 40, 7), (2, 40, 7)), "under_recorded_graphs"),
    "graphs of several sizes in one step": (lambda: with_graphs((2, 40, 7)), "under_recorded_graphs"),
    "rows of a stream that touch": (lambda: clean().work(9, launch=20, at=55, dur=5), "overlapping_on_stream"),
    "rows that overlap by a rounded nanosecond": (
        lambda: clean().work(9, launch=20, at=54.999, dur=5),
        "overlapping_on_stream",
    ),
    "rows of two streams": (lambda: clean().work(9, launch=20, at=30, dur=9, stream=8), "overlapping_on_stream"),
    "leaked work is no loss": (lambda: clean().kernel("old", at=-50, dur=60), "invalid_timestamps"),
    "a compiled region that only runs": (
        lambda: clean().region("Torch-Compiled Region: 0/0", at=50, dur=9).op("CompiledFxGraph", at=51, dur=3),
        "recompiled_in_window",
    ),
    # CUDA loads a kernel when it first runs; nothing is compiled for it.
    "a module loaded": (lambda: clean().call("cuModuleLoadData", at=50, dur=9), "recompiled_in_window"),
    "evaluation in every step": (
        lambda: clean().region("validation", at=20, dur=20).region("validation", at=130, dur=40),
        "evaluation_in_steps",
    ),
    "compilation before the steps": (lambda: clean().region("compile_inner", at=-50, dur=9), "recompiled_in_window"),
    "a wait of 50 ms in the only step": (
        lambda: steps(1, dur=90_000).sync(at=100, dur=50_000),
        "cold_start",
    ),
    "a last step like the others": (lambda: steps(3, 4), "partial_window"),
    "one step with silent launches": (
        lambda: TraceBuilder().step(0, at=0, dur=9).launch(at=1, correlation=1).kernel("x", at=2, dur=1),
        "partial_window",
    ),
    "a cpu run": (lambda: TraceBuilder().step(0, at=0, dur=9).op("a", at=1, dur=2), "gpu_not_measured"),
}


@pytest.mark.parametrize("what", NOT_RAISED)
def test_the_flag_is_not_raised(what: str) -> None:
    build, code = NOT_RAISED[what]
    assert code not in flags(build().measures())


def test_a_clean_trace_raises_none() -> None:
    assert flags(clean().measures()) == {}
    assert flags(steps(5, 3).measures()) == {}
    assert flags(with_graphs((5, 5), (5, 5), (5, 5)).measures()) == {}


def test_overlap_says_by_how_much_sums_exceed_busy_time() -> None:
    # 15..55, 50..60 and 52..62: 60 in sum, but only 47 are covered.
    trace = clean().work(8, launch=16, at=50, dur=10).work(9, launch=17, at=52, dur=10)
    measures = trace.measures()
    assert measures.totals.self_cuda_time_total_us is not None
    assert measures.totals.gpu_busy_us is not None
    assert measures.totals.self_cuda_time_total_us - measures.totals.gpu_busy_us == 13
    message = next(f.message for f in measures.flags if f.code == "overlapping_on_stream")
    assert "13.0 us" in message


def cut_ends(trace: TraceBuilder) -> tuple[list[float], dict[str, int]]:
    """Ends of the GPU work in microseconds, in the order of the file, and the flags."""
    seen = view(trace.table())
    return (seen.owned.end / 1000).tolist(), flags(trace.measures())


def stream(*rows: tuple[float, float], **more: Any) -> TraceBuilder:
    """Work on one stream, given as start and end."""
    trace = TraceBuilder().step(1, at=0, dur=1000).region("forward", at=0, dur=900)
    for number, (start, end) in enumerate(rows, start=1):
        trace.launch(at=number, dur=0.5, correlation=number)
        trace.kernel(at=start, dur=end - start, correlation=number, **more)
    return trace


def test_work_that_outlives_its_successor_ends_where_that_starts() -> None:
    ends, raised = cut_ends(stream((10, 20), (30, 500), (60, 70), (80, 90)))
    assert ends == [20, 60, 70, 90]
    assert raised == {"impossible_durations": 1}
    measures = stream((10, 20), (30, 500), (60, 70), (80, 90)).measures()
    assert measures.totals.self_cuda_time_total_us == 10 + 470 + 10 + 10  # as torch counts
    assert measures.totals.gpu_busy_us == 10 + 30 + 10 + 10
    assert measures.impossible_us == 440
    assert "440 us" in measures.flags[0].message


def test_by_more_than_a_microsecond_no_rounding_outlives() -> None:
    assert cut_ends(stream((10, 50), (48, 48.9))) == ([48, 48.9], {"impossible_durations": 1})


def test_two_impossible_rows_in_turn() -> None:
    # The first does not outlive the second, but both outlive the third.
    ends, raised = cut_ends(stream((10, 500), (30, 501), (60, 70)))
    assert (ends, raised) == ([30, 60, 70], {"impossible_durations": 2})


def test_a_copy_cannot_outlive_a_kernel_either() -> None:
    trace = stream((30, 40)).launch(at=5, dur=1, correlation=9, name="cudaMemcpyAsync")
    assert cut_ends(trace.memcpy(at=20, dur=600, correlation=9)) == ([40, 30], {"impossible_durations": 1})


POSSIBLE: dict[str, tuple[TraceBuilder, list[float]]] = {
    "an early start": (stream((10, 50), (30, 60), (55, 70)), [50, 60, 70]),
    "ends at the same time": (stream((10, 50), (30, 50)), [50, 50]),
    "starts at the same time": (stream((10, 50), (10, 20)), [50, 20]),
    "a rounded microsecond": (stream((10, 50), (48, 49)), [50, 49]),
    "a successor of no length": (stream((10, 50), (30, 30)), [50, 30]),
    "two streams": (stream((10, 50)).work(9, launch=20, at=20, dur=9, stream=8), [50, 29]),
    "two devices": (stream((10, 50)).work(9, launch=20, at=20, dur=9, device=1), [50, 29]),
    "no stream": (stream((10, 50), (20, 30), stream=-1), [50, 30]),
    "two processes": (
        stream((10, 50)).launch(at=20, correlation=9, pid=77).kernel(at=20, dur=9, correlation=9),
        [50, 29],
    ),
}


@pytest.mark.parametrize("what", POSSIBLE)
def test_what_a_stream_can_do_is_left_alone(what: str) -> None:
    trace, ends = POSSIBLE[what]
    got, raised = cut_ends(trace)
    assert got == ends
    assert "impossible_durations" not in raised


def with_sets(kernels: int, silent: int, sets: int) -> TraceBuilder:
    """A step with so many kernels, of whose launches some have no kernel, and so many memory sets without work."""
    trace = TraceBuilder().step(1, at=0, dur=1000).region("forward", at=0, dur=900)
    for i in range(kernels):
        trace.launch(at=2 * i + 1, correlation=i + 1)
        if i >= silent:
            trace.kernel(at=2 * i + 2, dur=1, correlation=i + 1)
    names = ("cudaMemsetAsync", "hipMemsetAsync", "cuMemsetD8Async", "cuMemsetD32_v2", "hipMemsetD8")
    for i in range(sets):
        trace.launch(at=500 + 2 * i, correlation=1000 + i, name=names[i % len(names)])
    return trace


def test_memory_sets_without_work_say_nothing() -> None:
    measures = with_sets(kernels=5, silent=0, sets=50).measures()
    assert flags(measures) == {}
    assert (measures.totals.launches, measures.memory_sets) == (55, 50)


def test_of_other_launches_those_without_work_are_counted_apart() -> None:
    measures = with_sets(kernels=5, silent=2, sets=50).measures()
    assert flags(measures) == {"launches_without_gpu_work": 2}
    assert "2 of 5 launch calls, memory sets left out" in measures.flags[0].message
    judged = judge(measures, Context(step_time_us=1000))
    assert judged.verdict.regime == "inconclusive"  # 40 % are silent, not 4 % of all 55
    assert any("launch calls have no recorded GPU work" in reason for reason in judged.verdict.reasons)


def test_only_memory_sets_and_no_gpu_work_is_no_gpu_left_unmeasured() -> None:
    trace = TraceBuilder().step(1, at=0, dur=100).launch(at=5, correlation=1, name="cudaMemsetAsync")
    assert "gpu_not_measured" not in flags(trace.measures())


def test_flags_of_the_file() -> None:
    text = clean().json()
    broken = text.replace(b'"aten::mm"', b'"aten::"mm""')
    repaired = measure(table_of(broken))
    assert flags(repaired) == {"repaired_json": 2}
    assert "byte" in repaired.flags[0].message
    partial = measure(table_of(text[: len(text) // 2], salvage=True))
    assert flags(partial)["partial_file"] == 1


def test_every_flag_that_a_trace_can_raise_has_a_test() -> None:
    raised = set(re.findall(r'yield flag\(\s*"(\w+)"', inspect.getsource(quality)))
    assert {"no_steps", "no_region"} <= raised <= set(FLAGS)
    assert raised == {code for _, code, _ in RAISED.values()} | {"repaired_json", "partial_file"}
