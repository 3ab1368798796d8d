"""The labelled workloads of benchmarks/verdict_suite.py: each builds one step on a device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Step = Callable[[], Any]


def randn(device: torch.device, *shape: int, dtype: str = "bfloat16") -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=getattr(torch, dtype))


def graph_of(step: Step) -> Step:
    """The step captured as a CUDA graph; calling the result replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(captured: Step = step) -> None:  # a graph does not keep alive what it reads, its step does
        graph.replay()

    return replay


@contextlib.contextmanager
def matmul_add(device: torch.device, n: int, compile: bool = False, graph: bool = False) -> Iterator[Step]:
    x, w, b = (randn(device, n, n) for _ in range(3))

    def step() -> torch.Tensor:
        return torch.add(torch.matmul(x, w), b)

    with torch.no_grad():
        yield torch.compile(step) if compile else graph_of(step) if graph else step


@contextlib.contextmanager
def matmul(device: torch.device, n: int) -> Iterator[Step]:
    x, w = randn(device, n, n), randn(device, n, n)
    with torch.no_grad():
        yield lambda: torch.matmul(x, w)


@contextlib.contextmanager
def normalize_chain(device: torch.device, rows: int, width: int) -> Iterator[Step]:
    x = randn(device, rows, width, dtype="float32")
    norm = nn.LayerNorm(width, device=device)

    def step() -> torch.Tensor:
        return torch.softmax(norm(torch.softmax(norm(x), -1)), -1)

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def gemv(device: torch.device, n: int) -> Iterator[Step]:
    a, x = randn(device, n, n), randn(device, n)
    with torch.no_grad():
        yield lambda: torch.mv(a, x)


@contextlib.contextmanager
def elementwise(device: torch.device, mebibytes: int) -> Iterator[Step]:
    x = torch.ones(mebibytes << 18, device=device)
    with torch.no_grad():
        yield lambda: x.mul_(1.0000001)


def mlp_train(device: torch.device, batch: int, width: int, hidden: int, graph: bool = False) -> Step:
    model = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    x = randn(device, batch, width)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return graph_of(step) if graph else step


@contextlib.contextmanager
def attention(device: torch.device, batch: int, heads: int, length: int, width: int) -> Iterator[Step]:
    q, k, v = (randn(device, batch, heads, length, width) for _ in range(3))
    with torch.no_grad():
        yield lambda: nn.functional.scaled_dot_product_attention(q, k, v)


def host_copy(device: torch.device, mebibytes: int, pinned: bool) -> Step:
    source = torch.ones(mebibytes << 18, pin_memory=pinned)
    target = torch.empty(mebibytes << 18, device=device)
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


class SlowDataset(torch.utils.data.Dataset[torch.Tensor]):
    """Items that take a millisecond each to decode."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return torch.full((self.width,), float(index % 7))


def slow_loader(device: torch.device, batch: int, width: int) -> Step:
    batches = iter(torch.utils.data.DataLoader(SlowDataset(width), batch_size=batch, num_workers=0))
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches).to(device)).pow(2).mean().backward()
        optimizer.step()

    return step


@contextlib.contextmanager
def host_work(device: torch.device, n: int, milliseconds: float) -> Iterator[Step]:
    """Ten milliseconds of Python and numpy a step, then a product."""
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


@contextlib.contextmanager
def few_blocks_graph(device: torch.device, rows: int, width: int, count: int) -> Iterator[Step]:
    """A graph of softmaxes over a few long rows: one block a row, on a GPU with over a hundred multiprocessors."""
    x = randn(device, rows, width, dtype="float32")

    def step() -> torch.Tensor:
        y = x
        for _ in range(count):
            y = torch.softmax(y, -1)
        return y

    with torch.no_grad():
        yield graph_of(step)


def optimizer_only(device: torch.device, tensors: int, size: int, kind: str, graph: bool = False) -> Step:
    """One AdamW step over many parameters whose gradients stay."""
    params = [nn.Parameter(torch.randn(size, device=device)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, foreach=kind == "foreach", fused=kind == "fused", capturable=graph)
    return graph_of(optimizer.step) if graph else optimizer.step


def resnet(device: torch.device, batch: int) -> Step:
    """ResNet-50 training in float32 without TF32, images made on the GPU."""
    import torchvision

    torch.backends.cudnn.allow_tf32 = False
    model = torchvision.models.resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


@contextlib.contextmanager
def decode(device: torch.device, layers: int, width: int, tokens: int) -> Iterator[Step]:
    """A causal language model from a configuration, generating token after token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    prompt = torch.randint(0, 32000, (1, 64), device=device)
    with torch.no_grad():
        yield lambda: model.generate(
            prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
