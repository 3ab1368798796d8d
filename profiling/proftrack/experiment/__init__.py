"""Experiment files: what is profiled, with which parameters and under which schedule.

An experiment is a YAML file, read with a safe loader. Everything in it is checked before anything runs; values given on
the command line replace the file's and take their type.

    file       find the YAML file, read it into plain keys and values
    settings   schedule, profiler, timing, device: their rules
    params     the workload's own parameters: their rules
    model      Experiment, frozen
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proftrack.experiment import file, params, settings
from proftrack.experiment.model import Experiment, ProfilerOptions, Schedule, TimingOptions, fingerprint
from proftrack.experiment.sentences import Refusal
from proftrack.names import problem
from proftrack.text import show

__all__ = ["Experiment", "ProfilerOptions", "Schedule", "TimingOptions", "described", "fingerprint", "load"]

_PARAM_KEYS = ("params", "choices", "variant_params", "sweep", "variants")
_KEYS = ("name", "description", "workload", *_PARAM_KEYS, *settings.SECTIONS, "device")
_NAME_LIMIT = 100


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
    return _resolve(document, path, Refusal(str(document.get("name") or path.stem)), overrides)


def _resolve(document: Mapping[Any, Any], path: Path, refuse: Refusal, overrides: Mapping[str, str]) -> Experiment:
    refuse.unknown_keys(document, _KEYS, "key")
    own = params.read(document, refuse)
    common = settings.read(document, refuse)
    for key, text in overrides.items():
        _override(own, common, key, text, refuse)
    return Experiment(
        name=_name(_text(document, "name", refuse) or path.stem, refuse),
        path=path.resolve(),
        workload=_workload(_text(document, "workload", refuse), refuse),
        description=_text(document, "description", refuse).strip(),
        params=own.values,
        choices=own.choices,
        variant_params=own.variant,
        sweep=own.sweep,
        variants=own.variants,
        **settings.resolve(common, refuse),
    )


def _override(own: params.Params, common: dict[str, Any], key: str, text: str, refuse: Refusal) -> None:
    """Put the value of one `key=text` where it belongs: the workload's parameter, else a setting."""
    known = own.values
    name = key if key in known else key.replace("-", "_")
    param = name.removeprefix("params.")
    setting = settings.full_name(name)
    if param in known:
        params.replace(own, param, text, refuse)
    elif setting is not None:
        common[setting] = settings.convert(setting, text, refuse)
    else:
        settable = ", ".join(settings.BARE)
        problem = (
            f"unknown parameter {key}={show(text)}; parameters: {', '.join(known) or 'none'}; settings: {settable}"
        )
        refuse(problem, name, [*known, *settings.BARE, *settings.RULES])


def _text(document: Mapping[Any, Any], key: str, refuse: Refusal) -> str:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        refuse(f"{key}={show(value)} is not allowed; it must be text (quote it)")
    return value or ""


def _name(name: str, refuse: Refusal) -> str:
    if problem(name, _NAME_LIMIT) is not None or name != name.strip():
        refuse(f"name={show(name)} is not allowed; it must be one printable line of at most {_NAME_LIMIT} characters")
    return name


def _workload(workload: str, refuse: Refusal) -> str:
    module, colon, callable_name = workload.rpartition(":")
    if not workload:
        refuse(
            "names no workload; add `workload: file.py:build` (beside this file) or `workload: package.module:build`"
        )
    if not (colon and module.strip() and callable_name.isidentifier()):
        refuse(f"workload={show(workload)} is not allowed; it must be file.py:callable or package.module:callable")
    return workload
