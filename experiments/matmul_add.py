"""y = add(matmul(x, w), b): one matrix product and one addition, the smallest step with two kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from shared import check_least, compiled, dtype_of, keep_in_place


@contextlib.contextmanager
def build(device: torch.device, n: int, dtype: str, compile: str, seed: int) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield the step for n x n matrices of `dtype`, compiled in the given mode or not at all."""
    check_least(1, n=n)
    check_least(0, seed=seed)
    kind = dtype_of(dtype)
    generator = torch.Generator(device).manual_seed(seed)
    x, w, b = (torch.randn(n, n, generator=generator, device=device, dtype=kind) for _ in range(3))

    def step() -> torch.Tensor:
        return torch.add(torch.matmul(x, w), b)

    if compile != "none":
        keep_in_place(x, w, b)
    with torch.no_grad():
        yield compiled(step, compile, fullgraph=True)
