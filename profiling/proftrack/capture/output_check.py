"""Compare a step's results with another's: equal within what a different order of summation explains."""

from __future__ import annotations

from typing import Any

from proftrack.capture.compat import tensors_in
from proftrack.record.compilation import OutputCheck

# Of the L2 norm of the difference over that of the first. A few times the type's rounding for the narrow types, where
# every operation rounds; more for the wide types, where errors add up over long sums. torch's own tests allow as much.
TOLERANCES = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4, "float64": 1e-9}
_NARROWER = 2e-1
"""float8 and the like."""


def keep(result: Any) -> list[Any]:
    """Copy a result's tensors: later steps may overwrite them."""
    tree = dict(result) if hasattr(result, "to_tuple") else result
    return [tensor.detach().clone() for tensor in tensors_in(tree)]


def check(first: list[Any], second: list[Any]) -> OutputCheck:
    """Compare the tensors of one step with those of another. The first is the reference."""
    if not first and not second:
        return OutputCheck(equal=None, text="the step returns nothing to compare")
    shapes = [[(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in side] for side in (first, second)]
    if shapes[0] != shapes[1]:
        return OutputCheck(
            equal=False, text=f"the results have different shapes or types: {shapes[0]} and {shapes[1]}"[:300]
        )
    worst: OutputCheck | None = None
    for a, b in zip(first, second, strict=True):
        checked = _one(a, b)
        if worst is None or _badness(checked) > _badness(worst):
            worst = checked
    assert worst is not None
    return worst


def _badness(checked: OutputCheck) -> float:
    return (checked.error or 0.0) / (checked.tolerance or 1e-30)


def _one(a: Any, b: Any) -> OutputCheck:
    import torch

    kind = str(a.dtype).removeprefix("torch.")
    if not (a.is_floating_point() or a.is_complex()):
        share = float((a != b).double().mean()) if a.numel() else 0.0
        return OutputCheck(equal=share == 0, error=share, tolerance=0.0, text=_share(share, kind))
    tolerance = TOLERANCES.get(kind, TOLERANCES["float32"] if a.is_complex() else _NARROWER)
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return OutputCheck(
            equal=False,
            error=float("inf"),
            tolerance=tolerance,
            text="one has NaN or infinity where the other does not",
        )
    wide = torch.float64 if kind in ("float64", "complex128") else torch.float32
    finite = torch.isfinite(a)
    x, y = (torch.where(finite, t, torch.zeros_like(t)) for t in (a, b))
    if not a.is_complex():
        x, y = x.to(wide), y.to(wide)
    norm, distance = float(torch.linalg.vector_norm(x)), float(torch.linalg.vector_norm(x - y))
    error = distance / norm if norm else distance
    text = f"relative error {error:.1e} in {kind}, {'within' if error <= tolerance else 'above'} {tolerance:g}"
    return OutputCheck(equal=error <= tolerance, error=error, tolerance=tolerance, text=text)


def _share(share: float, kind: str) -> str:
    return f"all values equal ({kind})" if share == 0 else f"{share:.1%} of the values differ ({kind})"
