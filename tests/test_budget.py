"""The time budget: what fits is planned from the first step, what cannot end in it is refused in one sentence."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proftrack import experiment
from proftrack.capture import budget, dtype
from proftrack.capture.budget import Budget
from proftrack.capture.device import CpuDevice
from proftrack.capture.dtype import Emulated
from proftrack.errors import BudgetError, UsageError

SLOW = Emulated(dtype="bfloat16", rate=0.5e9, wide_rate=60e9, threads=2)


def made(seconds: float = 60, now: Any = lambda: 0.0, **values: str) -> Budget:
    """A budget of matmul_add: 3 timed and 5 scheduled steps after the first."""
    given = {"budget_seconds": str(seconds), **values}
    return Budget(experiment.load("matmul_add", given), clock=now)


# ---- the plan ----------------------------------------------------------------------------------------------------


def test_what_is_left_leaves_the_report_its_share() -> None:
    clock = iter([100.0, 110.0])
    assert made(now=lambda: next(clock)).left == pytest.approx(60 * 0.95 - 10)


def test_short_steps_have_time_for_everything() -> None:
    plan = made().plan(0.001, 50)
    # 50 s less 8 steps, 2 counted ones and 6 s of ceilings; a fifth of it for warming up, at most 20 s for each timing.
    assert (plan.count, plan.ceilings) == (True, True)
    assert plan.warm_up_seconds == pytest.approx(0.2 * (50 - 0.008 - 0.002 - 6))
    assert plan.timing_seconds == pytest.approx(0.4 * (50 - 0.008 - 0.002 - 6))


def test_timing_takes_no_longer_than_its_own_limit() -> None:
    assert made(600).plan(0.001, 500).timing_seconds == 20


def test_steps_of_seconds_leave_out_what_is_not_needed() -> None:
    plan = made().plan(6.0, 50)
    # 8 steps are 48 s; of the 2 s to spare neither a counted step (12 s) nor ceilings nor a warm-up step fit.
    assert (plan.count, plan.ceilings, plan.warm_up_seconds) == (False, False, 0.0)
    assert plan.timing_seconds == pytest.approx(0.8)


def test_what_cannot_end_is_refused_with_the_estimate_and_what_fits() -> None:
    with pytest.raises(BudgetError) as refused:
        made().plan(7.0, 50)
    # 1 + 3 + 5 steps of 7 s are 63 s, 66.3 with the report's share; with a schedule of two steps it is 42.
    assert str(refused.value) == (
        "matmul_add: a step takes about 7 s, so the shortest measurement (1 first, 3 timed and 5 scheduled steps) "
        "takes at least 66 s, which is over the budget of 60 s; use a shorter schedule (--skip_first 0 --wait 0 "
        "--warmup 1 --active 1 --repeat 1), or allow more time with --budget 73"
    )


def test_the_budget_that_is_named_is_large_enough() -> None:
    for step in (7.0, 11.0, 55.0, 200.0, 1234.5):
        with pytest.raises(BudgetError) as refused:
            made().plan(step, 50)
        named = float(str(refused.value).rpartition("--budget ")[2].split()[0])
        assert made(named).plan(step, named * 0.95 - step)


def test_a_rest_of_a_tenth_may_overrun() -> None:
    """A compilation that took the whole budget is not thrown away for steps of milliseconds."""
    assert made().plan(0.01, -5).timing_seconds == 0
    with pytest.raises(BudgetError):
        made().plan(1.0, -5)


def test_a_long_schedule_counts() -> None:
    with pytest.raises(BudgetError, match=r"3 timed and 1000 scheduled steps"):
        made(active="998").plan(0.1, 55)


# ---- a first step of unknown length ------------------------------------------------------------------------------


def test_a_product_that_would_take_minutes_is_refused_before_it_runs() -> None:
    torch = pytest.importorskip("torch")
    ran = []
    slow = made(dtype="bfloat16")
    slow.emulated = SLOW
    x = torch.ones(4096, 4096, dtype=torch.bfloat16, device="meta")
    with pytest.raises(BudgetError) as refused, budget.guarded(slow):
        ran.append(torch.ones(1, dtype=torch.bfloat16) + 1)
        ran.append(torch.matmul(x, x))
    assert len(ran) == 1
    # 2 * 4096^3 FLOP at 0.5 GFLOP/s on each of two threads: 137 s at the least; nine are 1237 s, 1302 with the report.
    assert re.fullmatch(
        r"matmul_add: a step takes over 2 min, so the shortest measurement \(1 first, 3 timed and 5 scheduled steps\) "
        r"takes at least 2\d min, which is over the budget of 60 s; bfloat16 is 120 times slower than float32 on this "
        r"CPU \(0\.5 against 60 GFLOP/s on one thread\), so use dtype=float32, or allow more time with "
        r"--budget \d{2}00",
        str(refused.value),
    )


def test_an_estimate_that_is_not_certain_refuses_nothing() -> None:
    torch = pytest.importorskip("torch")
    slow = made(dtype="bfloat16")
    slow.emulated = SLOW
    # Nine steps of 8 s: over the budget, and not twice over it. In float32 nothing is predicted at all.
    n = round((8 * SLOW.best_rate / 2) ** (1 / 3))
    for kind, size in ((torch.bfloat16, n), (torch.float32, 4096)):
        x = torch.ones(size, size, dtype=kind, device="meta")
        with budget.guarded(slow):
            assert torch.matmul(x, x).shape == (size, size)


def test_a_compiled_step_is_not_looked_into() -> None:
    torch = pytest.importorskip("torch")
    slow = made(dtype="bfloat16", compile="default")
    slow.emulated = SLOW
    x = torch.ones(4096, 4096, dtype=torch.bfloat16, device="meta")
    with budget.guarded(slow):
        assert torch.matmul(x, x).shape == (4096, 4096)


def test_a_step_that_outlasts_the_budget_is_ended() -> None:
    told: list[BudgetError] = []
    heard = threading.Event()

    def end(error: BudgetError) -> None:
        told.append(error)
        heard.set()

    with budget.guarded(made(1, now=iter([0.0, 10.0, 10.0]).__next__), on_overrun=end):
        assert heard.wait(60)
    assert str(told[0]).startswith("matmul_add: the first step was still running after 0.1 s; if every step takes")


def test_what_is_said_of_a_first_step_that_takes_all_the_time() -> None:
    """57 s are gone; 8 more such steps and the report's share make 540. It may also be that it compiles."""
    error = made(now=iter([0.0, 57.0]).__next__).overrun(57.0)
    assert str(error) == (
        "matmul_add: the first step was still running after 57 s; if every step takes as long, the shortest "
        "measurement (1 first, 3 timed and 5 scheduled steps) takes at least 9 min, which is over the budget of 60 s; "
        "make the problem smaller, or allow more time with --budget 600 (--budget 140 if the first step compiles)"
    )


def test_no_budget_is_named_that_would_be_refused_again() -> None:
    """The second step was stopped early: that is no estimate, what the first took is one."""
    for seconds, first in ((5.0, 3.0), (1.0, 0.7), (60.0, 20.0)):
        asked = made(seconds, now=iter([0.0, first, first]).__next__)
        text = str(asked.overrun(asked.allowed(first), first_seconds=first))
        named = float(text.rpartition("--budget ")[2].split()[0])
        assert named > seconds
        assert f"(the first took {first:.2g} s)" in text


def test_only_the_first_step_may_take_all_the_time() -> None:
    """The second shows what a step takes: nine more of them must fit, or the tenth of a budget that may overrun."""
    asked = made(now=iter([0.0, 21.0, 21.0, 100.0]).__next__)
    assert asked.allowed() == pytest.approx(57 - 21)
    assert asked.allowed(21.0) == pytest.approx((57 - 21) / 9)
    assert asked.allowed(21.0) == pytest.approx(6 / 9)


def test_a_step_that_ends_in_time_is_not() -> None:
    with budget.guarded(made(), on_overrun=lambda error: pytest.fail(str(error))):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "proftrack-budget"]


# ---- types -------------------------------------------------------------------------------------------------------


class Gpu(CpuDevice):
    is_gpu = True

    def __init__(self, bfloat16: bool) -> None:
        self._bfloat16 = bfloat16

    def has_bfloat16(self) -> bool:
        return self._bfloat16


@pytest.mark.parametrize(
    ("device", "chosen"), [(CpuDevice(), "float32"), (Gpu(True), "bfloat16"), (Gpu(False), "float32")]
)
def test_auto_is_what_the_device_is_good_at(device: CpuDevice, chosen: str) -> None:
    asked = experiment.load("matmul_add")
    assert asked.params["dtype"] == "auto"
    assert dtype.resolved(asked, device).params == {**asked.params, "dtype": chosen}


def test_what_was_chosen_is_part_of_the_name_and_the_fingerprint() -> None:
    asked = experiment.load("matmul_add")
    said = experiment.load("matmul_add", {"dtype": "float32"})
    chosen = dtype.resolved(asked, CpuDevice())
    assert asked.display_name == "matmul_add n=64 eager"
    assert chosen.display_name == said.display_name == "matmul_add n=64 float32 eager"
    assert experiment.fingerprint(chosen, "x") == experiment.fingerprint(said, "x")
    assert dtype.resolved(said, Gpu(True)) is said


@pytest.mark.parametrize("name", ["ddp", "linear", "llm", "matmul_add", "mlp"])
def test_every_experiment_leaves_the_type_to_the_device(name: str) -> None:
    assert experiment.load(name).params["dtype"] == "auto"


def test_only_a_narrower_type_on_a_cpu_can_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    rates = {"float32": 60e9, "bfloat16": 0.5e9, "float16": 50e9, "float64": 10e9}
    monkeypatch.setattr(dtype, "_thread_rate", rates.get)

    def found(name: str, device: CpuDevice) -> Emulated | None:
        return dtype.emulated(experiment.load("matmul_add", {"dtype": name}), device)

    slow = found("bfloat16", CpuDevice())
    assert slow is not None and (slow.ratio, slow.dtype) == (120, "bfloat16")
    assert [found(name, CpuDevice()) for name in ("float16", "float32", "float64")] == [None] * 3
    assert found("bfloat16", Gpu(True)) is None


def test_the_probe_leaves_the_threads_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    assert (dtype._thread_rate("float32") or 0) > 0
    assert torch.get_num_threads() == threads


def test_a_run_logs_what_auto_became(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from proftrack import record
    from proftrack.cli import group

    arguments = ["run", "matmul_add", "--n", "8", "--min_seconds", "0.01", "--min_steps", "3", "--device", "cpu"]
    folder = tmp_path / "run"
    done = CliRunner().invoke(group, [*arguments, "--no-mlflow", "--output", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    run = record.load(folder / "record.json").run
    assert run is not None
    assert run.params["dtype"] == run.fingerprint_keys["params.dtype"] == "float32"
    assert run.display_name == "matmul_add n=8 float32 eager"


# ---- the option --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "-3", "0.5"])
def test_a_budget_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"timing.budget_seconds=.* is not allowed; it must be a number, 1 or more"):
        experiment.load("matmul_add", {"budget_seconds": value})


def test_the_option_is_the_setting() -> None:
    from proftrack.cli.options import overrides

    given = overrides(["n=8"], device="cpu", budget=600)
    assert given == {"n": "8", "device": "cpu", "budget_seconds": "600"}
    assert experiment.load("matmul_add", given).timing.budget_seconds == 600
    with pytest.raises(UsageError, match="budget_seconds is given twice"):
        overrides(["budget_seconds=5"], budget=600)
