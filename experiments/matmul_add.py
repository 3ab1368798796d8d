"""y = add(matmul(x, w), b): one matrix product and one addition, the smallest step with two kernels."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Sequence

import torch

DTYPES = ("bfloat16", "float16", "float32", "float64")
COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")


@contextlib.contextmanager
def build(device: torch.device, n: int, dtype: str, compile: str, seed: int) -> Iterator[Callable[[], torch.Tensor]]:
    """Give the step for n x n matrices of `dtype`, compiled in the mode named or not at all."""
    if n < 1:
        raise ValueError(f"n={n} is not allowed; it must be 1 or more")
    if seed < 0:
        raise ValueError(f"seed={seed} is not allowed; it must be 0 or more")
    check_choice("dtype", dtype, DTYPES)
    check_choice("compile", compile, COMPILE_MODES)

    generator = torch.Generator(device).manual_seed(seed)
    x, w, b = (torch.randn(n, n, generator=generator, device=device, dtype=getattr(torch, dtype)) for _ in range(3))

    def step() -> torch.Tensor:
        return torch.add(torch.matmul(x, w), b)

    with torch.no_grad():
        yield step if compile == "none" else compiled(step, compile, (x, w, b))


def compiled(step: Callable[[], torch.Tensor], mode: str, inputs: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Compile the step; it is compiled (and autotuned) when it first runs."""
    for tensor in inputs:
        # CUDA graphs copy inputs that could move before every replay; these stay where they are.
        torch._dynamo.mark_static_address(tensor)
    return torch.compile(step, mode=mode, fullgraph=True)


def check_choice(param: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError, with a close match, where `value` is not among those allowed."""
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{param}={value} is not allowed; it must be one of {', '.join(allowed)}{meant}")
