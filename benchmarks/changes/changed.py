"""y = add(matmul(x, w), b) in bfloat16, and the same with one change of known cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def build(device: torch.device, n: int, change: str) -> Iterator[Callable[[], torch.Tensor]]:
    """Give the step; `change` says what is added to it."""
    if change not in ("none", "launches", "item", "compiled"):
        raise ValueError(f"change={change} is not allowed; it must be none, launches, item or compiled")
    x, w, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(3))
    tiny = torch.zeros(64, device=device)

    def step() -> torch.Tensor:
        y = torch.add(torch.matmul(x, w), b)
        if change == "launches":
            for _ in range(3):
                tiny.add_(1.0)
        elif change == "item":
            tiny[0].item()
        return y

    with torch.no_grad():
        yield torch.compile(step) if change == "compiled" else step
