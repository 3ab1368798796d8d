"""CUDA graphs captured once more for the names of their kernels: what is recorded, and what a failure leaves."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import proftrack
from proftrack import experiment as experiments
from proftrack.analysis import trace_files
from proftrack.analysis.pipeline import analyze_traces
from proftrack.capture import capture, compat, graph_names, step_transforms, trace_file
from proftrack.capture.device import CpuDevice
from proftrack.capture.result import Capture, Cycle
from proftrack.errors import UsageError
from proftrack.experiment import workload
from proftrack.record.timing import Timing
from proftrack.report.progress import Silent
from proftrack.trace.categories import CAPTURED, CAPTURED_REPLAY, MODULE

torch = pytest.importorskip("torch")

NOT_AGAIN = "CUDA graphs were not captured once more to name their kernels:"
LOG: list[str] = []
"""What the workloads below do."""


class FakeGraph:
    """A CUDA graph as torch has it, without a GPU."""

    def __init__(self) -> None:
        self.captured = False

    def capture_begin(self, *_: Any, **__: Any) -> None:
        LOG.append("begin")

    def capture_end(self) -> None:
        LOG.append("end")
        self.captured = True

    def replay(self) -> None:
        assert self.captured
        torch.ones(2).mul(3)  # something to see in a trace
        LOG.append("replay")


@contextlib.contextmanager
def fake_capture(graph: FakeGraph, **_: Any) -> Iterator[None]:
    """torch.cuda.graph."""
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


class Gpu(CpuDevice):
    """A device that notes when it is waited for."""

    type = "cuda"

    def synchronize(self) -> None:
        LOG.append("sync")


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", fake_capture)
    monkeypatch.setattr(compat, "has_compiled", lambda: False)  # other tests of this process compile
    monkeypatch.setitem(sys.modules, "watched", SimpleNamespace(log=LOG, profiler_is_on=compat.profiler_is_on))


@pytest.fixture
def captured(tmp_path: Path) -> Callable[..., Capture]:
    """Makes the capture of a workload whose recorded steps replay graphs, with build and first step of 1 s each."""

    def made(code: str = "def build(device):\n    return lambda: None\n", **options: Any) -> Capture:
        (tmp_path / "w.py").write_text(f"import torch, watched\nGraph = torch.cuda.CUDAGraph\n{code}")
        given = {name: options[name] for name in ("profiler", "timing") if name in options}
        asked = experiments.described({"name": "e", "workload": "w.py:build", **given}, tmp_path / "e.yaml")
        launches = options.get("graph_launches", 3)
        return Capture(
            experiment=asked,
            timing=Timing(
                mode="throughput",
                step_time_us=1000.0,
                step_latency_us=None,
                step_time_p95_us=None,
                step_latencies_us=[],
                steps_per_block=1,
                block_step_times_us=[1000.0],
                build_time_us=1e6,
                first_step_time_us=1e6,
            ),
            cycles=[Cycle(trace=tmp_path / "e.cycle1.pt.trace.json.gz", expected_steps=3, graph_launches=launches)],
            peak_memory_bytes=None,
            started_ns=0,
            ended_ns=1,
            device=options.get("device", "cuda"),
            notes=["before"],
        )

    return made


def again(captured: Capture, tmp_path: Path, **more: Any) -> Capture:
    return graph_names.from_workload(captured, Gpu(), tmp_path, Silent(), **{"seconds_left": 30.0, **more})


def regions(path: Path) -> list[str]:
    """The regions of captures and replays in a trace, in order of time, without the words that all share."""
    with gzip.open(path) as file:
        rows = json.load(file)["traceEvents"]
    found = sorted((row["ts"], row["name"]) for row in rows if row.get("name", "").startswith("proftrack: "))
    return [name.replace(CAPTURED, "capture").replace(CAPTURED_REPLAY, "replay") for _, name in found]


def untouched() -> bool:
    """Whether the process is as before: no profiler, torch's graph without our hooks."""
    methods = (FakeGraph.capture_begin, FakeGraph.capture_end, FakeGraph.replay)
    return not compat.profiler_is_on() and all(each.__qualname__.startswith("FakeGraph.") for each in methods)


# ---- a workload that captures its own graphs -------------------------------------------------------------------------

IN_BUILD = """
def build(device):
    watched.log.append("build")
    graph = Graph()
    with torch.cuda.graph(graph):
        torch.ones(2) + 1
    return lambda: graph.replay()
"""
CALLABLES = """
def build(device):
    forward, backward = Graph(), Graph()
    for each in (forward, backward):
        with torch.cuda.graph(each):
            torch.ones(2) + 1
    def step():
        for _ in range(2):
            forward.replay()
        backward.replay()
    return step
"""
WARM_FIRST = """
def build(device):
    graph, steps = Graph(), []
    def step():
        steps.append(1)
        watched.log.append("on" if watched.profiler_is_on() else "off")
        if len(steps) < 4:
            torch.ones(2) + 1
            return
        if len(steps) == 4:
            with torch.cuda.graph(graph):
                torch.ones(2) + 1
        graph.replay()
    return step
"""
INDUCTOR = """
def build(device):
    empty, graph, steps = Graph(), Graph(), []
    def step():
        steps.append(1)
        watched.log.append("step")
        if len(steps) == 1:
            with torch.cuda.graph(empty):
                pass
            torch.ones(2) + 1
            return
        if len(steps) == 2:
            with torch.cuda.graph(graph):
                torch.ones(2) + 1
        graph.replay()
    return step
"""
RARELY = """
def build(device):
    graphs, steps = [Graph(), Graph()], []
    def step():
        if not steps:
            for each in graphs:
                with torch.cuda.graph(each):
                    torch.ones(2) + 1
        steps.append(1)
        graphs[0 if len(steps) % 3 else 1].replay()
    return step
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (IN_BUILD, ["capture 1", "replay 1"]),
        (CALLABLES, ["capture 1", "capture 2", "replay 1", "replay 2"]),
        (
            CALLABLES.replace("(forward, backward):", "(backward, forward):"),
            ["capture 1", "capture 2", "replay 2", "replay 1"],
        ),
        (WARM_FIRST, ["capture 1", "replay 1"]),
        (INDUCTOR, ["capture 1", "capture 2", "replay 2"]),
        (RARELY, ["capture 1", "capture 2", "replay 1", "replay 2"]),
    ],
    ids=["in build", "callables", "callables backwards", "after warm-up", "reduce-overhead", "each third step"],
)
def test_each_capture_and_its_first_replay_have_regions_with_a_number(
    captured: Callable[..., Capture], tmp_path: Path, code: str, expected: list[str]
) -> None:
    before = captured(code)
    found = again(before, tmp_path)
    assert found.captured == [tmp_path / trace_file.captured_name("e")]
    assert regions(found.captured[0]) == expected
    assert found.notes == before.notes and found.cycles == before.cycles
    assert untouched()


def test_a_replay_is_alone_on_the_device(captured: Callable[..., Capture], tmp_path: Path) -> None:
    again(captured(IN_BUILD), tmp_path)
    # Build and capture; a first replay, waited for before and after; a step without anything new ends it.
    assert LOG == ["build", "begin", "end", "sync", "replay", "sync", "sync", "replay", "sync"]


def test_the_profiler_starts_with_the_first_capture(captured: Callable[..., Capture], tmp_path: Path) -> None:
    again(captured(WARM_FIRST), tmp_path)
    assert [each for each in LOG if each in ("on", "off")] == ["off"] * 4 + ["on"]


def test_a_graph_that_is_never_replayed_is_not_waited_for(captured: Callable[..., Capture], tmp_path: Path) -> None:
    """torch.compile captures an empty one. Two steps with nothing new follow the first replay of the other."""
    again(captured(INDUCTOR), tmp_path)
    assert LOG.count("step") == 4


def test_a_capture_in_another_thread_needs_a_profiler_of_all_threads(
    captured: Callable[..., Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile captures a backward graph in autograd's thread."""

    def capture_and_replay() -> None:
        graph, _ = step_transforms.capture(lambda: None)
        graph.replay()

    def function() -> None:
        thread = threading.Thread(target=capture_and_replay)
        thread.start()
        thread.join()

    def found() -> Capture:
        return graph_names.from_workload(
            captured("def build(device):\n    return watched.function\n"), Gpu(), tmp_path, Silent(), seconds_left=30.0
        )

    monkeypatch.setattr(sys.modules["watched"], "function", function, raising=False)
    if compat.every_thread() is not None:
        names = regions(found().captured[0])
        assert names[:2] == ["capture 1", "replay 1"] and untouched()
        (tmp_path / trace_file.captured_name("e")).unlink()
    monkeypatch.setattr(compat, "every_thread", lambda: None)
    assert found().captured == [] and untouched()


def test_what_was_compiled_is_forgotten_first(
    captured: Callable[..., Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "has_compiled", lambda: True)
    monkeypatch.setattr(compat, "forget_compiled", lambda: LOG.append("forget"))
    again(captured(IN_BUILD), tmp_path)
    assert LOG[:2] == ["forget", "build"]


def test_the_step_of_a_variant_is_transformed_again(captured: Callable[..., Capture], tmp_path: Path) -> None:
    def transform(step: Callable[[], Any], _: Any) -> Callable[[], Any]:
        graph, _result = step_transforms.capture(step)
        replay: Callable[[], Any] = graph.replay
        return lambda: (replay(), None)

    found = again(captured(), tmp_path, transform=transform)
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]


# ---- when it is not done, or fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"graph_launches": 0}, {"device": "cpu"}, {"profiler": {"graph_names": False}}],
    ids=["no graph is replayed", "a CPU", "switched off"],
)
def test_nothing_is_built_again_where_nothing_wants_names(
    captured: Callable[..., Capture], tmp_path: Path, options: dict[str, Any]
) -> None:
    before = captured(IN_BUILD, **options)
    assert again(before, tmp_path) == before
    assert graph_names.from_step(before, lambda: None, Gpu(), tmp_path, Silent()) == before
    assert graph_names.from_function(before, lambda: None, Gpu(), tmp_path, Silent()) == before
    assert graph_names.skipped(before, "why") == before
    assert LOG == []


@pytest.mark.parametrize(("left", "is_built"), [(3.1, True), (2.9, False), (-5.0, False)])
def test_it_must_fit_into_the_budget(
    captured: Callable[..., Capture], tmp_path: Path, left: float, is_built: bool
) -> None:
    """Build and first step took 1 s each, eight steps take 8 ms, the profiler a second."""
    found = again(captured(IN_BUILD, timing={"budget_seconds": 40}), tmp_path, seconds_left=left)
    assert bool(found.captured) is is_built is ("build" in LOG)
    said = f"{NOT_AGAIN} the budget of 40 s left no time for it; allow more with --budget."
    assert found.notes == ["before", *([] if is_built else [said])]


FAILURES = {
    "build": "def build(device):\n    raise RuntimeError('CUDA out of memory')\n",
    "capture": IN_BUILD.replace("torch.ones(2) + 1", "raise RuntimeError('not permitted when stream is capturing')"),
    "exit": "import sys\ndef build(device):\n    return lambda: sys.exit(1)\n",
    "rejects": "def build(device):\n    raise ValueError('the port is in use')\n",
    "gone": "",
    "own profiler": IN_BUILD.replace("lambda: graph.replay()", "lambda: torch.profiler.profile().__enter__()"),
}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("build", "CUDA out of memory"),
        ("capture", "not permitted when stream is capturing"),
        ("exit", "SystemExit: 1"),
        ("rejects", "the port is in use"),
        ("gone", "there is no callable build"),
        ("own profiler", "the workload starts a torch profiler of its own"),
    ],
)
def test_a_failure_is_a_note(captured: Callable[..., Capture], tmp_path: Path, kind: str, why: str) -> None:
    before = captured(FAILURES[kind])
    found = again(before, tmp_path)
    note = found.notes[-1]
    assert note.startswith(f"{NOT_AGAIN} it failed (")
    assert why in note and note.endswith(").") and "\n" not in note
    assert found.captured == [] and found.cycles == before.cycles
    assert list(tmp_path.glob("*.gz")) == [] and untouched()


def test_a_profiler_of_the_workload_before_it_captures_is_its_own_matter(
    captured: Callable[..., Capture], tmp_path: Path
) -> None:
    """Autotuning uses one while it compiles."""
    tunes = "    with torch.profiler.profile():\n        torch.ones(2)\n    graph = Graph()"
    found = again(captured(IN_BUILD.replace("    graph = Graph()", tunes)), tmp_path)
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "def build(device):\n    return lambda: None\n",
            "the workload captured none when it was built again and ran 8 steps",
        ),
        (
            IN_BUILD.replace("lambda: graph.replay()", "lambda: None"),
            "the workload replayed none of those that it captured",
        ),
    ],
)
def test_a_workload_that_does_something_else_the_second_time_says_so(
    captured: Callable[..., Capture], tmp_path: Path, code: str, why: str
) -> None:
    found = again(captured(code), tmp_path)
    assert found.captured == [] and why in found.notes[-1]
    assert list(tmp_path.glob("*.gz")) == [] and untouched()


@pytest.mark.parametrize("fails_at", [1, 2])
def test_what_was_captured_before_a_failure_is_kept_if_a_whole_step_has_run(
    captured: Callable[..., Capture], tmp_path: Path, fails_at: int
) -> None:
    """Before that, another graph with the same kernels may be missing, and this one's names would be taken for it."""
    fails = IN_BUILD.replace(
        "return lambda: graph.replay()",
        f"c = []; return lambda: (graph.replay(), c.append(1), 1 / ({fails_at} - len(c)))",
    )
    found = again(captured(fails), tmp_path)
    if fails_at == 1:
        assert found.captured == [] and "failed (ZeroDivisionError: division by zero)." in found.notes[-1]
    else:
        assert regions(found.captured[0]) == ["capture 1", "replay 1"] and found.notes == ["before"]


def test_a_trace_that_cannot_be_written_is_a_note(
    captured: Callable[..., Capture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_file.gzip, "open", full)
    found = again(captured(IN_BUILD), tmp_path)
    assert found.captured == [] and "No space left on device" in found.notes[-1]


# ---- a step, and a function ------------------------------------------------------------------------------------------


def test_the_step_of_a_graph_is_captured_and_replayed_once(captured: Callable[..., Capture], tmp_path: Path) -> None:
    found = graph_names.from_step(captured(), lambda: LOG.append("step"), Gpu(), tmp_path, Silent())
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]
    assert LOG == ["begin", "step", "end", "sync", "replay", "sync", "sync"]


def test_a_graph_knows_the_step_that_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())

    def step() -> str:
        LOG.append("step")
        return "tensors"

    replay = step_transforms.cuda_graph(step, Gpu())
    assert replay() == "tensors"
    assert LOG == ["step"] * 3 + ["sync", "begin", "step", "end", "replay"]
    assert step_transforms.captured_step(replay) is step
    assert step_transforms.captured_step(step) is None


def test_a_function_is_called_then_captured_and_replayed(captured: Callable[..., Capture], tmp_path: Path) -> None:
    found = graph_names.from_function(captured(), lambda: LOG.append("call"), Gpu(), tmp_path, Silent())
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]
    assert LOG == ["call", "sync", "begin", "call", "end", "sync", "replay", "sync", "sync"]


def test_a_function_that_captures_itself_is_only_called(captured: Callable[..., Capture], tmp_path: Path) -> None:
    def function() -> None:
        graph, _ = step_transforms.capture(lambda: LOG.append("call"))
        graph.replay()

    found = graph_names.from_function(captured(), function, Gpu(), tmp_path, Silent())
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]
    assert LOG.count("call") == 1


def test_a_function_that_fails_is_a_note(captured: Callable[..., Capture], tmp_path: Path) -> None:
    found = graph_names.from_function(captured(), lambda: 1 / 0, Gpu(), tmp_path, Silent())
    assert found.captured == [] and "failed (ZeroDivisionError: division by zero)." in found.notes[-1]


def test_ctrl_c_ends_it(captured: Callable[..., Capture], tmp_path: Path) -> None:
    def interrupted() -> None:
        graph = FakeGraph()
        graph.capture_begin()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graph_names.from_function(captured(), interrupted, Gpu(), tmp_path, Silent())
    assert untouched()


# ---- in a run, in variants, in a loop --------------------------------------------------------------------------------


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recorded step counts as one that replays a graph."""
    monkeypatch.setattr(graph_names, "is_wanted", lambda captured: captured.experiment.profiler.graph_names)


QUICK = {"min_steps": 5, "min_seconds": 0.01, "max_seconds": 1}
ONE_AT_A_TIME = """
import weakref
class Weights:
    pass
def build(device):
    alive = [each for each in watched.weights if each() is not None]
    watched.log.append(f"build beside {len(alive)}")
    weights = Weights()
    watched.weights.append(weakref.ref(weights))
    graph = Graph()
    with torch.cuda.graph(graph):
        torch.ones(2) + 1
    def step():
        weights
        graph.replay()
    return step
"""


def test_a_run_builds_again_when_the_first_workload_is_gone_and_all_is_measured(
    tmp_path: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["watched"], "weights", [], raising=False)
    (tmp_path / "w.py").write_text(f"import torch, watched\nGraph = torch.cuda.CUDAGraph\n{ONE_AT_A_TIME}")
    given = {"name": "e", "workload": "w.py:build", "timing": QUICK, "device": "cpu"}
    asked = experiments.described(given, tmp_path / "e.yaml")
    progress = Phases()
    found = capture(asked, output=tmp_path / "out", progress=progress, calibrate=False)
    assert found.captured == [tmp_path / "out" / "trace" / "e.captured.pt.trace.json.gz"]
    assert regions(found.captured[0]) == ["capture 1", "replay 1"]
    assert [each for each in LOG if each.startswith("build")] == ["build beside 0", "build beside 0"]
    assert progress.phases[-2:] == ["profiling", "capture the graphs once more"]
    assert len(found.cycles) == 1 and untouched()


class Phases(Silent):
    """Remembers its phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Any:
        self.phases.append(text)
        return super().phase(text, total, live=live)


def test_ranks_do_not_capture_again(captured: Callable[..., Capture]) -> None:
    found = graph_names.skipped(captured(), graph_names.SEVERAL_RANKS)
    assert found.notes[-1] == f"{NOT_AGAIN} several ranks would have to do it together."


def test_variants_capture_a_graph_of_ours_while_open_and_others_when_all_are_closed(
    tmp_path: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant `graph` is transformed as cuda-graph is on a GPU; the workload of `own` captures itself."""
    from proftrack.frontends.variants import measure, names

    monkeypatch.setattr(measure, "_transform", lambda variant: fake_cuda_graph if variant.cuda_graph else None)
    (tmp_path / "w.py").write_text(
        "import torch, watched\nGraph = torch.cuda.CUDAGraph\n"
        "def build(device, own):\n"
        "    watched.log.append(f'build {own}')\n"
        "    if own:\n"
        "        graph = Graph()\n"
        "        with torch.cuda.graph(graph):\n"
        "            torch.ones(2) + 1\n"
        "        return lambda: graph.replay()\n"
        "    return lambda: torch.ones(2) * 2\n"
    )
    given = {"name": "e", "workload": "w.py:build", "timing": QUICK, "device": "cpu", "params": {"own": False}}
    asked = experiments.described(given, tmp_path / "e.yaml")
    own = replace(asked, params={"own": True})
    both = [
        names.Variant(name="graph", experiment=asked, changes={}, cuda_graph=True),
        names.Variant(name="own", experiment=own, changes={}),
    ]
    folders = {variant.name: tmp_path / variant.name for variant in both}
    progress = Phases()
    found = measure.measure(both, lambda v: folders[v.name], progress, rounds=5, calibrate=False)
    assert [each.status for each in found] == ["measured", "measured"]
    for folder in folders.values():
        assert regions(folder / "trace" / "e.captured.pt.trace.json.gz") == ["capture 1", "replay 1"]
    again = "capture the graphs once more"
    assert progress.phases[-4:] == ["graph: profiling", "own: profiling", f"graph: {again}", f"own: {again}"]
    assert [each for each in LOG if each.startswith("build")] == ["build False", "build True", "build True"]


def fake_cuda_graph(step: Callable[[], Any], _: Any) -> Callable[[], Any]:
    """step_transforms.cuda_graph without streams."""
    graph, result = step_transforms.capture(step)

    def replay() -> Any:
        graph.replay()
        return result

    replay.captured = step  # type: ignore[attr-defined]
    return replay


LOOP: dict[str, Any] = {
    "schedule": {"wait": 2, "warmup": 1, "active": 2},
    "device": "cpu",
    "calibrate": False,
    "quiet": True,
    "mlflow": False,
}


def test_a_loops_graph_is_captured_again_by_the_function_that_its_user_names(tmp_path: Path, always: None) -> None:
    def step() -> None:
        LOG.append("step")

    with proftrack.profile("loop", output=tmp_path / "out", captured=step, **LOOP) as p:
        for _ in range(5):
            assert "step" not in LOG
            torch.ones(2) + 1
            p.step()
    assert p.error is None and p.record is not None and p.record.run is not None
    assert regions(tmp_path / "out" / "trace" / "loop.captured.pt.trace.json.gz") == ["capture 1", "replay 1"]
    assert LOG.count("step") == 2
    assert not any("graphs" in note for note in p.record.run.notes)


def test_a_loop_says_how_its_graphs_get_names(tmp_path: Path, always: None) -> None:
    with proftrack.profile("loop", output=tmp_path / "out", **LOOP) as p:
        for _ in range(5):
            torch.ones(2) + 1
            p.step()
    assert p.record is not None and p.record.run is not None
    assert any("proftrack.profile(..., captured=FUNCTION)" in note for note in p.record.run.notes)


def test_a_runs_traces_that_are_analysed_again_find_the_capture_beside_them(tmp_path: Path) -> None:
    """By the folder of the run, that of its traces, or the trace."""
    graphs = Path(__file__).parent / "data" / "graphs"
    traces = tmp_path / "run" / "trace"
    traces.mkdir(parents=True)
    for name, kept in (("replays", "e.cycle1"), ("capture", "e.captured")):
        (traces / f"{kept}.pt.trace.json.gz").write_bytes((graphs / f"decoder_{name}.json.gz").read_bytes())
    (tmp_path / "run" / "record.json").write_text("{}")
    for given in (tmp_path / "run", traces, traces / "e.cycle1.pt.trace.json.gz"):
        [analysis] = analyze_traces(trace_files.find([given])).ranks
        record = analysis.record
        assert [file.name for file in record.source.files] == ["e.cycle1.pt.trace.json.gz"]
        assert [(g.named, g.capture) for g in record.graphs] == [(True, "e.captured.pt.trace.json.gz")]


def test_another_trace_or_another_name_is_not_beside(tmp_path: Path) -> None:
    for name in ("e.cycle1", "e.cycle1.rank0", "e.captured.rank1", "other.captured", "e"):
        (tmp_path / f"{name}.pt.trace.json.gz").touch()
    names = ("e.cycle1", "e.cycle1.rank0", "e.captured.rank1", "e")
    assert [trace_files.beside(tmp_path / f"{name}.pt.trace.json.gz") for name in names] == [[]] * 4
    assert trace_files.beside(tmp_path / "e.cycle2.rank1.pt.trace.json.gz") == [
        tmp_path / "e.captured.rank1.pt.trace.json.gz"
    ]


def test_what_is_captured_must_be_a_function() -> None:
    with pytest.raises(UsageError, match="captured=5 is not a function"):
        proftrack.profile("loop", captured=5)  # type: ignore[arg-type]


def test_replays_are_counted_among_the_launches(tmp_path: Path) -> None:
    calls = ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch", "cudaLaunchKernel", "cudaGraphInstantiate"]
    rows = [{"ph": "X", "cat": "cuda_runtime", "name": name, "ts": 1, "dur": 1} for name in calls]

    def save(path: str) -> None:
        Path(path).write_text(json.dumps({"traceEvents": rows}))

    counts = trace_file.export(save, tmp_path / "t.pt.trace.json.gz")
    assert (counts.launches, counts.graph_launches) == (4, 3)


def test_names_are_no_part_of_what_must_be_equal() -> None:
    asked = experiments.load("matmul_add", {})
    off = experiments.load("matmul_add", {"profiler.graph_names": "false"})
    assert experiments.fingerprint(asked, "GPU") == experiments.fingerprint(off, "GPU")
    assert asked.profiler.graph_names and not off.profiler.graph_names
    assert workload.load(asked) is not None


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["matmul_add", "training", "decoder", "two_branches"])
def test_on_a_gpu_the_kernels_of_a_graph_get_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 99 % of the replayed time, unless the graph has branches: that is refused."""
    monkeypatch.undo()
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from proftrack.recorder import analysed

    timing = {**QUICK, "counters": "none"}
    given = {"name": name, "workload": f"graphed_workloads.py:{name}", "timing": timing, "device": "cuda"}
    asked = experiments.described(given, Path(__file__).with_name("e.yaml"))
    found = capture(asked, output=tmp_path / "out", progress=Silent(), calibrate=False)
    record = analysed(found, found.experiment).record
    assert found.captured == [tmp_path / "out" / "trace" / f"{name}.captured.pt.trace.json.gz"]
    assert not any(NOT_AGAIN in note for note in found.notes)
    total, named = sum(g.total_us for g in record.graphs), sum(g.total_us for g in record.graphs if g.named)
    if name == "two_branches":
        assert named == 0 and all("branches" in graph.problem for graph in record.graphs)
        return
    assert named >= 0.99 * total > 0
    with gzip.open(found.captured[0]) as file:
        marked = any(row.get("name", "").startswith(MODULE) for row in json.load(file)["traceEvents"])
    assert marked is (name != "matmul_add")
