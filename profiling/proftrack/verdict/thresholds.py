"""The limits between regimes, in one place; stamped on every record."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Thresholds(Struct, frozen=True, kw_only=True):
    """Shares are fractions. DESIGN section 6 gives the rules that they are part of."""

    gpu_bound_from: float = 0.8
    """u at and above which the GPU holds the step back."""
    overhead_bound_to: float = 0.5
    """u at and below which a step without another cause is overhead-bound; above it is mixed."""
    cause_share: float = 0.5
    """Share of T - B that one cause must explain."""
    kernel_share: float = 0.5
    """Share of B that one limit must take."""
    slow_under_profiler: float = 1.05
    """B / T above which the kernels ran slower under the profiler."""
    not_the_same_work: float = 1.25
    """B / T above which trace and timing are not of the same work."""
    longer_than_traced: float = 2.0
    """T over the traced step above which they are not of the same work either."""
    short_step_us: float = 1000.0
    """Steps under this are inflated most by profiling."""
    inflation_short: float = 4.0
    """How much profiling can inflate dispatch in short steps."""
    inflation_long: float = 2.0
    near: float = 0.05
    """Distance of u to a limit under which the regime is not certain."""
    silent_launches: float = 0.2
    """Share of launch calls without recorded work above which the GPU was not measured well enough."""
    invalid_share: float = 0.05
    """Share of GPU work without usable times above which the figures do not carry a verdict."""

    roofline_slack: float = 1.05
    """R over B times this cannot be: the ceilings are off."""
    uncounted_share: float = 0.2
    """Share of GPU time without known FLOPs and bytes that is worth a flag."""
    low_clock: float = 0.9
    """Share of the highest clock under which the GPU did not run as fast as it can."""

    def as_dict(self) -> dict[str, float]:
        """For the record."""
        return {k: float(v) for k, v in msgspec.structs.asdict(self).items()}


THRESHOLDS = Thresholds()
