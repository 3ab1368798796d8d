"""A section's items as a flat table: the figures of a section within an item get columns of their own."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import fields


def columns_of(kind: type[Struct]) -> list[str]:
    """Names of the columns: `occupancy_waves` for the field `waves` of the section in the field `occupancy`."""
    encoded = {field.name: field.encode_name for field in fields(kind)}
    return [f"{name}_{inner}" if inner else encoded[name] for name, inner in _fields(kind)]


def values_of(item: Struct) -> list[Any]:
    """Values in the same order, of JSON's types. A list of words is one text; None stands for what is missing."""
    values = (getattr(item, name) if not inner else _inner(item, name, inner) for name, inner in _fields(type(item)))
    return [", ".join(value) if isinstance(value, list) else msgspec.to_builtins(value) for value in values]


def _inner(item: Struct, name: str, inner: str) -> Any:
    section = getattr(item, name)
    return None if section is None else getattr(section, inner)


@cache
def _fields(kind: type[Struct]) -> list[tuple[str, str]]:
    """Each column's field, and the field within that if it is a section; else an empty name."""
    out = []
    for field in fields(kind):
        options = get_args(field.type) or (field.type,)
        section = next((each for each in options if isinstance(each, type) and issubclass(each, Struct)), None)
        out += [(field.name, inner.name) for inner in fields(section)] if section else [(field.name, "")]
    return out
