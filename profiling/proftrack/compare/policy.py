"""gate.yaml: how much worse a candidate may be. Read with the safe loader; unknown keys are refused.

branch: main                    where to look for the baseline
min_samples: 5                  timed blocks (or recorded steps) in each run
min_runs: 1                     fresh processes on each side
noise_floor_pct: 3              used if the store's runs do not show it
regime: same                    same, any, or a list of allowed regimes
metrics:
  step_time_us: {max_increase_pct: 5}
  peak_memory_bytes: {max_increase_pct: 10, max: 60e9, required: false}
  launches_per_step: {exact: true}
modules:
  layers.*.mlp: {max_increase_pct: 15}
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from proftrack.errors import UsageError
from proftrack.experiment import file
from proftrack.experiment.params import LARGEST
from proftrack.experiment.validate import Refusal, read
from proftrack.record.verdict import Regime
from proftrack.text import amount

COUNTS = {
    "launches_per_step": "launches",
    "kernels_per_step": "kernels",
    "waits_per_step": "waits for the GPU",
    "allocator_calls_per_step": "device allocator calls",
}
"""Metrics that are counts, with the names of these counts in a comparison."""
_Bound = Annotated[float, Meta(ge=0, le=LARGEST)]


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one metric. Percentages are of the baseline's value, the others in the metric's own unit."""

    max_increase_pct: _Bound | None = None
    max_decrease_pct: _Bound | None = None
    max_increase: _Bound | None = None
    max_decrease: _Bound | None = None
    max: _Bound | None = None
    """Absolute: needs no baseline value."""
    min: _Bound | None = None
    exact: bool = False
    """Must be equal to the baseline."""
    required: bool = True
    """Whether the gate is inconclusive if a run lacks the metric, or noise hides it."""

    @property
    def limits_nothing(self) -> bool:
        """Whether no bound is set."""
        return not self.exact and all(getattr(self, name) is None for name in BOUNDS)

    @property
    def is_absolute(self) -> bool:
        """Whether it does not depend on the baseline."""
        relative = (self.max_increase_pct, self.max_decrease_pct, self.max_increase, self.max_decrease)
        return not self.exact and all(bound is None for bound in relative)


BOUNDS = tuple(field.name for field in structs.fields(Limit) if field.name not in ("exact", "required"))


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy. The defaults are those of a gate without a file."""

    metrics: Annotated[
        dict[str, Annotated[Limit, Meta(description="limits such as {max_increase_pct: 5}")]],
        Meta(
            min_length=1,
            description="metrics with their limits, such as {step_time_us: {max_increase_pct: 5}}",
        ),
    ] = {}
    modules: Annotated[
        dict[
            Annotated[str, Meta(description="a module's path, with * for any part of it, such as layers.*.mlp")],
            Annotated[Limit, Meta(description="limits such as {max_increase_pct: 10}")],
        ],
        Meta(description="modules with their limits, such as {layers.*.mlp: {max_increase_pct: 15}}"),
    ] = {}
    """Limits of each module (or optimizer, or region) that a path names: of its time per step, in microseconds."""
    regime: Annotated[
        Literal["same", "any"] | Annotated[list[Regime], Meta(min_length=1)],
        Meta(description="same, any, or a list of regimes"),
    ] = "same"
    min_samples: Annotated[int, Meta(ge=3)] = 5
    min_runs: Annotated[int, Meta(ge=1)] = 1
    noise_floor_pct: _Bound | None = None
    branch: Annotated[str, Meta(pattern=r"\S", description="a branch's name")] = "main"
    source: str = "default"
    """The file's name."""

    def __post_init__(self) -> None:
        """Raises UsageError if nothing is limited, by a limit without a bound, or by one that no time can keep."""
        if not self.metrics and not self.modules:
            raise UsageError("metrics is missing", "add `metrics: {step_time_us: {max_increase_pct: 5}}`")
        sections = (("metrics", self.metrics, (*BOUNDS, "exact")), ("modules", self.modules, BOUNDS))
        for section, limits, bounds in sections:
            for name, limit in limits.items():
                if limit.limits_nothing:
                    raise UsageError(f"{section}.{name} sets no limit", f"use one of {', '.join(bounds)}")
        exact = next((path for path, limit in self.modules.items() if limit.exact), None)
        if exact is not None:
            raise UsageError(f"modules.{exact}: exact: no two times are equal", f"use one of {', '.join(BOUNDS)}")


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


def load(path: Path, known: Collection[str]) -> Policy:
    """Read a policy. `known`: the metrics that a run can have.

    Raises UsageError that names the file, the key, its value and what is allowed.
    """
    refuse = Refusal(str(path))
    policy = read(file.read(path), Policy, refuse, source=path.name)
    refuse.unknown(policy.metrics, [*known, *(name for name in COUNTS if name not in known)], noun="metric")
    return policy


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
