"""Advice for a busy GPU by the unit that is near its limit: what asks less of that unit, and what would not help."""

from __future__ import annotations

from typing import NamedTuple

from proftrack.measures import Measures
from proftrack.record.counters import Unit
from proftrack.record.figures import KernelKind
from proftrack.verdict.units import Use

_PRODUCTS: tuple[KernelKind, ...] = ("matmul", "gemv", "convolution", "attention")
_MOSTLY = 0.5
_INTO_TENSOR_CORES = (
    "TF32 (torch.set_float32_matmul_precision('high')) or bfloat16 (autocast) moves them to the tensor cores, which is "
    "several times faster"
)


class Words(NamedTuple):
    """Sentences to try, and those that say what would not help."""

    tries: tuple[str, ...]
    useless: tuple[str, ...] = ()


def words_for(use: Use, measures: Measures, *, only_less: float) -> Words:
    """What the unit that is used most asks for; at `only_less` of what is reachable, only less work for it helps."""
    if use.unit == "fp32":
        return _fp32(measures)
    if use.unit in _GAINS:
        return Words((_until_the_limit(use, *_GAINS[use.unit], only_less),))
    return _PIPES[use.unit]


_GAINS: dict[Unit, tuple[str, str]] = {
    "dram": ("wider, contiguous and more concurrent accesses gain", "fewer bytes help"),
    "tensor": (
        "better kernels and shapes that fit their tiles gain",
        "less arithmetic or a narrower type, where it is accurate enough, helps",
    ),
}
"""What comes nearer to the limit, and what helps at it."""


def _until_the_limit(use: Use, nearer: str, less: str, only_less: float) -> str:
    at = use.at(use.unit)
    at = at[0].upper() + at[1:]
    if use.largest >= only_less:
        return f"{at}: only {less}."
    return f"{at}: {nearer} at most {1 / use.largest:.1f}x; beyond that only {less}."


def _fp32(measures: Measures) -> Words:
    """Float32 arithmetic outside the tensor cores: of products, of something else, or of kernels of unknown kind."""
    time = {
        kind: sum(site.busy_us for site in measures.sites if site.kind in kind) for kind in (_PRODUCTS, ("unknown",))
    }
    whole = sum(site.busy_us for site in measures.sites) or 1.0
    if time[_PRODUCTS] > _MOSTLY * whole:
        return Words((f"The products run in float32 without tensor cores: {_INTO_TENSOR_CORES}.",))
    fewer = (
        "It is float32 arithmetic on single values: do fewer operations for each (cheaper approximations, terms "
        "computed once and kept)."
    )
    if time["unknown",] > _MOSTLY * whole:
        return Words((fewer, f"If the kernels compute products, {_INTO_TENSOR_CORES}."))
    return Words((fewer,), ("Tensor cores do not help: they only do products.",))


_PIPES: dict[Unit, Words] = {
    "fp64": Words(("It is float64 arithmetic: use float32 where that is accurate enough.",)),
    "fp16": Words(("It is 16-bit arithmetic on single values: do fewer operations for each.",)),
    "integer": Words(
        (
            "It is integer arithmetic (indices, hashes, comparisons, atomics): compute fewer indices, in 32 bits where "
            "they fit, do more for each one, sort or group what is looked up, and use fewer atomics.",
        ),
        ("A narrower floating type or tensor cores do not help: the arithmetic is on integers.",),
    ),
}
