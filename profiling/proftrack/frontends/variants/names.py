"""The meaning of variant names.

    eager                       not compiled
    compile, compile-MODE       torch.compile in its default mode, or in MODE
    cuda-graph                  the step captured as a CUDA graph by proftrack, and replayed
    NAME                        the values under NAME in the experiment's `variants` (or in --set NAME:key=value,...)

Names joined by + make one variant: `fused+cuda-graph`. A workload with a parameter `compile` compiles itself; for other
workloads the whole step is compiled. Values that the experiment's `variants` gives under one of the names above are
applied as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from proftrack import experiment
from proftrack.errors import UsageError
from proftrack.experiment import Experiment
from proftrack.experiment.model import on_one_line
from proftrack.frontends.batch.group import as_text
from proftrack.text import meant

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CUDA_GRAPH = "cuda-graph"
_COMPILE, _NOT_COMPILED = "compile", "none"
_VARIANT = "variant"
"""The parameter that distinguishes the runs of variants."""
BUILT_IN = ("eager", _COMPILE, *(f"{_COMPILE}-{mode}" for mode in MODES[1:]), CUDA_GRAPH)


class Recorded(Experiment, frozen=True, kw_only=True):
    """The experiment that the record of a variant contains."""

    changes: dict[str, Any]

    @property
    def display_name(self) -> str:
        """The name without what the variant's name implies: its changed values, and `compile=none`."""
        shown = {key: value for key, value in self.params.items() if key not in self.changes}
        if shown.get(_COMPILE) == _NOT_COMPILED:
            del shown[_COMPILE]
        return on_one_line(self.name, shown)


class Variant(Struct, frozen=True, kw_only=True):
    """One way to run the workload."""

    name: str
    experiment: Experiment
    """The experiment with the variant's values, with which the workload is built."""
    changes: dict[str, Any]
    """The variant's values."""
    compile_mode: str | None = None
    """Compile the whole step in this mode."""
    cuda_graph: bool = False

    @property
    def recorded(self) -> Recorded:
        """The experiment for its record, with `variant` as a parameter that may differ."""
        names = [*self.experiment.variant_params, *self.changes, _VARIANT]
        fields = {name: getattr(self.experiment, name) for name in Experiment.__struct_fields__}
        fields["params"] = {**self.experiment.params, _VARIANT: self.name}
        fields["variant_params"] = list(dict.fromkeys(names))
        return Recorded(**fields, changes=self.changes)


def variants(reference: str, names: str, given: Mapping[str, str], sets: Sequence[str] = ()) -> list[Variant]:
    """The variants of an experiment by their names, in order; the others are compared with the first.

    `given` are values for all variants. Raises UsageError for an unknown name or an invalid value.
    """
    base = experiment.load(reference, given)
    values_of = _named_sets(base, reference, given, sets)
    requested = [name.strip() for name in names.split(",") if name.strip()]
    parts = {part for name in requested for part in name.split("+")}
    requested += [name for name in (text.partition(":")[0] for text in sets) if name not in parts]
    repeated = [name for name in requested if requested.count(name) > 1]
    if repeated:
        raise UsageError(f"--variants {names}: {repeated[0]} is named twice", "name each variant once")
    if not requested:
        raise UsageError("--variants is empty", "name at least two, such as eager,compile,cuda-graph")
    return [_variant(name, base, values_of, reference, given) for name in requested]


def _variant(
    name: str, base: Experiment, values_of: Mapping[str, dict[str, Any]], reference: str, given: Mapping[str, str]
) -> Variant:
    changes: dict[str, Any] = {}
    mode: str | None = None
    graph = False
    for part in name.split("+"):
        if part not in values_of and part not in BUILT_IN:
            all_names = [*BUILT_IN, *values_of]
            raise UsageError(
                f"no variant {part!r}", f"known: {', '.join(dict.fromkeys(all_names))}{meant(part, all_names)}"
            )
        changes |= values_of.get(part, {})
        if part == CUDA_GRAPH:
            graph = True
        elif part in BUILT_IN:
            part_mode = _NOT_COMPILED if part == "eager" else part.removeprefix(_COMPILE).removeprefix("-") or "default"
            if _COMPILE in base.params:
                changes[_COMPILE] = part_mode
            elif part_mode != _NOT_COMPILED:
                mode = part_mode
    texts = {key: as_text(value) for key, value in changes.items()}
    return Variant(
        name=name,
        experiment=experiment.load(reference, {**given, **texts}),
        changes=changes,
        compile_mode=mode,
        cuda_graph=graph,
    )


def _named_sets(
    base: Experiment, reference: str, given: Mapping[str, str], sets: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The named parameter sets of the experiment and of the command line."""
    named = dict(base.variants)
    for text in sets:
        name, colon, pairs = text.partition(":")
        values = dict(pair.partition("=")[::2] for pair in pairs.split(",") if pair)
        if not (name and colon and values and all(key and "=" in pairs for key in values)):
            raise UsageError(f"--set {text}: not a named set", "write it as --set NAME:key=value,key=value")
        loaded = experiment.load(reference, {**given, **values})
        unknown = [key for key in values if key not in loaded.params]
        if unknown:
            raise UsageError(f"--set {text}: {unknown[0]} is not a parameter of the workload")
        named[name] = {key: loaded.params[key] for key in values}
    return named
