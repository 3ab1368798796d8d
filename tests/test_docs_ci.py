"""The workflow, the policy and the commands that the documents show are ones that exist."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

from proftrack.cli import COMMANDS
from proftrack.cli.options import ParameterCommand
from proftrack.compare import policy
from proftrack.compare.policy import DEFAULT
from proftrack.store.keys import METRICS

DOCS = Path(__file__).resolve().parent.parent / "docs"
WORKFLOW = DOCS / "ci" / "github-actions.yml"
PAGES = [WORKFLOW, DOCS / "ci.md", DOCS / "compare.md", DOCS / "modules.md"]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `proftrack ...` that stands at the beginning of a line or in code."""
    for match in re.finditer(r"(?:^\s*|`)proftrack ([a-z][^`\n#|]*)", text, re.MULTILINE):
        yield shlex.split(match[1].split("||")[0].split("&&")[0])


def command_of(name: str) -> click.Command:
    modules = {known: module for known, module, _ in COMMANDS}
    assert name in modules, f"no command {name}"
    found: Any = importlib.import_module(modules[name]).command
    assert isinstance(found, click.Command)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    shown = list(commands(page.read_text(encoding="utf-8")))
    assert len(shown) >= 2
    for name, *words in shown:
        command = command_of(name)
        known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        for word in words:
            if word.startswith("-") and not isinstance(command, ParameterCommand):
                assert word in known, f"{page.name}: proftrack {name} {word}"


def test_the_workflow_is_whole() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    (job,) = workflow["jobs"].values()
    assert "self-hosted" in job["runs-on"]
    assert "head.repo.full_name == github.repository" in job["if"]
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    gate = next(step["run"] for step in job["steps"] if step.get("name") == "Gate")
    assert 'exit "$code"' in gate
    assert job["steps"][0]["with"]["fetch-depth"] == 0


def test_its_gate_step_keeps_the_exit_code(tmp_path: Path) -> None:
    """Run as the runner runs it, with a gate that fails: bash -e."""
    import os
    import subprocess

    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    gate = next(step["run"] for step in job["steps"] if step.get("name") == "Gate")
    fake = tmp_path / "proftrack"
    fake.write_text('#!/bin/sh\necho "# said" > gate.md\nexit "$FAKE_CODE"\n')
    fake.chmod(0o755)
    for code in (0, 3, 4):
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "FAKE_CODE": str(code),
        }
        done = subprocess.run(["bash", "-e", "-c", gate], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == code
    assert (tmp_path / "summary").read_text() == "# said\n" * 3


def test_the_policies_can_be_read() -> None:
    assert policy.load(DOCS / "ci" / "gate.yaml", METRICS).metrics["step_time_us"].max_increase_pct == 5
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    assert set(yaml.safe_load(block)) == {field.name for field in msgspec.structs.fields(policy.Policy)} - {"source"}


def test_the_block_in_the_document_is_a_policy(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "gate.yaml"
    path.write_text(block)
    assert policy.load(path, METRICS).regime == "same"


def test_the_defaults_are_those_of_the_document() -> None:
    said = {name: policy.describe(limit) for name, limit in DEFAULT.metrics.items()}
    assert said == {
        "step_time_us": "at most +5 %",
        "gpu_busy_per_step_us": "at most +5 %",
        "launches_per_step": "no increase",
        "kernels_per_step": "no increase",
        "peak_memory_bytes": "at most +5 %",
    }
