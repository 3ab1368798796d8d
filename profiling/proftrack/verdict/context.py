"""What a verdict may use besides the trace."""

from __future__ import annotations

import statistics

from msgspec import Struct

from proftrack.measures import Measures
from proftrack.record.ceilings import REPLAYED_GRAPH, Ceilings, StepWork
from proftrack.record.counters import Counters
from proftrack.record.environment import GpuState
from proftrack.record.figures import KernelKind
from proftrack.record.timing import Timing
from proftrack.verdict.thresholds import Thresholds

_OF_COMPILER = "triton_"
"""How the names of the kernels begin that torch.compile generates."""
_ARITHMETIC: tuple[KernelKind, ...] = ("matmul", "gemv", "convolution", "attention")
_COUNTS_DIFFER = 1.1
"""Counted FLOPs and those by shapes may differ this much: formulas treat masks and padding differently."""


class Context(Struct, frozen=True, kw_only=True):
    """Everything measured outside the profiler. A bare trace may have none of it."""

    timing: Timing | None = None
    step_time_us: float | None = None
    """An unprofiled step time given by the user; `timing` takes precedence."""
    ceilings: Ceilings | None = None
    work: StepWork | None = None
    gpu: GpuState | None = None
    counters: Counters | None = None
    all_threads: bool = False
    """Whether threads that the program starts were recorded."""

    @property
    def unprofiled_us(self) -> float | None:
        """T if it was measured without the profiler, else None."""
        return self.timing.chosen.us if self.timing is not None else self.step_time_us

    def input_wait_us(self, step_us: float | None = None) -> float | None:
        """How long a step that takes this long (default: T) waits for its data, measured without the profiler.

        None if that was not measured, or if it called no data loader.
        """
        if self.timing is None or self.timing.input_wait_us is None:
            return None
        near = self.timing.chosen.input_wait_us(step_us) if step_us is not None else None
        return self.timing.input_wait_us if near is None else near

    def waits_beyond_trace_us(self, measures: Measures) -> float:
        """By how much a step waits longer for data without the profiler than in the trace; 0 if that is unknown."""
        wait, part = self.input_wait_us(), measures.loading
        if wait is None:
            return 0.0
        return max(wait - (part.timed_us / measures.window.typical_steps if part is not None else 0.0), 0.0)

    def traced_host_us(self, measures: Measures) -> float | None:
        """How long the recorded steps take on the host, the median; as if they had waited for data as long as a step
        does without the profiler, if that is known: then the mean, for one recorded step may wait for all."""
        if not measures.per_step:
            return None
        hosts, wait, part = [step.host_us for step in measures.per_step], self.input_wait_us(), measures.loading
        if wait is None:
            return statistics.median(hosts)
        return (sum(hosts) - (part.timed_us if part is not None else 0.0)) / len(hosts) + wait

    def counted_step_us(self, step_time_us: float) -> float:
        """The time of the steps during which counters ran, if T is this: they ran back to back."""
        if self.timing is not None and self.timing.chosen.noun == "step":
            return self.timing.back_to_back.us
        return step_time_us

    @property
    def threads_are_known(self) -> bool:
        """Whether threads that the program starts were recorded, or at least their use of the processors was."""
        return self.all_threads or (self.timing is not None and self.timing.load is not None)

    def unrecorded_threads(self, limits: Thresholds) -> float | None:
        """The share of a core used by threads with unrecorded operators; None if negligible."""
        load = self.timing.load if self.timing is not None else None
        if self.all_threads or load is None:
            return None
        share = load.share(load.python_threads_us)
        return share if share > limits.other_threads else None

    def work_of(self, measures: Measures) -> StepWork | None:
        """A step's work: as counted, else from the operators' shapes in the trace.

        Of a graph whose capture was not counted, the trace may know more: if another one names all of its kernels.
        None if operators ran on several threads of a CPU: counting sees only one of them.
        """
        if measures.cpu is not None and measures.cpu.threads > 1:
            return None
        if self.work is not None and not (REPLAYED_GRAPH in self.work.uncounted_ops and _all_named(measures)):
            return self.work
        shapes, steps = measures.work, measures.window.typical_steps
        if shapes is None or not shapes.flops_by_dtype:
            return self.work
        flops = {dtype: total / steps for dtype, total in shapes.flops_by_dtype.items()}
        return StepWork(flops_by_dtype=flops, bytes=None, source="shapes", uncounted_ops=shapes.uncounted)

    def uncounted_share(self, measures: Measures) -> float:
        """Share of the GPU's (without one, the CPU's) time in work that R leaves out, as far as that shows.

        0 if the work is unknown.
        """
        work, total = self.work_of(measures), measures.totals.self_cuda_time_total_us
        if work is None:
            return 0.0
        if not total:
            on_cpu = measures.totals.self_cpu_time_total_us
            return min(_ops_us(work.uncounted_ops, measures) / on_cpu, 1.0) if on_cpu else 0.0
        if work.source == "shapes":
            unknown = measures.work.uncounted_us if measures.work is not None else 0.0
            # Arithmetic alone is counted: it says nothing about kernels that wait for memory.
            moving = measures.busy_by_limit_us.get("bandwidth", 0.0) / max(
                sum(measures.busy_by_limit_us.values()), 1e-9
            )
            return min(max(unknown / total, moving), 1.0)
        known = [_named_us(work, measures), _launched_us(work, measures), _missed_us(work, measures)]
        return min(sum(known) / total, 1.0)

    def uncounted_names(self, measures: Measures) -> list[str]:
        """What was not counted, with its names in the trace, the largest first: operators, then kernels."""
        work = self.work_of(measures)
        if work is None:
            return []
        if work.source == "shapes":
            return work.uncounted_ops
        operators = [_row_name(name) for name in work.uncounted_ops]
        kernels = {**dict.fromkeys(work.launched_kernels, 0.0), **_own_kernels(work, measures)}
        return [
            *sorted(operators, key=lambda name: -measures.whole_us.get(name, 0.0)),
            *sorted(kernels, key=lambda name: -kernels[name]),
        ]

    def roofline_us(self, measures: Measures) -> float | None:
        """R, or None if the ceilings or the work are unknown."""
        work = self.work_of(measures)
        return None if work is None or self.ceilings is None else work.roofline_time_us(self.ceilings)


def _all_named(measures: Measures) -> bool:
    return measures.named_us > 0 and not measures.replayed_us


def _named_us(work: StepWork, measures: Measures) -> float:
    """GPU time of the operators that the counter names because it could not count them.

    A replayed graph shows no operators: there a kernel belongs to one if it has its name. If none has, the whole graph
    counts, for any of its kernels may be meant.
    """
    if REPLAYED_GRAPH in work.uncounted_ops:
        return measures.replayed_us + measures.named_us + _ops_us(work.uncounted_ops, measures)
    hidden = [name for name in work.uncounted_ops if _row_name(name) not in measures.whole_us]
    us = _ops_us(work.uncounted_ops, measures)
    if not hidden or not (measures.replayed_us or measures.launched_us):
        return us
    bare = [name.rpartition(".")[2].strip("_").lower() for name in hidden]
    found = [[k.total_us for k in measures.kernels if name in k.name.lower()] for name in bare]
    return us + (sum(map(sum, found)) if all(found) else measures.replayed_us)


def _row_name(operator: str) -> str:
    """An operator's name in a trace."""
    return operator.replace(".", "::", 1)


def _ops_us(operators: list[str], measures: Measures) -> float:
    return sum(measures.whole_us.get(_row_name(name), 0.0) for name in operators)


def _own_kernels(work: StepWork, measures: Measures) -> dict[str, float]:
    """GPU time of the kernels that the host launched without an operator, by name.

    torch.compile's own kernels do the work of operators that were counted.
    """
    own = set(work.launched_kernels)
    return {n: us for n, us in measures.launched_us.items() if n in own or not n.startswith(_OF_COMPILER)}


def _launched_us(work: StepWork, measures: Measures) -> float:
    """GPU time of kernels that Python launched itself, in a graph or not."""
    direct = sum(_own_kernels(work, measures).values())
    if not measures.replayed_us:
        return direct
    names = set(work.launched_kernels) - set(measures.launched_us)
    return direct + sum(k.total_us for k in measures.kernels if k.name in names)


def _missed_us(work: StepWork, measures: Measures) -> float:
    """GPU time of products and convolutions that the counter did not see, if the trace's shapes tell.

    An operator that is implemented by others may hide them from it.
    """
    seen = [k for k in measures.kernels if k.kind in _ARITHMETIC and k.flops]
    flops = sum(k.flops or 0 for k in seen) * measures.own_share / max(measures.steps, 1)
    if flops <= _COUNTS_DIFFER * work.flops:
        return 0.0
    return (1 - work.flops / flops) * sum(k.total_us for k in seen)
