"""What the workloads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], Any]


def randn(device: torch.device, *shape: int, dtype: str = "bfloat16") -> torch.Tensor:
    """Random values: zeros take less power, so that clocks differ."""
    if dtype.startswith("float8"):
        return torch.randn(*shape, device=device, dtype=torch.bfloat16).to(getattr(torch, dtype))
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
