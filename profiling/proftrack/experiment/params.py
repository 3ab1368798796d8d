"""The workload's own parameters: what the file may give them, and how a text of the command line replaces a value.

`choices` lists all values that a parameter may have, `sweep` names points of a parameter, `variants` sets of values
under a name of their own; all are of these parameters.

Whether another value makes sense (n=-3) is the workload's to say, see proftrack.experiment.workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proftrack.experiment.file import scalar
from proftrack.experiment.sentences import Refusal
from proftrack.experiment.settings import parse
from proftrack.text import show

_RESERVED = ("device",)  # build() gets it from proftrack
_VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INT64 = range(-(2**63), 2**63)  # what JSON readers and databases take
_PLAIN = "a finite number of at most 64 bits, text, true, false, null, or a list of these"
_NOUNS: dict[type, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    list: "a list, written a,b,c",
    type(None): "any plain value",
}


class Params(Struct):
    """The workload's parameters, what they may be, which make a variant, a sweep's points, and named sets of values."""

    values: dict[str, Any]
    choices: dict[str, list[Any]]
    variant: list[str]
    sweep: dict[str, list[Any]]
    variants: dict[str, dict[str, Any]]


def read(document: Mapping[Any, Any], refuse: Refusal) -> Params:
    """params, choices, variant_params, sweep and variants of the file, checked."""
    values = _mapping(document, "params", refuse)
    for key, value in values.items():
        _check(key, value, refuse)
    choices = _points(document, "choices", values, refuse)
    sweep = _points(document, "sweep", values, refuse)
    variants = _variants(document, values, refuse)
    for given in (values, *variants.values()):
        for key, value in given.items():
            _check_choice(key, value, choices, refuse)
    for key, points in sweep.items():
        for point in points:
            _check_choice(key, point, choices, refuse)
    return Params(values, choices, _variant(document, values, refuse), sweep, variants)


def replace(own: Params, name: str, text: str, refuse: Refusal) -> None:
    """Give the parameter `name` the value that `text` is in its type; where the file gives null, as YAML reads it."""
    value = _convert(name, text, own.values[name], refuse)
    _check_choice(name, value, own.choices, refuse)
    own.values[name] = value


def _convert(name: str, text: str, current: Any, refuse: Refusal) -> Any:
    try:
        value = _parse(text.strip(), current)
    except ValueError:
        noun = _NOUNS[type(current)]
        refuse(f"{name}={show(text)} is not allowed; it must be {noun}, as {show(current)} is in the file")
    _check(name, value, refuse)
    return value


def _parse(text: str, current: Any) -> Any:
    if current is None:
        return scalar(text)
    if not isinstance(current, list):
        return parse(text, type(current))
    first = current[0] if current else None
    return [_parse(item.strip(), first) for item in text.removeprefix("[").removesuffix("]").split(",") if item.strip()]


def _check(key: Any, value: Any, refuse: Refusal) -> None:
    """Parameters become keyword arguments, MLflow params and JSON: names and plain values only."""
    if not (isinstance(key, str) and key.isidentifier()):
        refuse(
            f"params key {show(key)} is not allowed; it must be a Python name (quote it if YAML made it another value)"
        )
    if key in _RESERVED:
        refuse(f"params.{key} is not allowed, proftrack gives it to the workload; use the top-level key `{key}`")
    if not all(map(_plain, value if isinstance(value, list) else [value])):
        refuse(f"params.{key}={show(value)} is not allowed; it must be {_PLAIN}")


def _check_choice(name: str, value: Any, choices: Mapping[str, list[Any]], refuse: Refusal) -> None:
    if name in choices and value not in choices[name]:
        words = list(map(str, choices[name]))
        refuse(f"{name}={show(value)} is not allowed; it must be one of {', '.join(words)}", str(value), words)


def _plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value in _INT64
    return value is None or isinstance(value, str)


def _mapping(document: Mapping[Any, Any], key: str, refuse: Refusal) -> dict[Any, Any]:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        refuse(f"{key}={show(value)} is not allowed; it must be keys with values")
    return dict(value or {})


def _variant(document: Mapping[Any, Any], values: Mapping[str, Any], refuse: Refusal) -> list[str]:
    names = document.get("variant_params") or []
    if not isinstance(names, list):
        refuse(f"variant_params={show(names)} is not allowed; it must be a list of parameters")
    refuse.unknown_keys(dict.fromkeys(map(str, names)), values, "parameter in variant_params:")
    return list(map(str, names))


def _points(
    document: Mapping[Any, Any], section: str, values: Mapping[str, Any], refuse: Refusal
) -> dict[str, list[Any]]:
    """A section that gives parameters lists of values: `sweep`, `choices`."""
    found = _mapping(document, section, refuse)
    refuse.unknown_keys(found, values, f"parameter in {section}:")
    for key, points in found.items():
        if not (isinstance(points, list) and points):
            refuse(f"{section}.{key}={show(points)} is not allowed; it must be a list of values")
        found[key] = [_point(section, key, point, values[key], refuse) for point in points]
    return found


def _variants(document: Mapping[Any, Any], values: Mapping[str, Any], refuse: Refusal) -> dict[str, dict[str, Any]]:
    variants = _mapping(document, "variants", refuse)
    for name, given in variants.items():
        if not (isinstance(name, str) and _VARIANT_NAME.fullmatch(name)):
            refuse(f"variants key {show(name)} is not allowed; a name has letters, digits, `-`, `_` and `.` only")
        if not isinstance(given, dict):
            refuse(f"variants.{name}={show(given)} is not allowed; it must be parameters with values")
        refuse.unknown_keys(given, values, f"parameter in variants.{name}:")
        variants[name] = {k: _point(f"variants.{name}", k, v, values[k], refuse) for k, v in given.items()}
    return variants


def _point(section: str, key: str, point: Any, current: Any, refuse: Refusal) -> Any:
    if type(current) is float and type(point) is int:
        point = float(point)
    if current is not None and type(point) is not type(current):
        refuse(f"{section}.{key}={show(point)} is not allowed; it must be {_NOUNS[type(current)]}, as params.{key} is")
    _check(key, point, refuse)
    return point
