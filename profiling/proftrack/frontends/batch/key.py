"""What a part was measured under: a part that is done is taken over only where all of it is equal."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack.experiment import Experiment, fingerprint
from proftrack.git import git_diff

if TYPE_CHECKING:
    from proftrack.record.environment import Environment

_DIFF_BYTES = 10_000_000
_MADE_BY_RUNNING = re.compile(r"^#   .*(__pycache__/|\.pyc'?$)")
"""Untracked files that Python itself makes where nobody told Git to ignore them."""


def surroundings(experiment: Experiment) -> Environment:
    """Machine, software and code that the parts run with."""
    from proftrack.capture import environment

    return environment.collect("cpu" if experiment.device == "cpu" else "cuda", code=experiment.path.parent)


def key_of(experiment: Experiment, differing: Collection[str], facts: Environment) -> str:
    """What all parts of a batch share: equal where one's results may stand for the other's.

    The experiment, its parameters but those `differing` between parts, schedule, profiler and timing; device, driver
    and torch; the commit, what differs from it, and the workload's own file, which may not be under version control.
    """
    device = facts.device.name if facts.device else ""
    _, keys = fingerprint(experiment, device, cpu_threads=facts.cpu_threads)
    shared = {name: value for name, value in keys.items() if name.removeprefix("params.") not in differing}
    shared |= {f"variant.{key}": experiment.params[key] for key in experiment.variant_params if key not in differing}
    timing = msgspec.structs.asdict(experiment.timing)
    del timing["budget_seconds"]  # a sweep that needed more time goes on with the points that it has
    code: dict[str, Any] = {
        "timing": timing,
        "torch": facts.torch,
        "driver": facts.driver,
        "variables": facts.variables,
        "commit": facts.git.commit if facts.git else None,
        "difference": _difference(experiment, facts),
        "workload": _file(experiment),
    }
    return _digest({**shared, **code})


def part_key(experiment: Experiment) -> str:
    """What tells a part from the others: all of its parameters."""
    return _digest({"params": experiment.params})


def points_key(axes: dict[str, list[Any]]) -> str:
    """What two sweeps of one key must have in common to be one: which points they ask for."""
    return _digest({"axes": list(axes.items())})


def _difference(experiment: Experiment, facts: Environment) -> str | None:
    if facts.git is None or not facts.git.dirty:
        return None
    text = git_diff(experiment.path.parent, _DIFF_BYTES)
    if text is None:  # it may not be looked at: then nobody can say that it is the same
        return uuid.uuid4().hex
    lines = [line for line in text.splitlines() if not _MADE_BY_RUNNING.search(line)]
    if not [line for line in lines if not line.startswith("# untracked files")]:
        return None
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()


def _file(experiment: Experiment) -> str | None:
    source = experiment.workload.rpartition(":")[0]
    path = experiment.path.parent / source
    return hashlib.sha256(path.read_bytes()).hexdigest() if source.endswith(".py") and path.is_file() else None


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
