"""A training step of a small MLP in DistributedDataParallel: gloo between CPUs, NCCL between GPUs.

    torchrun --nproc-per-node 2 -m proftrack run ddp

Without torchrun there is one rank.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from shared import check_least, dtype_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def build(
    device: torch.device, batch: int, width: int, layers: int, straggle_us: int, dtype: str, seed: int
) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield the step. Rank 0 sleeps `straggle_us` in each one, so that the others wait for it."""
    check_least(1, batch=batch, width=width, layers=layers)
    check_least(0, straggle_us=straggle_us, seed=seed)
    kind = dtype_of(dtype)
    with process_group(device):
        torch.manual_seed(seed)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        model = nn.Sequential(*blocks).to(device, kind)
        parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        x = torch.randn(batch, width, device=device, dtype=kind)
        late = straggle_us / 1e6 if dist.get_rank() == 0 else 0.0

        def step() -> torch.Tensor:
            if late:
                time.sleep(late)
            optimizer.zero_grad(set_to_none=True)
            loss = parallel(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        yield step


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The process group of torchrun, or one with a single rank."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        if dist.is_torchelastic_launched():
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, init_method=(Path(folder) / "store").as_uri(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
