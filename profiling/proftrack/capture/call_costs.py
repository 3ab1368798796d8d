"""The cost of calling an operator on this CPU: the self time of calls that do almost no work, under the profiler.

The verdict subtracts these from the operators' self times in a trace (measures.work.cpu_work): the rest is work.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from proftrack.capture.compat import recorded_events
from proftrack.capture.device import one_thread
from proftrack.record.ceilings import PARALLEL

_CALLS = 15
_SECONDS = 0.1
"""For each kind of call: on a busy machine a call that wakes threads takes tens of milliseconds."""
_FLUSHED_BYTES = 8 << 20


def call_costs() -> dict[str, float]:
    """Median self time in microseconds of some seventy operators, including wrappers and autograd's.

    The caches are flushed before each call: the few recorded steps of a trace run cold, and cost several times as much
    as calls in a hot loop. Measured on one thread, because waking the others has its own entry, PARALLEL: the minimum,
    which a busy machine disturbs less.
    """
    import torch

    costs: dict[str, float] = {}
    # With gradients in any case: the costs of autograd's own operators are needed too.
    with torch.enable_grad(), one_thread():
        for call in _calls():
            with contextlib.suppress(RuntimeError):  # an operator that this build lacks
                for name, times in _self_times(call).items():
                    costs[name] = max(statistics.median(times), costs.get(name, 0.0))
    block = torch.ones(1 << 17, dtype=torch.uint8)
    costs[PARALLEL] = min(_self_times(lambda: block.fill_(1))["aten::fill_"])
    return costs


def _calls() -> list[Callable[[], Any]]:
    """Small calls of the operators that most programs use."""
    import torch
    from torch.nn import functional

    one, pair, batch = torch.ones(1), torch.ones(2, 2), torch.ones(1, 2, 2)
    image, filters = torch.ones(2, 3, 8, 8), torch.ones(8, 3, 3, 3)
    index = torch.zeros(2, dtype=torch.long)
    heads = torch.ones(1, 1, 2, 8)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU(), torch.nn.LayerNorm(2), torch.nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(model.parameters()), torch.optim.AdamW(model.parameters())]

    def train() -> None:
        functional.cross_entropy(model(pair), index).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return [
        lambda: torch.add(one, one),
        lambda: torch.mul(one, 1.5),
        lambda: one.mul_(1.0),
        lambda: torch.matmul(pair, pair),
        lambda: torch.addmm(pair, pair, pair),
        lambda: torch.bmm(batch, batch),
        lambda: torch.sum(pair),
        lambda: torch.mean(pair, 0),
        lambda: torch.relu(pair),
        lambda: torch.tanh(pair),
        lambda: torch.softmax(pair, 0),
        lambda: torch.cat([pair, pair]),
        pair.clone,
        lambda: pair[index],
        lambda: functional.embedding(index, pair),
        lambda: functional.conv2d(image, filters),
        lambda: functional.scaled_dot_product_attention(heads, heads, heads),
        train,
    ]


def _self_times(call: Callable[[], Any]) -> dict[str, list[float]]:
    """Self times of each operator in `call`, in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    from proftrack.capture.profiling import quiet

    other = np.zeros(_FLUSHED_BYTES, dtype=np.uint8)
    for _ in range(3):
        call()
    # proftrack records shapes by default, which takes time within a call.
    with quiet(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            other += 1
            call()
            if time.perf_counter() - begin > _SECONDS:
                break
    events = [e for e in recorded_events(profiler) if not e.is_user_annotation()]
    times: dict[str, list[float]] = {}
    for name, self_ns in _nested(events):
        times.setdefault(name, []).append(self_ns / 1e3)
    return times


def _nested(events: list[Any]) -> list[tuple[str, int]]:
    """Name and self time of each event; all are on one thread."""
    rows = sorted((e.start_ns(), -e.duration_ns(), e.name()) for e in events)
    self_times = [-negative for _, negative, _ in rows]
    running: list[int] = []
    for i, (start, negative, _) in enumerate(rows):
        while running and rows[running[-1]][0] - rows[running[-1]][1] <= start:
            running.pop()
        if running:
            self_times[running[-1]] += negative
        running.append(i)
    return [(name, max(ns, 0)) for (_, _, name), ns in zip(rows, self_times, strict=True)]
