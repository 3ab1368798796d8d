"""benchmarks/module_suite.py: its models build and run, and it keeps the score as it says."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from proftrack.record.modules import Module, OwnedWork

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("module_suite")


def test_there_are_ten_models_of_the_kinds_that_people_run(suite: Any) -> None:
    names = [case.name for case in suite.CASES]
    assert len(set(names)) == len(names) >= 10
    assert sum(case.package in ("transformers", "timm", "torchvision") for case in suite.CASES) >= 6
    assert any(case.params.get("checkpointed") for case in suite.CASES)
    assert any(case.ranks == 2 for case in suite.CASES)
    for case in suite.CASES:
        assert set(case.small) >= set(case.params), f"{case.name}: a size has none for the CPU"


@pytest.mark.slow
def test_every_model_that_is_installed_runs_here(suite: Any) -> None:
    ran = 0
    for case in suite.CASES:
        if case.ranks > 1 or "compiled" in case.name or importlib.util.find_spec(case.package) is None:
            continue
        module, function = case.workload.split(":")
        built = getattr(importlib.import_module(f"modules.{module}"), function)(torch.device("cpu"), **case.small)
        with built if hasattr(built, "__enter__") else contextlib.nullcontext(built) as step:
            assert torch.isfinite(step()).all(), case.name
            step()
        ran += 1
    assert ran >= 7


def test_what_has_no_owner(suite: Any) -> None:
    paths = ("", "model", "model.layers.3", "model.layers.3.mlp", "lm_head", "layer1", "layer1.0.conv1")
    owners = [Module(path=path, forward_us=2.0) for path in paths]
    owners += [Module(path="AdamW.group 0", kind="optimizer", optimizer_us=2.0)]
    owners += [Module(path="data", kind="region", other_us=2.0), Module(kind="none", other_us=2.0)]
    # The model itself, what is above its blocks, a region of the user's, nobody.
    found = [(owner.path, owner.kind) for owner in suite.unowned(owners)]
    assert found == [("", "module"), ("model", "module"), ("layer1", "module"), ("data", "region"), ("", "none")]


def a_line(**values: Any) -> dict[str, Any]:
    line = {
        "name": "gpt2",
        "special": "tied",
        "T_us": 1100.0,
        "B_us": 1000.0,
        "owned": 0.95,
        "differs_us": 0.25,
        "passes": {"forward": 900.0, "backward": 2091.0, "optimizer": 9.0},
        "step_us": {"plain": 1200.0, "marked": 1210.0},
        "calls": 30.0,
    }
    return line | values


def test_a_line_is_a_row_of_the_table(suite: Any) -> None:
    row = suite.show(a_line())
    assert row == ("| gpt2 | tied | 1100 | 1000 | 95.0% | 0.25 | forward 30%, backward 70% | 1200 / 1210 | 30 | - |")
    assert suite.show(a_line(slowed="h.6", named_first=True)).endswith("| h.6: first |")
    assert row.count("|") == suite.HEAD.splitlines()[0].count("|")


def test_what_is_good(suite: Any) -> None:
    assert suite.is_good(a_line())
    assert not suite.is_good(a_line(owned=0.89))
    assert not suite.is_good(a_line(differs_us=-1.5))
    assert not suite.is_good(a_line(slowed="h.6", named_first=False))
    assert not suite.is_good({"name": "gpt2", "error": "failed"})


def test_the_largest_pieces_without_an_owner_come_first(suite: Any) -> None:
    loss = OwnedWork(operator="aten::_log_softmax", kernel="softmax", part="forward", calls=3, busy_us=60.0)
    clip = OwnedWork(operator="aten::_foreach_norm", kernel="norm", part="other", calls=3, busy_us=90.0)
    owners = [Module(forward_us=60.0, largest=[loss]), Module(kind="none", other_us=90.0, largest=[clip])]
    # By hand: of three steps, 90 / 3 and 60 / 3 a step; of 3,000 in all, 3 % and 2 %.
    assert suite.pieces(owners, 3, 3000.0) == [
        "30 us (3.0%) nobody's other: aten::_foreach_norm, norm",
        "20 us (2.0%) module (root) forward: aten::_log_softmax, softmax",
    ]
