"""What the names of variants mean.

    eager                       not compiled
    compile, compile-MODE       torch.compile in its default mode, or in MODE
    cuda-graph                  the step captured as a CUDA graph by us, and replayed
    NAME                        the values that the experiment's `variants` (or --set NAME:key=value,...) give

Several joined by + are one variant: `fused+cuda-graph`. A workload with a parameter `compile` compiles itself, others
are compiled whole. What the experiment's `variants` say under one of the names above goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from proftrack import experiment
from proftrack.errors import UsageError
from proftrack.experiment import Experiment
from proftrack.experiment.model import on_one_line
from proftrack.text import meant

DEFAULT = "eager,compile,cuda-graph"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CUDA_GRAPH = "cuda-graph"
_COMPILE, _NOT_COMPILED = "compile", "none"
_VARIANT = "variant"
"""The parameter by which the runs of variants are told apart."""
BUILT_IN = ("eager", _COMPILE, *(f"{_COMPILE}-{mode}" for mode in MODES[1:]), CUDA_GRAPH)


class Recorded(Experiment, frozen=True, kw_only=True):
    """An experiment as the record of one of its variants has it."""

    changes: dict[str, Any]

    @property
    def display_name(self) -> str:
        """Without what the variant's name stands for: its own values, and that the workload does not compile itself."""
        shown = {key: value for key, value in self.params.items() if key not in self.changes}
        if shown.get(_COMPILE) == _NOT_COMPILED:
            del shown[_COMPILE]
        return on_one_line(self.name, shown)


class Variant(Struct, frozen=True, kw_only=True):
    """One way to run the workload."""

    name: str
    experiment: Experiment
    """With the variant's values, as the workload is built."""
    changes: dict[str, Any]
    """Those values."""
    compile_mode: str | None = None
    """Compile the whole step in this mode."""
    cuda_graph: bool = False

    @property
    def recorded(self) -> Recorded:
        """The experiment as its record has it: `variant` is a parameter that may differ."""
        names = [*self.experiment.variant_params, *self.changes, _VARIANT]
        fields = {name: getattr(self.experiment, name) for name in Experiment.__struct_fields__}
        fields["params"] = {**self.experiment.params, _VARIANT: self.name}
        fields["variant_params"] = list(dict.fromkeys(names))
        return Recorded(**fields, changes=self.changes)


def variants(reference: str, names: str, given: Mapping[str, str], sets: Sequence[str] = ()) -> list[Variant]:
    """The variants of an experiment by their names, in order; the first is what the others are held against.

    `given` are the values for all of them. Raises UsageError for a name that is not known, or values that cannot be.
    """
    base = experiment.load(reference, given)
    own = _own(base, reference, given, sets)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    wanted += [name for name in _set_names(sets) if name not in {part for each in wanted for part in each.split("+")}]
    double = [name for name in wanted if wanted.count(name) > 1]
    if double:
        raise UsageError(f"--variants {names}: {double[0]} is there twice")
    if not wanted:
        raise UsageError("--variants is empty", "name at least two, such as eager,compile,cuda-graph")
    return [_variant(name, base, own, reference, given) for name in wanted]


def _variant(
    name: str, base: Experiment, own: Mapping[str, dict[str, Any]], reference: str, given: Mapping[str, str]
) -> Variant:
    changes: dict[str, Any] = {}
    mode: str | None = None
    graph = False
    for part in name.split("+"):
        if part not in own and part not in BUILT_IN:
            all_names = [*BUILT_IN, *own]
            raise UsageError(
                f"no variant {part!r}", f"known: {', '.join(dict.fromkeys(all_names))}{meant(part, all_names)}"
            )
        changes |= own.get(part, {})
        if part == CUDA_GRAPH:
            graph = True
        elif part in BUILT_IN:
            wanted = _NOT_COMPILED if part == "eager" else part.removeprefix(_COMPILE).removeprefix("-") or "default"
            if _COMPILE in base.params:
                changes[_COMPILE] = wanted
            elif wanted != _NOT_COMPILED:
                mode = wanted
    texts = {key: _text(value) for key, value in changes.items()}
    return Variant(
        name=name,
        experiment=experiment.load(reference, {**given, **texts}),
        changes=changes,
        compile_mode=mode,
        cuda_graph=graph,
    )


def _own(base: Experiment, reference: str, given: Mapping[str, str], sets: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The named sets of the experiment, and those of the command line."""
    sets_of = dict(base.variants)
    for text in sets:
        name, colon, pairs = text.partition(":")
        values = dict(pair.partition("=")[::2] for pair in pairs.split(",") if pair)
        if not (name and colon and values and all(key and "=" in pairs for key in values)):
            raise UsageError(f"--set {text}: not a named set", "write it as --set NAME:key=value,key=value")
        loaded = experiment.load(reference, {**given, **values})
        unknown = [key for key in values if key not in loaded.params]
        if unknown:
            raise UsageError(f"--set {text}: {unknown[0]} is not a parameter of the workload")
        sets_of[name] = {key: loaded.params[key] for key in values}
    return sets_of


def _set_names(sets: Sequence[str]) -> list[str]:
    return [text.partition(":")[0] for text in sets]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
