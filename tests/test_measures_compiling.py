"""Compilations in the steps: counted once however many rows each has, with the time they took and their steps."""

from __future__ import annotations

import numpy as np
from traces import BACKWARD, TraceBuilder

from proftrack.measures.compiling import compilations, compiling_steps, loading_steps, number_of
from proftrack.measures.view import View, view


def steps(*lengths: float) -> TraceBuilder:
    """Steps of these lengths, numbered from 10; each ends with an operator of 5 us."""
    trace, at = TraceBuilder(), 0.0
    for number, length in enumerate(lengths, 10):
        trace.step(number, at=at, dur=length).op("aten::mm", at=at + length - 6, dur=5)
        at += length
    return trace


def counted(trace: TraceBuilder) -> tuple[int, int]:
    seen = view(trace.table())
    return number_of(compilations(seen.table, seen.steps, seen.forest))


def seen_by(trace: TraceBuilder) -> View:
    return view(trace.table())


def message(trace: TraceBuilder) -> str:
    (found,) = [flag.message for flag in trace.measures().flags if flag.code == "recompiled_in_window"]
    return found


def recompiled(trace: TraceBuilder, at: float, dur: float = 50_000, thread: int = 101) -> TraceBuilder:
    """The rows of one compilation, as torch 2.13 records them."""
    trace.op("dynamo", at=at, dur=dur, thread=thread).op("entire_frame_compile", at=at, dur=dur, thread=thread)
    trace.op("_compile.compile_inner (dynamo_timed)", at=at + 10, dur=dur - 20, thread=thread)
    trace.op("compile_fx_inner (dynamo_timed)", at=at + 100, dur=dur / 2, thread=thread)
    trace.op("GraphLowering.codegen (dynamo_timed)", at=at + 200, dur=dur / 4, thread=thread)
    return trace.op("build_guards", at=at + dur * 0.9, dur=dur * 0.05, thread=thread)


def test_the_rows_of_one_compilation_are_one() -> None:
    trace = recompiled(steps(170, 170, 51_300), at=340)
    assert counted(trace) == (1, 0)
    assert message(trace).endswith("1 compilation, 50 ms, in step 12.")
    seen = seen_by(trace)
    assert compiling_steps(seen.table, seen.steps, seen.forest).tolist() == [0, 0, 50_000_000]


def test_a_graph_and_its_backward_pass_are_one() -> None:
    """The backward pass is compiled when it first runs, inside of its operator and on autograd's thread."""
    trace = recompiled(steps(200, 90_000), at=300, dur=30_000)
    trace.op("CompiledFunctionBackward", at=40_000, dur=20_000, thread=BACKWARD)
    trace.op("entire_backward_compile", at=40_010, dur=19_000, thread=BACKWARD)
    trace.op("backward._backward_impl (dynamo_timed)", at=40_020, dur=18_000, thread=BACKWARD)
    trace.op("inductor_compile", at=40_030, dur=17_000, thread=BACKWARD)
    assert counted(trace) == (1, 0)
    assert message(trace).endswith("1 compilation, 49 ms, in step 11.")


def test_compilations_of_two_frames_in_two_steps() -> None:
    """A frame is compiled, runs, and what follows its graph break is compiled: three in all, with that of step 12."""
    trace = recompiled(steps(100, 60_000, 60_000), at=200, dur=20_000).op("aten::add", at=25_000, dur=5)
    recompiled(recompiled(trace, at=30_000, dur=20_000), at=60_200, dur=10_000)
    assert counted(trace) == (3, 0)
    assert message(trace).endswith("3 compilations, 50 ms, in steps 11 and 12.")


def test_frames_compiled_in_succession_are_several() -> None:
    trace = recompiled(recompiled(steps(100, 60_000), at=200, dur=20_000), at=20_200, dur=20_000)
    assert counted(trace) == (2, 0)


def test_parts_in_succession_are_one_if_nothing_else_runs_between_them() -> None:
    """Without an outer row, as in older traces."""
    parts = steps(1000).region("create_aot_dispatcher_function", at=100, dur=50).region("compile_fx", at=150, dur=200)
    parts.region("inductor_compile", at=360, dur=100)
    assert counted(parts) == (1, 0)
    assert counted(parts.call("cuModuleLoadData", at=355, dur=3)) == (1, 0)  # of what is compiled
    assert counted(parts.op("aten::mm", at=352, dur=2)) == (2, 0)


def test_a_part_that_comes_again_begins_another_compilation() -> None:
    parts = steps(1000)
    for at in (100, 400):
        parts.region("compile_fx", at=at, dur=200).region("inductor_compile", at=at + 210, dur=50)
    assert counted(parts) == (2, 0)


def test_each_autotuning_run_counts() -> None:
    trace = recompiled(steps(100, 90_000), at=200, dur=10_000)
    name = "CachingAutotuner.benchmark_all_configs (dynamo_timed)"
    trace.op(name, at=5_000, dur=1_000)  # part of the compilation
    trace.op(name, at=20_000, dur=1_000).op("triton_poi_fused_0", at=21_100, dur=10)
    trace.op(name, at=30_000, dur=1_000).op(name, at=31_000, dur=500)
    assert counted(trace) == (1, 3)
    assert message(trace).endswith("1 compilation and 3 autotuning runs, 12.5 ms, in step 11.")


def test_a_compilers_threads_count_with_the_compilation_that_waits_for_them() -> None:
    trace = recompiled(steps(60_000), at=100, dur=50_000)
    trace.op("async_compile.precompile (dynamo_timed)", at=10_000, dur=20_000, thread=7)
    trace.op("async_compile.precompile (dynamo_timed)", at=12_000, dur=30_000, thread=8)
    assert counted(trace) == (1, 0)


def test_loading_a_module_is_no_compilation() -> None:
    """A kernel that was compiled before is loaded when it first runs."""
    trace = steps(100, 900).call("cuModuleLoadData", at=150, dur=300).call("cuLibraryLoadData", at=500, dur=200)
    assert counted(trace) == (0, 0)
    seen = seen_by(trace)
    assert loading_steps(seen.table, seen.steps).tolist() == [0, 500_000]
    assert not np.any(compiling_steps(seen.table, seen.steps, seen.forest))


def test_many_steps_are_counted_rather_than_named() -> None:
    trace = steps(*[1000.0] * 7)
    for number in range(7):
        recompiled(trace, at=1000 * number + 10, dur=400)
    assert message(trace).endswith("7 compilations, 2.8 ms, in steps 10, 11, 12, 13 and 3 more.")
