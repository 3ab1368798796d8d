"""Workloads that capture their step as a CUDA graph themselves, and replay it; for the tests that need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

F = nn.functional
Step = Callable[[], Any]


def graph_of(step: Step) -> Step:
    """Replays the step, captured when it is warm."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Any:
        graph.replay()
        return result

    replay.step = step  # type: ignore[attr-defined]  # the graph does not keep alive what it reads
    return replay


def matmul_add(device: torch.device) -> Step:
    """A product and a sum."""
    x, w = (torch.randn(512, 512, device=device) for _ in range(2))
    b = torch.randn(512, device=device)
    return graph_of(lambda: x @ w + b)


def training(device: torch.device) -> Step:
    """Forward, backward and fused AdamW of a small perceptron."""
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    adam = torch.optim.AdamW(net.parameters(), capturable=True, fused=True)
    x, target = torch.randn(64, 256, device=device), torch.randint(0, 10, (64,), device=device)

    def step() -> Any:
        adam.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        adam.step()
        return loss.detach()

    return graph_of(step)


class Attention(nn.Module):
    """Attention to a cache."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(4, heads, tokens, width // heads))

    def forward(self, x: Any, position: Any) -> Any:
        """Attend."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Decoder(nn.Module):
    """Two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 128), nn.Linear(128, 100)
        self.layers = nn.ModuleList(Attention(128, 4, 64) for _ in range(2))

    def forward(self, token: Any, position: Any) -> Any:
        """The next token."""
        x = self.embed(token)
        for layer in self.layers:
            x = x + layer(x, position)
        return self.head(x).argmax(-1)


def decoder(device: torch.device) -> Step:
    """One token at a time, with a cache of keys and values."""
    model = Decoder().to(device).eval()
    token, position = (
        torch.zeros(4, 1, dtype=torch.long, device=device),
        torch.zeros(1, dtype=torch.long, device=device),
    )

    @torch.no_grad()
    def step() -> Any:
        token.copy_(model(token, position))
        position.add_(1).remainder_(64)

    return graph_of(step)


def two_branches(device: torch.device) -> Step:
    """A second stream works beside the first."""
    x, side = torch.randn(512, 512, device=device), torch.cuda.Stream()

    def step() -> Any:
        y = x @ x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = (x @ x).relu()
        y = (y @ x).relu()
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    return graph_of(step)
