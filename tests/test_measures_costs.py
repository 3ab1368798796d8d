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

from proftrack.measures import costs
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


FP8, INT8, LONG = "c10::Float8_e4m3fn", "signed char", "long int"


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "wanted"),
    [
        (  # [16, 32] x [32, 8] into bfloat16, with two scales of float32
            "aten::_scaled_mm",
            [[16, 32], [32, 8], [], [], [], [], [], []],
            [FP8, FP8, FLOAT, FLOAT, "", "", "Scalar", "Scalar"],
            ["", "", "", "", "", "", "15", "False"],
            Cost(2 * 16 * 32 * 8, 512 + 256 + 8 + 2 * 128, "float8_e4m3fn"),
        ),
        (
            "aten::_int_mm",
            [[16, 32], [32, 8]],
            [INT8, INT8],
            None,
            Cost(2 * 16 * 32 * 8, 512 + 256 + 4 * 128, "int8"),
        ),
        (  # 12 rows in 3 groups, each with a weight of its own
            "aten::_grouped_mm",
            [[12, 8], [3, 8, 4], [3], [], []],
            [HALF, HALF, "int", "", ""],
            None,
            Cost(2 * 12 * 8 * 4, 2 * 96 + 2 * 96 + 12 + 2 * 48, "bfloat16"),
        ),
        (  # the gradient of those weights: 3 results of 8 x 4
            "aten::_grouped_mm",
            [[8, 12], [12, 4], [3], [], []],
            [HALF, HALF, "int", "", ""],
            None,
            Cost(2 * 12 * 8 * 4, 2 * 96 + 2 * 48 + 12 + 2 * 96, "bfloat16"),
        ),
        (
            "aten::_weight_int8pack_mm",
            [[4, 32], [16, 32], [16]],
            [HALF, INT8, HALF],
            None,
            Cost(2 * 4 * 32 * 16, 256 + 512 + 32 + 128, "bfloat16"),
        ),
        (  # 2 x 3 transforms of 8 x 4 points
            "aten::_fft_c2c",
            [[2, 3, 8, 4], [], [], []],
            ["c10::complex<float>", "ScalarList", "Scalar", "Scalar"],
            ["", "[2, 3]", "0", "True"],
            Cost(5 * 192 * 5, 2 * 8 * 192, "float32"),
        ),
        (  # 6 rows of 8 into 2 bags
            "aten::_embedding_bag",
            [[1000, 8], [6], [2]],
            [FLOAT, LONG, LONG],
            None,
            Cost(48, 8 * 8 + 4 * (48 + 16), "float32"),
        ),
        (  # 5 steps of 3 sequences; an LSTM of 16: gates of 64
            "aten::_cudnn_rnn",
            [[5, 3, 8], [[64, 8], [64, 16], [64], [64]], []],
            [FLOAT, "TensorList", "Scalar"],
            None,
            Cost(2 * 15 * 64 * 24, 4 * (120 + 64 * 26 + 15 * 16), "float32"),
        ),
        (  # 4 x 4 pairs, of which 10 are not later
            "aten::_flash_attention_forward",
            [[1, 4, 2, 8]] * 3 + [[], [], [], [], [], [], []],
            [HALF] * 3 + [""] * 7,
            ["", "", "", "", "", "4", "4", "0.", "True", "False"],
            Cost(2 * 2 * 10 * 16, 2 * 4 * 64, "bfloat16"),
        ),
        (
            "aten::_efficient_attention_forward",
            [[1, 4, 2, 8]] * 3 + [[]] * 8,
            [FLOAT] * 3 + [""] * 8,
            ["", "", "", "", "", "", "", "", "0.", "1", "True"],
            Cost(2 * 2 * 10 * 16, 4 * 4 * 64, "float32"),
        ),
        (  # one query of 4 keys, aligned at the first: it sees one
            "aten::_scaled_dot_product_cudnn_attention",
            [[1, 2, 1, 8], [1, 2, 4, 8], [1, 2, 4, 8], [], [], [], []],
            [HALF] * 3 + [""] * 4,
            ["", "", "", "", "False", "0.", "True"],
            Cost(2 * 2 * 1 * 16, 2 * (16 + 64 + 64 + 16), "bfloat16"),
        ),
        (  # depthwise: kernel size, stride, padding, dilation
            "aten::_conv_depthwise2d",
            [[1, 4, 8, 8], [4, 1, 3, 3], [], [], [], [], []],
            [FLOAT, FLOAT, "", "", "", "", ""],
            ["", "", "[3, 3]", "", "[1, 1]", "[1, 1]", "[1, 1]"],
            Cost(2 * 256 * 9, 4 * (256 + 36 + 256), "float32"),
        ),
    ],
)
def test_operators_beyond_plain_products(
    name: str, dims: list[Any], types: list[str], concrete: list[str] | None, wanted: Cost
) -> None:
    assert cost(name, dims, types, concrete) == wanted


@pytest.mark.parametrize(
    ("mask", "flops", "written"),
    [("[True, True, False]", 2 * 2 * 800 * 9, 1152 + 72), ("[False, True, False]", 2 * 800 * 9, 72)],
)
def test_gradients_that_are_not_wanted_cost_nothing(mask: str, flops: int, written: int) -> None:
    """x of 8 x 12 x 12, each channel for itself: 8 x 10 x 10 outputs of 9 products."""
    dims = [[1, 8, 10, 10], [1, 8, 12, 12], [8, 1, 3, 3], *[[]] * 8]
    lists = ["", "", "", "[8]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "8", mask]
    found = cost("aten::convolution_backward", dims, [FLOAT] * 3 + ["ScalarList"] * 8, lists)
    assert found == Cost(flops, 4 * (800 + 1152 + 72 + written), "float32")


@pytest.mark.parametrize(("allowed", "dtype"), [("True", "tfloat32"), ("False", "float32")])
def test_a_convolution_tells_whether_it_may_use_tf32(allowed: str, dtype: str) -> None:
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", allowed]
    types = [FLOAT, FLOAT, *["ScalarList"] * 3, *["Scalar"] * 4]
    found = cost("aten::cudnn_convolution", [[1, 4, 8, 8], [2, 4, 3, 3], *[[]] * 7], types, concrete)
    assert found == Cost(2 * 128 * 36, 4 * (256 + 72 + 128), dtype)


def test_a_transposed_convolution_of_cudnn() -> None:
    """8 x 8 of 4 channels become 16 x 16 of 2; padding, extra padding, stride, dilation."""
    concrete = ["", "", "[0, 0]", "[0, 0]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    types = [HALF, HALF, *["ScalarList"] * 4, *["Scalar"] * 4]
    found = cost("aten::cudnn_convolution_transpose", [[1, 4, 8, 8], [4, 2, 2, 2], *[[]] * 8], types, concrete)
    assert found == Cost(2 * 256 * 8, 2 * (256 + 32 + 512), "bfloat16")


def test_packed_sequences_are_not_told_by_shapes() -> None:
    dims = [[100, 2, 8]] * 3 + [[5], [5], [], [], [], [], []]
    assert cost("aten::_flash_attention_forward", dims, [HALF] * 3 + ["int"] * 2 + [""] * 5) is None


@pytest.mark.parametrize(
    ("queries", "keys", "bottom", "wanted"),
    [(4, 4, False, 10), (2, 5, False, 3), (2, 5, True, 4 + 5), (5, 2, False, 1 + 2 * 4), (5, 2, True, 1 + 2)],
)
def test_pairs_below_the_diagonal(queries: int, keys: int, bottom: bool, wanted: int) -> None:
    assert costs._pairs_below(queries, keys, bottom) == wanted


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
