"""FLOPs and bytes of one operator from its shapes: by hand, and beside torch's own counter on real calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from proftrack.measures.costs import Cost, cost_of
from proftrack.trace.reader import read

FLOAT, HALF = "float", "c10::BFloat16"


def cost(name: str, dims: list[Any], types: list[str], concrete: list[str] | None = None) -> Cost | None:
    texts = concrete if concrete is not None else [""] * len(dims)
    return cost_of(name, json.dumps(dims).encode(), json.dumps(types).encode(), json.dumps(texts).encode())


@pytest.mark.parametrize(
    ("name", "dims", "types", "flops", "elements"),
    [
        ("aten::mm", [[3, 4], [4, 5]], [FLOAT] * 2, 2 * 3 * 4 * 5, 12 + 20 + 15),
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], [FLOAT] * 3 + ["Scalar"] * 2, 2 * 3 * 4 * 5, 5 + 12 + 20 + 15),
        ("aten::bmm", [[2, 3, 4], [2, 4, 5]], [FLOAT] * 2, 2 * 2 * 3 * 4 * 5, 24 + 40 + 30),
        ("aten::mv", [[3, 4], [4]], [FLOAT] * 2, 2 * 3 * 4, 12 + 4 + 3),
        ("aten::linear", [[2, 3, 4], [5, 4], [5]], [FLOAT] * 3, 2 * 6 * 4 * 5, 24 + 20 + 5 + 30),
        ("aten::add", [[3, 4], [4], []], [FLOAT] * 2 + ["Scalar"], 12, 12 + 4 + 12),
        ("aten::add_", [[3, 4], [4], []], [FLOAT] * 2 + ["Scalar"], 12, 12 + 4 + 12),
        (
            # Both products of 2 x 4 heads: 16 x 12 x (8 + 6) multiply-adds each.
            "aten::_scaled_dot_product_flash_attention",
            [[2, 4, 16, 8], [2, 4, 12, 8], [2, 4, 12, 6]],
            [FLOAT] * 3,
            2 * 8 * 16 * 12 * (8 + 6),
            8 * (16 * 8 + 12 * 8 + 12 * 6 + 16 * 6),
        ),
        ("aten::copy_", [[3, 4], [4]], [FLOAT] * 2, 0, 12 + 4),
        ("aten::zero_", [[3, 4]], [FLOAT], 0, 12),
        ("aten::sum", [[3, 4]], [FLOAT], 12, 12),
        ("aten::_softmax", [[3, 4], [], []], [FLOAT, "Scalar", "Scalar"], 60, 24),
    ],
)
def test_worked_out_by_hand(name: str, dims: list[Any], types: list[str], flops: int, elements: int) -> None:
    assert cost(name, dims, types) == Cost(flops, 4 * elements, "float32")


def test_embedding_reads_the_rows_asked_for() -> None:
    found = cost("aten::embedding", [[1000, 8], [2, 3]], [HALF, "long int"])
    assert found == Cost(0, 6 * 8 + 2 * (6 * 8) * 2, "bfloat16")


def test_an_overload_is_its_operator() -> None:
    assert cost("aten::add.Tensor", [[3], [3]], [FLOAT] * 2) == cost("aten::add", [[3], [3]], [FLOAT] * 2)


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::unheard_of", [[3]], [FLOAT]),
        ("mine::add", [[3], [3]], [FLOAT] * 2),
        ("aten::mm", [[3, 4], [5, 6]], [FLOAT] * 2),  # do not multiply
        ("aten::mm", [[3, 4]], [FLOAT]),
        ("aten::mm", [], []),
        ("aten::mm", [[[3, 4]], [4, 5]], [FLOAT] * 2),
        ("aten::mm", [[3, -4], [-4, 5]], [FLOAT] * 2),
        ("aten::mm", [[2**40, 2**40], [2**40, 5]], [FLOAT] * 2),
        ("aten::add", [[10**400], [1]], [FLOAT] * 2),
        ("aten::_scaled_dot_product_flash_attention_backward", [[10**400, 1, 1, 1]] * 4, [HALF] * 4),
    ],
)
def test_what_cannot_be_is_not_counted(name: str, dims: list[Any], types: list[str]) -> None:
    assert cost(name, dims, types) is None


X, W = torch.ones(2, 8, 12, 12), torch.ones(6, 8, 3, 3)
XG, WG, VG = (t.clone().requires_grad_() for t in (X, W, torch.ones(8, 6, 3, 3)))


@pytest.mark.parametrize(
    ("step", "operators"),
    [
        (lambda: torch.mm(torch.ones(7, 8), torch.ones(8, 9)), {"aten::mm"}),
        (lambda: torch.addmm(torch.ones(9), torch.ones(7, 8), torch.ones(8, 9)), {"aten::addmm"}),
        (lambda: torch.baddbmm(torch.ones(2, 7, 9), torch.ones(2, 7, 8), torch.ones(2, 8, 9)), {"aten::baddbmm"}),
        (lambda: F.conv2d(X, W), {"aten::convolution"}),
        (lambda: F.conv2d(X, W, stride=2, padding=1), {"aten::convolution"}),
        (lambda: F.conv2d(X, W, padding=(2, 0), dilation=(2, 1)), {"aten::convolution"}),
        (lambda: F.conv2d(X, torch.ones(8, 2, 3, 3), groups=4), {"aten::convolution"}),
        (lambda: F.conv1d(torch.ones(2, 8, 12), torch.ones(6, 8, 3)), {"aten::convolution"}),
        (lambda: F.conv_transpose2d(X, torch.ones(8, 6, 3, 3), stride=2), {"aten::convolution"}),
        (lambda: F.conv_transpose2d(X, torch.ones(8, 3, 3, 3), padding=1, groups=2), {"aten::convolution"}),
        (lambda: F.conv2d(XG, WG, padding=1).sum().backward(), {"aten::convolution", "aten::convolution_backward"}),
        (
            lambda: F.conv_transpose2d(XG, VG, stride=2).sum().backward(),
            {"aten::convolution", "aten::convolution_backward"},
        ),
    ],
)
def test_as_torchs_own_counter(step: Callable[[], object], operators: set[str], tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as counter:
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        step()
    found.export_chrome_trace(str(tmp_path / "t.json"))
    table = read(tmp_path / "t.json").table
    costs = [
        cost_of(table.names[name], *table.signatures[signature])
        for name, signature in zip(table.name.tolist(), table.signature.tolist(), strict=True)
        if table.names[name] in operators
    ]
    assert all(costs)
    assert sum(each.flops for each in costs if each) == counter.get_total_flops()
