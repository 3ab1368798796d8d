"""Copies between host and device, data loading, the host's own work, and waits for the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch
from torch import nn

from labelled.steps import Step, randn


def host_copy(device: torch.device, mebibytes: int, pinned: bool, back: bool = False) -> Step:
    """To the device, or `back` from it."""
    here = torch.ones(mebibytes << 18, pin_memory=pinned)
    there = torch.ones(mebibytes << 18, device=device)
    source, target = (there, here) if back else (here, there)
    return lambda: target.copy_(source, non_blocking=pinned)


@contextlib.contextmanager
def hidden_copies(device: torch.device, n: int, mebibytes: int) -> Iterator[Step]:
    """Each step multiplies, while the next batch is copied from pinned memory on a second stream."""
    x, w = randn(device, n, n), randn(device, n, n)
    source = torch.ones(mebibytes << 18, pin_memory=True)
    target = torch.empty(mebibytes << 18, device=device)
    copies = torch.cuda.Stream()

    def step() -> torch.Tensor:
        with torch.cuda.stream(copies):
            target.copy_(source, non_blocking=True)
        out = torch.matmul(x, w)
        torch.cuda.current_stream().wait_stream(copies)
        copies.wait_stream(torch.cuda.current_stream())
        return out

    with torch.no_grad():
        yield step


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """Items that take so many milliseconds each to decode."""

    def __init__(self, width: int, milliseconds: float) -> None:
        self.width, self.milliseconds = width, milliseconds

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + self.milliseconds / 1000
        while time.perf_counter() < until:
            pass
        return torch.full((self.width,), float(index % 7))


def slow_loader(device: torch.device, batch: int, width: int, workers: int = 0, ahead: int | None = None) -> Step:
    """Items of a millisecond each, decoded by `workers` processes that may each be `ahead` batches ahead."""
    items = Items(width, 1.0)
    loader = torch.utils.data.DataLoader(items, batch_size=batch, num_workers=workers, prefetch_factor=ahead)
    batches = iter(loader)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches).to(device)).pow(2).mean().backward()
        optimizer.step()

    return step


def fed_training(
    device: torch.device, batch: int, crops: int, width: int, hidden: int, layers: int, workers: int
) -> Step:
    """Items that cost nothing, from several processes; each is cut into `crops` on the device, and trained on.

    Batches are pinned: a pageable copy would wait for the step before, and the device then for the host.
    """
    on_gpu = device.type == "cuda"
    items = Items(width, 0.0)
    loader = torch.utils.data.DataLoader(items, batch_size=batch, num_workers=workers, pin_memory=on_gpu)
    batches = iter(loader)
    pairs = [(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(layers)]
    model = nn.Sequential(*(layer for pair in pairs for layer in pair)).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=on_gpu)
    noise = randn(device, batch * crops, width)

    def step() -> None:
        optimizer.zero_grad()
        x = next(batches).to(device, non_blocking=True).bfloat16().repeat(crops, 1) + noise
        model(x).float().pow(2).mean().backward()
        optimizer.step()

    return step


@contextlib.contextmanager
def host_work(device: torch.device, n: int, milliseconds: float) -> Iterator[Step]:
    """So many milliseconds of Python and numpy a step, then a product."""
    import numpy as np

    x, w = randn(device, n, n), randn(device, n, n)
    values = np.random.default_rng(0).random(50_000)

    def step() -> torch.Tensor:
        until = time.perf_counter() + milliseconds / 1000
        while time.perf_counter() < until:
            np.sort(values)
        return torch.matmul(x, w)

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def text_work(device: torch.device, words: int, width: int) -> Iterator[Step]:
    """A text is cut into words and numbered in plain Python, then looked up on the device."""
    text = " ".join(f"word{i % 997}" for i in range(words))
    table = randn(device, 1000, width)

    def step() -> torch.Tensor:
        numbers: dict[str, int] = {}
        tokens = [numbers.setdefault(word.lower().strip(), len(numbers)) for word in text.split(" ")]
        return table[torch.tensor(tokens, device=device)].sum(0)

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def item_loop(device: torch.device, n: int, small_operators: int) -> Iterator[Step]:
    """Ten times: a product whose sum is read back, then operators that a queue would have hidden behind it."""
    x, w = randn(device, n, n), randn(device, n, n)
    y = torch.zeros(64, device=device)

    def step() -> float:
        total = 0.0
        for _ in range(10):
            total += torch.matmul(x, w).sum().item()
            for _ in range(small_operators):
                y.add_(1.0)
        return total

    with torch.no_grad():
        yield step
