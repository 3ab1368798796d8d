"""The code is structured as CONTRIBUTING.md says: the stages, what each imports, and the two walks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calls import call
from recorded_captures import SMALL, replace_capture, replace_machine
from test_project import FLOW, imported, modules, stage
from walk import modules_entered

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "tests" / "data" / "mlp_train.json.gz"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BASE = FLOW[: FLOW.index("record")]
"""Helpers that every stage may import, and that the table does not repeat."""


def table() -> dict[str, set[str]]:
    """Stage -> what the table says that it imports, in the table's order."""
    rows = re.findall(r"^\| `(\w+)(?:\.py|/)` \| [^|]+ \| ([^|]*) ?\|$", CONTRIBUTING, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", others)) for name, others in rows}


def test_the_table_has_every_stage_in_the_order_of_the_flow() -> None:
    assert tuple(table()) == FLOW
    assert set(table()) == {stage(path) for path in modules()}


@pytest.mark.parametrize("name", FLOW)
def test_a_stage_imports_what_the_table_says(name: str) -> None:
    others = {
        target.split(".")[1]
        for path in modules()
        if stage(path) == name
        for target in imported(path)
        if target.startswith("proftrack.")
    }
    assert table()[name] == (others & set(FLOW)) - {name, *BASE}


def walk_of(command: str) -> list[str]:
    """The modules of a walk: the words with a slash in the block below the command's line."""
    block = CONTRIBUTING.partition("## The walk")[2].partition("\n## ")[0].partition(f"`{command}")[2]
    lines = block.partition("\n\n")[2].splitlines()
    shown = []
    for line in lines:
        if line and not line.startswith("    "):
            break
        shown += re.findall(r"\b[a-z]+/[a-z_/]+\b", line.partition("  #")[0])
    return shown


def in_order(walk: list[str], entered: list[str]) -> list[str]:
    """The modules of the walk that are entered, in the order of their first entry."""
    return sorted((module for module in walk if module in entered), key=entered.index)


def test_the_walk_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    call("analyze", str(TRACE))  # what is done while modules are imported is no part of it
    entered = modules_entered(lambda: call("analyze", str(TRACE)))
    walk = walk_of("proftrack analyze")
    assert len(walk) > 5
    assert in_order(walk, entered) == walk


def test_the_walk_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_machine(monkeypatch)
    replace_capture(monkeypatch, SMALL)
    arguments = ("run", "matmul_add", "-P", "n=64")
    assert call(*arguments) == 0
    entered = modules_entered(lambda: call(*arguments))
    walk = walk_of("proftrack run")
    assert len(walk) > 8
    entered.insert(entered.index("recorder/content"), "capture/run")  # replaced: measuring has tests of its own
    assert in_order(walk, entered) == walk


def test_nothing_climbs_back_to_the_command_line() -> None:
    for path in modules():
        if stage(path) != "cli":
            assert not any(name.startswith("proftrack.cli") for name in imported(path)), path
