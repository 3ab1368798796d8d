"""The request for a batch: its key, its name, and the parameters that all of its runs share.

The key covers the conditions of a measurement: an earlier part is reused only if all of its conditions are equal.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack.capture import dtype
from proftrack.experiment import Experiment, fingerprint
from proftrack.git import git_diff
from proftrack.record import Record
from proftrack.rundir.batch import Group, Kind
from proftrack.store import keys

if TYPE_CHECKING:
    from proftrack.record.environment import Environment

_DIFF_BYTES = 10_000_000
_MADE_BY_RUNNING = re.compile(r"^#   .*(__pycache__/|\.pyc'?$)")
"""Untracked files that Python itself writes where Git has not been told to ignore them."""


def new_group(
    kind: Kind,
    first: Experiment,
    differing: Collection[str],
    *,
    name: str,
    parent_params: Mapping[str, str],
    points: str = "",
) -> Group:
    """The group of a batch that is about to be measured.

    `first` is the experiment of its first part, and `differing` names the parameters that its parts do not share.
    `parent_params` are params of the parent run besides the shared ones. `points` identifies the requested points among
    sweeps with the same key. Raises UsageError if kernels are to be replayed.
    """
    first.refuse_replay(f"proftrack {kind}")
    environment = _environment(first)
    git = environment.git
    return Group(
        kind=kind,
        key=_key(first, differing, environment),
        points=points,
        experiment=first.name,
        name=name,
        params={"experiment": first.name, **as_params(shared(first, differing)), **parent_params},
        tags={
            keys.DEVICE_TAG: environment.device.name if environment.device else "",
            **({keys.COMMIT_TAG: git.commit, keys.DIRTY_TAG: str(git.dirty).lower()} if git else {}),
        },
    )


def shared(first: Experiment, differing: Collection[str]) -> dict[str, Any]:
    """The parameters that all parts share, with their values."""
    return {key: value for key, value in first.params.items() if key not in differing}


def resolve(group: Group, parameters: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The shared parameters with `auto` replaced by its value in a part's record; the parent run gets them too."""
    recorded = record.run.params if record.run is not None else {}
    resolved = {key: recorded.get(key, value) for key, value in parameters.items()}
    group.params |= as_params(resolved)
    return resolved


def as_params(parameters: Mapping[str, Any]) -> dict[str, str]:
    """As params of a run, without values still to be resolved: MLflow never changes a param once it is logged."""
    return {key: str(value) for key, value in parameters.items() if (key, value) != (dtype.PARAM, dtype.AUTO)}


def as_text(value: Any) -> str:
    """A value as the command line writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- keys ------------------------------------------------------------------------------------------------------------


def part_key(experiment: Experiment) -> str:
    """Identifies a part within its batch: a digest of all its parameters."""
    return _digest({"params": experiment.params})


def points_key(axes: dict[str, list[Any]]) -> str:
    """Identifies the points that a sweep requests, among sweeps with the same key."""
    return _digest({"axes": list(axes.items())})


def _environment(experiment: Experiment) -> Environment:
    """Machine, software and code that the parts run with."""
    from proftrack.capture import environment

    return environment.collect("cpu" if experiment.device == "cpu" else "cuda", code=experiment.path.parent)


def _key(experiment: Experiment, differing: Collection[str], environment: Environment) -> str:
    """Identifies the conditions that all parts of a batch share; if two keys are equal, so are the conditions.

    They are: the experiment, its parameters except those `differing` between parts, schedule, profiler and timing;
    device, driver and torch; the commit, uncommitted changes, and the workload's own file, which may not be under
    version control.
    """
    device = environment.device.name if environment.device else ""
    _, fields = fingerprint(experiment, device, cpu_threads=environment.cpu_threads)
    conditions = {name: value for name, value in fields.items() if name.removeprefix("params.") not in differing}
    conditions |= {f"variant.{k}": experiment.params[k] for k in experiment.variant_params if k not in differing}
    timing = msgspec.structs.asdict(experiment.timing)
    del timing["budget_seconds"]  # a sweep rerun with a larger budget keeps the points that it already has
    conditions |= {
        "timing": timing,
        "torch": environment.torch,
        "driver": environment.driver,
        "variables": environment.variables,
        "commit": environment.git.commit if environment.git else None,
        "difference": _uncommitted_changes(experiment, environment),
        "workload": _workload_file(experiment),
    }
    return _digest(conditions)


def _uncommitted_changes(experiment: Experiment, environment: Environment) -> str | None:
    """A digest of the changes; None if there are none."""
    if environment.git is None or not environment.git.dirty:
        return None
    text = git_diff(experiment.path.parent, _DIFF_BYTES)
    if text is None:  # the diff is not available, so no other batch can be known to have the same code
        return uuid.uuid4().hex
    lines = [line for line in text.splitlines() if not _MADE_BY_RUNNING.search(line)]
    if not [line for line in lines if not line.startswith("# untracked files")]:
        return None
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()


def _workload_file(experiment: Experiment) -> str | None:
    source = experiment.workload.rpartition(":")[0]
    path = experiment.path.parent / source
    return hashlib.sha256(path.read_bytes()).hexdigest() if source.endswith(".py") and path.is_file() else None


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
