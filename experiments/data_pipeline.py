"""A training step fed by a DataLoader whose samples take CPU time to make."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from shared import check_least
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Images(IterableDataset[tuple[torch.Tensor, int]]):
    """Endless images, each normalised `passes` times in numpy, which stands for decoding and augmenting it."""

    def __init__(self, size: int, passes: int, seed: int) -> None:
        self.size, self.passes, self.seed = size, passes, seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        generator = np.random.default_rng(self.seed + (worker.id if worker else 0))
        for index in itertools.count():
            image = generator.random((3, self.size, self.size), dtype=np.float32)
            for _ in range(self.passes):
                image = (image - image.mean()) / image.std()
            yield torch.from_numpy(image), index % 10


def loader_of(images: Images, batch: int, workers: int, pin: bool) -> DataLoader[tuple[torch.Tensor, int]]:
    """The DataLoader. Workers are forked if possible: spawned workers could not import this file as a module."""
    context = "fork" if workers and "fork" in multiprocessing.get_all_start_methods() else None
    return DataLoader(images, batch_size=batch, num_workers=workers, pin_memory=pin, multiprocessing_context=context)


def end_workers(batches: Any) -> None:
    """End the workers now instead of when the iterator is garbage-collected."""
    shutdown = getattr(batches, "_shutdown_workers", None)  # only an iterator with workers has it
    if shutdown is not None:
        shutdown()


@contextlib.contextmanager
def build(
    device: torch.device, batch: int, size: int, passes: int, workers: int, pin_memory: bool, channels: int, seed: int
) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield the step: load the next batch, copy it to the device, train a small convolutional model on it."""
    check_least(1, batch=batch, size=size, channels=channels)
    check_least(0, workers=workers, passes=passes, seed=seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * channels, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pin = pin_memory and device.type == "cuda"
    batches = iter(loader_of(Images(size, passes, seed), batch, workers, pin))

    def step() -> torch.Tensor:
        images, labels = next(batches)
        images, labels = images.to(device, non_blocking=pin), labels.to(device, non_blocking=pin)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step.not_capturable = "each step loads another batch"  # type: ignore[attr-defined]
    try:
        yield step
    finally:
        end_workers(batches)
