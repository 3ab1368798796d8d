"""Advice for a busy GPU by the unit that is near its limit: what asks less of that unit, and what would not help."""

from __future__ import annotations

from typing import NamedTuple

from proftrack.measures import Measures
from proftrack.record.counters import Unit
from proftrack.record.figures import KernelKind
from proftrack.record.verdict import Regime
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


def words_for(use: Use, measures: Measures, *, only_less: float, lead: float) -> Words:
    """What the unit that is used most asks for; at `only_less` of what is reachable, only less work for it helps.

    If the other one is less than `lead` behind, it holds the step back as soon as this one does not.
    """
    words = _of_the_largest(use, measures, only_less)
    if use.lead >= lead:
        return words
    gain = f"gains at most {1 / use.share(use.other):.1f}x, for then the other is at its limit"
    return Words(words.tries, (f"{_capital(use.at(use.other))}, close behind: less work for one of the two {gain}.",))


def words_below(use: Use, regime: Regime, measures: Measures) -> tuple[str, ...]:
    """What helps kernels that are limited by arithmetic or by bandwidth although no unit is near its limit: for the
    regime's own unit, and for the other if that is used more."""
    pipe = _BETTER if use.pipe == "tensor" or _products_in_fp32(use, measures) else _of_pipe(use, measures).tries
    own = pipe if regime == "compute-bound" else (FEWER_BYTES,)
    if use.regime == regime:
        return own
    other = (FEWER_BYTES,) if regime == "compute-bound" else pipe
    behind = "any pipe" if regime == "compute-bound" else "DRAM"
    return (*own, f"{_capital(use.at(use.unit))} is used more than {behind}, and may be what limits them.", *other)


FEWER_BYTES = (
    "Move fewer bytes: fuse chains of operators, keep data in a narrower type, avoid copies and layout changes."
)
_BETTER = (
    "Look for better kernels and shapes that fit their tiles; compute less, or in a narrower type where that is "
    "accurate enough.",
)


def _of_the_largest(use: Use, measures: Measures, only_less: float) -> Words:
    if use.unit in _GAINS:
        return Words((_until_the_limit(use, *_GAINS[use.unit], only_less),))
    return _of_pipe(use, measures)


def _of_pipe(use: Use, measures: Measures) -> Words:
    return _fp32(measures) if use.pipe == "fp32" else _PIPES[use.pipe]


def not_in_roofline(use: Use, measures: Measures) -> bool:
    """Whether the unit in most use does arithmetic that R does not count: any but products."""
    return use.unit not in _GAINS and not _products_in_fp32(use, measures)


def _products_in_fp32(use: Use, measures: Measures) -> bool:
    return use.pipe == "fp32" and _share(measures, _PRODUCTS) > _MOSTLY


def _share(measures: Measures, kinds: tuple[KernelKind, ...]) -> float:
    """Of the busy time, in kernels of these kinds."""
    whole = sum(site.busy_us for site in measures.sites) or 1.0
    return sum(site.busy_us for site in measures.sites if site.kind in kinds) / whole


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


_GAINS: dict[Unit, tuple[str, str]] = {
    "dram": ("wider, contiguous and more concurrent accesses gain", "fewer bytes help"),
    "tensor": (
        "better kernels and shapes that fit their tiles gain",
        "less arithmetic or a narrower type, where it is accurate enough, helps",
    ),
}
"""What comes nearer to the limit, and what helps at it."""


def _until_the_limit(use: Use, nearer: str, less: str, only_less: float) -> str:
    at = _capital(use.at(use.unit))
    if use.largest >= only_less:
        return f"{at}: only {less}."
    return f"{at}: {nearer} at most {1 / use.largest:.1f}x; beyond that only {less}."


def _fp32(measures: Measures) -> Words:
    """Float32 arithmetic outside the tensor cores: of products, of something else, or of kernels of unknown kind."""
    if _share(measures, _PRODUCTS) > _MOSTLY:
        return Words((f"The products run in float32 without tensor cores: {_INTO_TENSOR_CORES}.",))
    fewer = (
        "It is float32 arithmetic on single values: do fewer operations for each (cheaper approximations, terms "
        "computed once and kept)."
    )
    if _share(measures, ("unknown",)) > _MOSTLY:
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
