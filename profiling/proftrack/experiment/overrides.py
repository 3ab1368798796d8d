"""`key=text` of the command line: which value of an experiment it replaces, and what the text is in that value's type.

A text is read as YAML would read it in the file; where text is wanted it stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import structs

from proftrack.errors import UsageError
from proftrack.experiment.file import scalar
from proftrack.experiment.model import SECTIONS, Experiment
from proftrack.experiment.params import check_choice, kind_of
from proftrack.experiment.validate import Refusal
from proftrack.text import show

SETTINGS: dict[str, Any] = {
    f"{section}.{field.name}": field.type for section, kind in SECTIONS.items() for field in structs.fields(kind)
} | {field.name: field.type for field in structs.fields(Experiment) if field.name == "device"}
"""The type of each setting that every experiment has, by its full name: `schedule.active`, `device`."""
BARE = {setting.rpartition(".")[2]: setting for setting in SETTINGS}
"""The settings by their last word, which no two of them share."""


def replaced(experiment: Experiment, texts: Mapping[str, str], refuse: Refusal) -> Experiment:
    """The experiment with other values: of the workload's parameters first, else of the settings, bare or dotted.

    Raises UsageError naming the key, its value and what is allowed.
    """
    params, settings = dict(experiment.params), dict[str, Any]()
    for key, text in texts.items():
        name = key if key in params else key.replace("-", "_")
        param, setting = name.removeprefix("params."), BARE.get(name, name)
        if param in params:
            current = experiment.params[param]
            kind = kind_of(current, f", as {show(current)} is in the file")
            params[param] = _from_text(text, kind, current, refuse, param)
            check_choice(param, params[param], experiment.choices, refuse)
        elif setting in SETTINGS:
            settings[setting] = _from_text(text, SETTINGS[setting], None, refuse, setting)
        else:
            _refuse_unknown(key, text, name, params, refuse)
    return _with_settings(structs.replace(experiment, params=params), settings, refuse)


def _with_settings(experiment: Experiment, settings: Mapping[str, Any], refuse: Refusal) -> Experiment:
    """All at once: two values may be allowed together alone."""
    changed: dict[str, Any] = {"device": settings.get("device", experiment.device)}
    for section in SECTIONS:
        own = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{section}.")}
        changed[section] = structs.replace(getattr(experiment, section), **own)
    try:
        return Experiment(**{**structs.asdict(experiment), **changed})
    except UsageError as error:
        refuse(error.problem, error.remedy)


def _refuse_unknown(key: str, text: str, name: str, params: Mapping[str, Any], refuse: Refusal) -> None:
    known = f"parameters: {', '.join(params) or 'none'}; settings: {', '.join(BARE)}"
    refuse(f"unknown parameter {key}={show(text)}", known, name, [*params, *BARE, *SETTINGS])


def _from_text(text: str, kind: Any, current: Any, refuse: Refusal, key: str) -> Any:
    """The text as a value of this type; `current`, of a list, says what its elements are."""
    try:
        if isinstance(current, list):
            element = kind_of(current[0] if current else "", "")
            items = text.strip().removeprefix("[").removesuffix("]").split(",")
            return [_parsed(item, element) for item in items if item.strip()]
        return _parsed(text, kind)
    except msgspec.ValidationError:
        refuse.value(f"{key}=", text, kind)


def _parsed(text: str, kind: Any) -> Any:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    is_text = bare is str or get_origin(bare) is Literal
    # Not strict about true and false alone, which may be written 1 and 0.
    return msgspec.convert(text.strip() if is_text else scalar(text.strip()), kind, strict=bare is not bool)
