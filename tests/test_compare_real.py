"""Comparisons of real traces: a true before and after, and pairs whose contributions must add up."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from calls import show
from costs import growth

from proftrack import record as records
from proftrack.analysis.pipeline import analyze_trace
from proftrack.compare import Comparison, Subject, compare
from proftrack.errors import IncomparableError
from proftrack.record import Record
from proftrack.record.figures import Kernel, Op, Site

DATA = Path(__file__).parent / "data"
WORKERS = [DATA / f"kineto_resnet50_workers{number}.json.gz" for number in (0, 4)]


def record(name: str) -> Record:
    return analyze_trace(DATA / f"{name}.json.gz").record


OPTIONS = ("record_shapes", "with_stack", "profile_memory")
"""What the traces were recorded with differs here and there; that is not what these tests are about."""
STEP_TIMES = {
    "matmul_add_64": 51.2,
    "matmul_add_64_cudagraph": 27.9,
    "matmul_add_4096": 203.5,
    "matmul_add_4096_compile_reduce-overhead": 289.9,
    "elementwise_1g": 521.1,
    "h2d_pinned_256m": 5192.4,
    "sync_item": 1955.3,
    "mlp_train": 2104.5,
    "two_streams": 388.5,
}
"""Microseconds, without the profiler, in the processes that recorded these traces."""


def against(before: Record, after: Record, *across: str) -> Comparison:
    return compare(Subject(record=before, label="a"), Subject(record=after, label="b"), across=across)


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, _ = show(capsys, "compare", *map(str, arguments))
    assert code == 0
    return out


@pytest.mark.parametrize("given", [[*WORKERS], ["--baseline-trace", *WORKERS]])
def test_data_loader_workers(given: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet-50 with no workers and with four: the wait for data was 30.9 ms of each step (its idle time by cause)."""
    found = json.loads(command(capsys, *given, "--format", "json"))
    # 22.6 ms behind the last kernel of the second trace belong to its last step: six steps do not prove the change.
    assert found["word"] == "inconclusive"
    assert found["headline"].startswith("Inconclusive in the traces: step time 149 ms -> 121 ms (-18.7 %")
    assert "waiting for data disappeared, 30.9 ms a step" in found["headline"]
    waited = next(row for row in found["rows"] if row["name"] == "input")
    assert (waited["status"], waited["after_us"]) == ("gone", 0.0)
    assert waited["before_us"] == pytest.approx(30901.5, abs=1)
    assert (found["baseline"]["regime"], found["candidate"]["regime"]) == ("input-bound", "compute-bound")


def test_identical_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "renamed.json.gz"
    copy.write_bytes(WORKERS[0].read_bytes())
    found = json.loads(command(capsys, WORKERS[0], copy, "--format", "json"))
    assert found["word"] == "no difference"
    assert {row["status"] for row in found["rows"]} == {"same"}


PAIRS = [
    ("kineto_resnet50_workers0", "kineto_resnet50_workers4"),
    ("matmul_add_4096", "matmul_add_4096_compile_reduce-overhead"),
    ("matmul_add_64", "matmul_add_64_cudagraph"),
    ("matmul_add_64", "mlp_train"),
    ("two_streams", "sync_item"),
    ("elementwise_1g", "h2d_pinned_256m"),
    ("hta_mi250_rocm", "hta_mi250_rocm"),
]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_contributions_add_up(before: str, after: str) -> None:
    """Of T to the change of T, of GPU work to the change of B; far within the 1 % that is promised."""
    for found in (against(record(before), record(after), *OPTIONS), against(record(after), record(before), *OPTIONS)):
        change = found.step_time.change_us
        assert sum(row.change_us for row in found.rows) == pytest.approx(change, rel=1e-4, abs=1e-3)
        assert found.busy is not None
        gpu = sum(row.change_us for row in found.rows if row.part == "gpu")
        assert gpu == pytest.approx(found.busy.change_us, rel=1e-4, abs=1e-3)


def test_what_traces_claim_is_true_of_the_step_without_the_profiler() -> None:
    """In a trace a step takes up to five times as long as it does; what is claimed must hold all the same."""
    found = {name: record(name) for name in STEP_TIMES}
    claims = 0
    for before, after in itertools.permutations(STEP_TIMES, 2):
        word = against(found[before], found[after], *OPTIONS).word
        truth = STEP_TIMES[after] / STEP_TIMES[before]
        if word in ("improved", "regressed"):
            claims += 1
            assert (word == "improved") == (truth < 1), (before, after)
            assert abs(truth - 1) > 0.05, (before, after)
    assert claims > 20


def test_traces_of_two_devices_are_refused() -> None:
    with pytest.raises(IncomparableError, match=r"device: NVIDIA H200 and NVIDIA H100 80GB HBM3; .*--across device"):
        against(record("matmul_add_64"), record("tracelens_h100_qwen"), *OPTIONS)


def test_large_records_are_compared_at_a_cost_like_their_size() -> None:
    """What a trace of 377,000 events leaves at most: a thousand sites, thousands of operator and kernel names."""
    small, large = large_records(250), large_records(1000)
    assert {row.status for row in against(*large).rows if row.part == "gpu"} == {"renamed"}
    # Four times as large: 4 where each row costs the same, 16 where each looks at all the others.
    assert growth(lambda: against(*small), lambda: against(*large)) < 10


def large_records(count: int) -> tuple[Record, Record]:
    """Two records with `count` sites and three times as many operators and kernels; the sites' kernels are renamed."""
    base = record("mlp_train")
    sites = [
        Site(operator=f"aten::op{i % 50}", shapes=f"[[{i}]]", kernel=f"kernel{i}", kind="matmul", calls=9, busy_us=i)
        for i in range(1, count + 1)
    ]
    ops = [msgspec.structs.replace(base.ops[0], name=f"aten::op{i}") for i in range(3 * count)]
    kernels = [msgspec.structs.replace(base.kernels[0], name=f"kernel{i}") for i in range(3 * count)]
    assert isinstance(ops[0], Op)
    assert isinstance(kernels[0], Kernel)
    before = msgspec.structs.replace(base, sites=sites, ops=ops, kernels=kernels)
    later = [msgspec.structs.replace(site, kernel=f"{site.kernel}_v2") for site in sites]
    return before, msgspec.structs.replace(before, sites=later)


# ---- runs on an H200, each with one change of known cost -------------------------------------------------------------


def changed(name: str) -> Subject:
    return Subject(record=records.load(DATA / "changes" / f"{name}.json"), label=name)


@pytest.mark.parametrize(
    ("name", "across", "cause"),
    [
        (
            "larger",
            ["n"],
            ": params.n 4096 -> 4224; aten::mm: nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT -> nvjet_",
        ),
        ("launches", [], ": change none -> launches; 3 more launches a step (3 -> 6), aten::add_."),
        ("item", [], ": change none -> item; 1 more wait for the GPU a step (0 -> 1), aten::item."),
        ("compiled", [], "vectorized_elementwise_kernel replaced by nvjet_sm90_tst_256x128_64x4_1x2_h_badd_coopA_NNT"),
    ],
)
def test_the_first_line_names_the_cause(name: str, across: list[str], cause: str) -> None:
    found = compare(changed("a"), changed(name), across=across)
    assert cause in found.headline
    expected = {"larger": "regressed", "item": "regressed", "launches": "inconclusive", "compiled": "inconclusive"}
    assert found.word == expected[name]
    assert sum(row.change_us for row in found.rows) == pytest.approx(found.step_time.change_us, rel=1e-3, abs=1e-3)


def test_three_processes_of_the_same_code() -> None:
    """Their step times agree within 0.6 %; their kernels' times, at the power limit, within 4 %. Nothing is claimed."""
    for before, after in itertools.permutations("abc", 2):
        found = compare(changed(before), changed(after))
        assert found.word == "inconclusive"
        assert found.busy is not None
        assert found.busy.word == "inconclusive"
        assert found.headline.endswith("no cause stands out in the traces.")
