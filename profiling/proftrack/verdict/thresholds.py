"""The limits between regimes, in one place; every record stores them."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Thresholds(Struct, frozen=True, kw_only=True):
    """Shares are fractions. docs/verdict.md gives the rules that use them."""

    gpu_bound_from: float = 0.8
    """u at or above which the GPU limits the step."""
    overhead_bound_to: float = 0.5
    """u at or below which a step with no other cause is overhead-bound; above, it is mixed."""
    cause_share: float = 0.5
    """Share of T - B that one cause must explain."""
    kernel_share: float = 0.5
    """Share of B that one limit must take."""

    # What limits a busy GPU (verdict/rules.py: ruling). The limits for counters were set looking at 22 GPU-bound
    # workloads on one H200, all of which they judge as labelled: that is no proof.
    counters_moving: float = 0.1
    """Share of B in exposed copies and collectives from which on counters do not judge: they count the whole step."""
    unit_limits: float = 0.6
    """Use of a unit, as a share of what is reachable, from which on it is the limit."""
    unit_lead: float = 0.2
    """How far that unit must be ahead of the other for high confidence."""
    unit_bears: float = 0.3
    """Below `unit_limits`: the use of a unit without which kernels are not limited by it, whatever their names say."""
    unit_at_limit: float = 0.9
    """Use of a unit above which only less work for it helps: what is left, at most a ninth, is within what the load
    that reaches the most varies by from size to size. A judgement call."""
    counted_share: float = 0.8
    """Without counters: share of B that must be in work whose FLOPs and bytes are known for high confidence. From the
    definition of the verdict, like the next one: what is left could not turn the regime."""
    off_ridge: float = 2.0
    """Without counters: how far that work's FLOPs a byte must be from the ridge, where both limits are equal."""
    far_from_roofline: float = 3.0
    """Without counters: how many times as long as its FLOPs and bytes need that work may take for its limit to be sure.
    The inverse of `unit_bears`: a unit that is used less is not the limit."""
    slow_under_profiler: float = 1.05
    """B / T above which the kernels ran slower under the profiler."""
    not_the_same_work: float = 1.25
    """B / T above which trace and timing are not of the same work."""
    longer_than_traced: float = 2.0
    """T over the traced step above which the two are not of the same work."""
    short_step_us: float = 1000.0
    """Profiling inflates steps shorter than this the most."""
    inflation_short: float = 4.0
    """How much profiling can inflate dispatch in short steps."""
    inflation_long: float = 2.0
    long_step: float = 1.5
    """The longest typical step over the mean of the others: beyond, it may be a step of another kind than they are,
    and a verdict that rests on it is uncertain. A judgement call."""
    near: float = 0.05
    """Distance of u or a share from a limit below which the regime is uncertain."""
    silent_launches: float = 0.2
    """Share of launch calls without recorded work above which the GPU was not measured well enough."""
    invalid_share: float = 0.05
    """Share of GPU work without usable times above which the figures do not support a verdict."""

    impossible_share: float = 0.05
    """Share of B that may be cut off GPU work whose stream rules it out. That a trace's times are wrong by more says
    that the others may be, too; a judgement call, as invalid_share is."""

    roofline_slack: float = 1.05
    """R / B above this is impossible: the ceilings are off."""
    uncounted_share: float = 0.2
    """Share of GPU time without known FLOPs and bytes above which a flag is raised."""
    headroom_uncounted: float = 0.1
    """Share of B in uncounted work above which R is too low a bound to derive a headroom from."""
    notable: float = 0.05
    """Share of T that following an advice must be able to save; less is not advised. As much as `gate` lets a step time
    grow before it fails: nobody would notice."""
    low_clock: float = 0.9
    """Share of the highest clock below which the GPU did not run at full speed."""

    # On a CPU (verdict/cpu_fit.py). All of these are judgement calls: each says how far apart two figures may be that
    # are equal on an otherwise idle machine. Beyond the first the verdict is inconclusive, beyond `_low` its confidence
    # is low.
    cpu_blocks: float = 2.0
    """The 90th over the 10th percentile of the timed blocks."""
    cpu_blocks_low: float = 4 / 3
    cpu_modes: float = 1.5
    """The longer over the shorter of the step times back to back and one by one."""
    cpu_modes_low: float = 1.2
    cpu_over_traced: float = 1.5
    """T over the recorded step."""
    cpu_over_traced_low: float = 1.2
    cpu_waited: float = 0.2
    """Share of the timed period in which a thread that was ready to run had no core."""
    cpu_waited_low: float = 0.05
    cpu_full: float = 0.9
    """If waiting is not counted: share of all cores in use above which no core was free."""
    cpu_others: float = 0.25
    """In that case, the share of all cores that other processes used."""
    cpu_others_low: float = 0.1
    other_threads: float = 0.1
    """Share of a core that threads with unrecorded operators may use."""
    cpu_seen: float = 0.05
    """Share of the step in operators below which others may have run in threads that were not recorded. A judgement
    call, like the others."""
    off_cpu: float = 0.2
    """Share of T for which the steps' thread may be off the processor before that counts as waiting."""
    cpu_freeing: float = 2.0
    """Time between operators over the time of those that move memory, below which it may be spent freeing their
    results: the pages of a large tensor are returned by one thread, outside any operator. Chosen after a chain of
    large elementwise operators on 16 cores spent as long freeing as computing."""
    host_work_dispatches: float = 100.0
    """Time between operators, per operator, above which it is no longer the cost of calling it from Python; in empty
    dispatches. Within a factor of two of this, confidence is low."""

    def as_dict(self) -> dict[str, float]:
        """For the record."""
        return {k: float(v) for k, v in msgspec.structs.asdict(self).items()}


THRESHOLDS = Thresholds()
