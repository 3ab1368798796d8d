"""Whether counted FLOPs and bytes say what limits a busy GPU, where no hardware counters do."""

from __future__ import annotations

from msgspec import structs

from proftrack.measures import Measures
from proftrack.record.figures import Limit
from proftrack.record.verdict import Regime
from proftrack.verdict.context import Context
from proftrack.verdict.rules import StepFacts
from proftrack.verdict.thresholds import Thresholds

_LIMIT_OF: dict[Regime, Limit] = {"compute-bound": "arithmetic", "memory-bound": "bandwidth"}
_NEEDS: dict[Limit, str] = {"arithmetic": "the arithmetic", "bandwidth": "the bytes"}


def doubt_of_work(
    name: Regime, facts: StepFacts, measures: Measures, context: Context, limits: Thresholds
) -> str | None:
    """Why counted work does not tell compute-bound from memory-bound; None if it does, or the regime is another one.

    It does if the step needs most of B for one of the two at the attainable rate, and far less for the other. Or if
    nearly all of B is in kernels with known work, and that is far off the ridge.
    """
    wanted = _LIMIT_OF.get(name)
    fills = _fills(facts, measures, context, limits)
    if wanted is None or fills == wanted:
        return None
    if fills is not None:
        return f"At the attainable rate, over half of the busy time is needed for {_NEEDS[fills]} of the step's work."
    counted = measures.counted
    known = (counted.busy_us / measures.window.typical_steps + facts.moving_us) / facts.gpu_busy_us
    if round(known, 6) < limits.counted_share:
        return (
            f"{1 - known:.0%} of the busy time is in kernels whose FLOPs and bytes are not known: what limits them is "
            "judged by their names."
        )
    limit = counted.limit(limits.off_ridge)
    if limit == wanted:
        return _distance(measures, context, limits)
    if limit is None:
        near = f"within {limits.off_ridge:g}x of the ridge, where arithmetic and memory traffic take equally long"
        return f"The counted work's FLOPs per byte are {near}."
    other = "The kernels that take most of the time are not most of the work"
    return f"{other}: all counted work together is limited by {limit}."


def _distance(measures: Measures, context: Context, limits: Thresholds) -> str | None:
    """That the counted kernels are too far from the roofline for either of its limits to hold them back."""
    if context.ceilings is None:
        return None
    counted = measures.counted
    times = (counted.busy_us - counted.copied_us) / max(counted.roofline_us(context.ceilings), 1e-9)
    if times <= limits.far_from_roofline:
        return None
    return f"The kernels take {times:.0f}x as long as their FLOPs and bytes need: something else may limit them."


def _fills(facts: StepFacts, measures: Measures, context: Context, limits: Thresholds) -> Limit | None:
    """What takes over half of B even at the attainable rate, and twice as long as the other, by the step's work.

    The bytes are the least that a step must move, each tensor once: its kernels may move more.
    """
    work, ceilings = context.work_of(measures), context.ceilings
    if work is None or ceilings is None:
        return None
    needs: dict[Limit, float] = {
        "arithmetic": structs.replace(work, bytes=None).roofline_time_us(ceilings) or 0.0,
        "bandwidth": structs.replace(work, flops_by_dtype={}).roofline_time_us(ceilings) or 0.0,
    }
    limit, other = sorted(needs, key=lambda each: -needs[each])
    fills = needs[limit] > limits.kernel_share * facts.gpu_busy_us and needs[limit] >= limits.off_ridge * needs[other]
    return limit if fills else None
