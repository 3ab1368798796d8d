"""Apply `key=text` from the command line: find the value it replaces and convert the text to that value's type.

Numbers, booleans and null are written as in the YAML file (see `file.scalar`). For a string parameter the text is used
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_origin

import msgspec
from msgspec import structs

from proftrack.errors import UsageError
from proftrack.experiment.file import scalar
from proftrack.experiment.model import SECTIONS, Experiment
from proftrack.experiment.params import check_choice, kind_of
from proftrack.experiment.validate import Refusal, bare_type
from proftrack.text import show

SETTINGS: dict[str, Any] = {
    f"{section}.{field.name}": field.type for section, kind in SECTIONS.items() for field in structs.fields(kind)
} | {field.name: field.type for field in structs.fields(Experiment) if field.name == "device"}
"""The type of each setting that every experiment has, by full name: `schedule.active`, `device`."""
BARE = {setting.rpartition(".")[2]: setting for setting in SETTINGS}
"""Full names of the settings by their last word, which is unique."""


def replaced(experiment: Experiment, texts: Mapping[str, str], refuse: Refusal) -> Experiment:
    """The experiment with some values replaced. A key is a workload parameter first, else a setting, bare or dotted.

    Raises UsageError that names the key, its value and what is allowed.
    """
    params, settings = dict(experiment.params), dict[str, Any]()
    for key, text in texts.items():
        name = key if key in params else key.replace("-", "_")
        param, setting = name.removeprefix("params."), BARE.get(name, name)
        if param in params:
            current = experiment.params[param]
            kind = kind_of(current, f", like {show(current)} in the file")
            params[param] = _from_text(text, kind, current, refuse, param)
            check_choice(param, params[param], experiment.choices, refuse)
        elif setting in SETTINGS:
            settings[setting] = _from_text(text, SETTINGS[setting], None, refuse, setting)
        else:
            _refuse_unknown(key, text, name, params, refuse)
    return _with_settings(structs.replace(experiment, params=params), settings, refuse)


def _with_settings(experiment: Experiment, settings: Mapping[str, Any], refuse: Refusal) -> Experiment:
    """Replace all settings at once: two values may only be valid together."""
    changed: dict[str, Any] = {"device": settings.get("device", experiment.device)}
    for section in SECTIONS:
        fields = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{section}.")}
        changed[section] = structs.replace(getattr(experiment, section), **fields)
    try:
        return Experiment(**{**structs.asdict(experiment), **changed})
    except UsageError as error:
        refuse(error.problem, error.remedy)


def _refuse_unknown(key: str, text: str, name: str, params: Mapping[str, Any], refuse: Refusal) -> None:
    known = f"parameters: {', '.join(params) or 'none'}; settings: {', '.join(BARE)}"
    refuse(f"unknown parameter {key}={show(text)}", known, name, [*params, *BARE, *SETTINGS])


def _from_text(text: str, kind: Any, current: Any, refuse: Refusal, key: str) -> Any:
    """The text as a value of this type. If `current` is a list, its first element gives the type of the elements."""
    try:
        if isinstance(current, list):
            element = kind_of(current[0] if current else "", "")
            items = text.strip().removeprefix("[").removesuffix("]").split(",")
            return [_parsed(item, element) for item in items if item.strip()]
        return _parsed(text, kind)
    except msgspec.ValidationError:
        refuse.value(f"{key}=", text, kind)


def _parsed(text: str, kind: Any) -> Any:
    bare = bare_type(kind)
    is_text = bare is str or get_origin(bare) is Literal
    # Lax for booleans only, which may be written 1 and 0.
    return msgspec.convert(text.strip() if is_text else scalar(text.strip()), kind, strict=bare is not bool)
