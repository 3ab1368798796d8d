"""`proftrack gate`: its exit codes, from real stores; and what a policy may say."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlflow_server import SharedServer
from programs import ADD, DEVICE, MM, TINY, Work, record_of
from run_folders import COUNTERS
from stores import call, flat, log

from proftrack.compare import policy
from proftrack.errors import UsageError
from proftrack.record import Record
from proftrack.record.environment import DeviceFacts
from proftrack.record.modules import Module
from proftrack.store.keys import METRICS
from proftrack.store.runs import Runs

PASS, FAIL, INCONCLUSIVE, ERROR, USAGE = 0, 3, 4, 1, 2
A, B, C = "a" * 40, "b" * 40, "c" * 40
Logged = Callable[[Record], str]


@pytest.fixture
def logged(store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logged:
    """Logs a record into this test's store."""
    monkeypatch.chdir(tmp_path)
    return lambda record: log(tmp_path / "kept", record)


def main_run(logged: Logged, step_time: float = 222, **facts: Any) -> str:
    return logged(record_of([MM, ADD], step_time, **{"commit": A, **facts}))


def tags(run: str) -> dict[str, str]:
    return {name: value for name, value in Runs.connect().get(run).tags.items() if name.startswith("gate.")}


def gate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, shown = call(capsys, "gate", *arguments, "--format", "json")
    return code, json.loads(shown)


# ---- each exit code --------------------------------------------------------------------------------------------------


def test_pass_prints_markdown_and_tags_the_run(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, candidate = main_run(logged), main_run(logged, 223, commit=B, started_s=60)
    code, shown = call(capsys, "gate", candidate)
    assert code == PASS
    assert shown.startswith("### proftrack gate: pass\n\n**PASS: ")
    assert f"- baseline: {baseline}" in shown
    assert tags(candidate) | {"gate.time": ""} == {
        "gate.outcome": "pass",
        "gate.baseline": baseline,
        "gate.policy": "default",
        "gate.failed": "none",
        "gate.reason": tags(candidate)["gate.reason"],
        "gate.across": "none",
        "gate.time": "",
    }
    assert tags(baseline) == {}


def test_a_slower_step_fails(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    main_run(logged)
    candidate = logged(record_of([MM._replace(us=260), ADD], 282, commit=B, started_s=60))
    code, found = gate(capsys, candidate)
    assert (code, found["outcome"]) == (FAIL, "fail")
    assert {check["name"] for check in found["checks"] if check["outcome"] == "fail"} == {
        "step_time_us",
        "gpu_busy_per_step_us",
    }
    assert tags(candidate)["gate.outcome"] == "fail"


def test_one_more_launch_fails_however_fast_it_is(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    main_run(logged)
    code, found = gate(capsys, logged(record_of([MM, ADD, TINY], 222, commit=B, started_s=60)))
    assert code == FAIL
    check = next(check for check in found["checks"] if check["name"] == "launches_per_step")
    assert (check["before"], check["after"], check["outcome"]) == (2, 3, "fail")


def test_fewer_launches_pass_unless_they_must_be_equal(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logged(record_of([MM, ADD, TINY], 224, commit=A))
    candidate = main_run(logged, 222, commit=B, started_s=60)
    assert call(capsys, "gate", candidate)[0] == PASS
    exact = write(tmp_path, "metrics: {launches_per_step: {exact: true}}")
    assert call(capsys, "gate", candidate, "--policy", exact)[0] == FAIL


def test_no_baseline_says_how_to_make_one(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    alone = main_run(logged, branch="feature")
    code, shown = call(capsys, "gate", alone)
    assert code == INCONCLUSIVE
    assert "branch main has no earlier FINISHED run of another commit" in flat(shown)
    assert "proftrack run matmul_add" in shown
    assert tags(alone)["gate.outcome"] == "inconclusive"


@pytest.mark.parametrize(
    "facts",
    [
        {"commit": A, "branch": "feature"},
        {"commit": A, "dirty": True},
        {"commit": B},
        {"commit": A, "started_s": 120},
        {"commit": A, "params": {"n": 128}},
        {"commit": A, "params": {"compile": "default"}},
        {"commit": None},
    ],
    ids=["another branch", "uncommitted", "same commit", "later", "other n", "other variant", "no commit"],
)
def test_what_is_no_baseline(facts: dict[str, Any], logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    logged(record_of([MM, ADD], 222, **facts))
    candidate = main_run(logged, commit=B, started_s=60)
    assert call(capsys, "gate", candidate)[0] == INCONCLUSIVE


def test_a_missing_baseline_is_inconclusive_and_a_missing_candidate_an_error(
    logged: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = main_run(logged)
    assert call(capsys, "gate", candidate, "--baseline", "0" * 32)[0] == INCONCLUSIVE
    assert call(capsys, "gate", candidate, "--baseline", "no-such-branch")[0] == INCONCLUSIVE
    code, shown = call(capsys, "gate", "0" * 32)
    assert (code, "no run 000" in shown) == (ERROR, True)


def test_incomparable_runs_are_inconclusive_by_name(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    other = main_run(logged, params={"n": 128})
    candidate = main_run(logged, commit=B, started_s=60)
    code, shown = call(capsys, "gate", candidate, "--baseline", other)
    assert (code, "not comparable, params.n: 128 and 64" in shown) == (INCONCLUSIVE, True)
    code, _ = call(capsys, "gate", candidate, "--baseline", other, "--across", "n")
    assert code == PASS
    assert tags(candidate)["gate.across"] == "params.n"


def test_too_few_samples(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    main_run(logged)
    candidate = main_run(logged, 300, commit=B, started_s=60, blocks=4)
    code, found = gate(capsys, candidate)
    assert code == INCONCLUSIVE
    assert "only 4 timed blocks" in found["reason"]


def test_noise_that_would_hide_the_limit(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    """An overhead-bound step with one run each: the host's time may differ by half between processes."""
    small = [MM._replace(us=2), ADD._replace(us=1)]
    logged(record_of(small, 29.2, commit=A))
    candidate = logged(record_of(small, 29.3, commit=B, started_s=60))
    code, found = gate(capsys, candidate)
    assert code == INCONCLUSIVE
    assert "noise could hide more than the limit allows" in found["reason"]
    assert call(capsys, "gate", candidate, "--noise-floor", "2")[0] == PASS


def test_repeats_in_the_store_measure_the_noise(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    """Three runs of the baseline's commit within 1 %: now 29.3 passes, and 33 fails."""
    small = [MM._replace(us=2), ADD._replace(us=1)]
    for number, step_time in enumerate((29.1, 29.2, 29.3)):
        logged(record_of(small, step_time, commit=A, started_s=number))
    assert call(capsys, "gate", logged(record_of(small, 29.3, commit=B, started_s=60)))[0] == PASS
    code, found = gate(capsys, logged(record_of(small, 33, commit=C, started_s=90)), "--baseline", A)
    assert code == FAIL
    assert found["comparison"]["baseline"]["runs"] == 3
    assert found["comparison"]["step_time"]["floor"]["source"] == "measured"
    assert found["comparison"]["step_time"]["before_us"] == 29.2  # the middle one


def test_a_policys_noise_floor_stands_in_where_the_store_does_not_know_it(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = [MM._replace(us=2), ADD._replace(us=1)]
    policy = write(tmp_path, "metrics: {step_time_us: {max_increase_pct: 5}}\nnoise_floor_pct: 4\nregime: any")
    logged(record_of(small, 29.2, commit=A))
    candidate = logged(record_of(small, 29.3, commit=B, started_s=60))
    code, found = gate(capsys, candidate, "--policy", policy)
    assert (code, found["comparison"]["step_time"]["floor"]["source"]) == (PASS, "given")
    for number in (1, 2):
        logged(record_of(small, 29.2 + number / 10, commit=A, started_s=number))
    code, found = gate(capsys, candidate, "--policy", policy)
    assert (code, found["comparison"]["step_time"]["floor"]["source"]) == (PASS, "measured")


def test_the_regime(logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main_run(logged)
    candidate = logged(record_of([MM._replace(us=20), ADD], 86, host_us=43, commit=B, started_s=60))
    base = "metrics: {step_time_us: {max_increase_pct: 5}}\nregime: "
    assert call(capsys, "gate", candidate, "--policy", write(tmp_path, base + "any"))[0] == PASS
    code, found = gate(capsys, candidate, "--policy", write(tmp_path, base + "same"))
    assert (code, "regime: compute-bound -> overhead-bound" in found["reason"]) == (FAIL, True)
    assert call(capsys, "gate", candidate, "--policy", write(tmp_path, base + "[overhead-bound]"))[0] == PASS


def test_absolute_limits_and_metrics_that_are_not_there(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main_run(logged)
    candidate = main_run(logged, commit=B, started_s=60)

    def code(limits: str) -> int:
        return call(capsys, "gate", candidate, "--policy", write(tmp_path, f"metrics: {{{limits}}}\nregime: any"))[0]

    assert code("peak_memory_bytes: {max: 1e6}") == PASS
    assert code("peak_memory_bytes: {max: 999999}") == FAIL
    assert code("gpu_busy_fraction: {min: 0.9}") == PASS
    assert code("gpu_busy_fraction: {min: 0.999}") == FAIL
    assert code("mfu: {min: 0.5}") == INCONCLUSIVE
    assert code("dram_utilization: {min: 0.5}") == INCONCLUSIVE  # the device has no counters
    assert code("mfu: {min: 0.5, required: false}, peak_memory_bytes: {max: 1e6}") == PASS
    assert code("mfu: {min: 0.5, required: false}") == INCONCLUSIVE  # nothing was checked
    assert code("waits_per_step: {max: 0}") == PASS


def test_energy_and_use_of_a_unit_have_limits_like_any_metric(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """DRAM 0.17 of a peak of which 0.85 is reachable, 220 of 222 us: 0.2 / 0.991; 30 mJ, and then 36."""

    def run(joules: float, **facts: Any) -> str:
        counters = msgspec.structs.replace(COUNTERS, energy_joules_per_step=joules)
        return logged(msgspec.structs.replace(record_of([MM, ADD], 222, **facts), counters=counters))

    run(0.03, commit=A)
    candidate = run(0.036, commit=B, started_s=60)

    def checked(limits: str) -> tuple[int, str]:
        policy = write(tmp_path, f"metrics: {{{limits}}}\nregime: any")
        code, found = gate(capsys, candidate, "--policy", policy)
        return code, found["reason"]

    assert checked("dram_utilization: {min: 0.2}")[0] == PASS
    assert checked("dram_utilization: {min: 0.21}") == (FAIL, "dram_utilization: 0.202 is below 0.21")
    assert checked("energy_per_step_joules: {max_increase_pct: 25}")[0] == PASS
    code, reason = checked("energy_per_step_joules: {max_increase_pct: 5}")
    assert code == FAIL and reason.startswith("energy_per_step_joules: +20.0 %")
    assert checked("energy_per_step_joules: {max: 0.035}") == (FAIL, "energy_per_step_joules: 36 mJ is above 35 mJ")


def test_a_marked_baseline_comes_before_the_branch(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    marked = main_run(logged, 222, branch="release")
    main_run(logged, 300, commit=C, started_s=30)
    candidate = main_run(logged, 222, commit=B, started_s=60)
    call(capsys, "baseline", marked)
    code, found = gate(capsys, candidate)
    assert (code, found["baseline"]) == (PASS, marked)


def test_a_folder_is_gated_without_being_logged(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path, run_folder: Callable[..., Path]
) -> None:
    baseline = main_run(logged)
    folder = run_folder("fresh", record_of([MM, ADD], 222.5, commit=B, started_s=60))
    code, found = gate(capsys, str(folder))
    assert (code, found["baseline"]) == (PASS, baseline)
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
    )
    assert call(capsys, "gate", str(trace))[0] == USAGE


def test_the_page_goes_to_a_file(logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main_run(logged)
    candidate = main_run(logged, commit=B, started_s=60)
    assert call(capsys, "gate", candidate, "-o", str(tmp_path / "gate.md")) == (PASS, "")
    assert (tmp_path / "gate.md").read_text().startswith("### proftrack gate: pass")
    assert call(capsys, "gate", candidate, "-o", str(tmp_path / "none" / "gate.md"))[0] == USAGE


# ---- noise and threads -----------------------------------------------------------------------------------------------


def torn(record: Record) -> Record:
    """Two blocks of ten took fourteen times as long: the 90th percentile is 14 times the 10th."""
    assert record.timing is not None
    time = record.timing.step_time_us
    blocks = [time] * 8 + [14 * time] * 2
    return msgspec.structs.replace(record, timing=msgspec.structs.replace(record.timing, block_step_times_us=blocks))


@pytest.mark.parametrize("step_time", [2.5, 222, 300])
def test_a_baseline_that_is_noisy_itself_judges_nothing(
    step_time: float, logged: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ninety times as fast, the same, or a third slower: the gate says nothing about a time, and why."""
    logged(torn(record_of([MM, ADD], 222, commit=A)))
    code, found = gate(capsys, main_run(logged, step_time, commit=B, started_s=60))
    assert (code, found["outcome"]) == (INCONCLUSIVE, "inconclusive")
    assert found["reason"].startswith(
        "noise: the baseline's own noise is 14x, over 25 % (the timed blocks of one process differ by 14x); profile "
        "matmul_add again on a quiet machine, or name another one with --baseline; step_time_us: too noisy"
    )
    check = next(check for check in found["checks"] if check["name"] == "noise")
    assert (check["before"], check["after"] < 0.25, check["outcome"]) == (13, True, "inconclusive")


def test_a_noisy_candidate_is_named_as_such(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    main_run(logged)
    noisy = torn(record_of([MM, ADD], 222, commit=B, started_s=60))
    code, found = gate(capsys, logged(noisy), "--noise-floor", "2")
    assert code == INCONCLUSIVE
    assert "noise: the candidate's own noise is 14x, over 25 %" in found["reason"]
    assert "with nothing else running" in found["reason"]


def test_a_fixed_limit_is_judged_unless_the_candidate_is_noisy(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = write(tmp_path, "metrics: {step_time_us: {max: 200}}\nregime: any")
    calm, noisy = record_of([MM, ADD], 222, commit=A), torn(record_of([MM, ADD], 222, commit=B, started_s=60))
    baselines = [logged(calm), logged(torn(record_of([MM, ADD], 222, commit=C, started_s=1)))]
    candidate, other = logged(noisy), main_run(logged, commit="d" * 40, started_s=90)
    assert call(capsys, "gate", candidate, "--baseline", baselines[0], "--policy", policy)[0] == INCONCLUSIVE
    assert call(capsys, "gate", other, "--baseline", baselines[1], "--policy", policy)[0] == FAIL


def test_a_floor_measured_from_runs_of_the_baselines_code(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    """Logarithms 0, 0.1 and -0.1 of three runs: exp(4.3027 x 0.1 x root of 2) - 1 = 83.8 %."""
    for number, step_time in enumerate((222, 222 * math.exp(0.1), 222 * math.exp(-0.1))):
        main_run(logged, step_time, started_s=number)
    code, found = gate(capsys, main_run(logged, 100, commit=B, started_s=60))
    assert code == INCONCLUSIVE
    assert "the baseline's own noise is 83.8 %, over 25 % (two fresh processes may differ by 83.8 %" in found["reason"]


def test_counts_are_judged_however_noisy_the_times_are(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logged(torn(record_of([MM, ADD], 222, commit=A)))
    same = main_run(logged, commit=B, started_s=60)
    limits = "launches_per_step: {exact: true}, gpu_busy_per_step_us: {max_increase_pct: 15}"
    counts = write(tmp_path, f"metrics: {{{limits}}}\nregime: any")
    assert call(capsys, "gate", same, "--policy", counts)[0] == PASS
    more = logged(record_of([MM, ADD, TINY], 222, commit=C, started_s=90))
    assert call(capsys, "gate", more, "--policy", counts)[0] == FAIL
    assert call(capsys, "gate", more)[0] == FAIL


def of_threads(kind: str, threads: int | None = None, **facts: Any) -> dict[str, Any]:
    return {"device": DeviceFacts(type=kind, name=DEVICE), "threads": threads, **facts}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (of_threads("cpu", 1), of_threads("cpu", 2), "threads: 1 and 2"),
        (of_threads("cpu", variables={"OMP_NUM_THREADS": "4"}), of_threads("cpu", 2), "threads: 4 and 2"),
    ],
)
def test_other_threads_on_a_cpu_are_not_comparable(
    before: dict[str, Any], after: dict[str, Any], said: str, logged: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    main_run(logged, environment=before)
    candidate = main_run(logged, commit=B, started_s=60, environment=after)
    code, found = gate(capsys, candidate)
    assert (code, said in found["reason"], "--across threads" in found["reason"]) == (INCONCLUSIVE, True, True)
    code, found = gate(capsys, candidate, "--across", "threads")
    assert code == PASS
    assert [each["name"] for each in found["comparison"]["across"]] == ["threads"]


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        (of_threads("cuda", 8), of_threads("cuda", 16), "torch's threads: 8 in the baseline, 16 in the candidate"),
        (
            of_threads("cpu"),
            of_threads("cpu", 2),
            "The baseline does not say how many threads torch used; the",
        ),
        (of_threads("cpu", 2), of_threads("cpu"), "The candidate does not say how many threads torch used; the"),
        (of_threads("cpu"), of_threads("cpu"), "Neither run says how many threads torch used"),
        (of_threads("cuda", 8), of_threads("cuda", 8), None),
    ],
)
def test_threads_that_are_unknown_or_feed_a_gpu_are_a_caveat(
    before: dict[str, Any],
    after: dict[str, Any],
    note: str | None,
    logged: Logged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main_run(logged, environment=before)
    code, found = gate(capsys, main_run(logged, commit=B, started_s=60, environment=after))
    notes = found["comparison"]["notes"]
    assert (code, any(each.startswith(note or "torch's threads") for each in notes)) == (PASS, note is not None)


# ---- modules ---------------------------------------------------------------------------------------------------------


def of_layers(record: Record, *mlps: float, name: str = "mlp") -> Record:
    """Layers whose `mlp` takes these times in microseconds, and whose `attn` takes 40 us."""
    steps = record.window.typical_steps
    times = {f"layers.{i}.{part}": us for i, mlp in enumerate(mlps) for part, us in ((name, mlp), ("attn", 40))}
    return msgspec.structs.replace(
        record, modules=[Module(path=path, forward_us=steps * us) for path, us in times.items()]
    )


def judged(
    logged: Logged,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    limits: str,
    after: list[float],
    *,
    name: str = "mlp",
    noise: str = "2",
) -> tuple[int, dict[str, Any]]:
    """The exit code, and the check of a module; before, four layers of 60 us."""
    logged(of_layers(record_of([MM, ADD], 222, commit=A), 60, 60, 60, 60))
    candidate = logged(of_layers(record_of([MM, ADD], 222, commit=B, started_s=60), *after, name=name))
    file = write(folder, f"regime: any\nmodules: {{{limits}}}")
    code, found = gate(capsys, candidate, "--policy", file, "--noise-floor", noise)
    (check,) = (each for each in found["checks"] if each["name"].startswith("modules."))
    return code, check


def test_a_module_over_its_limit_fails_by_name(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """60 -> 90 us: half as much again; the other layers keep the limit."""
    limits = "layers.*.mlp: {max_increase_pct: 15}"
    code, check = judged(logged, capsys, tmp_path, limits, [60, 60, 90, 60])
    assert (code, check["outcome"], check["before"], check["after"]) == (FAIL, "fail", 60, 90)
    assert check["reason"].startswith("layers.2.mlp: +50.0 % (95 % interval ")
    assert check["limit"] == "at most +15 %"


@pytest.mark.parametrize(
    ("limits", "after", "noise", "outcome", "said"),
    [
        ("layers.*.mlp: {max_increase_pct: 15}", [60, 60, 61, 60], "2", "pass", "the worst of 4 modules, +1.7 %"),
        ("layers.*.mlp: {max_increase_pct: 5}", [60, 60, 60, 60], "2", "inconclusive", "noise could hide more"),
        ("layers.2: {max_increase: 20}", [60, 60, 70, 60], "2", "pass", "+10.0 %"),
        ("layers.2: {max_increase: 20}", [60, 60, 90, 60], "2", "fail", "+30.0 %"),
        ("'**.mlp': {max: 80}", [60, 60, 90, 60], "2", "fail", "layers.2.mlp: 90 us is above 80 us"),
        ("layers.*.mpl: {max: 80}", [60] * 4, "2", "inconclusive", "neither run has such"),
        ("layers.*.mpl: {max: 80, required: false}", [60] * 4, "2", "inconclusive", "did you mean layers.*.mlp?"),
        ("layers.*.mlp: {max_increase_pct: 15}", [60] * 3, "2", "inconclusive", "layers.3.mlp: the candidate does not"),
        ("layers.*.mlp: {max_increase_pct: 15}", [60] * 5, "2", "inconclusive", "layers.4.mlp: the baseline does not"),
        ("layers.*.mlp: {max: 80}", [60] * 5, "2", "pass", ""),
    ],
)
def test_limits_of_modules(
    limits: str,
    after: list[float],
    noise: str,
    outcome: str,
    said: str,
    logged: Logged,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    code, check = judged(logged, capsys, tmp_path, limits, after, noise=noise)
    assert check["outcome"] == outcome
    assert said in check["reason"]
    assert code == {"pass": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE}[outcome]


def test_a_run_without_modules_is_inconclusive(
    logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main_run(logged)
    candidate = logged(of_layers(record_of([MM, ADD], 222, commit=B, started_s=60), 60, 60))
    file = write(tmp_path, "regime: any\nmodules: {layers.*.mlp: {max: 80, required: false}}")
    code, found = gate(capsys, candidate, "--policy", file)
    assert code == INCONCLUSIVE
    assert "the baseline has none" in found["reason"]


def test_a_modules_limit_in_the_page(logged: Logged, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logged(of_layers(record_of([MM, ADD], 222, commit=A), 60, 60, 60, 60))
    candidate = logged(of_layers(record_of([MM, ADD], 222, commit=B, started_s=60), 60, 60, 90, 60))
    file = write(tmp_path, "modules: {layers.*.mlp: {max_increase_pct: 15}}")
    code, shown = call(capsys, "gate", candidate, "--policy", file, "--noise-floor", "2")
    assert code == FAIL
    assert re.search(r"FAIL .*modules\.layers\.\S+\.mlp .*layers\.2\.mlp: \+50\.0 %.*60\.0 us .*90\.0 us", shown)


# ---- marked baselines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marked", "why"),
    [
        ({"params": {"n": 128}}, "it is not comparable (params.n: 128, candidate 64)."),
        ({"params": {"compile": "default"}}, "it was run with other parameters (compile: default, candidate none)."),
        ({"commit": B}, "it has the candidate's own commit; to compare anyway, pass --baseline "),
    ],
)
@pytest.mark.parametrize("other", [False, True], ids=["nothing else", "another baseline"])
def test_it_says_why_the_marked_run_was_not_used(
    other: bool, marked: dict[str, Any], why: str, logged: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    run = logged(record_of([MM, ADD], 222, **{"commit": A, "branch": "feature", **marked}))
    assert call(capsys, "baseline", run[:8])[0] == 0
    if other:
        main_run(logged, commit=C, started_s=30)
    code, found = gate(capsys, main_run(logged, commit=B, started_s=60))
    assert code == (PASS if other else INCONCLUSIVE)
    said = " ".join([found["reason"], *(found["comparison"]["notes"] if other else [])])
    assert f"Run {run[:8]}, marked as a baseline, was not used: {why}" in said


def test_the_only_marked_run_is_the_candidate(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    run = main_run(logged)
    call(capsys, "baseline", run)
    assert "was not used: it is the candidate itself." in gate(capsys, run)[1]["reason"]


def test_a_run_is_named_by_the_first_eight_digits_of_its_id(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, candidate = main_run(logged), main_run(logged, 223, commit=B, started_s=60)
    code, found = gate(capsys, candidate[:8], "--baseline", baseline[:12])
    assert (code, found["baseline"]) == (PASS, baseline)
    assert tags(candidate)["gate.outcome"] == "pass"
    code, shown = call(capsys, "baseline", candidate[:7])
    assert (code, "at least the first 8" in flat(shown)) == (USAGE, True)
    absent = "0" * 8 if not baseline.startswith("0" * 8) else "1" * 8
    assert f"no run whose id begins with {absent}" in flat(call(capsys, "baseline", absent)[1])


# ---- in a terminal ---------------------------------------------------------------------------------------------------


def test_eighty_columns_hold(
    logged: Logged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Long names, six checks with sentences, a policy with large figures: no line is longer, no sentence is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    long = Work("aten::_scaled_dot_product_flash_attention_backward", "void cutlass::Kernel2<" + "x" * 300 + ">", 200)
    main_run(logged)
    candidate = logged(record_of([long, ADD, TINY], 282, commit=B, started_s=60))
    limits = (
        "metrics: {step_time_us: {max_increase_pct: 5, max: 2e6}, gpu_busy_fraction: {min: 0.5}, "
        "peak_memory_bytes: {max_increase_pct: 5, max: 60e9}, launches_per_step: {exact: true}, mfu: {min: 0.5, "
        "required: false}}\nregime: any"
    )
    code, shown = call(capsys, "gate", candidate, "--policy", write(tmp_path, limits), "--format", "text")
    assert code == FAIL
    assert max(map(len, shown.splitlines())) <= 80
    assert "at most +5 %, at most 60 GB" in shown
    assert "    +27.0 % (95 % interval" in shown
    assert "    the candidate has no mfu" in shown


def test_a_terminal_gets_text(
    logged: Logged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = main_run(logged)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call(capsys, "gate", run)[1].startswith("\n\x1b[1;33mINCONCLUSIVE: no baseline for")


# ---- through a server ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_through_a_server_with_nothing_but_the_store(
    shared_server: SharedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", shared_server.url)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gates")
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    own = {"n": 65}  # a fingerprint that no other test's runs have
    baseline = log(kept, record_of([MM, ADD], 222, commit=A, params=own))
    good = log(kept, record_of([MM, ADD], 223, commit=B, started_s=60, params=own))
    bad = log(kept, record_of([MM, ADD, TINY], 226, commit=C, started_s=90, params=own))
    shutil.rmtree(kept)
    assert call(capsys, "gate", good, "--baseline", baseline)[0] == PASS
    assert call(capsys, "gate", bad, "--baseline", baseline)[0] == FAIL
    assert call(capsys, "gate", baseline)[0] == INCONCLUSIVE
    assert tags(bad)["gate.outcome"] == "fail"
    code, shown = call(capsys, "compare", baseline, bad, "--format", "html")
    assert (code, f"with run {bad}" in shown) == (0, True)
    runs = Runs.connect()
    assert [item.path for item in runs.client.list_artifacts(bad, "compare")] == [f"compare/{baseline}.html"]
    assert call(capsys, "prune", "--older-than", "1d")[0] == 0
    assert runs.client.list_artifacts(bad, "trace") == []


def test_a_server_that_is_down_is_an_error_and_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, shown = call(capsys, "gate", "0" * 32)
    assert (code, "the server does not answer" in shown) == (ERROR, True)


# ---- policies --------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> str:
    path = folder / "gate.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrics: {step_tme_us: {max_increase_pct: 5}}", "did you mean step_time_us?"),
        ("metrics: {step_time_us: {max_increase: 5, pct: 5}}", "unknown key pct in metrics.step_time_us"),
        ("metric: {step_time_us: {max_increase_pct: 5}}", "did you mean metrics?"),
        ("metrics: {step_time_us: {max_increase_pct: five}}", "max_increase_pct=five is not allowed"),
        ("metrics: {step_time_us: {max_increase_pct: -5}}", "must be a number, 0 or more"),
        ("metrics: {step_time_us: {max_increase_pct: .nan}}", "must be a number, 0 or more"),
        ("metrics: {step_time_us: 5}", "it must be limits such as"),
        ("metrics: {step_time_us: {required: true}}", "sets no limit"),
        ("metrics: {step_time_us: {exact: 1}}", "must be true or false"),
        ("metrics: {}", "metrics={} is not allowed; it must be metrics with their limits, such as {step_time_us: {max"),
        ("branch: main", "metrics is missing"),
        ("metrics: {step_time_us: {max: 1}}\nregime: compute", "regime=compute is not allowed"),
        ("metrics: {step_time_us: {max: 1}}\nregime: [compute_bound]", "did you mean compute-bound?"),
        ("metrics: {step_time_us: {max: 1}}\nmin_samples: 1", "must be a whole number, 3 or more"),
        ("metrics: {step_time_us: {max: 1}}\nbranch: 7", "must be a branch's name"),
        ("metrics: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("modules: {layers.*.mlp: {max_increase_pct: five}}", "max_increase_pct=five is not allowed"),
        (
            "modules: {layers.*.mlp: {required: false}}",
            "sets no limit; use one of max_increase_pct, max_decrease_pct, max_increase, max_decrease, max, min",
        ),
        ("modules: {layers.*.mlp: {exact: true}}", "no two times are equal"),
        ("modules: {layers.*.mlp: 5}", "it must be limits such as"),
        ("modules: {}", "metrics is missing"),
        ("[1, 2]", "not keys and values"),
        ("metrics: {step_time_us: {max: 1}, step_time_us: {max: 2}}", "given twice"),
    ],
)
def test_a_policy_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        policy.load(Path(write(tmp_path, text)), METRICS)
    assert said in str(refused.value)
    assert "gate.yaml" in str(refused.value)


def test_a_whole_policy(tmp_path: Path) -> None:
    text = (
        "branch: release\nmin_samples: 8\nmin_runs: 3\nnoise_floor_pct: 2.5\nregime: [compute-bound, memory-bound]\n"
        "metrics:\n  step_time_us: {max_increase_pct: 3}\n  peak_memory_bytes: {max: 60e9, required: false}\n"
        "  launches_per_step: {exact: true}\nmodules: {'**.down_proj': {max: 40}}\n"
    )
    found = policy.load(Path(write(tmp_path, text)), METRICS)
    assert msgspec.to_builtins(found) == {
        "branch": "release",
        "min_samples": 8,
        "min_runs": 3,
        "noise_floor_pct": 2.5,
        "regime": ["compute-bound", "memory-bound"],
        "source": "gate.yaml",
        "metrics": {
            "step_time_us": _limit(max_increase_pct=3.0),
            "peak_memory_bytes": _limit(max=60e9, required=False),
            "launches_per_step": _limit(exact=True),
        },
        "modules": {"**.down_proj": _limit(max=40.0)},
    }


def _limit(**given: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(policy.Limit()), **given}


def test_limits_in_words() -> None:
    limit = policy.Limit(max_increase_pct=5, max_decrease=2, max=10, min=1, exact=True)
    assert policy.describe(limit) == "equal, at most +5 %, at most -2, at most 10, at least 1"
    assert policy.describe(policy.Limit(max_increase=0)) == "no increase"
