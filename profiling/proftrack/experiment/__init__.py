"""Experiment files: what is profiled, with which parameters and under which schedule.

An experiment is a YAML file, read with a safe loader. All of it is checked before anything runs. Values given on the
command line replace those of the file and are converted to the same type.

    validate   convert plain values to constrained types, or reject them with a one-sentence error
    file       find the YAML file and read its keys and values
    params     the workload's own parameters: their types, choices, sweeps and variants
    model      Experiment, frozen: the fields and their allowed values
    overrides  values from the command line
    workload   import, check and build the code that the experiment names
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
    """Read an experiment and apply `overrides` (strings, as typed on the command line).

    `reference` is the path of a YAML file, or a bare name, which is looked up in ./experiments/ and then in the
    project's experiments/. A key of `overrides` is matched first against the workload's parameters, then against
    `device` and the keys of schedule, profiler and timing, bare or dotted (`n`, `params.n`, `active`,
    `schedule.active`).

    Raises UsageError that names the key, its value and what is allowed.
    """
    path = file.find(reference)
    return _resolve(file.read(path), path, Refusal(str(path)), overrides)


def described(document: Mapping[str, Any], path: Path, overrides: Mapping[str, str] = {}) -> Experiment:
    """An experiment described in code: `document` has the keys of an experiment file, including `name`.

    `path` is the file of that code. Raises UsageError that names the key, its value and what is allowed.
    """
    given = document.get("params") or {}
    # numpy.float64 is a float too: make it Python's own.
    plain = {key: float(value) if isinstance(value, float) else value for key, value in given.items()}
    refuse = Refusal(str(document.get("name") or path.stem))
    return _resolve({**document, "params": plain}, path, refuse, overrides)


def _resolve(document: Mapping[Any, Any], path: Path, refuse: Refusal, overrides: Mapping[str, str]) -> Experiment:
    named = {**document, "name": document.get("name") or path.stem}
    experiment = params.checked(read(named, Experiment, refuse, path=path.resolve()), refuse)
    return replaced(experiment, overrides, refuse)
