"""The points of a sweep: `n=64,512,4096` is an axis, `dtype=bfloat16` applies to all points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proftrack import experiment
from proftrack.errors import UsageError
from proftrack.experiment import Experiment
from proftrack.frontends.batch.group import as_text

MOST_POINTS = 500


class Plan(Struct, frozen=True):
    """The points of a sweep: the experiment of each, in order."""

    axes: dict[str, list[Any]]
    """The swept parameters with their values, as the workload gets them."""
    fixed: dict[str, str]
    """The texts that the command line gives for all points."""
    points: list[Experiment]

    @property
    def first(self) -> Experiment:
        """The experiment at the first point; its params other than the axes are the same at all points."""
        return self.points[0]


def plan(reference: str, given: Mapping[str, str]) -> Plan:
    """The points for `given` (texts of the command line); a text with commas is an axis.

    If there is none, the axes are those of the experiment's `sweep`, without the given parameters. Raises UsageError
    for an invalid value, and if nothing is left to sweep.
    """
    axes = {key: _split(key, text) for key, text in given.items() if "," in text}
    fixed = {key: text for key, text in given.items() if key not in axes}
    base = experiment.load(reference, fixed)
    lists = [key for key in axes if isinstance(base.params.get(key), list)]
    if lists:
        raise UsageError(
            f"{lists[0]} takes lists, so commas cannot separate its points",
            "put the points into the experiment's `sweep`",
        )
    if not axes:
        axes = {key: [as_text(v) for v in values] for key, values in base.sweep.items() if key not in fixed}
    if not axes:
        fixed_axes = (
            f": the experiment sweeps {', '.join(base.sweep)}, and -P gives one value of each" if base.sweep else ""
        )
        raise UsageError(f"nothing to sweep{fixed_axes}", "give a parameter several values, such as -P n=64,512,4096")
    combinations = list(itertools.product(*axes.values()))
    if len(combinations) > MOST_POINTS:
        raise UsageError(f"{len(combinations)} points exceed the limit of {MOST_POINTS}", "give fewer values")
    points = [experiment.load(reference, {**fixed, **dict(zip(axes, c, strict=True))}) for c in combinations]
    names = {key: _param(key) for key in axes}
    values = {name: list(dict.fromkeys(_value(point, name) for point in points)) for name in names.values()}
    return Plan(values, fixed, _distinct(points))


def check_crossover(plan: Plan, *, find_crossover: bool) -> None:
    """Raise UsageError if a crossover is requested along more than one parameter."""
    if find_crossover and len(plan.axes) > 1:
        raise UsageError(
            f"--find-crossover searches along one parameter, and {len(plan.axes)} are swept",
            "give the others one value each",
        )


def at(reference: str, plan: Plan, values: Mapping[str, Any]) -> Experiment:
    """The experiment at another point. Raises UsageError for an invalid value."""
    return experiment.load(reference, {**plan.fixed, **{key: as_text(value) for key, value in values.items()}})


def label(values: Mapping[str, Any]) -> str:
    """`n=64 dtype=bfloat16`."""
    return " ".join(f"{key}={as_text(value)}" for key, value in values.items())


def values_of(point: Experiment, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The swept values at a point."""
    return {key: _value(point, key) for key in axes}


def overrides(point: Experiment, plan: Plan) -> dict[str, str]:
    """The command-line texts with which `proftrack run` measures this point."""
    return {**plan.fixed, **{key: as_text(value) for key, value in values_of(point, plan.axes).items()}}


def _split(key: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"-P {key}={text}: one of the values is empty", f"write it as {key}=64,512")
    return list(dict.fromkeys(values))


def _param(key: str) -> str:
    """The experiment's name for a key of the command line: `params.n` and `n` are the same."""
    return key.removeprefix("params.").replace("-", "_")


def _value(point: Experiment, key: str) -> Any:
    if key in point.params:
        return point.params[key]
    section, _, name = key.rpartition(".")
    for holder in [getattr(point, section)] if section else [point.schedule, point.profiler, point.timing, point]:
        if hasattr(holder, name):
            return getattr(holder, name)
    raise UsageError(f"{key} cannot be swept", "give a parameter of the workload several values instead")


def _distinct(points: list[Experiment]) -> list[Experiment]:
    """The points without those whose values are the same when read (64 and 064)."""
    distinct: list[Experiment] = []
    for point in points:
        if point not in distinct:
            distinct.append(point)
    return distinct
