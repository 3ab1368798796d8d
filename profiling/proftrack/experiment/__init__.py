"""Experiment files: what is profiled, with which parameters and under which schedule.

An experiment is a YAML file, read with a safe loader. Everything in it is checked before anything runs; values given on
the command line replace the file's and take their type.

    validate   plain values become a constrained type, or one sentence says why not
    file       find the YAML file, read it into plain keys and values
    params     the workload's own parameters: their types, and all that a file says of them
    model      Experiment, frozen: what each field may be
    overrides  values of the command line
    workload   the code that the experiment names: imported, checked, built
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proftrack.experiment import file, params
from proftrack.experiment.model import Experiment, ProfilerOptions, Schedule, TimingOptions, fingerprint
from proftrack.experiment.overrides import replaced
from proftrack.experiment.validate import Refusal, read

__all__ = ["Experiment", "ProfilerOptions", "Schedule", "TimingOptions", "described", "fingerprint", "load"]


def load(reference: str, overrides: Mapping[str, str] = {}) -> Experiment:
    """Read an experiment and apply `overrides` (texts, as the command line gives them).

    `reference` is the path of a YAML file, or a bare name, which is looked for in the working directory's experiments/
    and then in the project's. Keys of `overrides` are the workload's parameters first, then `device` and the keys of
    schedule, profiler and timing, bare or dotted (`n`, `params.n`, `active`, `schedule.active`).

    Raises UsageError naming the key, its value and what is allowed.
    """
    path = file.find(reference)
    return _resolve(file.read(path), path, Refusal(str(path)), overrides)


def described(document: Mapping[str, Any], path: Path, overrides: Mapping[str, str] = {}) -> Experiment:
    """An experiment that code describes instead of a file: `document` holds what a file would, its name among it.

    `path` is where the code is. Raises UsageError naming the key, its value and what is allowed.
    """
    own = {key: _python_number(value) for key, value in (document.get("params") or {}).items()}
    refuse = Refusal(str(document.get("name") or path.stem))
    return _resolve({**document, "params": own}, path, refuse, overrides)


def _python_number(value: Any) -> Any:
    """numpy.float64 and the like, which are floats, as Python's own."""
    return float(value) if isinstance(value, float) else value


def _resolve(document: Mapping[Any, Any], path: Path, refuse: Refusal, overrides: Mapping[str, str]) -> Experiment:
    named = {**document, "name": document.get("name") or path.stem}
    experiment = params.checked(read(named, Experiment, refuse, path=path.resolve()), refuse)
    return replaced(experiment, overrides, refuse)
