"""Which captured launches replayed graphs stand for, worked out by hand; and that nothing else is ever named."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import BACKWARD, TraceBuilder

from proftrack.measures import Measures, captures, combine, measure, recorded_captures
from proftrack.record.ceilings import Ceilings
from proftrack.record.modules import Graph
from proftrack.trace.categories import CAPTURED, CAPTURED_REPLAY, ONE_BRANCH

MM, ADD, RELU = ("aten::mm", [64, 32], [32, 16]), ("aten::add", [64, 16], [16]), ("aten::relu", [64, 16])
STEP = (MM, ADD, RELU)
KERNELS = ("gemm", "add_kernel", "relu_kernel")
NOT_RECORDED = "Its capture was not recorded"


def capture(*launches: Any, ran: tuple[str, ...] = KERNELS, **more: Any) -> TraceBuilder:
    """A trace with a capture at 10 us and its replay at 500 us, in the regions that tell what they are."""
    trace = TraceBuilder().region(CAPTURED, at=0, dur=400).captured(*(launches or STEP), at=10)
    return trace.region(CAPTURED_REPLAY, at=490, dur=300).replay(*ran, at=500, correlation=7, **more)


def replayed(*work: str, steps: int = 2, **more: Any) -> TraceBuilder:
    """Steps of 100 us, each with one replay at its 10th."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 100 * number
        trace.step(number, at=at, dur=100).region("forward", at=at + 5, dur=90)
        trace.replay(*(work or KERNELS), at=at + 10, correlation=number + 1, **more)
    return trace


def named(main: TraceBuilder, *captures: TraceBuilder, ceilings: Ceilings | None = None) -> Measures:
    traces = [recorded_captures(f"capture{i or ''}.json", each.table()) for i, each in enumerate(captures)]
    return measure(main.table(), ceilings, traces)


def operators(measures: Measures) -> dict[str, str]:
    """The operator and shapes of each kernel, as its site has it."""
    return {site.kernel: f"{site.operator} {site.shapes}".strip() for site in measures.sites}


def only(measures: Measures) -> Graph:
    [graph] = measures.graphs
    return graph


def refused(measures: Measures, *, because: str) -> None:
    """One graph, which is not named, and no kernel has an operator of it."""
    graph = only(measures)
    assert not graph.named and not graph.capture
    assert because in graph.problem
    assert set(operators(measures).values()) <= {"forward", "ProfilerStep"}
    assert measures.replayed_us > 0 and not measures.named_us


def test_each_kernel_has_the_operator_and_shapes_that_it_was_captured_from() -> None:
    found = named(replayed(), capture())
    assert only(found) == Graph(kernels=3, replays=2, total_us=24.0, named=True, capture="capture.json")
    assert operators(found) == {
        "gemm": "aten::mm [[64,32],[32,16]]",
        "add_kernel": "aten::add [[64,16],[16]]",
        "relu_kernel": "aten::relu [[64,16]]",
    }
    assert [site.calls for site in found.sites] == [2, 2, 2]
    assert (found.replayed_us, found.named_us, found.launched_us) == (0.0, 24.0, {})
    assert found.whole_us["aten::mm"] == 8.0


def test_its_work_is_counted_as_if_it_had_run_eagerly() -> None:
    ceilings = Ceilings(device="x", flops_per_s={"float32": 1e12}, bytes_per_s=1e11)
    found = named(replayed(), capture(), ceilings=ceilings)
    flops = 2 * 64 * 32 * 16
    [gemm] = [kernel for kernel in found.kernels if kernel.name == "gemm"]
    moved = 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert (gemm.flops, gemm.bytes) == (2 * flops, 2 * moved)  # two replays
    assert gemm.roofline_us == pytest.approx(2 * max(flops / 1e12, moved / 1e11) * 1e6, abs=1e-3)
    assert gemm.limit == "bandwidth"
    assert found.work is not None
    assert found.work.flops_by_dtype == {"float32": 2 * (flops + 64 * 16 + 64 * 16)}
    assert found.work.uncounted_us == 0


def test_what_the_host_did_stays_as_it_was() -> None:
    alone, found = measure(replayed().table()), named(replayed(), capture())
    assert (found.ops, found.idle, found.per_step, found.totals) == (
        alone.ops,
        alone.idle,
        alone.per_step,
        alone.totals,
    )
    assert found.busy_us == alone.busy_us == sum(site.busy_us for site in found.sites)


def test_without_a_capture_the_remedy_is_named() -> None:
    refused(measure(replayed().table()), because=NOT_RECORDED)
    assert measure(TraceBuilder().step(0, at=0, dur=9).work(1, launch=1, at=3, dur=2).table()).graphs == []


@pytest.mark.parametrize(
    ("launches", "ran", "because"),
    [
        (STEP[:2], KERNELS[:2], "No capture in capture.json has its 3 launches; the nearest has 2"),
        ((*STEP, RELU), (*KERNELS, "relu_kernel"), "has its 3 launches; the nearest has 4"),
        ((ADD, MM, RELU), ("add_kernel", "gemm", "relu_kernel"), "launch 1 is add_kernel there and gemm here"),
        (STEP, ("gemm", "add_kernel", "gelu_kernel"), "launch 3 is gelu_kernel there and relu_kernel here"),
        ((MM, ADD, ("cudaMemcpyAsync",)), (*KERNELS[:2], "Memcpy DtoD"), "other copies and sets"),
    ],
)
def test_other_code_is_refused(launches: Any, ran: tuple[str, ...], because: str) -> None:
    refused(named(replayed(), capture(*launches, ran=ran)), because=because)


def test_other_sizes_are_refused_where_the_grids_tell() -> None:
    refused(named(replayed(), capture(blocks=500)), because="of other sizes: launch 1 has another grid")
    copy, work = (MM, ("cudaMemcpyAsync",)), ("gemm", "Memcpy DtoD")
    own = capture(*copy, ran=work)
    assert only(named(replayed(*work), own)).named
    for event in own.events:
        if event["name"] == "Memcpy DtoD":
            event["args"]["bytes"] = 128
    refused(named(replayed(*work), own), because="of other sizes: launch 2 has another grid there, or moves another")


def test_work_on_two_streams_is_refused() -> None:
    main = TraceBuilder().step(0, at=0, dur=100).replay("gemm", "add_kernel", at=10, correlation=1)
    main.kernel("relu_kernel", at=25, dur=4, correlation=1, stream=9)
    refused(named(main, capture()), because="branches, on 2 streams")
    main = TraceBuilder()
    for number, (*order, last) in enumerate((KERNELS, KERNELS[::-1])):  # branches run in any order: it is one graph
        main.step(number, at=100 * number, dur=100).replay(*order, at=100 * number + 10, correlation=number + 1)
        main.kernel(last, at=100 * number + 25, dur=4, correlation=number + 1, stream=9, grid=[1000, 1, 1])
    assert (only(named(main, capture())).replays, only(named(main, capture())).named) == (2, False)


def test_a_capture_that_forks_is_refused() -> None:
    forked = capture().call("cudaStreamWaitEvent", at=25, dur=1)
    refused(named(replayed(), forked), because="has branches (one stream waits for another)")
    for at in (20, 450):  # before the capture ends, and outside of its region
        wrong = capture().call("cudaStreamWaitEvent", at=25, dur=1).region(ONE_BRANCH, at=at, dur=1)
        refused(named(replayed(), wrong), because="has branches")
    chain = capture().call("cudaStreamWaitEvent", at=25, dur=1).region(ONE_BRANCH, at=395, dur=1)
    assert only(named(replayed(), chain)).named
    elsewhere = capture().call("cudaStreamWaitEvent", at=25, dur=1, thread=BACKWARD)  # that thread launches nothing
    assert only(named(replayed(), elsewhere)).named
    before = capture().call("cudaStreamWaitEvent", at=5, dur=1)  # it ends before the capture begins
    assert only(named(replayed(), before)).named


def test_streams_that_wait_for_gradients_without_launching_are_no_branches() -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    leaf = capture().op(node, at=35.1, dur=4).call("cudaStreamWaitEvent", at=36, dur=1)  # between the last two launches
    joined = leaf.call("cudaStreamWaitEvent", at=45, dur=1)  # behind the last launch
    assert only(named(replayed(), joined)).named
    adds = capture().op(node, at=39.9, dur=9).call("cudaStreamWaitEvent", at=40.5, dur=1)  # around the last launch
    refused(named(replayed(), adds), because="has branches")
    other = capture().op(node.replace("AccumulateGrad", "MmBackward0"), at=35.1, dur=4)
    refused(named(replayed(), other.call("cudaStreamWaitEvent", at=36, dur=1)), because="has branches")


def test_kernels_that_overlap_like_programmatic_launches_stay_in_order() -> None:
    main = TraceBuilder().step(0, at=0, dur=100).launch(at=10, dur=3, correlation=1, name="cudaGraphLaunch")
    for name, at in zip(KERNELS, (15, 18.5, 22), strict=True):
        main.kernel(name, at=at, dur=4, correlation=1)
    assert only(named(main, capture())).named
    within = TraceBuilder().step(0, at=0, dur=100).launch(at=10, dur=3, correlation=1, name="cudaGraphLaunch")
    for name, at, dur in zip(KERNELS, (15, 18, 30), (10, 4, 4), strict=True):
        within.kernel(name, at=at, dur=dur, correlation=1)
    refused(named(within, capture()), because="overlaps")


def test_a_capture_whose_kernels_nothing_tells_is_refused() -> None:
    refused(named(replayed(), TraceBuilder().captured(*STEP, at=10)), because="does not tell which kernels they are")


def test_a_backward_pass_is_captured_on_its_own_thread() -> None:
    trace = TraceBuilder().region(CAPTURED, at=0, dur=400).captured(MM, at=10)
    [end] = [event for event in trace.events if event["name"] == "cudaStreamEndCapture"]
    end["ts"] = 100
    trace.op("aten::mm", at=50, dur=8, thread=BACKWARD, Input_Dims=[[16, 64], [64, 32]], Input_type=["float"] * 2)
    trace.launch(at=52, correlation=99, thread=BACKWARD)
    trace.region(CAPTURED_REPLAY, at=490, dur=99).replay("gemm", "gemm_nt", at=500, correlation=7)
    assert operators(named(replayed("gemm", "gemm_nt"), trace)) == {
        "gemm": "aten::mm [[64,32],[32,16]]",
        "gemm_nt": "aten::mm [[16,64],[64,32]]",
    }


def test_calls_within_calls_count_once_and_copies_are_matched_by_kind() -> None:
    trace = TraceBuilder().region(CAPTURED, at=0, dur=400).captured(MM, ("cudaMemsetAsync",), at=10)
    trace.launch(at=22.2, dur=0.5, correlation=55, name="cuLaunchKernel", cat="cuda_driver")  # in that of aten::mm
    trace.region(CAPTURED_REPLAY, at=490, dur=99).replay("gemm", "Memset (Unknown)", at=500, correlation=7)
    found = named(replayed("gemm", "Memset (Device)"), trace)
    assert only(found).named
    assert operators(found)["Memset (Device)"] == "aten::copy_"


# ---- what tells a capture's kernels ----------------------------------------------------------------------------------


def test_launches_that_name_their_kernels_need_no_replay() -> None:
    trace = TraceBuilder().call("hipStreamBeginCapture", at=10, dur=1)
    for number, ((operator, *dims), kernel) in enumerate(zip(STEP, KERNELS, strict=True), 1):
        trace.op(operator, at=10 * number + 5, dur=8, Input_Dims=dims, Input_type=["float"] * len(dims))
        trace.launch(at=10 * number + 6, correlation=number, name="hipModuleLaunchKernel", kernel=kernel)
    trace.call("hipStreamEndCapture", at=60, dur=1)
    main = replayed()
    assert operators(named(main, trace))["add_kernel"] == "aten::add [[64,16],[16]]"
    refused(named(replayed("gemm", "relu_kernel", "add_kernel"), trace), because="launch 2 is add_kernel there")


def warmed_up(*launches: Any, ran: tuple[str, ...]) -> TraceBuilder:
    """The operators run once, then are captured at 500 us."""
    trace = TraceBuilder()
    for number, ((operator, *dims), kernel) in enumerate(zip(launches, ran, strict=True), 1):
        trace.op(operator, at=10 * number, dur=8, Input_Dims=dims, Input_type=["float"] * len(dims))
        trace.work(number, launch=10 * number + 2, at=10 * number + 4, dur=4, name=kernel)
    return trace.captured(*STEP, at=500)


def test_a_warm_up_with_the_same_operators_and_shapes_tells_the_kernels() -> None:
    found = named(replayed(), warmed_up(ADD, *STEP, RELU, ran=("add_kernel", *KERNELS, "relu_kernel")))
    assert operators(found)["gemm"] == "aten::mm [[64,32],[32,16]]"
    other = warmed_up(*STEP, ran=("gemm", "add_kernel", "gelu_kernel"))
    refused(named(replayed(), other), because="launch 3 is gelu_kernel there")
    wider = ("aten::add", [128, 16], [16])
    refused(named(replayed(), warmed_up(MM, wider, RELU, ran=KERNELS)), because="does not tell which kernels")


def test_the_same_operators_after_a_capture_are_no_warm_up() -> None:
    trace = TraceBuilder().captured(*STEP, at=10)
    for number, ((operator, *dims), kernel) in enumerate(zip(STEP, KERNELS, strict=True), 1):
        at = 100 + 10 * number
        trace.op(operator, at=at, dur=8, Input_Dims=dims, Input_type=["float"] * len(dims))
        trace.work(number, launch=at + 2, at=at + 4, dur=4, name=kernel)
    refused(named(replayed(), trace), because="does not tell which kernels")


def test_codes_are_found_whole() -> None:
    """0 and 1 have the bytes of 256 across their bounds."""
    wanted = np.array([256], dtype="<i8").tobytes()
    for codes, at in (([0, 1], None), ([256, 0, 1], 0), ([0, 1, 256], 2)):
        assert captures._last_of(wanted, np.array(codes, dtype="<i8").tobytes(), len(codes)) == at


def test_the_replay_after_a_capture_is_no_evidence() -> None:
    """It may be another graph's with as many kernels: only regions say which replay is the capture's own."""
    trace = TraceBuilder().captured(*STEP, at=10).replay(*KERNELS, at=500, correlation=7)
    refused(named(replayed(), trace), because="does not tell which kernels they are")


def test_a_trace_with_its_own_capture_needs_no_other() -> None:
    main = TraceBuilder().region(f"{CAPTURED} 1", at=5, dur=90).captured(*STEP, at=10)
    main.region(f"{CAPTURED_REPLAY} 1", at=400, dur=60).replay(*KERNELS, at=405, correlation=9)
    for number in range(2):
        main.step(number, at=500 + 100 * number, dur=90)
        main.replay(*KERNELS, at=510 + 100 * number, correlation=number + 1)
    found = measure(main.table())
    assert found.graphs
    assert all(graph.named and graph.capture == "this trace" for graph in found.graphs)
    assert operators(found)["gemm"] == "aten::mm [[64,32],[32,16]]"


# ---- several ---------------------------------------------------------------------------------------------------------


def numbered() -> TraceBuilder:
    """Two captures of equal size, one after the other, then their replays in the other order."""
    trace = TraceBuilder()
    for number, launches in enumerate(((MM, ADD), (RELU, RELU)), 1):
        trace.region(f"{CAPTURED} {number}", at=100 * number - 5, dur=90).captured(*launches, at=100 * number)
    for number, ran in ((2, ("relu_kernel", "relu_kernel")), (1, KERNELS[:2])):
        trace.region(f"{CAPTURED_REPLAY} {number}", at=1000 - 100 * number, dur=60)
        trace.replay(*ran, at=1005 - 100 * number, correlation=number)
    return trace


def test_the_numbers_of_regions_tell_which_replay_is_of_which_capture() -> None:
    main = TraceBuilder().step(0, at=0, dur=200)
    main.replay(*KERNELS[:2], at=10, correlation=1).replay("relu_kernel", "relu_kernel", at=100, correlation=2)
    found = named(main, numbered())
    assert [(graph.kernels, graph.replays, graph.named) for graph in found.graphs] == [(2, 1, True)] * 2
    assert operators(found) == {
        "gemm": "aten::mm [[64,32],[32,16]]",
        "add_kernel": "aten::add [[64,16],[16]]",
        "relu_kernel": "aten::relu [[64,16]]",
    }


def test_a_numbered_capture_without_its_replay_names_nothing() -> None:
    """The next replay is another graph's: both have two kernels."""
    trace = TraceBuilder().region(f"{CAPTURED} 1", at=95, dur=90).captured(MM, ADD, at=100)
    trace.region(f"{CAPTURED_REPLAY} 2", at=500, dur=60).replay("gemm", "relu_kernel", at=505, correlation=7)
    refused(named(replayed("gemm", "relu_kernel"), trace), because="does not tell which kernels they are")


def test_graphs_with_equal_kernels_are_named_only_if_all_their_captures_agree() -> None:
    same = named(replayed(), capture(), capture())
    assert only(same).named
    wider = (("aten::mm", [64, 48], [48, 16]), ADD, RELU)
    refused(named(replayed(), capture(), capture(*wider)), because="their operators or shapes differ from launch 1 on")


def test_one_graph_of_several_may_be_refused() -> None:
    main = replayed().replay("sort_kernel", at=60, correlation=50)
    graphs = {graph.kernels: graph for graph in named(main, capture()).graphs}
    assert graphs[3].named and not graphs[1].named
    assert graphs[1].problem.startswith("No capture in capture.json has its 1 launch;")


def test_cycles_add_up() -> None:
    both = combine([named(replayed(), capture()), named(replayed(steps=3), capture())])
    assert only(both) == Graph(kernels=3, replays=5, total_us=60.0, named=True, capture="capture.json")
    assert both.named_us == 60.0
    assert {site.operator for site in both.sites} == {"aten::mm", "aten::add", "aten::relu"}


# ---- whose it is -----------------------------------------------------------------------------------------------------


def of_modules(*paths: str) -> TraceBuilder:
    """The capture with its first launches in calls of these modules, of which each is called once."""
    trace = capture()
    for number, path in enumerate(paths, 1):
        trace.row("cpu_op", f"nn.Module: {path} (Linear)", 10 * number + 9, 10)
    return trace


def owned(measures: Measures) -> dict[str, tuple[str, float, int]]:
    return {f"{row.kind} {row.path}".strip(): (row.class_name, row.busy_us, row.calls) for row in measures.modules}


def test_work_belongs_to_the_modules_that_it_was_captured_in() -> None:
    found = named(replayed(), of_modules("layers.0", "layers.1"))
    assert owned(found) == {
        "module layers.0": ("Linear", 8.0, 2),  # a kernel of 4 us, and a call, in each of two steps
        "module layers.1": ("Linear", 8.0, 2),
        "none": ("", 8.0, 0),  # captured in no module, replayed in a region that is the whole step
    }
    assert found.busy_us == 24.0
    assert {site.kernel: site.modules for site in found.sites}["gemm"] == ["layers.0"]


def test_work_whose_modules_captures_disagree_about_has_none_of_them() -> None:
    found = named(replayed(), of_modules("layers.0", "head"), of_modules("layers.1", "head"))
    assert operators(found)["gemm"] == "aten::mm [[64,32],[32,16]]"
    assert {kind: us for kind, (_, us, _) in owned(found).items() if us} == {"module head": 8.0, "none": 16.0}


def test_layers_of_which_not_all_are_replayed_where_they_were_captured_have_no_work() -> None:
    """The recorded replays may be those of the second."""
    both = of_modules("layers.0", "head").region(f"{CAPTURED} 2", at=1000, dur=400).captured(*STEP, at=1010)
    for at, path in ((1019, "layers.1"), (1029, "head")):
        both.row("cpu_op", f"nn.Module: {path} (Linear)", at, 10)
    found = named(replayed(), both)
    assert operators(found)["gemm"] == "aten::mm [[64,32],[32,16]]"
    assert {kind: us for kind, (_, us, _) in owned(found).items() if us} == {"module head": 8.0, "none": 16.0}
    assert not any(calls for _, _, calls in owned(found).values())
    wider = of_modules("layers.0").captured(("aten::mm", [64, 48], [48, 16]), ADD, RELU, at=1010)
    assert owned(named(replayed(), wider))["module layers.0"] == ("Linear", 8.0, 2)


def test_work_captured_in_no_module_is_that_of_the_region_that_replays_it() -> None:
    main = TraceBuilder()
    for number in range(2):
        at = 100 * number
        main.step(number, at=at, dur=100).region("decode", at=at + 8, dur=30).region("sample", at=at + 50, dur=40)
        main.replay(*KERNELS, at=at + 10, correlation=number + 1)
        main.work(number + 10, launch=at + 55, at=at + 60, dur=5, name="sort_kernel")
    found = named(main, of_modules("layers.0"))
    times = {kind: us for kind, (_, us, _) in owned(found).items() if us}
    assert times == {"module layers.0": 8.0, "region decode": 16.0, "region sample": 10.0}


def test_a_captured_backward_pass_belongs_to_the_modules_of_its_forward_pass() -> None:
    trace = TraceBuilder().region(CAPTURED, at=0, dur=400).call("cudaStreamBeginCapture", at=1, dur=1)
    trace.row("cpu_op", "nn.Module: head (Linear)", 9, 12)
    trace.op("aten::mm", at=10, dur=8, Sequence_number=3).launch(at=12, correlation=1)
    node = "autograd::engine::evaluate_function: MmBackward0"
    trace.op(node, at=40, dur=20, thread=BACKWARD, Sequence_number=3)
    trace.op("aten::mm", at=42, dur=8, thread=BACKWARD).launch(at=43, correlation=2, thread=BACKWARD)
    trace.region("Optimizer.step#SGD.step", at=70, dur=20).op("aten::add_", at=72, dur=8).launch(at=73, correlation=3)
    trace.call("cudaStreamEndCapture", at=100, dur=1)
    work = ("gemm", "gemm_nt", "add_kernel")
    trace.region(CAPTURED_REPLAY, at=490, dur=99).replay(*work, at=500, correlation=7)
    found = named(replayed(*work), trace)
    rows = {row.path: row for row in found.modules}
    assert (rows["head"].forward_us, rows["head"].backward_us, rows["head"].calls) == (8.0, 8.0, 2)
    assert (rows["SGD"].kind, rows["SGD"].optimizer_us) == ("optimizer", 8.0)
    assert sum(row.busy_us for row in found.modules) == found.busy_us == 24.0


# ---- properties ------------------------------------------------------------------------------------------------------

OPERATORS = {"aten::mm": "gemm", "aten::add": "add", "aten::relu": "relu", "aten::sort": "sort", "aten::copy_": "copy"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_no_kernel_is_named_wrongly(names: list[str], chance: random.Random) -> None:
    """Kernels tell their operators here: whatever order is replayed, a kernel has its own operator, or none."""
    launches = [(name, [8, chance.randint(1, 9)]) for name in names]
    ran = tuple(OPERATORS[name] for name in names)
    main = list(ran)
    if chance.random() < 0.7:
        chance.shuffle(main)
    if chance.random() < 0.2:
        main.append("sort")
    found = named(replayed(*main), capture(*launches, ran=ran))
    assert only(found).named == (tuple(main) == ran)
    for site in found.sites:
        own = next(name for name, kernel in OPERATORS.items() if kernel == site.kernel)
        assert site.operator == (own if only(found).named else "forward")
