"""`--captured-in`: real traces of replays beside those of their captures, folders and ranks, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from calls import Shown, show
from recorded_captures import REPLAYED, capture_of
from test_measures_graphs import KERNELS, capture, operators, replayed
from traces import TraceBuilder

import proftrack
from proftrack import experiment
from proftrack.analysis.pipeline import analyze_capture, analyze_trace
from proftrack.capture import environment
from proftrack.errors import NotFoundError, TraceError, UsageError
from proftrack.measures import Measures, measure, recorded_captures
from proftrack.record import Record
from proftrack.record.ceilings import REPLAYED_GRAPH, Ceilings, StepWork
from proftrack.trace.categories import CAPTURED, CAPTURED_REPLAY
from proftrack.trace.reader import read
from proftrack.verdict.context import Context

DATA = Path(__file__).parent / "data"
GRAPHS = DATA / "graphs"
H200 = Ceilings(device="NVIDIA H200", flops_per_s={"bfloat16": 7e14, "float32": 5e13}, bytes_per_s=4e12)


def measured(name: str, captured: str | None = None) -> Measures:
    """A trace of tests/data/graphs, by what one of a capture there tells."""
    captures = [recorded_captures(captured, read(GRAPHS / f"{captured}.json.gz").table)] if captured else []
    return measure(read(GRAPHS / f"{name}.json.gz").table, H200, captures)


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Shown:
    return show(capsys, "analyze", *words)


# ---- real traces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul", "mlp_train", "decoder"])
def test_all_replayed_work_is_named_and_counts_like_that_of_eager_steps(name: str) -> None:
    eager, graph = measured(f"{name}_eager"), measured(f"{name}_replays", f"{name}_capture")
    assert graph.named_us > 0.99 * (graph.named_us + graph.replayed_us)
    work, other = (Context(ceilings=H200).work_of(each) for each in (eager, graph))
    assert work is not None and other is not None
    assert other.flops_by_dtype == pytest.approx(work.flops_by_dtype, rel=0.02)
    least, as_graph = (sum(k.roofline_us or 0.0 for k in each.kernels) for each in (eager, graph))
    assert as_graph / graph.steps == pytest.approx(least, rel=0.02) and least > 0
    launched = {site.operator for site in eager.sites}
    assert {site.operator for site in graph.sites} == launched


def test_modules_that_are_graphed_one_by_one() -> None:
    """Both graphs are named by the warm-up before their captures, though autograd's streams wait for each other."""
    found = measured("graphed_callables_replays", "graphed_callables_capture")
    assert sorted((graph.kernels, graph.named) for graph in found.graphs) == [(10, True), (12, True)]
    rows = {(row.kind, row.path): row for row in found.modules}
    assert sum(row.busy_us for row in found.modules) == pytest.approx(found.busy_us)
    assert rows["none", ""].backward_us > 0
    assert ("aten::mm", "[[10,64],[64,512]]") in {(site.operator, site.shapes) for site in found.sites}


def test_sizes_that_a_server_captures_are_told_apart_by_their_grids() -> None:
    """It runs each batch size once, then captures it, and replays none; the first pass does more than its capture."""
    found = measured("server_replays", "server_capture")
    assert {graph.kernels for graph in found.graphs} == {39}
    named = [graph.named for graph in sorted(found.graphs, key=lambda graph: graph.replays)]
    assert sum(named) == 4 and named[-1]
    first = [site.shapes for site in found.sites if site.operator == "aten::native_layer_norm"]
    assert {shapes.split(",")[0] for shapes in first} == {"[[1", "[[2", "[[4", "[[8"}
    [other] = [graph.problem for graph in found.graphs if not graph.named]
    assert "does not tell which kernels they are" in other


def test_layers_that_are_captured_one_by_one_share_their_operators() -> None:
    found = measured("piecewise_replays", "piecewise_capture")
    assert [(graph.kernels, graph.replays, graph.named) for graph in found.graphs] == [(12, 9, True)]
    assert "ProfilerStep" not in {site.operator for site in found.sites}


def test_compiled_code_that_replays_graphs() -> None:
    """The kernels of torch.compile have no operator: they are launched directly, as they are without a graph."""
    found = measured("reduce_overhead_replays", "reduce_overhead_capture")
    assert [(graph.kernels, graph.named) for graph in found.graphs] == [(3, True)]
    assert list(found.launched_us) == ["triton_poi_fused_add_gelu_0"]
    assert operators(found)["nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT"].startswith("aten::mm [[512,512],[512,512]")


@pytest.mark.parametrize(
    ("replays", "captured"),
    [
        ("matmul", "mlp_train"),
        ("mlp_train", "decoder"),
        ("decoder", "two_branches"),
        ("two_branches", "two_branches"),
        ("two_branches", "matmul"),
        ("chain", "chain"),  # no branches in truth, but only its streams would tell
    ],
)
def test_other_code_and_branches_are_refused(replays: str, captured: str) -> None:
    found = measured(f"{replays}_replays", f"{captured}_capture")
    [graph] = found.graphs
    assert not graph.named and graph.problem
    assert not found.named_us
    assert {site.operator for site in found.sites} == {"ProfilerStep"}


def test_a_server_s_capture_on_rocm_names_the_graph_that_it_replays() -> None:
    captures = recorded_captures("capture", read(GRAPHS / "tracelens_vllm_capture.json.gz").table)
    table = read(DATA / "tracelens_vllm_graph.json.gz").table
    alone, found = measure(table), measure(table, captured=[captures])
    assert [(g.kernels, g.replays, g.total_us, g.named) for g in found.graphs] == [(421, 1, 10388.482, True)]
    assert (alone.named_us, found.replayed_us, found.busy_us) == (0.0, 0.0, alone.busy_us)
    # A layer's two projections of attention, in bfloat16: 24 layers, 32 tokens.
    flops = 24 * 2 * 32 * (2880 * 5120 + 4096 * 2880)
    assert found.work is not None and found.work.flops_by_dtype["bfloat16"] > flops
    names = {(site.operator, site.kernel) for site in found.sites}
    assert ("vllm::moe_forward", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu") in names


# ---- the command and the function ------------------------------------------------------------------------------------


def test_the_command_says_what_it_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, other = replayed().write(tmp_path / "main.json"), capture().write(tmp_path / "capture.json")
    target = tmp_path / "record.json"
    assert call(capsys, main, "--captured-in", other, "--json", target).code == 0
    record = msgspec.json.decode(target.read_bytes(), type=Record)
    assert [(graph.named, graph.capture) for graph in record.graphs] == [(True, "capture.json")]
    assert {site.operator for site in record.sites} == {"aten::mm", "aten::add", "aten::relu"}
    assert call(capsys, main, "--captured-in", other, "--json", other).code == 2


def test_a_folder_of_captures(tmp_path: Path) -> None:
    """What else is in it is left out."""
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    capture().write(folder / "bs_1.json")
    replayed().write(folder / "warm.json")
    (folder / "other.json").write_text('{"a": 1}')
    found = analyze_trace(replayed().write(tmp_path / "main.json"), captured_in=[folder])
    assert [graph.capture for graph in found.record.graphs] == ["bs_1.json"]


def test_the_trace_itself_may_hold_the_capture(tmp_path: Path) -> None:
    main = TraceBuilder().region(f"{CAPTURED} 1", at=5, dur=90).captured(("aten::mm",), at=10)
    main.region(f"{CAPTURED_REPLAY} 1", at=400, dur=60).replay("gemm", at=405, correlation=8)
    main.step(0, at=500, dur=90).replay("gemm", at=510, correlation=9)
    path = main.write(tmp_path / "main.json")
    assert [graph.named for graph in analyze_trace(path, captured_in=[path]).record.graphs] == [True]


def test_files_that_name_nothing_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, other = replayed().write(tmp_path / "main.json"), capture().write(tmp_path / "capture.json")
    eager = TraceBuilder().step(0, at=0, dur=9).work(1, launch=1, at=3, dur=2).write(tmp_path / "eager.json")
    said = {
        tmp_path / "none.json": "no such file",
        eager: "holds no capture of a CUDA graph",
        main: "holds no capture of a CUDA graph",
    }
    for path, problem in said.items():
        code, _, error = call(capsys, main, "--captured-in", path)
        assert code in (1, 2) and problem in error and error.count("\n") == 1
    with pytest.raises(UsageError, match=r"eager\.json replays no CUDA graph"):
        analyze_trace(eager, captured_in=[other])
    with pytest.raises(TraceError, match="holds no capture"):
        proftrack.analyze(main, captured_in=[eager])
    with pytest.raises(NotFoundError):
        proftrack.analyze(main, captured_in=[tmp_path / "none.json"])


# ---- runs and ranks --------------------------------------------------------------------------------------------------


def test_a_run_s_own_capture_is_found_beside_its_traces(tmp_path: Path) -> None:
    replayed().write(tmp_path / "x.cycle1.pt.trace.json.gz")
    capture().write(tmp_path / "x.captured.pt.trace.json.gz")
    [found] = proftrack.analyze([tmp_path]).ranks
    assert [graph.capture for graph in found.record.graphs] == ["x.captured.pt.trace.json.gz"]
    assert [file.name for file in found.record.source.files] == ["x.cycle1.pt.trace.json.gz"]


def test_a_rank_is_named_by_the_capture_of_its_own_rank(tmp_path: Path) -> None:
    """That of rank 1 is of other code."""
    for rank in range(2):
        replayed().write(tmp_path / f"x.cycle1.rank{rank}.pt.trace.json")
        ran = KERNELS if rank == 0 else (*KERNELS[:2], "gelu_kernel")
        capture(ran=ran).write(tmp_path / f"x.captured.rank{rank}.pt.trace.json")
    for given in ([tmp_path], sorted(tmp_path.glob("*cycle1*"))):
        found = proftrack.analyze(given, captured_in=sorted(tmp_path.glob("*captured*"))).ranks
        assert [trace.record.graphs[0].named for trace in found] == [True, False]
    shutil.move(tmp_path / "x.captured.rank1.pt.trace.json", tmp_path / "elsewhere")
    assert [trace.record.graphs[0].named for trace in proftrack.analyze([tmp_path]).ranks] == [True, True]


# ---- what the steps' work is then ------------------------------------------------------------------------------------


def test_a_graph_whose_capture_was_not_counted_counts_by_its_shapes() -> None:
    """The counter saw the eager rest of the step alone; where a capture names the whole graph, shapes know more."""
    counted = StepWork(flops_by_dtype={"float32": 1.0}, bytes=None, source="counted", uncounted_ops=[REPLAYED_GRAPH])
    context = Context(work=counted)
    named, unnamed = measured("matmul_replays", "matmul_capture"), measured("matmul_replays")
    work = context.work_of(named)
    assert work is not None and work.flops_by_dtype == {"bfloat16": 2 * 512**3 + 512**2}
    assert context.work_of(unnamed) == counted
    assert context.uncounted_share(unnamed) == 1.0


def test_a_runs_capture_that_cannot_be_read_costs_only_the_names(tmp_path: Path) -> None:
    asked = experiment.load("matmul_add", {})
    (tmp_path / "x.captured.pt.trace.json.gz").write_bytes(b"cut off")
    captured = msgspec.structs.replace(
        capture_of(REPLAYED, asked, tmp_path), captured=[tmp_path / "x.captured.pt.trace.json.gz"]
    )
    record = analyze_capture(captured, asked, environment.collect("cpu", code=tmp_path)).record
    assert record.run is not None
    assert any(note.startswith("Nothing names the kernels of CUDA graphs: ") for note in record.run.notes)
