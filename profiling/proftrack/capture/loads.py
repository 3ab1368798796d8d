"""The work by which a device is measured: products of large matrices, and a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proftrack.capture import compat
from proftrack.capture.device import Device


def product(device: Device, dtype: str, n: int) -> Callable[[], Any]:
    """A product of two n x n matrices of random values: zeros would switch fewer transistors.

    float8: as if it had been scaled; int8: into int32; tfloat32: of float32. Raises RuntimeError or AttributeError
    without the memory or such a product.
    """
    import torch

    if dtype == "int8":
        x, w = (torch.randint(-128, 128, (n, n), device=device.torch_device, dtype=torch.int8) for _ in range(2))
        return compat.int8_product(x, w.t())
    stored = getattr(torch, "float32" if dtype == "tfloat32" else dtype)
    x, w = (torch.randn(n, n, device=device.torch_device).to(stored) for _ in range(2))
    if dtype == "float8_e4m3fn":
        return compat.float8_product(x, w.t())
    out = torch.empty_like(x)
    return lambda: torch.mm(x, w, out=out)


def copy(device: Device, size: int) -> tuple[Callable[[], Any], int]:
    """A copy of so many bytes within the device's memory, and how many they are: fewer on a small or a full device."""
    import torch

    while True:
        try:
            source = torch.ones(size, dtype=torch.uint8, device=device.torch_device)
            target = torch.empty_like(source)
            break
        except RuntimeError:
            if not size:  # it is not for lack of memory
                raise
            size //= 4
    return lambda: target.copy_(source), size
