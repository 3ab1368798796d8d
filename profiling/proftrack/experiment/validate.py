"""Convert plain values, from YAML or from code, to constrained types, or reject them with a one-sentence error.

msgspec decides whether a value fits. The error names the innermost part that does not fit, and says what is allowed
there: the description in that part's `Meta`, else its type and bounds. msgspec's own message is not used: it does not
name the keys of a mapping, and speaks of Python types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from proftrack.errors import UsageError
from proftrack.text import meant, show

_S = TypeVar("_S", bound=Struct)
_NOUNS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text (quote it)",
    list: "a list",
    dict: "keys with values",
}


class Refusal:
    """Raises UsageError about one file: `refuse(problem, remedy)`, with a suggestion if a known word is close."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, problem: str, remedy: str | None, word: str = "", known: Iterable[str] = ()) -> NoReturn:
        """Raise. `word` is what the user wrote, `known` are the words they may have meant."""
        raise UsageError(f"{self.path}: {problem}", f"{remedy}{meant(word, known)}" if remedy else None)

    def value(self, name: str, value: Any, kind: Any) -> NoReturn:
        """Reject the value of a key. `name` includes the separator between the two, such as `=`."""
        words = list(map(str, get_args(kind))) if get_origin(kind) is Literal else []
        self(f"{name}{show(value)} is not allowed", f"it must be {allowed(kind)}", str(value), words)

    def choice(self, name: str, value: Any, choices: Iterable[Any]) -> NoReturn:
        """Reject a value that is not one of `choices`."""
        words = list(map(str, choices))
        self(f"{name}={show(value)} is not allowed", f"it must be one of {', '.join(words)}", str(value), words)

    def unknown(self, given: Iterable[Any], known: Iterable[str], section: str = "", noun: str = "key") -> None:
        """Reject the first of `given` that is not in `known`."""
        known = list(known)
        for key in given:
            if key not in known:
                where = f" in {section}" if section else ""
                self(f"unknown {noun} {show(key)}{where}", f"allowed: {', '.join(known) or 'none'}", str(key), known)


def read(document: Mapping[Any, Any], kind: type[_S], refuse: Refusal, **extra: Any) -> _S:
    """A whole document as a struct. `extra` are fields that the document does not give. A key without a value is unset.

    Raises UsageError that names the key, its value and what is allowed.
    """
    given = {key: value for key, value in document.items() if value is not None}
    refuse.unknown(given, [field.encode_name for field in msgspec.structs.fields(kind) if field.name not in extra])
    return convert({**given, **extra}, kind, refuse)  # type: ignore[no-any-return]


def convert(value: Any, kind: Any, refuse: Refusal, key: str = "", *, between: str = "=") -> Any:
    """The value as this type. `key` is its place. Raises UsageError that names key, value and what is allowed."""
    try:
        return msgspec.convert(value, kind)
    except UsageError as error:  # raised by a struct's __post_init__: its fields contradict each other
        refuse(error.problem, error.remedy)
    except msgspec.ValidationError:
        for part in _parts(value, bare_type(kind), key, refuse):
            convert(part.value, part.kind, refuse, part.key, between=part.between)
        refuse.value(f"{key}{between}", value, kind)


def allowed(kind: Any) -> str:
    """The allowed values of this type, in words: `a whole number, 1 or more`."""
    metas = [meta for meta in get_args(kind)[1:] if isinstance(meta, Meta)] if get_origin(kind) is Annotated else []
    for meta in reversed(metas):
        if meta.description:
            return meta.description
    bare = bare_type(kind)
    if _is_union(bare):
        return allowed(next(member for member in get_args(bare) if member is not NoneType))
    if get_origin(bare) is Literal:
        return f"one of {', '.join(map(str, get_args(bare)))}"
    least = [f", {meta.ge:g} or more" for meta in metas if meta.ge is not None]
    return _NOUNS[dict if _is_struct(bare) else get_origin(bare) or bare] + "".join(least)


class _Part(Struct):
    key: str
    value: Any
    kind: Any
    between: str = "="


def _parts(value: Any, kind: Any, key: str, refuse: Refusal) -> Iterator[_Part]:
    """The parts of a value, each with its required type. `kind` has no annotations."""
    if _is_union(kind):
        fitting = [member for member in map(bare_type, get_args(kind)) if isinstance(value, _container(member))]
        if fitting:
            yield from _parts(value, fitting[0], key, refuse)
    elif isinstance(value, list) and get_origin(kind) is list:
        yield from (_Part(key, item, get_args(kind)[0]) for item in value)
    elif isinstance(value, Mapping) and get_origin(kind) is dict:
        key_kind, value_kind = get_args(kind)
        for name, item in value.items():
            yield _Part(f"{key} key", name, key_kind, between=" ")
            yield _Part(f"{key}.{name}", item, value_kind)
    elif isinstance(value, Mapping) and _is_struct(kind):
        yield from _fields(value, kind, key, refuse)


def _fields(value: Mapping[Any, Any], kind: type[Struct], key: str, refuse: Refusal) -> Iterator[_Part]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    refuse.unknown(value, fields, key)
    for name, field in fields.items():
        if name in value:
            yield _Part(f"{key}.{name}" if key else name, value[name], field.type)
        elif field.required:
            example = next(meta.examples[0] for meta in get_args(field.type) if getattr(meta, "examples", None))
            refuse(f"{name} is missing", f"add `{name}: {example}`")


def bare_type(kind: Any) -> Any:
    """The type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _container(kind: Any) -> Any:
    return Mapping if _is_struct(kind) else get_origin(kind) if get_origin(kind) in (list, dict) else ()
