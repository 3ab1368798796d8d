"""Shared by the workloads here: rejecting parameters with a clear message, and torch.compile by mode."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch

DTYPES = ("bfloat16", "float16", "float32", "float64")
COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")


def check_choice(param: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError, with a close match, if `value` is not allowed."""
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{param}={value} is not allowed; it must be one of {', '.join(allowed)}{meant}")


def check_least(least: int, **params: int) -> None:
    """Raise ValueError for the first parameter below `least`."""
    for param, value in params.items():
        if value < least:
            raise ValueError(f"{param}={value} is not allowed; it must be {least} or more")


def dtype_of(name: str) -> torch.dtype:
    """The torch.dtype for a `dtype` parameter. Raises ValueError for a name that is not in DTYPES."""
    check_choice("dtype", name, DTYPES)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def compiled(function: Callable[..., Any], mode: str, *, fullgraph: bool = False) -> Callable[..., Any]:
    """`function` compiled in the given mode, or unchanged for `none`. Raises ValueError for an unknown mode.

    Compiling and autotuning happen on the first call.
    """
    check_choice("compile", mode, COMPILE_MODES)
    return function if mode == "none" else torch.compile(function, mode=mode, fullgraph=fullgraph)


def keep_in_place(*tensors: torch.Tensor) -> None:
    """Mark tensors whose address is fixed: torch.compile's CUDA graphs copy other inputs at every replay."""
    for tensor in tensors:
        torch._dynamo.mark_static_address(tensor)
