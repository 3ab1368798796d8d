"""The workload's own parameters: the types that values may have, and whether an experiment's sections agree.

`choices` lists all values that a parameter may have, `sweep` lists points of a parameter, `variants` are named sets of
values. All of them refer to parameters in `params` and must have the type of the value there.

The workload itself decides whether a value makes sense (n=-3), see proftrack.experiment.workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from proftrack.experiment.validate import Refusal, convert

if TYPE_CHECKING:
    from proftrack.experiment.model import Experiment

_INT64 = 2**63  # JSON readers and databases accept no larger integers
LARGEST = 1.7976931348623157e308
"""The largest finite float."""

Whole = Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
_SCALARS = None | bool | Whole | Finite | str
_PLAIN = "a finite number of at most 64 bits, text, true, false or null"
Scalar = Annotated[_SCALARS, Meta(description=_PLAIN)]
Value = Annotated[_SCALARS | list[Scalar], Meta(description=f"{_PLAIN}, or a list of these")]
"""A value that can be a keyword argument, an MLflow param and JSON."""
Name = Annotated[
    str,
    Meta(pattern=r"\A[^\W\d]\w*\Z", description="a Python name (quote it if YAML reads it as another type)"),
]
Values = Annotated[list[Value], Meta(min_length=1, description="a list of values")]
VariantName = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        description="letters, digits, `-`, `_` and `.`, starting with a letter or digit",
    ),
]

_KINDS: dict[type, tuple[Any, str]] = {
    int: (Whole, "a whole number (64 bits at most)"),
    float: (Finite, "a finite number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
    list: (list[Scalar], "a list, written a,b,c"),
    type(None): (Value, "any plain value"),
}


def kind_of(value: Any, why: str) -> Any:
    """The type that a parameter's values must have, taken from one of them. `why` ends the error's sentence."""
    kind, noun = _KINDS[type(value)]
    return Annotated[kind, Meta(description=noun + why)]


def checked(experiment: Experiment, refuse: Refusal) -> Experiment:
    """The experiment with choices, sweep and variants converted to the types of their parameters.

    Raises UsageError for an unknown parameter, a value of the wrong type, or a value that is not among the choices.
    """
    values = experiment.params
    if "device" in values:
        refuse("params.device is not allowed: proftrack passes the device itself", "use the top-level key `device`")
    refuse.unknown(experiment.variant_params, values, "variant_params", "parameter")
    kinds = {key: kind_of(value, f", like params.{key}") for key, value in values.items()}
    variants = {name: _typed(given, kinds, f"variants.{name}", refuse) for name, given in experiment.variants.items()}
    choices = _typed_lists(experiment.choices, kinds, "choices", refuse)
    sweep = _typed_lists(experiment.sweep, kinds, "sweep", refuse)
    for given in (values, *variants.values()):
        for key, value in given.items():
            check_choice(key, value, choices, refuse)
    for key, points in sweep.items():
        for point in points:
            check_choice(key, point, choices, refuse)
    return msgspec.structs.replace(experiment, choices=choices, sweep=sweep, variants=variants)


def check_choice(name: str, value: Any, choices: Mapping[str, list[Any]], refuse: Refusal) -> None:
    """Raise UsageError for a value that is not among its parameter's choices, if there are any."""
    if name in choices and value not in choices[name]:
        refuse.choice(name, value, choices[name])


def _typed(given: Mapping[str, Any], kinds: Mapping[str, Any], section: str, refuse: Refusal) -> dict[str, Any]:
    refuse.unknown(given, kinds, section, "parameter")
    return {key: convert(value, kinds[key], refuse, f"{section}.{key}") for key, value in given.items()}


def _typed_lists(
    given: Mapping[str, list[Any]], kinds: Mapping[str, Any], section: str, refuse: Refusal
) -> dict[str, list[Any]]:
    refuse.unknown(given, kinds, section, "parameter")
    return {
        key: [convert(point, kinds[key], refuse, f"{section}.{key}") for point in points]
        for key, points in given.items()
    }
