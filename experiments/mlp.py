"""A training step of a small multilayer perceptron: forward, loss, backward, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from shared import check_choice, check_least, compiled, dtype_of, keep_in_place
from torch import nn

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def build(
    device: torch.device,
    batch: int,
    width: int,
    layers: int,
    optimizer: str,
    capturable: bool,
    dtype: str,
    compile: str,
    seed: int,
) -> Callable[[], torch.Tensor]:
    """Return the step: `batch` rows through `layers` square layers of `width`, with the given kind of AdamW."""
    check_least(1, batch=batch, width=width, layers=layers)
    check_least(0, seed=seed)
    check_choice("optimizer", optimizer, list(OPTIMIZERS))
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers - 1)]
    model = nn.Sequential(*blocks, nn.Linear(width, width)).to(device, dtype_of(dtype))
    x, target = (torch.randn(batch, width, device=device, dtype=dtype_of(dtype)) for _ in range(2))
    if compile != "none":
        keep_in_place(x, target)
    # Capturable: the step count is on the GPU, so that replaying a CUDA graph of the step increments it.
    adamw = torch.optim.AdamW(
        model.parameters(), lr=1e-4, capturable=capturable and device.type == "cuda", **OPTIMIZERS[optimizer]
    )

    def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(x).float(), target.float())

    run = compiled(loss_of, compile)

    def step() -> torch.Tensor:
        adamw.zero_grad(set_to_none=True)
        loss: torch.Tensor = run(x, target)
        loss.backward()
        adamw.step()
        return loss.detach()

    return step
