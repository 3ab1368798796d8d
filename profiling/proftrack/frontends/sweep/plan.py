"""The points of a sweep: `n=64,512,4096` is an axis, `dtype=bfloat16` holds for all points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proftrack import experiment
from proftrack.errors import UsageError
from proftrack.experiment import Experiment

MOST_POINTS = 500


class Plan(Struct, frozen=True):
    """Which points a sweep has: the experiment of each, in order."""

    axes: dict[str, list[Any]]
    """The swept parameters with their values, as the workload gets them."""
    fixed: dict[str, str]
    """What the command line gives for all points."""
    points: list[Experiment]

    @property
    def first(self) -> Experiment:
        """The experiment at the first point; its params beside the axes hold for all."""
        return self.points[0]


def plan(reference: str, given: Mapping[str, str]) -> Plan:
    """The points for `given` (texts of the command line); a text with commas is an axis.

    Without one the axes are those of the experiment's `sweep`, less the parameters that are given. Raises UsageError
    for a value that cannot be, and where nothing is left to sweep.
    """
    axes = {key: _split(key, text) for key, text in given.items() if "," in text}
    fixed = {key: text for key, text in given.items() if key not in axes}
    whole = experiment.load(reference, fixed)
    lists = [key for key in axes if isinstance(whole.params.get(key), list)]
    if lists:
        raise UsageError(
            f"{lists[0]} takes lists, a comma would not tell its points apart", "put them into the experiment's `sweep`"
        )
    if not axes:
        axes = {key: [_text(v) for v in values] for key, values in whole.sweep.items() if key not in fixed}
    if not axes:
        own = f"; its own sweep is of {', '.join(whole.sweep)}" if whole.sweep else ""
        raise UsageError(f"nothing to sweep: give a parameter several values, such as -P n=64,512,4096{own}")
    combinations = list(itertools.product(*axes.values()))
    if len(combinations) > MOST_POINTS:
        raise UsageError(f"{len(combinations)} points are more than {MOST_POINTS}", "give fewer values")
    points = [experiment.load(reference, {**fixed, **dict(zip(axes, c, strict=True))}) for c in combinations]
    names = {key: _param(key) for key in axes}
    values = {name: list(dict.fromkeys(_value(point, name) for point in points)) for name in names.values()}
    return Plan(values, fixed, _distinct(points))


def check_crossover(asked: Plan, *, find_crossover: bool) -> None:
    """Raise UsageError where a crossover is asked for along more than one parameter."""
    if find_crossover and len(asked.axes) > 1:
        raise UsageError("--find-crossover goes along one parameter", f"{len(asked.axes)} are swept")


def at(reference: str, asked: Plan, values: Mapping[str, Any]) -> Experiment:
    """The experiment at another point. Raises UsageError for a value that cannot be."""
    return experiment.load(reference, {**asked.fixed, **{key: _text(value) for key, value in values.items()}})


def label(values: Mapping[str, Any]) -> str:
    """`n=64 dtype=bfloat16`."""
    return " ".join(f"{key}={_text(value)}" for key, value in values.items())


def values_of(point: Experiment, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The swept values at a point."""
    return {key: _value(point, key) for key in axes}


def overrides(point: Experiment, asked: Plan) -> dict[str, str]:
    """The texts that make `proftrack run` measure this very point."""
    return {**asked.fixed, **{key: _text(value) for key, value in values_of(point, asked.axes).items()}}


def _split(key: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"-P {key}={text}: one of its values is empty", f"write it as {key}=64,512")
    return list(dict.fromkeys(values))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _param(key: str) -> str:
    """A key of the command line as the experiment has it: `params.n` and `n` are one."""
    return key.removeprefix("params.").replace("-", "_")


def _value(point: Experiment, key: str) -> Any:
    if key in point.params:
        return point.params[key]
    section, _, name = key.rpartition(".")
    for holder in [getattr(point, section)] if section else [point.schedule, point.profiler, point.timing, point]:
        if hasattr(holder, name):
            return getattr(holder, name)
    raise UsageError(f"{key} cannot be swept", "give a parameter of the workload several values")


def _distinct(points: list[Experiment]) -> list[Experiment]:
    """Without those that came to the same values (64 and 064)."""
    kept: list[Experiment] = []
    for point in points:
        if point not in kept:
            kept.append(point)
    return kept
