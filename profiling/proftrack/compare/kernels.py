"""What a kernel's name reveals: the library that it comes from, and the tile that each of its blocks computes."""

from __future__ import annotations

import re
from functools import lru_cache

# Tried in this order: the more telling prefix first.
_LIBRARIES: tuple[tuple[str, str], ...] = (
    ("FlashAttention", r"flash_(?:fwd|bwd)|pytorch_flash|flash::|FlashAttn"),
    ("cuDNN", r"cudnn|^sm\d+_xmma|xmma_(?:fprop|dgrad|wgrad)"),
    (
        "cuBLAS",
        r"^nvjet|cublas|^(?:ampere|volta|turing|hopper|sm\d+)_\w*gemm|gemv2|gemvNSP|splitKreduce_kernel",
    ),
    ("CUTLASS", r"cutlass"),
    ("Triton", r"^triton_"),
    ("rocBLAS or hipBLASLt", r"^Cijk_"),
    ("Composable Kernel", r"ck_tile|^ck::|kernel_gemm_xdl"),
    ("MIOpen", r"miopen|Miopen"),
    ("NCCL", r"nccl|rccl"),
    ("ATen", r"at::native|at_cuda_detail|at::cuda"),
)
_COMPILED = tuple((library, re.compile(pattern)) for library, pattern in _LIBRARIES)
_TILE = re.compile(r"(?<![0-9A-Za-z])(?:tile|tilesize)?_?(\d{1,3})x(\d{1,3})(?:x\d{1,3})?(?![0-9])")


@lru_cache(maxsize=65536)
def library(name: str) -> str | None:
    """The library of a kernel; None if the name does not reveal it."""
    return next((origin for origin, pattern in _COMPILED if pattern.search(name)), None)


@lru_cache(maxsize=65536)
def tile(name: str) -> str | None:
    """The output tile of a matmul or convolution kernel, such as 256x128; None if the name has none."""
    match = _TILE.search(name.replace("_", " ").replace("tilesize", " ").replace("tile", " "))
    return f"{match[1]}x{match[2]}" if match else None


def new_name(before: str, after: str) -> str:
    """What a kernel's new name means for the same operator on the same shapes."""
    notes = []
    if before.startswith("Memcpy") and after.startswith("Memcpy"):
        return "another kind of copy"
    old, new = library(before), library(after)
    if old != new and old and new:
        notes.append(f"library {old} -> {new}")
    old_tile, new_tile = tile(before), tile(after)
    if old_tile != new_tile and old_tile and new_tile:
        notes.append(f"tile {old_tile} -> {new_tile}")
    return ", ".join(notes) or "another kernel"
