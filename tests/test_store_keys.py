"""Each name that MLflow keeps is written once, and docs/mlflow.md lists them all."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import get_args

from proftrack.record.counters import Unit
from proftrack.store import keys

PACKAGE = Path(keys.__file__).parent.parent
DOCS = PACKAGE.parent.parent / "docs" / "mlflow.md"
TAGS = {name: value for name, value in vars(keys).items() if name.endswith("_TAG")}
OF_MLFLOW = {value for value in TAGS.values() if value.startswith("mlflow.")}
MODULES = {"proftrack.experiment", "proftrack.record", "proftrack.process"}
"""Tags that are names of modules as well."""
UNITS = set(get_args(Unit))
"""Parts of the GPU, of which some have a metric of the same name."""


def test_each_name_stands_for_one_thing() -> None:
    names = [*TAGS.values(), *keys.METRICS]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(keys.METRICS) < 50


def strings(path: Path) -> set[str]:
    """String constants of a module, parts of f-strings too; docstrings are whole sentences and match nothing."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_writes_a_tag() -> None:
    dotted = {value for value in TAGS.values() if "." in value} - MODULES
    elsewhere = {
        (str(path.relative_to(PACKAGE)), value)
        for path in PACKAGE.rglob("*.py")
        if path != Path(keys.__file__)
        for value in strings(path) & dotted
    }
    assert elsewhere == set()


def test_no_other_module_of_the_store_writes_a_metric() -> None:
    elsewhere = {
        (path.name, value)
        for path in (PACKAGE / "store").glob("*.py")
        if path != Path(keys.__file__)
        for value in strings(path) & (set(keys.METRICS) - UNITS)
    }
    assert elsewhere == set()


def test_the_documentation_lists_them_all() -> None:
    text = DOCS.read_text(encoding="utf-8")
    section = text[text.index("## The MLflow run") : text.index("## Which experiment")]
    rows = re.findall(r"^\| (params|metrics|tags)\b[^|]*\|(.*)\|$", section, re.M)
    listed: dict[str, set[str]] = {"params": set(), "metrics": set(), "tags": set()}
    for kind, cell in rows:
        listed[kind] |= set(re.findall(r"`([^`]+)`", cell)) - {"proftrack prune"}
    assert listed["metrics"] == set(keys.METRICS)
    experiments = {keys.PROBE_TAG, keys.VIEW_TAG, keys.EXPERIMENT_KIND_TAG}
    assert listed["tags"] == set(TAGS.values()) - OF_MLFLOW - experiments
    assert listed["params"] == {keys.EXPERIMENT_PARAM, f"{keys.SCHEDULE_PARAMS}*", keys.TIMING_MODE_PARAM}
