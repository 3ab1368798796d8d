"""Kernels written in Triton, whose names say nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from labelled.steps import Step, randn

_BLOCK = 1024


@triton.jit
def step_a(source, target, count, rounds: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A polynomial of degree `rounds` of each value."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count)
    y = x
    for _ in range(rounds):
        y = y * x + 0.5
    tl.store(target + at, y, mask=at < count)


@triton.jit
def step_b(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A copy."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def step_c(source, target, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The softmax of a row."""
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    x = tl.load(source + row + at, mask=at < width, other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    tl.store(target + row + at, (x / tl.sum(x, 0)).to(target.dtype.element_ty), mask=at < width)


@triton.jit
def step_d(source, target, count, rounds: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A hash of each value, mixed `rounds` times."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count)
    for _ in range(rounds):
        x = (x ^ (x >> 15)) * 0x2C1B3C6D
        x = (x ^ (x << 7)) + at
    tl.store(target + at, x, mask=at < count)


@triton.jit
def step_e(matrix, scale, vector, target, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row of an int8 matrix by a vector."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(vector + at, mask=at < width, other=0.0).to(tl.float32)
        total += tl.load(matrix + row * width + at, mask=at < width, other=0).to(tl.float32) * x
    tl.store(target + row, (tl.sum(total, 0) * tl.load(scale + row)).to(tl.bfloat16))


@contextlib.contextmanager
def polynomial(device: torch.device, count: int, degree: int) -> Iterator[Step]:
    x = randn(device, count, dtype="float32")
    out = torch.empty_like(x)
    yield lambda: step_a[(triton.cdiv(count, _BLOCK),)](x, out, count, degree, _BLOCK)


@contextlib.contextmanager
def copy(device: torch.device, mebibytes: int) -> Iterator[Step]:
    x = randn(device, mebibytes << 18, dtype="float32")
    out = torch.empty_like(x)
    yield lambda: step_b[(triton.cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), _BLOCK)


@contextlib.contextmanager
def softmax(device: torch.device, rows: int, width: int) -> Iterator[Step]:
    x = randn(device, rows, width)
    out = torch.empty_like(x)
    yield lambda: step_c[(rows,)](x, out, width, triton.next_power_of_2(width), num_warps=8)


@contextlib.contextmanager
def mixing(device: torch.device, count: int, rounds: int) -> Iterator[Step]:
    x = torch.randint(-(2**31), 2**31 - 1, (count,), device=device, dtype=torch.int32)
    out = torch.empty_like(x)
    yield lambda: step_d[(triton.cdiv(count, _BLOCK),)](x, out, count, rounds, _BLOCK)


@contextlib.contextmanager
def int8_gemv(device: torch.device, rows: int, width: int) -> Iterator[Step]:
    """What a decoder with int8 weights does for each of its layers."""
    matrix = torch.randint(-128, 127, (rows, width), device=device, dtype=torch.int8)
    scale, x = randn(device, rows, dtype="float32"), randn(device, width)
    out = torch.empty(rows, device=device, dtype=torch.bfloat16)
    yield lambda: step_e[(rows,)](matrix, scale, x, out, width, 4096, num_warps=4)
