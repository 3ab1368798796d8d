"""One operator, or a short chain of them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from labelled.steps import Step, graph_of, randn


@contextlib.contextmanager
def matmul_add(device: torch.device, n: int, compile: bool = False, graph: bool = False) -> Iterator[Step]:
    x, w, b = (randn(device, n, n) for _ in range(3))

    def step() -> torch.Tensor:
        return torch.add(torch.matmul(x, w), b)

    with torch.no_grad():
        yield torch.compile(step) if compile else graph_of(step) if graph else step


# ---- products ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def matmul(
    device: torch.device, n: int, m: int | None = None, dtype: str = "bfloat16", tf32: bool = False
) -> Iterator[Step]:
    """[m, n] by [n, n]; m = n if it is not given."""
    x, w = randn(device, m or n, n, dtype=dtype), randn(device, n, n, dtype=dtype)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with torch.no_grad():
            yield lambda: torch.matmul(x, w)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextlib.contextmanager
def scaled_matmul(device: torch.device, m: int, n: int) -> Iterator[Step]:
    """float8 [m, n] by [n, n], with a scale for each of the two."""
    x, w = (randn(device, rows, n, dtype="float8_e4m3fn") for rows in (m, n))
    one = torch.ones((), device=device)
    with torch.no_grad():
        yield lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@contextlib.contextmanager
def int8_matmul(device: torch.device, m: int, n: int) -> Iterator[Step]:
    x, w = (torch.randint(-128, 127, (rows, n), device=device, dtype=torch.int8) for rows in (m, n))
    with torch.no_grad():
        yield lambda: torch._int_mm(x, w.t())


@contextlib.contextmanager
def gemv(device: torch.device, n: int) -> Iterator[Step]:
    a, x = randn(device, n, n), randn(device, n)
    with torch.no_grad():
        yield lambda: torch.mv(a, x)


@contextlib.contextmanager
def batched_matmul(device: torch.device, count: int, n: int) -> Iterator[Step]:
    x, w = randn(device, count, n, n), randn(device, count, n, n)
    with torch.no_grad():
        yield lambda: torch.bmm(x, w)


@contextlib.contextmanager
def sparse_matmul(device: torch.device, rows: int, per_row: int, width: int) -> Iterator[Step]:
    """A CSR matrix with values in random columns, by a dense one."""
    begins = torch.arange(0, rows * per_row + 1, per_row, device=device)
    columns = torch.randint(0, rows, (rows, per_row), device=device).sort(-1).values.flatten()
    values = randn(device, rows * per_row, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        sparse = torch.sparse_csr_tensor(begins, columns, values, (rows, rows))
    dense = randn(device, rows, width, dtype="float32")
    with torch.no_grad():
        yield lambda: sparse @ dense


@contextlib.contextmanager
def attention(
    device: torch.device,
    batch: int,
    heads: int,
    length: int,
    width: int,
    queries: int | None = None,
    causal: bool = False,
) -> Iterator[Step]:
    """`queries` positions, all if it is not given, look at `length` keys."""
    q = randn(device, batch, heads, queries or length, width)
    k, v = (randn(device, batch, heads, length, width) for _ in range(2))
    with torch.no_grad():
        yield lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


@contextlib.contextmanager
def convolution(
    device: torch.device,
    batch: int,
    channels: int,
    size: list[int],
    kernel: int,
    groups: int = 1,
    dtype: str = "float16",
    channels_last: bool = False,
) -> Iterator[Step]:
    """One to three dimensions, as many as `size` has."""
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    x = randn(device, batch, channels, *size, dtype=dtype)
    layer = kinds[len(size)](channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    layer = layer.to(device, getattr(torch, dtype))
    if channels_last:
        layout = {2: torch.channels_last, 3: torch.channels_last_3d}[len(size)]
        x, layer = x.to(memory_format=layout), layer.to(memory_format=layout)
    with torch.no_grad():
        yield lambda: layer(x)


# ---- one value at a time -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def elementwise(device: torch.device, mebibytes: int) -> Iterator[Step]:
    x = torch.ones(mebibytes << 18, device=device)
    with torch.no_grad():
        yield lambda: x.mul_(1.0000001)


@contextlib.contextmanager
def copy(device: torch.device, mebibytes: int) -> Iterator[Step]:
    source = torch.ones(mebibytes << 18, device=device)
    target = torch.empty_like(source)
    with torch.no_grad():
        yield lambda: target.copy_(source)


@contextlib.contextmanager
def transpose(device: torch.device, n: int) -> Iterator[Step]:
    x = randn(device, n, n, dtype="float32")
    with torch.no_grad():
        yield lambda: x.t().contiguous()


@contextlib.contextmanager
def small_chain(device: torch.device, count: int, size: int) -> Iterator[Step]:
    x = randn(device, size, dtype="float32")

    def step() -> torch.Tensor:
        y = x
        for _ in range(count // 2):
            y = torch.tanh(y) + x
        return y

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def log_gamma(device: torch.device, count: int) -> Iterator[Step]:
    x = torch.rand(count, device=device, dtype=torch.float64) * 20 + 0.5
    with torch.no_grad():
        yield lambda: torch.lgamma(x)


@contextlib.contextmanager
def dropout(device: torch.device, mebibytes: int) -> Iterator[Step]:
    x = torch.ones(mebibytes << 18, device=device)
    with torch.no_grad():
        yield lambda: functional.dropout(x, 0.1)


# ---- along a dimension ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def normalize_chain(device: torch.device, rows: int, width: int) -> Iterator[Step]:
    x = randn(device, rows, width, dtype="float32")
    norm = nn.LayerNorm(width, device=device)

    def step() -> torch.Tensor:
        return torch.softmax(norm(torch.softmax(norm(x), -1)), -1)

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def rms_norm(device: torch.device, rows: int, width: int) -> Iterator[Step]:
    x, weight = randn(device, rows, width), randn(device, width)
    with torch.no_grad():
        yield lambda: functional.rms_norm(x, (width,), weight)


def layer_norm_train(device: torch.device, rows: int, width: int) -> Step:
    x = randn(device, rows, width).requires_grad_()
    norm = nn.LayerNorm(width, device=device, dtype=torch.bfloat16)
    slope = randn(device, rows, width)

    def step() -> None:
        x.grad = None
        norm(x).backward(slope)

    return step


def cross_entropy(device: torch.device, rows: int, vocabulary: int) -> Step:
    logits = randn(device, rows, vocabulary).requires_grad_()
    labels = torch.randint(0, vocabulary, (rows,), device=device)

    def step() -> torch.Tensor:
        logits.grad = None
        loss = functional.cross_entropy(logits, labels)
        loss.backward()
        return loss

    return step


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


@contextlib.contextmanager
def total(device: torch.device, mebibytes: int) -> Iterator[Step]:
    x = torch.ones(mebibytes << 18, device=device)
    with torch.no_grad():
        yield x.sum


@contextlib.contextmanager
def running_sum(device: torch.device, count: int) -> Iterator[Step]:
    x = randn(device, count, dtype="float32")
    with torch.no_grad():
        yield lambda: torch.cumsum(x, 0)


@contextlib.contextmanager
def sort(device: torch.device, count: int, dtype: str = "int32") -> Iterator[Step]:
    x = torch.randint(-(2**31), 2**31 - 1, (count,), device=device).to(getattr(torch, dtype))
    with torch.no_grad():
        yield lambda: torch.sort(x)


@contextlib.contextmanager
def largest(device: torch.device, rows: int, width: int, k: int) -> Iterator[Step]:
    x = randn(device, rows, width, dtype="float32")
    with torch.no_grad():
        yield lambda: torch.topk(x, k)


@contextlib.contextmanager
def fourier(device: torch.device, rows: int, width: int, both: bool = False) -> Iterator[Step]:
    """Along each row; with `both`, along both dimensions."""
    x = randn(device, rows, width, dtype="complex64")
    with torch.no_grad():
        yield lambda: torch.fft.fft2(x) if both else torch.fft.fft(x)


# ---- at computed places --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def embedding(device: torch.device, rows: int, width: int, count: int) -> Iterator[Step]:
    table = randn(device, rows, width, dtype="float32")
    index = torch.randint(0, rows, (count,), device=device)
    with torch.no_grad():
        yield lambda: functional.embedding(index, table)


@contextlib.contextmanager
def embedding_bag(device: torch.device, rows: int, width: int, bags: int, per_bag: int) -> Iterator[Step]:
    table = randn(device, rows, width, dtype="float32")
    index = torch.randint(0, rows, (bags, per_bag), device=device)
    with torch.no_grad():
        yield lambda: functional.embedding_bag(index, table, mode="sum")


@contextlib.contextmanager
def gather(device: torch.device, size: int, count: int) -> Iterator[Step]:
    table = randn(device, size, dtype="float32")
    index = torch.randint(0, size, (count,), device=device)
    with torch.no_grad():
        yield lambda: table[index]


@contextlib.contextmanager
def scatter_add(device: torch.device, size: int, count: int) -> Iterator[Step]:
    target = torch.zeros(size, device=device)
    index = torch.randint(0, size, (count,), device=device)
    values = randn(device, count, dtype="float32")
    with torch.no_grad():
        yield lambda: target.scatter_add_(0, index, values)


# ---- linear algebra ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cholesky(device: torch.device, n: int) -> Iterator[Step]:
    x = randn(device, n, n, dtype="float32")
    positive = x @ x.T + n * torch.eye(n, device=device)
    with torch.no_grad():
        yield lambda: torch.linalg.cholesky_ex(positive)


@contextlib.contextmanager
def inverse(device: torch.device, count: int, n: int) -> Iterator[Step]:
    x = randn(device, count, n, n, dtype="float32")
    with torch.no_grad():
        yield lambda: torch.linalg.inv_ex(x)
