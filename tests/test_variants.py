"""`proftrack variants`: what names mean, turns, intervals and words, results that are compared with each other."""

from __future__ import annotations

import gc
import json
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import call
from run_folders import make_record
from stores import mlflow_runs
from team import missing

from proftrack.capture import compilation, in_turns, output_check, step_transforms
from proftrack.capture.device import CudaDevice
from proftrack.capture.timing import Stopwatch
from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import TimingOptions
from proftrack.frontends.variants import changes, isolate, judge, names, result, shown
from proftrack.frontends.variants import measure as measuring
from proftrack.frontends.variants.result import Entry, Variants
from proftrack.record.compilation import OutputCheck
from proftrack.record.figures import Site
from proftrack.report import terminal
from proftrack.report.progress import Silent
from proftrack.rundir import batch as groups
from proftrack.store import connect

torch = pytest.importorskip("torch")

QUICK = "timing: {min_steps: 5, min_seconds: 0.02, max_seconds: 5}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Experiments of its own in the working directory: one that compiles itself, one that does not."""
    folder = tmp_path / "project"
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments" / "small.yaml").write_text(
        f"workload: small.py:build\ndevice: cpu\n{QUICK}"
        "params: {n: 8, scale: 1.0, times: 1}\n"
        "variants: {twice: {times: 2}, wrong: {scale: 1.5}, cuda-graph: {times: 3}}\n"
    )
    (folder / "experiments" / "small.py").write_text(
        "import torch\n"
        "def build(device, n, scale, times):\n"
        "    if n == 13: raise ValueError('n=13 is unlucky')\n"
        "    x = torch.arange(float(n), device=device)\n"
        "    def step():\n"
        "        for _ in range(times): y = x * scale\n"
        "        return y\n"
        "    return step\n"
    )
    (folder / "experiments" / "own.yaml").write_text(
        "workload: small.py:build\nparams: {n: 8, compile: none}\nvariants: {big: {n: 9}}\n"
    )
    monkeypatch.chdir(folder)
    return folder


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_workload_with_a_parameter_for_it_compiles_itself(project: Path) -> None:
    found = names.variants("own", "eager,compile,compile-reduce-overhead,cuda-graph,big+compile", {"n": "4"})
    assert [(v.name, v.experiment.params, v.compile_mode, v.cuda_graph) for v in found] == [
        ("eager", {"n": 4, "compile": "none"}, None, False),
        ("compile", {"n": 4, "compile": "default"}, None, False),
        ("compile-reduce-overhead", {"n": 4, "compile": "reduce-overhead"}, None, False),
        ("cuda-graph", {"n": 4, "compile": "none"}, None, True),
        ("big+compile", {"n": 9, "compile": "default"}, None, False),
    ]


def test_others_are_compiled_whole_and_take_what_goes_with_a_name(project: Path) -> None:
    found = names.variants("small", "eager,compile-max-autotune,cuda-graph,twice+cuda-graph", {})
    assert [(v.name, v.changes, v.compile_mode, v.cuda_graph) for v in found] == [
        ("eager", {}, None, False),
        ("compile-max-autotune", {}, "max-autotune", False),
        ("cuda-graph", {"times": 3}, None, True),
        ("twice+cuda-graph", {"times": 3}, None, True),
    ]


def test_sets_of_the_command_line_are_variants_of_their_own(project: Path) -> None:
    found = names.variants("small", "eager,mine+compile", {}, ["mine:scale=2,times=4", "other:n=3"])
    assert [(v.name, v.changes) for v in found] == [
        ("eager", {}),
        ("mine+compile", {"scale": 2.0, "times": 4}),
        ("other", {"n": 3}),
    ]
    recorded = found[1].recorded
    assert recorded.params["variant"] == "mine+compile"
    assert set(recorded.variant_params) == {"scale", "times", "variant"}


def test_a_run_is_called_by_its_variant_and_not_by_the_variants_values_as_well(project: Path) -> None:
    asked = names.variants("own", "eager,compile,cuda-graph,big+compile", {"n": "4"})
    assert [variant.recorded.display_name for variant in asked] == [
        "own n=4 eager",
        "own n=4 compile",
        "own n=4 cuda-graph",
        "own big+compile",
    ]
    recorded = asked[3].recorded
    assert recorded.params == {"n": 9, "compile": "default", "variant": "big+compile"}


@pytest.mark.parametrize(
    ("wanted", "sets", "words"),
    [
        ("eager,compiled", [], "no variant 'compiled'; known: eager, compile, .*, twice, wrong; did you mean compile"),
        ("eager,eager", [], "eager is named twice"),
        ("", [], "--variants is empty"),
        ("eager", ["mine"], "--set mine: not a named set"),
        ("eager", ["mine:n"], "--set mine:n: not a named set"),
        ("eager", ["mine:m=1"], "unknown parameter m=1"),
        ("eager", ["mine:active=1"], "active is not a parameter of the workload"),
        ("eager", ["mine:n=x"], "n=x is not allowed"),
    ],
)
def test_names_that_cannot_be(project: Path, wanted: str, sets: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        names.variants("small", wanted, {}, sets)


def test_variants_of_the_file_are_checked(project: Path) -> None:
    file = project / "experiments" / "bad.yaml"
    for text, words in [
        ("{a: {m: 1}}", "unknown parameter m in variants.a"),
        ("{a: {n: x}}", "variants.a.n=x is not allowed; it must be a whole number"),
        ("{a: 3}", "variants.a=3 is not allowed"),
        ("{'a,b': {n: 1}}", "variants key a,b is not allowed"),
        ("[a]", "variants=.* is not allowed"),
    ]:
        file.write_text(f"workload: small.py:build\nparams: {{n: 8}}\nvariants: {text}\n")
        with pytest.raises(UsageError, match=words):
            names.variants("bad", "eager,a", {})


# ---- turns -----------------------------------------------------------------------------------------------------------


class Clock:
    """Two contestants on a machine that becomes slower: each step takes its cost times what the time makes of it."""

    is_gpu = True

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def step(self, name: str, cost_ns: float) -> None:
        self.now += cost_ns * (1 + self.now / 1e9)  # twice as slow after a second
        self.ran.append(name)

    def synchronize(self) -> None:
        pass

    def watch(self, name: str, cost_ns: float) -> Stopwatch:
        return Stopwatch(lambda: self.step(name, cost_ns), self, clock=lambda: int(self.now))  # type: ignore[arg-type]


def test_drift_hits_all_alike() -> None:
    clock = Clock()
    a, b = in_turns.take_turns([clock.watch("a", 1e6), clock.watch("b", 9e5)], [20, 20], 20)
    assert "".join(clock.ran).startswith("aa" + "a" * 20 + "aaa" + "bb" + "b" * 20 + "bbb" + "aa")
    assert [len(turns.block_us) for turns in (a, b)] == [20, 20]
    assert b.block_us[-1] > 1.3 * b.block_us[0]  # it drifted
    against = judge.versus(b.block_us, a.block_us)
    # b is measured behind a, so that it is a little later in the drift: 0.9 and some.
    assert against is not None and against.word == "faster"
    assert 0.9 < against.ratio < 0.94
    assert against.high - against.low < 0.01


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.0001, 0.001], (20, [250, 25])),  # 25 ms a block: a twentieth of min_seconds
        ([0.01], (20, [10])),  # never under ten steps, where time allows
        ([0.2, 0.001], (20, [5, 25])),  # 20 s over 20 rounds
        ([2.0, 0.1], (10, [1, 10])),  # fewer rounds
        ([60.0], (5, [1])),
    ],
)
def test_plan_of_the_rounds(seconds: list[float], expected: tuple[int, list[int]]) -> None:
    assert in_turns.plan(seconds, TimingOptions()) == expected


def test_slow_steps_are_not_run_again_for_their_latency() -> None:
    clock = Clock()
    (found,) = in_turns.take_turns([clock.watch("a", 1e9)], [1], 3)
    assert found.single_us == [[us] for us in found.block_us]


# ---- words -----------------------------------------------------------------------------------------------------------


def entry(name: str, times: Sequence[float], **more: Any) -> Entry:
    middle = sorted(times)[len(times) // 2]
    return Entry(name=name, changes={}, round_us=list(times), step_time_us=middle, **more)


def around(middle: float, spread: float, count: int = 21) -> list[float]:
    """Evenly spread; the order is mixed so that neither side rises with time."""
    return [middle * (1 + spread * (((8 * i) % count) / (count - 1) - 0.5)) for i in range(count)]


@pytest.mark.parametrize(
    ("factor", "spread", "word"),
    [
        (0.8, 0.02, "faster"),
        (1.25, 0.02, "slower"),
        (1.0, 0.02, "no difference"),
        (0.995, 0.001, "no difference"),  # certain, and of no use to anybody
        (0.95, 0.6, "inconclusive"),
    ],
)
def test_words(factor: float, spread: float, word: str) -> None:
    other = around(100.0, spread)
    one = [value * factor for value in reversed(around(100.0, spread))]
    found = judge.versus(one, other)
    assert found is not None
    assert found.word == word
    assert found.low <= found.ratio <= found.high


def test_pairs_of_rounds_see_through_drift_that_is_larger_than_the_difference() -> None:
    drift = [100.0 * 1.05**i for i in range(20)]  # to 2.5 times as slow
    found = judge.versus([0.97 * value for value in drift], drift)
    assert found is not None
    assert (found.word, round(found.ratio, 4)) == ("faster", 0.97)


def test_two_rounds_say_nothing() -> None:
    assert judge.versus([1.0, 1.0], [2.0, 2.0]) is None


def judged(*entries: Entry) -> Variants:
    found = Variants(experiment="e", title="e", device="d", mode="throughput", how="in turns", entries=list(entries))
    judge.judge(found)
    return found


def test_the_winner_is_the_fastest_that_is_faster_than_the_next() -> None:
    found = judged(entry("a", around(100, 0.01)), entry("b", around(80, 0.01)), entry("c", around(50, 0.01)))
    assert found.winner == "c"
    assert found.verdict.startswith(
        "c is the fastest: 50.0 us per step, against 80.0 us for b (ratio of step times 0.625,"
    )


def test_equal_ones_have_no_winner() -> None:
    found = judged(
        entry("a", around(100, 0.01)), entry("b", around(80, 0.01)), entry("c", [*reversed(around(80.1, 0.01))])
    )
    assert found.winner is None
    assert found.verdict.startswith("No difference between b and c")


def test_noise_has_no_winner_either() -> None:
    found = judged(entry("a", around(100, 1.0)), entry("b", [*reversed(around(90, 1.0))]))
    assert found.winner is None
    assert found.verdict.startswith("No winner: b and a cannot be told apart")


def test_a_winner_that_single_rounds_do_not_show_is_none() -> None:
    """b is at 0.90 and 0.96 of a in turns: 3 % about the middle, which is 7.5 % off, and b wins. With rounds at 0.75
    and 1.15 beside many at 0.95 the interval leaves out 1, and yet single rounds say nothing: no winner.
    """
    a = [100.0] * 101
    calm = judged(entry("a", a), entry("b", [93.0, *[90.0, 96.0] * 50]))
    assert calm.winner == "b"
    found = judged(entry("a", a), entry("b", [95.0] * 61 + [75.0] * 20 + [115.0] * 20))
    against = found.entries[1].versus_first
    assert against is not None
    assert against.high < 1
    assert against.noise == pytest.approx(math.sqrt(115 / 75) - 1)
    assert (found.winner, against.word) == (None, "inconclusive")
    assert found.verdict.startswith("No winner: b and a cannot be told apart (95.0 us per step, against 100 us for a; ")
    assert found.verdict.endswith(
        "single rounds vary by 23.8 %, and the difference is no larger than that; measure again on a quieter machine."
    )


def test_an_interval_that_holds_1_is_given_as_the_reason() -> None:
    found = judged(entry("a", around(100, 1.0)), entry("b", [*reversed(around(90, 1.0))]))
    assert "the interval contains 1; use more rounds (--rounds)" in found.verdict


def test_the_table_holds_eighty_columns_and_cuts_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    facts: dict[str, Any] = {
        "busy_us": 1.25e6,
        "launches_per_step": 1547,
        "first_step_us": 2.1e8,
        "energy_joules": 1234,
    }
    name = "compile-reduce-overhead+cuda-graph+" + "x" * 50
    first = entry("eager", [2.65e6] * 5, regime="communication-bound", **facts)
    terminal.show(shown.page(judged(first, entry(name, [2.5e6] * 5, regime="overhead-bound", **facts))))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("2.65 s", "2.50 s", "1547", "210 s", "50.0 %", "1.23 kJ", "communication-bound", "0.943"):
        assert figure in text
    assert text.count("\neager  ") == 2  # columns that do not fit stand in a table below


def test_a_wrong_result_cannot_win() -> None:
    wrong = OutputCheck(equal=False, error=0.5, tolerance=1e-4, text="relative error 0.5")
    found = judged(
        entry("a", around(100, 0.01)), entry("b", around(50, 0.01), outputs=wrong), entry("c", around(90, 0.01))
    )
    assert found.winner == "c"


def test_setting_up_pays_off_after_so_many_steps() -> None:
    """b costs 1 s more and wins 20 us a step: 50,000 steps. c costs nothing more. d is slower: never."""
    found = judged(
        entry("a", [100.0] * 5, build_us=1000.0, first_step_us=100.0),
        entry("b", [80.0] * 5, build_us=1000.0, first_step_us=1_000_080.0),
        entry("c", [50.0] * 5, build_us=500.0, first_step_us=50.0),
        entry("d", [120.0] * 5, build_us=1000.0, first_step_us=50.0),
    )
    assert [e.payoff_steps for e in found.entries] == [None, 50_000, 0, None]


def test_one_alone_and_none_at_all() -> None:
    failed = Entry(name="x", changes={}, status="failed", error="r")
    assert judged(entry("a", [1.0] * 5), failed).verdict == (
        "Only a was measured, so there is nothing to compare it with."
    )
    assert judged(failed).verdict == "No variant could be measured."


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "change", "equal"),
    [
        ("float32", 1e-5, True),
        ("float32", 1e-3, False),
        ("bfloat16", 2**-7, True),
        ("bfloat16", 2**-4, False),
        ("float16", 2**-9, True),
        ("float64", 1e-7, False),
    ],
)
def test_results_are_equal_within_what_their_type_can_hold(dtype: str, change: float, equal: bool) -> None:
    first = torch.ones(64, dtype=getattr(torch, dtype))
    found = output_check.check([first], [first * (1 + change)])
    assert found.equal is equal
    assert found.error == pytest.approx(change, rel=1e-2)  # every value is off by the same share


def test_the_norm_counts_and_not_a_value_near_zero() -> None:
    """3, 4 -> 3, 4.05: off by 0.05 of 5, that is 1 %."""
    found = output_check.check([torch.tensor([3.0, 4.0, 0.0])], [torch.tensor([3.0, 4.05, 0.0])])
    assert found.error == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("first", "second", "equal", "words"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], True, "all values equal"),
        ([1, 2, 3, 4], [1, 2, 3, 5], False, "25.0% of the values differ"),
        ([1.0, math.nan], [1.0, math.nan], True, "within"),
        ([1.0, 2.0], [1.0, math.nan], False, "NaN or infinity"),
        ([1.0, 2.0], [1.0], False, "different shapes or types"),
        ([0.0], [0.0], True, "within"),
        ([], [], True, "all values equal"),
    ],
)
def test_other_results(first: list[float], second: list[float], equal: bool, words: str) -> None:
    dtype = torch.float32 if any(isinstance(value, float) for value in first) else torch.int64
    found = output_check.check([torch.tensor(first, dtype=dtype)], [torch.tensor(second, dtype=dtype)])
    assert (found.equal, words in found.text) == (equal, True), found.text


def test_nothing_to_compare_and_the_worst_of_several() -> None:
    assert output_check.check([], []).equal is None
    ones = torch.ones(4)
    assert output_check.check([ones, ones], [ones, ones * 2]).error == pytest.approx(1.0)


def test_kept_results_are_copies() -> None:
    x = torch.zeros(3, requires_grad=True)
    kept = output_check.keep({"a": x, "b": [x + 1, 3, None]})
    with torch.no_grad():
        x.add_(5)
    assert [t.tolist() for t in kept] == [[0.0] * 3, [1.0] * 3]


# ---- what the compiler did -------------------------------------------------------------------------------------------


def test_counters_are_taken_apart_into_the_first_step_and_what_follows() -> None:
    def counters(**groups: dict[str, int]) -> compilation.Counters:
        return compilation.Counters(dict(groups))

    before = counters(stats={"unique_graphs": 5}, graph_break={"old reason": 1})
    after = counters(
        stats={"unique_graphs": 7},
        graph_break={"old reason": 1, "call to print\n  Explanation: ...": 2},
        frames={"total": 2},
        inductor={"cudagraph_skips": 1, "fxgraph_cache_hit": 2},
    )
    end = counters(
        stats={"unique_graphs": 8},
        graph_break={"old reason": 1, "call to print\n  Explanation: ...": 3, "item": 1},
        frames={"total": 3},
        inductor={"cudagraph_skips": 1, "fxgraph_cache_hit": 2},
    )
    found = compilation.summed(after.since(before), end.since(after))
    assert found == compilation.Compilation(
        graphs=3,
        graph_breaks=4,
        break_reasons=["call to print", "item"],
        recompiles=1,
        cudagraph_skips=1,
        cache_hits=2,
    )


def test_what_changed_in_the_kernels_is_named() -> None:
    """Before: a product and an addition. After: the addition is fused away, a copy has come."""

    def record(*sites: tuple[str, str, str, int, float]) -> Any:
        made = [
            Site(operator=o, shapes="", kernel=k, kind=kind, calls=calls, busy_us=us) for o, k, kind, calls, us in sites
        ]
        base = make_record(sites=made)
        busy = sum(site.busy_us for site in made) / 3
        return msgspec.structs.replace(
            base, times=msgspec.structs.replace(base.times, step_time_us=100.0, gpu_busy_per_step_us=busy)
        )

    before = record(("aten::mm", "gemm", "matmul", 3, 90.0), ("aten::add", "elementwise add", "elementwise", 3, 30.0))
    after = record(("aten::mm", "gemm", "matmul", 3, 93.0), ("aten::copy_", "Memcpy DtoD", "copy", 6, 3.0))
    found = changes.changes(before, after)
    assert [(c.what, c.name, c.operator, c.calls_before, c.calls_after) for c in found] == [
        ("copy added", "Memcpy DtoD", "aten::copy_", 0.0, 2.0),
        ("gone", "elementwise add", "aten::add", 1.0, 0.0),
    ]
    assert (found[0].after_us, found[1].before_us) == (pytest.approx(1.0), pytest.approx(10.0))


# ---- for real, on the CPU --------------------------------------------------------------------------------------------


def test_a_cuda_graph_is_refused_without_a_gpu_and_where_the_workload_says_so() -> None:
    from proftrack.capture import step_transforms
    from proftrack.capture.device import CpuDevice

    class Gpu(CpuDevice):
        type = "cuda"

    def step() -> None:
        pass

    with pytest.raises(step_transforms.Refused, match="needs a CUDA device"):
        step_transforms.cuda_graph(step, CpuDevice())
    step.not_capturable = "each step loads another batch"  # type: ignore[attr-defined]
    with pytest.raises(step_transforms.Refused, match="cannot be captured: each step loads another batch"):
        step_transforms.cuda_graph(step, Gpu())


def test_measured_side_by_side_on_the_cpu(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the work, a wrong result, one that is refused, one that fails: all in one table."""
    folder = tmp_path / "kept"
    arguments = ["--variants", "eager,twice,wrong,cuda-graph", "--set", "unlucky:n=13", "--set", "much:times=60"]
    assert call("variants", "small", *arguments, "--no-mlflow", "--output", str(folder)) == 1
    found = msgspec.json.decode((folder / "variants.json").read_bytes(), type=result.Variants)
    assert [(e.name, e.status) for e in found.entries] == [
        ("eager", "measured"),
        ("twice", "measured"),
        ("wrong", "measured"),
        ("cuda-graph", "refused"),
        ("unlucky", "failed"),
        ("much", "measured"),
    ]
    eager, twice, wrong, graph, unlucky, much = found.entries
    assert eager.outputs is None
    assert twice.outputs is not None and twice.outputs.equal is True
    assert wrong.outputs is not None and wrong.outputs.equal is False
    assert wrong.outputs.error == pytest.approx(0.5)  # every value is 1.5 times what it should be
    assert much.versus_first is not None and much.versus_first.word == "slower"
    assert much.versus_first.ratio > 5
    assert found.winner != "wrong"
    assert [len(e.round_us) for e in found.measured] == [20] * 4
    assert graph.error == "a CUDA graph needs a CUDA device"
    assert "n=13 is unlucky" in (unlucky.error or "")
    assert eager.first_step_us is not None and eager.build_us is not None
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith("proftrack: 1 of 6 variants failed; unlucky: ")
    assert "DIFFER" in shown.out
    group = groups.load(folder)
    assert group.kind == "variants"
    assert [part.folder for part in group.parts if part.folder] == [
        f"runs/{n}" for n in ("eager", "twice", "wrong", "much")
    ]
    table = json.loads((folder / "tables" / "variants.json").read_text())
    assert len(table["data"]) == 6 and len(table["columns"]) == len(table["data"][0])
    assert "DIFFER" in (folder / "variants.md").read_text()


def test_variants_are_a_parent_run_with_a_child_for_each(project: Path, store_uri: str) -> None:
    assert call("variants", "small", "-P", "n=4", "--variants", "eager,twice", "--rounds", "5") == 0
    found = mlflow_runs()
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    children = {run.data.params["variant"]: run for run in found if run is not parent}
    assert set(children) == {"eager", "twice"}
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert {run.info.status for run in found} == {"FINISHED"}
    assert children["twice"].data.params["times"] == "2"
    # They may be compared: what differs is a variant's.
    assert len({run.data.tags["proftrack.fingerprint"] for run in children.values()}) <= 2
    assert parent.data.params == {"experiment": "small", "n": "4", "scale": "1.0", "variants": "eager,twice"}
    assert parent.data.tags["proftrack.kind"] == "variants"
    client = connect.connect(connect.resolve())
    with tempfile.TemporaryDirectory() as below:  # which of them wins, if any, is this machine's
        judged = json.loads(Path(client.download_artifacts(parent.info.run_id, "variants.json", below)).read_text())
    assert parent.data.tags["proftrack.winner"] == (judged["winner"] or "none")
    assert parent.data.tags["conclusion"]
    assert parent.data.tags["regime"]
    names_ = {item.path for item in connect.connect(connect.resolve()).list_artifacts(parent.info.run_id)}
    assert {"variants.json", "variants.md", "tables"} <= names_
    # Again is measured again: turns cannot be taken with an earlier run.
    assert call("variants", "small", "-P", "n=4", "--variants", "eager,twice", "--rounds", "5") == 0
    assert len(mlflow_runs()) == 6


def test_one_variant_is_none(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("variants", "small", "--variants", "eager", "--no-mlflow") == 2
    assert "a single variant has nothing to be compared with; name at least two" in capsys.readouterr().err


def test_isolated_each_round_is_a_process(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are replaced by calls; what they leave is what is taken."""
    called: list[isolate.ToMeasure] = []

    def in_a_process(asked: isolate.ToMeasure, log: Path) -> isolate.Answer:
        called.append(asked)
        if asked.name == "wrong":
            raise ProftrackError("it crashed")
        return isolate.measure_one(asked)

    monkeypatch.setattr(isolate, "in_a_process", in_a_process)
    monkeypatch.setattr(isolate, "RUNS", 3)
    folder = tmp_path / "kept"
    asked = names.variants("small", "eager,wrong", {})

    def folder_of(variant: names.Variant) -> Path:
        return folder / "runs" / variant.name

    found = isolate.measure(
        asked, folder_of, Silent(), reference="small", given={"n": "4"}, sets=[], work=tmp_path / "work", processes=3
    )
    assert [each.status for each in found] == ["measured", "failed"]
    assert len(found[0].round_us) == 3
    assert found[0].record is not None
    assert (folder / "runs" / "eager" / "record.json").is_file()
    assert found[1].error == "it crashed"
    assert [(each.name, each.given) for each in called] == [
        (name, {"n": "4"}) for name in ("eager", "wrong", "eager", "eager")
    ]
    assert not (tmp_path / "work" / "processes").exists()


def test_everything_is_closed_when_one_cannot_be_opened(project: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (project / "experiments" / "small.py").write_text(
        "import contextlib, torch\n"
        "@contextlib.contextmanager\n"
        "def build(device, n, scale, times):\n"
        f"    try: yield (lambda: torch.ones(n)) if times == 1 else None\n"
        "    finally:\n"
        f"        with open({str(closed)!r}, 'a') as file: file.write(f'{{times}} ')\n"
    )
    asked = names.variants("small", "eager,twice", {})
    found = measuring.measure(asked, lambda v: tmp_path / v.name, Silent(), rounds=3, calibrate=False)
    assert [each.status for each in found] == ["measured", "failed"]
    assert closed.read_text().split() == ["2", "1"]


@pytest.mark.slow
def test_a_compiled_step_is_counted_and_costs_more_to_set_up(project: Path, tmp_path: Path) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        missing("torch.compile needs a C++ compiler on the CPU", "install g++")
    (project / "experiments" / "small.py").write_text(
        "import torch\n"
        "def build(device, n, scale, times):\n"
        "    x = torch.ones(n, device=device)\n"
        "    def step():\n"
        "        y = x * scale\n"
        "        print('', end='')\n"
        "        return y + 1\n"
        "    return step\n"
    )
    asked = names.variants("small", "eager,compile", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler's imports
        found = measuring.measure(asked, lambda v: tmp_path / v.name, Silent(), rounds=5, calibrate=False)
    eager, compiled = found
    assert eager.compilation is not None and not eager.compilation.compiled
    assert compiled.compilation is not None
    assert (compiled.compilation.graphs, compiled.compilation.graph_breaks) == (2, 1)
    assert compiled.compilation.recompiles == 0
    assert compiled.outputs is not None and compiled.outputs.equal is True
    times = [each.record.timing.first_step_time_us for each in found if each.record and each.record.timing]
    assert (times[1] or 0) > 20 * (times[0] or 0)


@pytest.mark.gpu
def test_a_graph_keeps_what_its_step_reads() -> None:
    """Without its step the graph would read memory that is freed, and given to other tensors."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    def build() -> Callable[[], torch.Tensor]:
        x = torch.full((1 << 22,), 3.0, device="cuda")
        return lambda: x * 2

    replay = step_transforms.cuda_graph(build(), CudaDevice())
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(1 << 22, device="cuda") for _ in range(8)]
    out = replay()
    torch.cuda.synchronize()
    assert out.min().item() == out.max().item() == 6.0
    assert not any(other.any() for other in others)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # older versions of torch warn while they compile
def test_a_cuda_graph_on_the_gpu(tmp_path: Path, run_folder: Callable[..., Path]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    folder = tmp_path / "kept"
    arguments = ["--variants", "eager,compile,cuda-graph", "--no-mlflow", "--output", str(folder)]
    assert call("variants", "matmul_add", "-P", "n=64", *arguments) == 0
    found = msgspec.json.decode((folder / "variants.json").read_bytes(), type=result.Variants)
    eager, _, graph = found.entries
    assert [e.status for e in found.entries] == ["measured"] * 3
    assert graph.versus_first is not None and graph.versus_first.word == "faster"
    assert graph.outputs is not None and graph.outputs.equal is True
    assert (eager.launches_per_step, graph.launches_per_step) == (2, 1)
