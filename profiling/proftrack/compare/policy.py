"""gate.yaml: how much worse a candidate may be. Read with the safe loader; what is not known is refused.

branch: main                    where the baseline is looked for
min_samples: 5                  timed blocks (or recorded steps) in each run
min_runs: 1                     fresh processes on each side
noise_floor_pct: 3              where the store does not know it
regime: same                    same, any, or a list of those allowed
metrics:
  step_time_us: {max_increase_pct: 5}
  peak_memory_bytes: {max_increase_pct: 10, max: 60e9, required: false}
  launches_per_step: {exact: true}
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from msgspec import Struct

from proftrack.experiment import file
from proftrack.experiment.sentences import Refusal
from proftrack.text import amount, show
from proftrack.verdict.rules import REGIMES

COUNTS = {
    "launches_per_step": "launches",
    "kernels_per_step": "kernels",
    "waits_per_step": "waits for the GPU",
    "allocator_calls_per_step": "device allocator calls",
}
"""Metrics that are counted, with the name of their count in a comparison."""
_BOUNDS = ("max_increase_pct", "max_decrease_pct", "max_increase", "max_decrease", "max", "min")


class Limit(Struct, frozen=True, kw_only=True):
    """What one metric may do. Percentages are of the baseline's value, the others in the metric's own unit."""

    max_increase_pct: float | None = None
    max_decrease_pct: float | None = None
    max_increase: float | None = None
    max_decrease: float | None = None
    max: float | None = None
    """Absolute: holds without a baseline's value."""
    min: float | None = None
    exact: bool = False
    """Neither more nor less than the baseline."""
    required: bool = True
    """Whether a metric that a run does not have, or that noise hides, makes the gate inconclusive."""


class Policy(Struct, frozen=True, kw_only=True):
    """A whole policy. The defaults are those of a gate without a file."""

    metrics: dict[str, Limit]
    regime: str | list[str] = "same"
    min_samples: int = 5
    min_runs: int = 1
    noise_floor_pct: float | None = None
    branch: str = "main"
    source: str = "default"
    """The file's name."""


DEFAULT = Policy(
    metrics={
        "step_time_us": Limit(max_increase_pct=5),
        "gpu_busy_per_step_us": Limit(max_increase_pct=5, required=False),
        "launches_per_step": Limit(max_increase=0, required=False),
        "kernels_per_step": Limit(max_increase=0, required=False),
        "peak_memory_bytes": Limit(max_increase_pct=5, required=False),
    },
    regime="any",
)
_KEYS = ("metrics", "regime", "min_samples", "min_runs", "noise_floor_pct", "branch")


def load(path: Path, known: Collection[str]) -> Policy:
    """Read a policy. `known`: the metrics that a run can have.

    Raises UsageError naming the file, the key, its value and what is allowed.
    """
    document = file.read(path)
    refuse = Refusal(str(path))
    refuse.unknown_keys(document, _KEYS, "key")
    given = document.get("metrics", {})
    if not isinstance(given, dict) or not given:
        refuse("names no metrics; add `metrics: {step_time_us: {max_increase_pct: 5}}`")
    names = [*known, *(name for name in COUNTS if name not in known)]
    refuse.unknown_keys(given, names, "metric")
    return Policy(
        metrics={name: _limit(name, value, refuse) for name, value in given.items()},
        regime=_regime(document.get("regime", "same"), refuse),
        min_samples=_whole("min_samples", document.get("min_samples", DEFAULT.min_samples), 3, refuse),
        min_runs=_whole("min_runs", document.get("min_runs", DEFAULT.min_runs), 1, refuse),
        noise_floor_pct=_number("noise_floor_pct", document.get("noise_floor_pct"), refuse),
        branch=_branch(document.get("branch", DEFAULT.branch), refuse),
        source=path.name,
    )


def _limit(name: str, given: Any, refuse: Refusal) -> Limit:
    if not isinstance(given, dict) or not given:
        refuse(f"metrics.{name}={show(given)} is not allowed; it must be limits such as {{max_increase_pct: 5}}")
    refuse.unknown_keys(given, (*_BOUNDS, "exact", "required"), f"limit of {name}")
    flags = {key: given[key] for key in ("exact", "required") if key in given}
    for key, value in flags.items():
        if not isinstance(value, bool):
            refuse(f"metrics.{name}.{key}={show(value)} is not allowed; it must be true or false")
    bounds = {key: _number(f"metrics.{name}.{key}", given[key], refuse) for key in _BOUNDS if key in given}
    if not bounds and not flags.get("exact"):
        refuse(f"metrics.{name} sets no limit; use one of {', '.join((*_BOUNDS, 'exact'))}")
    return Limit(**flags, **bounds)  # type: ignore[arg-type]  # keys are those of _BOUNDS


def _number(key: str, value: Any, refuse: Refusal) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        refuse(f"{key}={show(value)} is not allowed; it must be a number, 0 or more")
    return float(value)


def _whole(key: str, value: Any, least: int, refuse: Refusal) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        refuse(f"{key}={show(value)} is not allowed; it must be a whole number, {least} or more")
    return int(value)


def _regime(value: Any, refuse: Refusal) -> str | list[str]:
    if value in ("same", "any"):
        return str(value)
    if not isinstance(value, list) or not value:
        refuse(f"regime={show(value)} is not allowed; it must be same, any, or a list of regimes")
    for each in value:
        if each not in REGIMES:
            refuse(f"unknown regime {show(each)}; regimes: {', '.join(REGIMES)}", str(each), REGIMES)
    return [str(each) for each in value]


def _branch(value: Any, refuse: Refusal) -> str:
    if not isinstance(value, str) or not value.strip():
        refuse(f"branch={show(value)} is not allowed; it must be a branch's name")
    return str(value).strip()


def describe(limit: Limit, metric: str = "") -> str:
    """A limit in words: `at most +5 %`; figures in the unit of `metric`."""
    words = ["equal"] if limit.exact else []
    if limit.max_increase_pct is not None:
        words.append(f"at most +{limit.max_increase_pct:g} %")
    if limit.max_decrease_pct is not None:
        words.append(f"at most -{limit.max_decrease_pct:g} %")
    if limit.max_increase is not None:
        words.append("no increase" if limit.max_increase == 0 else f"at most +{amount(metric, limit.max_increase)}")
    if limit.max_decrease is not None:
        words.append("no decrease" if limit.max_decrease == 0 else f"at most -{amount(metric, limit.max_decrease)}")
    if limit.max is not None:
        words.append(f"at most {amount(metric, limit.max)}")
    if limit.min is not None:
        words.append(f"at least {amount(metric, limit.min)}")
    return ", ".join(words)
