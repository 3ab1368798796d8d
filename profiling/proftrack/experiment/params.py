"""The workload's own parameters: what the file may give them, and how a text of the command line replaces a value.

`sweep` names points of a parameter, `variants` sets of values under a name of their own; both are of these parameters.

Whether a value makes sense (n=-3) is the workload's to say, see proftrack.workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proftrack.experiment.file import scalar
from proftrack.experiment.sentences import Refusal, show
from proftrack.experiment.settings import parse

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
    """The workload's parameters, which of them make a variant, the points of a sweep, and named sets of values."""

    values: dict[str, Any]
    variant: list[str]
    sweep: dict[str, list[Any]]
    variants: dict[str, dict[str, Any]]


def read(document: Mapping[Any, Any], refuse: Refusal) -> Params:
    """params, variant_params, sweep and variants of the file, checked."""
    values = _mapping(document, "params", refuse)
    for key, value in values.items():
        _check(key, value, refuse)
    return Params(
        values,
        _variant(document, values, refuse),
        _sweep(document, values, refuse),
        _variants(document, values, refuse),
    )


def convert(name: str, text: str, current: Any, refuse: Refusal) -> Any:
    """`text` in the type of the value that the file gives; where that is null, as YAML would read it."""
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


def _sweep(document: Mapping[Any, Any], values: Mapping[str, Any], refuse: Refusal) -> dict[str, list[Any]]:
    sweep = _mapping(document, "sweep", refuse)
    refuse.unknown_keys(sweep, values, "parameter in sweep:")
    for key, points in sweep.items():
        if not (isinstance(points, list) and points):
            refuse(f"sweep.{key}={show(points)} is not allowed; it must be a list of values")
        sweep[key] = [_point("sweep", key, point, values[key], refuse) for point in points]
    return sweep


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
