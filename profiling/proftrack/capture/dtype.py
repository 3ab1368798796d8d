"""The type that a workload computes in: resolving `dtype: auto`, and types that this CPU only emulates."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct

from proftrack.capture.ceilings import DTYPES
from proftrack.capture.device import Device, one_thread
from proftrack.experiment import Experiment

PARAM, AUTO = "dtype", "auto"
_NARROW = ("bfloat16", "float16")
_WIDE = "float32"
_SLOW = 2.0
"""A narrower type is reported if it is this many times slower than float32. It should be faster."""
_SIZES = (256, 512)
"""An emulated product gets slower as it outgrows the caches; larger sizes would take seconds."""
_REPEATS = 3
_PROBE_SECONDS = 0.5


def resolved(experiment: Experiment, device: Device) -> Experiment:
    """The experiment with `dtype: auto` replaced: bfloat16 on a GPU that supports it, else float32."""
    if experiment.params.get(PARAM) != AUTO:
        return experiment
    chosen = "bfloat16" if device.has_bfloat16() else _WIDE
    return msgspec.structs.replace(experiment, params={**experiment.params, PARAM: chosen})


def declared(experiment: Experiment) -> str | None:
    """The type named by the experiment's `dtype`; None if there is none, or it has no ceiling."""
    value: Any = experiment.params.get(PARAM)
    return value if isinstance(value, str) and value in DTYPES else None


class Emulated(Struct, frozen=True):
    """A narrower type that is slower than float32 on this CPU. Rates in FLOP/s of a small product on one thread."""

    dtype: str
    rate: float
    wide_rate: float
    threads: int

    @property
    def ratio(self) -> float:
        """How many times slower than float32."""
        return self.wide_rate / self.rate

    @property
    def best_rate(self) -> float:
        """Upper bound in FLOP/s, if all threads were as fast as one alone."""
        return self.rate * self.threads

    def sentence(self) -> str:
        """A note for the user, with the figures."""
        return f"{self._comparison()}: {PARAM}={_WIDE} is faster here."

    def remedy(self) -> str:
        """What to do about it, with the figures."""
        return f"{self._comparison()}, so use {PARAM}={_WIDE}"

    def _comparison(self) -> str:
        return (
            f"{self.dtype} is {self.ratio:.0f} times slower than {_WIDE} on this CPU ({self.rate / 1e9:.2g} against "
            f"{self.wide_rate / 1e9:.3g} GFLOP/s on one thread)"
        )


def emulated(experiment: Experiment, device: Device) -> Emulated | None:
    """Whether the CPU only emulates the experiment's type, measured with small products (tenths of a second)."""
    import torch

    dtype = declared(experiment)
    if device.is_gpu or dtype not in _NARROW:
        return None
    wide, rate = _thread_rate(_WIDE), _thread_rate(dtype)
    if rate is None or wide is None or wide < _SLOW * rate:
        return None
    return Emulated(dtype, rate, wide, torch.get_num_threads())


def _thread_rate(dtype: str) -> float | None:
    """FLOP/s of a small product on one thread, by the thread's CPU clock, which other programs do not affect.

    None if this type has no matrix product.
    """
    import torch

    rate = None
    try:
        with one_thread():
            for n in _SIZES:
                if rate is None or 2 * n**3 / rate < _PROBE_SECONDS:
                    rate = _product_rate(n, getattr(torch, dtype))
    except RuntimeError:  # not implemented
        return None
    return rate


def _product_rate(n: int, dtype: Any) -> float:
    import torch

    x, w = (torch.randn(n, n).to(dtype) for _ in range(2))
    best, end = 0.0, time.thread_time() + _PROBE_SECONDS
    for _ in range(_REPEATS):
        begin = time.thread_time()
        torch.mm(x, w)
        best = max(best, 2 * n**3 / max(time.thread_time() - begin, 1e-9))
        if time.thread_time() > end:
            break
    return best
