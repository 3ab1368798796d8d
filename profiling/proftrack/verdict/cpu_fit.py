"""Whether the measurements on a CPU agree: timing, trace, ceilings, and what else the machine did meanwhile.

On a CPU, work is done when its call returns. So steps take equally long back to back and one by one, profiling only
lengthens a step, no step is shorter than its roofline, and the operators' work fits into the step. If that does not
hold, the measurements are not of this program alone on an otherwise idle machine, and no regime follows from them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple

from proftrack.measures import Measures
from proftrack.record.figures import CpuWork
from proftrack.record.timing import Load, Timing
from proftrack.text import number, short_time
from proftrack.verdict.context import Context
from proftrack.verdict.thresholds import Thresholds

_READING_US = 5.0
"""What reading the clock around a single step may add to it."""
_STARTING_US = 1000.0
"""What the profiler's own work between steps may add to a recorded step."""


class Misfit(NamedTuple):
    """A disagreement. `inconclusive`: no regime follows; `low`: close to that."""

    level: Literal["inconclusive", "low"]
    text: str


def misfits(measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds) -> list[Misfit]:
    """All disagreements, those that make the verdict inconclusive first."""
    timing = context.timing
    unsorted = [
        *_threads(measures, cpu, context, time, limits),
        *(_load(timing.load, limits) if timing is not None and timing.load is not None else ()),
        *(_timing(timing, limits) if timing is not None else ()),
        *_roofline(measures, context, time, limits),
        *_trace(measures, cpu, context, time, limits),
    ]
    return sorted(unsorted, key=lambda misfit: misfit.level != "inconclusive")


def _threads(measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds) -> Iterator[Misfit]:
    inside = cpu.operators_us / measures.steps
    if not context.threads_are_known and inside < limits.cpu_seen * time:
        yield Misfit(
            "inconclusive",
            f"Operators take {short_time(inside)} of a {short_time(time)} step in the recorded threads, and threads "
            "that the program starts were neither recorded nor watched: the work may be in them.",
        )
    share = context.unrecorded_threads(limits)
    if share is not None:
        yield Misfit(
            "inconclusive",
            f"Threads that the program starts used {share:.0%} of a core while steps were timed, and their operators "
            "were not recorded: their work is not in the trace.",
        )


def _load(load: Load, limits: Thresholds) -> Iterator[Misfit]:
    """Whether there was more to run than cores."""
    others = load.share(load.others_us)
    beside = f"; other processes used {others:.2g} of {load.cores} cores" if load.others_us is not None else ""
    if load.waited_us is not None:
        waited = load.share(load.waited_us)
        if waited > limits.cpu_waited_low:
            yield Misfit(
                "inconclusive" if waited > limits.cpu_waited else "low",
                f"More load than cores: while steps were timed, a thread of this program waited {waited:.0%} of the "
                f"time for a core{beside}.",
            )
    elif load.others_us is not None and others + load.share(load.process_us) > limits.cpu_full * load.cores:
        part = others / load.cores
        if part > limits.cpu_others_low:
            yield Misfit(
                "inconclusive" if part > limits.cpu_others else "low",
                f"More load than cores: while steps were timed, no core was free{beside}.",
            )


def _timing(timing: Timing, limits: Thresholds) -> Iterator[Misfit]:
    """Whether the timed steps agree. That they wait for data differently says nothing about the machine."""
    wait = timing.input_wait_us or 0.0
    blocks = sorted(timing.back_to_back.samples_waiting_us(wait))
    if blocks:
        low, high = blocks[len(blocks) // 10], blocks[-1 - len(blocks) // 10]
        if high > limits.cpu_blocks_low * low:
            yield Misfit(
                "inconclusive" if high > limits.cpu_blocks * low else "low",
                f"The timed blocks differ by a factor of {number(high / low)}: the machine's state changed, or the "
                "steps differ.",
            )
    if timing.synchronised is None:
        return
    single = statistics.median(timing.synchronised.samples_waiting_us(wait) or [timing.synchronised.us])
    together = statistics.median(blocks or [timing.step_time_us])
    shorter, longer = sorted((single, together))
    if longer - shorter > _READING_US and longer > limits.cpu_modes_low * shorter:
        yield Misfit(
            "inconclusive" if longer > limits.cpu_modes * shorter else "low",
            f"A step takes {short_time(together)} back to back and {short_time(single)} one by one; on a CPU the two "
            "should be equal, so the machine's state changed, or the steps differ.",
        )


def _roofline(measures: Measures, context: Context, time: float, limits: Thresholds) -> Iterator[Misfit]:
    if context.ceilings is not None and context.ceilings.waited > limits.cpu_waited:
        yield Misfit(
            "low",
            "The ceilings and the cost of calls were measured on a busy machine: a thread waited "
            f"{context.ceilings.waited:.0%} of the time for a core.",
        )
    roofline = context.roofline_us(measures)
    if roofline is not None and roofline > limits.roofline_slack * time:
        yield Misfit(
            "inconclusive",
            f"The roofline time of {short_time(roofline)} exceeds the step's {short_time(time)}: the ceilings were "
            "measured on a busy machine, the work is miscounted, or the data stays in the caches (proftrack doctor "
            "--recalibrate measures the ceilings again).",
        )


def _trace(measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds) -> Iterator[Misfit]:
    """Whether the recorded steps agree with T."""
    work = sum(cpu.working_us.values()) / measures.steps
    if work > limits.slow_under_profiler * time:
        yield Misfit(
            "inconclusive" if work > limits.not_the_same_work * time else "low",
            f"The operators' work in the trace ({short_time(work)} per step) does not fit into a step of "
            f"{short_time(time)}.",
        )
    traced = context.traced_host_us(measures)
    if traced is None:
        return
    if time > limits.cpu_over_traced_low * traced:
        yield Misfit(
            "inconclusive" if time > limits.cpu_over_traced * traced else "low",
            f"A step takes {short_time(time)} without the profiler and {short_time(traced)} with it; profiling only "
            "lengthens a step, so something else ran while steps were timed.",
        )
    dispatch = context.ceilings.dispatch_us if context.ceilings is not None else None
    profiling = _STARTING_US + limits.inflation_short * (dispatch or 0.0) * cpu.operators / measures.steps
    if traced - profiling > limits.longer_than_traced * time:
        yield Misfit(
            "inconclusive",
            f"A recorded step takes {short_time(traced)}, and one without the profiler {short_time(time)}; profiling "
            "does not account for that, so something else ran while steps were recorded.",
        )
