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

    # On a CPU (verdict/cpu_fit.py). Judgement calls, all of them: each says how far two figures may lie apart that are
    # the same on a machine with nothing else to do. Beyond the first the verdict is inconclusive, beyond `_low` its
    # confidence is low.
    cpu_blocks: float = 2.0
    """The 90th over the 10th percentile of the timed blocks."""
    cpu_blocks_low: float = 4 / 3
    cpu_modes: float = 1.5
    """Step times back to back and one by one, the longer over the shorter."""
    cpu_modes_low: float = 1.2
    cpu_over_traced: float = 1.5
    """T over the recorded step."""
    cpu_over_traced_low: float = 1.2
    cpu_waited: float = 0.2
    """Share of the timed period in which a thread that was ready to run had no core."""
    cpu_waited_low: float = 0.05
    cpu_full: float = 0.9
    """Where waiting is not counted: share of all cores in use from which on none was free."""
    cpu_others: float = 0.25
    """And the share of all cores that other processes used."""
    cpu_others_low: float = 0.1
    other_threads: float = 0.1
    """Share of a core that threads may use whose operators were not recorded."""
    off_cpu: float = 0.2
    """Share of T in which the steps' thread may be off the processor without that being waiting."""
    cpu_freeing: float = 2.0
    """Time between operators over the time of those that move memory, under which it may be the freeing of their
    results: the pages of a large tensor are given back on one thread, outside of any operator. Chosen after a chain of
    large elementwise operators on 16 cores spent as long in freeing as in computing."""
    host_work_dispatches: float = 100.0
    """Time between operators, for each of them, that is no longer the price of calling it from Python: so many empty
    dispatches. Within a factor of two of that the confidence is low."""

    def as_dict(self) -> dict[str, float]:
        """For the record."""
        return {k: float(v) for k, v in msgspec.structs.asdict(self).items()}


THRESHOLDS = Thresholds()
