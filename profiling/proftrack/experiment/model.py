"""Experiment: the contents of an experiment file, resolved and frozen. A field's `Meta` says which values it allows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from proftrack.errors import UsageError
from proftrack.experiment.params import LARGEST, Name, Value, Values, VariantName
from proftrack.names import problem
from proftrack.record.timing import Mode
from proftrack.text import show

_NAME_LIMIT = 100
_DISPLAY_LIMIT = 200
_NAMES_ONLY = {("profiler", "modules"), ("profiler", "graph_names")}
"""Options that change neither T nor B."""
_SAYS_NOTHING_ALONE = ("", "none", "default", "true", "false")
_AUTO = "auto"

_Seconds = Annotated[float, Meta(le=LARGEST)]


class Schedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`torch.profiler.schedule`, in steps. `repeat` is the number of cycles; each writes its own trace."""

    skip_first: Annotated[int, Meta(ge=0)] = 0
    wait: Annotated[int, Meta(ge=0)] = 1
    warmup: Annotated[int, Meta(ge=0)] = 1
    active: Annotated[int, Meta(ge=1)] = 3
    repeat: Annotated[int, Meta(ge=1, description="a whole number, 1 or more (0 would never end)")] = 1

    @property
    def total_steps(self) -> int:
        """Number of steps in the whole schedule."""
        return self.skip_first + self.repeat * (self.wait + self.warmup + self.active)


class ProfilerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `torch.profiler.profile` records in addition to names and times."""

    record_shapes: bool = True
    with_stack: bool = False
    profile_memory: bool = False
    modules: bool = True
    """Mark each call of an nn.Module, and each parameter group of an optimizer, while steps are recorded."""
    graph_names: bool = True
    """If recorded steps replay CUDA graphs, capture these once more afterwards: that names their kernels."""


class TimingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long steps are timed without a profiler, and which of the two step times the verdict uses.

    The limits apply to each of the two timings: steps back to back, and steps one by one.
    """

    mode: Mode = "throughput"
    min_steps: Annotated[int, Meta(ge=3)] = 30
    min_seconds: Annotated[_Seconds, Meta(ge=0)] = 0.5
    max_seconds: Annotated[_Seconds, Meta(ge=0.001)] = 20.0
    """Takes precedence over `min_steps`: slow steps are timed fewer times, but at least three times."""
    budget_seconds: Annotated[_Seconds, Meta(ge=1)] = 60.0
    """For the whole measurement, from start to report, without imports; see `proftrack.capture.budget`."""
    counters: Literal["auto", "ncu", "none"] = "auto"
    """auto: hardware counters of the timed steps, where the GPU has them; ncu: also those of the largest kernels,
    replayed one by one under Nsight Compute; none."""
    ncu_kernels: Annotated[int, Meta(ge=1, le=1000)] = 6
    """How many kernels are replayed, by name, the largest first."""
    ncu_seconds: Annotated[_Seconds, Meta(ge=5)] = 60.0
    """For replaying, in addition to the budget: the workload is built once more, in a process of its own."""


SECTIONS: dict[str, type[Struct]] = {"schedule": Schedule, "profiler": ProfilerOptions, "timing": TimingOptions}


class Experiment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment with its values resolved. `path` is the absolute path of its YAML file."""

    name: str
    path: Path
    workload: Annotated[
        str,
        Meta(
            pattern=r"\A.*\S.*:[^\W\d]\w*\Z",
            description="file.py:callable (beside the experiment's file) or package.module:callable",
            examples=["file.py:build"],
        ),
    ]
    description: str = ""
    params: dict[Name, Value] = {}
    choices: dict[str, Values] = {}
    """All values that a parameter may have, if the file lists them."""
    variant_params: Annotated[list[str], Meta(description="a list of parameters")] = []
    """Parameters that may differ between compared runs."""
    sweep: dict[str, Values] = {}
    """The default points of each parameter for `proftrack sweep`."""
    variants: dict[VariantName, Annotated[dict[str, Value], Meta(description="parameters with values")]] = {}
    """Named sets of values for `proftrack variants`; under a built-in name (`cuda-graph`), what that variant needs."""
    schedule: Schedule = Schedule()
    profiler: ProfilerOptions = ProfilerOptions()
    timing: TimingOptions = TimingOptions()
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: a GPU if there is one."""

    def __post_init__(self) -> None:
        """Raises UsageError for a name that cannot be displayed or stored, and for contradictory limits."""
        if problem(self.name, _NAME_LIMIT) is not None or self.name != self.name.strip():
            remedy = f"it must be one printable line of at most {_NAME_LIMIT} characters"
            raise UsageError(f"name={show(self.name)} is not allowed", remedy)
        # Not in TimingOptions: the rest of a budget may allow less time than the options request.
        least, most = self.timing.min_seconds, self.timing.max_seconds
        if most < least:
            limits = f"timing.max_seconds={most:g} is below timing.min_seconds={least:g}"
            raise UsageError(limits, "raise max_seconds or lower min_seconds")

    def refuse_replay(self, instead: str) -> None:
        """Raise UsageError if kernels are to be replayed, for a way to measure that cannot build its workload again."""
        if self.timing.counters == "ncu":
            raise UsageError(f"timing.counters=ncu: {instead} cannot replay kernels", "use proftrack run EXPERIMENT")

    @property
    def display_name(self) -> str:
        """Name and parameters on one line: `matmul_add n=4096 bfloat16 eager`."""
        return on_one_line(self.name, self.params)


def on_one_line(name: str, params: Mapping[str, Any]) -> str:
    """A name and parameters, for display.

    Numbers are written key=value. Strings are written without their key unless they mean nothing alone. The seed and
    values that are still to be resolved (auto) are left out.
    """
    words = [_word(key, value) for key, value in params.items() if key != "seed" and value != _AUTO]
    text = " ".join([name, *words])
    return text if len(text) <= _DISPLAY_LIMIT else text[: _DISPLAY_LIMIT - 3] + "..."


def fingerprint(
    experiment: Experiment, device_name: str, *, cpu_threads: int | None = None
) -> tuple[str, dict[str, Any]]:
    """A short hash of everything that must be equal for two runs to be comparable, and those keys with their values.

    The parameters in `variant_params`, how long steps were timed, whether modules were marked and graphs captured once
    more, and the location of the files are left out.
    `cpu_threads`: torch's thread count if the device is a CPU (`Environment.cpu_threads`), else None.
    """
    keys: dict[str, Any] = {"experiment": experiment.name, "workload": experiment.workload}
    for key, value in sorted(experiment.params.items()):
        if key not in experiment.variant_params:
            keys[f"params.{key}"] = value
    for section in ("schedule", "profiler"):
        for key, value in msgspec.structs.asdict(getattr(experiment, section)).items():
            if (section, key) not in _NAMES_ONLY:
                keys[f"{section}.{key}"] = value
    keys["timing.mode"] = experiment.timing.mode
    keys["device"] = device_name
    if cpu_threads is not None:
        keys["threads"] = cpu_threads
    text = json.dumps(keys, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12], keys


def _word(key: str, value: Any) -> str:
    if key == "compile" and value == "none":
        return "eager"
    if isinstance(value, str) and value.lower() not in _SAYS_NOTHING_ALONE:
        return value
    if isinstance(value, list):
        return f"{key}={','.join(map(str, value))}"
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"
