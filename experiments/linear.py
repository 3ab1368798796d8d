"""One nn.Linear: forward, or forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from shared import check_choice, check_least, compiled, dtype_of, keep_in_place
from torch import nn

PASSES = ("forward", "forward-backward")


@contextlib.contextmanager
def build(
    device: torch.device, batch: int, features: int, passes: str, dtype: str, compile: str, seed: int
) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield the step: `batch` rows through a square layer of `features`."""
    check_least(1, batch=batch, features=features)
    check_least(0, seed=seed)
    check_choice("passes", passes, PASSES)
    torch.manual_seed(seed)
    layer = nn.Linear(features, features, device=device, dtype=dtype_of(dtype))
    # Compute the input's gradient too, as for a layer in the middle of a model.
    x = torch.randn(batch, features, device=device, dtype=dtype_of(dtype), requires_grad=passes != "forward")
    upstream = torch.randn(batch, features, device=device, dtype=dtype_of(dtype))
    if compile != "none":
        keep_in_place(x, upstream)
    run = compiled(layer, compile)

    def forward() -> torch.Tensor:
        return run(x)

    def forward_backward() -> torch.Tensor:
        y = run(x)
        y.backward(upstream)
        gradient = layer.weight.grad
        assert gradient is not None
        layer.weight.grad = layer.bias.grad = x.grad = None  # or backward would add to them, with an extra kernel
        return gradient

    with torch.set_grad_enabled(passes != "forward"):
        yield forward if passes == "forward" else forward_backward
