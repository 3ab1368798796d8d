"""What to look at where the GPU is busy and none of its units is near its limit.

Each function of `_LOOKS` gives what the figures say of one reason, as a sentence, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proftrack.measures import Measures
from proftrack.record.counters import Counters, Unit
from proftrack.text import brief, counted, short_time
from proftrack.verdict.filling import filling, fills_at_most
from proftrack.verdict.rules import StepFacts
from proftrack.verdict.units import name_of

_NOTABLE = 0.3
"""Share of the GPU's time from which on small grids are a reason. A judgement call, like the next ones."""
_MANY, _SHORT_US = 20, 10.0
"""Kernels in a step, and their mean time, from which on starting and draining them is a reason: about 2 us each."""
_FEW_ACTIVE = 0.8
"""Share of the multiprocessors at work, on average while the GPU is busy, below which many are empty."""
_FEW_WARPS = 0.25
"""Resident warps over those that fit on a multiprocessor at work, below which latency has little to hide behind."""
_FILLED = 0.5
"""Share of the GPU's room for warps that launches can fill, below which it says what limits them."""
_BOTH = 0.2
"""Share of the busy time in kernels of each limit from which on they take turns."""
_WAITING = (
    "Dependent or scattered loads, atomics, barriers and shared memory keep units idle as well: "
    "`proftrack run --counters ncu` shows which, by kernel."
)


def look_at(measures: Measures, facts: StepFacts) -> list[str]:
    """Sentences, each with its figures; the last one says how to find what is left."""
    return [*(text for look in _LOOKS for text in look(measures, facts)), _WAITING]


def _taking_turns(measures: Measures, facts: StepFacts) -> Iterator[str]:
    """The counters are means over the step: in its own kernels each unit may be used more."""
    shares = {limit: us / facts.gpu_busy_us for limit, us in facts.busy_by_limit_us.items()}
    arithmetic, bandwidth = shares.get("arithmetic", 0.0), shares.get("bandwidth", 0.0)
    use = facts.use
    if use is not None and min(arithmetic, bandwidth) >= _BOTH:
        pipe, memory = min(use.pipe_share / arithmetic, 1.0), min(use.memory / bandwidth, 1.0)
        turns = f"in their own kernels the {name_of(use.pipe)} may be at up to {pipe:.0%}, DRAM at up to {memory:.0%}"
        yield (
            f"Kernels limited by arithmetic ({arithmetic:.0%} of the busy time) and by memory ({bandwidth:.0%}) take "
            f"turns, and counters are means over both: {turns}. Start with the largest kernels."
        )


def _small_grids(measures: Measures, facts: StepFacts) -> Iterator[str]:
    total = sum(kernel.total_us for kernel in measures.kernels)
    small = [kernel for kernel in measures.kernels if kernel.small_us]
    share = sum(kernel.small_us for kernel in small) / total if total else 0.0
    if share < _NOTABLE:
        return
    largest = max(small, key=lambda kernel: kernel.small_us)
    blocks = f" ({counted(largest.blocks, 'block')})" if largest.blocks else ""
    yield (
        f"{share:.0%} of the GPU's time is in launches whose grids leave over half of it empty, most of all "
        f"{brief(largest.name, 60)}{blocks}: increase the batch, or merge kernels, so that each has more blocks."
    )


def _short_kernels(measures: Measures, facts: StepFacts) -> Iterator[str]:
    steps = [step for step in measures.per_step if step.outlier is None]
    launched = sum(step.kernels for step in steps) / len(steps) if steps else float(measures.totals.kernels)
    mean = facts.gpu_busy_us / launched if launched else 0.0
    if launched < _MANY or mean > _SHORT_US:
        return
    graph = " A graph does not change that." if measures.replays_graphs else ""
    yield (
        f"{counted(round(launched), 'kernel')} {measures.per} take {short_time(mean)} each, of which starting and "
        f"draining is a good part: fuse them (torch.compile), or do more in each.{graph}"
    )


def _launches(measures: Measures, facts: StepFacts) -> Iterator[str]:
    """What registers, shared memory, blocks and grids allow: the most that warps can hide."""
    filled, text = fills_at_most(measures.kernels), filling(measures.kernels)
    if filled is not None and filled < _FILLED and text is not None:
        yield text


def _few_warps(measures: Measures, facts: StepFacts) -> Iterator[str]:
    """By the counters of the whole step; multiprocessors first, then the warps on those at work."""
    active, warps = _while_busy(facts, "sm_active"), _while_busy(facts, "occupancy")
    if active is None or warps is None or not active:
        return
    if active < _FEW_ACTIVE:
        yield (
            f"{active:.0%} of the multiprocessors are at work on average while the GPU is busy: grids that are too "
            "small, or last waves that fill a part of it."
        )
    if warps < _FEW_WARPS * active:
        yield (
            f"Multiprocessors at work hold {warps / active:.0%} of the warps that fit (occupancy): a block's registers "
            "and shared memory, or too few blocks, limit that."
        )


def _while_busy(facts: StepFacts, unit: Unit) -> float | None:
    counters: Counters | None = facts.counters
    return counters.utilization(unit, facts.counted_busy_fraction) if counters is not None else None


_LOOKS: tuple[Callable[[Measures, StepFacts], Iterator[str]], ...] = (
    _taking_turns,
    _small_grids,
    _short_kernels,
    _launches,
    _few_warps,
)
