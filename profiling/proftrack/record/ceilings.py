"""A device's attainable rates, measured on the device itself: never taken from a data sheet or from another device."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from proftrack.record.counters import Unit

PARALLEL = "(a call on all threads)"
"""A key of `Ceilings.call_us` that is not an operator: the price of waking the threads, measured with a 128 KB fill."""


REPLAYED_GRAPH = "(a replayed CUDA graph)"
"""An entry of `StepWork.uncounted_ops` that is no operator: the capture of that graph was not seen."""


class Ceilings(Struct, frozen=True, kw_only=True):
    """Attainable rates of one device with one driver and one torch."""

    device: str
    flops_per_s: dict[str, float]
    """By torch's dtype name: a large matmul of random values, the best of several sizes (dense, no sparsity)."""
    bytes_per_s: float
    """Bytes read and written per second by a large copy within the device's memory."""
    dispatch_us: float | None = None
    """CPU: cost of an operator that has almost nothing to do."""
    call_us: dict[str, float] = {}
    """CPU: self time by operator, inside torch.profiler, of calls on one thread that have almost nothing to do.
    The entry PARALLEL is added if all threads take part."""
    reachable: dict[Unit, float] = {}
    """GPU: what these loads and a copy reach of each unit's peak, by NVML's counters: 0 to 1. Only units that one of
    them loads."""
    waited: float = 0.0
    """CPU: share of the time in which a measuring thread had no core because other programs used the machine."""
    measured_ns: int = 0
    """Epoch nanoseconds."""

    def rate(self, dtype: str) -> float | None:
        """FLOP/s of this dtype, None if unknown. Where TF32 was not measured, float32 that may use it has its own."""
        own = self.flops_per_s.get(dtype)
        return self.flops_per_s.get("float32") if own is None and dtype == "tfloat32" else own

    def time_us(self, flops: float, size: float, dtype: str) -> float | None:
        """Roofline time of this much work; None if the rate for this dtype is unknown and FLOPs matter."""
        rate = self.rate(dtype)
        moving = size / self.bytes_per_s * 1e6
        if rate is None:
            return moving if flops <= size else None
        return max(flops / rate * 1e6, moving)


class StepWork(Struct, frozen=True, kw_only=True):
    """The least work of one step. A lower bound if parts of it were not counted (`uncounted_share`)."""

    flops_by_dtype: dict[str, float]
    bytes: float | None
    """The least: each external input, parameter and output of the step once."""
    source: Literal["counted", "shapes"]
    """counted: by running one step under a dispatch counter; shapes: from the operators' shapes in the trace."""
    dtypes: list[str] = []
    """Floating types that the step's operators take, by torch's names; empty if they were not counted."""
    uncounted_ops: list[str] = []
    """Operators whose work is neither in the FLOPs nor in the bytes, such as `aten.sort` and custom ones."""
    launched_kernels: list[str] = []
    """Kernels that Python launched without an operator (Triton), which no counter sees: their work is not counted."""
    uncounted_share: float | None = None
    """Share of the GPU's time in work that was not counted, by the trace; None if there is no trace to tell it."""

    @property
    def flops(self) -> float:
        """Sum over all dtypes."""
        return sum(self.flops_by_dtype.values())

    def roofline_time_us(self, ceilings: Ceilings) -> float | None:
        """R: the larger of FLOPs / attainable rate and least bytes / attainable bandwidth (Williams et al., 2009).

        What was not counted is not in it, so that it is a lower bound in any case. None if a rate is unknown or nothing
        was counted. Without bytes it is the arithmetic alone.
        """
        arithmetic = 0.0
        for dtype, flops in self.flops_by_dtype.items():
            rate = ceilings.rate(dtype)
            if rate is None:
                return None
            arithmetic += flops / rate * 1e6
        return max(arithmetic, (self.bytes or 0.0) / ceilings.bytes_per_s * 1e6) or None
