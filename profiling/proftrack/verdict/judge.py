"""Weighs the figures of a trace: regime, cause, confidence, evidence, advice."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from proftrack.measures import Measures
from proftrack.measures.quality import flag
from proftrack.record.figures import Flag, FlagCode, KernelKind
from proftrack.record.verdict import Basis, Cause, Confidence, Regime, Verdict
from proftrack.text import number, short_time
from proftrack.verdict import cpu, evidence, spread
from proftrack.verdict.advice import advise
from proftrack.verdict.context import Context
from proftrack.verdict.rules import StepFacts, regime, without_inflation
from proftrack.verdict.thresholds import THRESHOLDS, Thresholds


class Judgement(NamedTuple):
    """A verdict, the times it rests on, and the flags that only judging can raise."""

    verdict: Verdict
    step_time_us: float | None
    roofline_us: float | None
    flags: list[Flag]


def judge(measures: Measures, context: Context | None = None, *, limits: Thresholds = THRESHOLDS) -> Judgement:
    """The verdict of a trace.

    T is the context's where it was measured without the profiler. Else it is the trace's own, judged twice: as it is,
    and with dispatch as short as it may be without the profiler.
    """
    context = context or Context()
    basis: Basis = "profiled" if context.unprofiled_us is None else "unprofiled"
    time = _traced_step_us(measures) if context.unprofiled_us is None else context.unprofiled_us
    roofline = context.roofline_us(measures)
    if not measures.gpu_busy_per_step_us or not time:
        verdict = cpu.verdict(measures, context, time, basis=basis, limits=limits)
        return Judgement(verdict, time, roofline, _thread_flags(context, limits))
    facts = facts_of(measures, time)
    flags = _flags(measures, facts, context, roofline, limits)
    if roofline is not None and roofline > limits.roofline_slack * facts.gpu_busy_us:
        roofline = None
    outcome = _Outcome(measures, facts, context, roofline=roofline, flags=[*measures.flags, *flags], limits=limits)
    return Judgement(outcome.verdict(basis), time, roofline, flags)


def _traced_step_us(measures: Measures) -> float | None:
    """T of a bare trace: its step without the stretches in which the profiler held the host up."""
    traced, held_up = measures.step_time_profiled_us, measures.idle.by_cause_us_per_step.get("profiler", 0.0)
    return traced and max(traced - held_up, measures.gpu_busy_per_step_us or 0.0)


def facts_of(measures: Measures, step_time_us: float) -> StepFacts:
    """What the rules look at, of a trace with GPU work.

    Recording takes time: what the profiled step has over the unprofiled one is spread over the host rows, and taken
    off each cause by the rows recorded in its gaps. Work that records nothing (numpy, sleep, I/O) keeps its time.
    """
    steps = max(measures.steps, 1)
    added = max((measures.step_time_profiled_us or step_time_us) - step_time_us, 0.0)
    a_row = added * steps / measures.host_rows if measures.host_rows else 0.0
    rows = measures.idle.rows_by_cause_per_step
    return StepFacts(
        step_time_us=step_time_us,
        gpu_busy_us=measures.gpu_busy_per_step_us or 0.0,
        idle_by_cause_us={
            cause: max(time - a_row * rows.get(cause, 0.0), 0.0)
            for cause, time in measures.idle.by_cause_us_per_step.items()
            if cause != "profiler"
        },
        busy_by_limit_us={k: v / steps for k, v in measures.busy_by_limit_us.items()},
        waits_over_gpu_us=measures.waits_over_gpu_us / steps,
    )


def _flags(
    measures: Measures, facts: StepFacts, context: Context, roofline: float | None, limits: Thresholds
) -> list[Flag]:
    """Flags that need more than the trace."""
    raised = _thread_flags(context, limits)
    u, gpu = facts.busy_fraction, context.gpu
    if context.unprofiled_us is not None and u > limits.slow_under_profiler:
        raised.append(flag("slow_under_profiler", 1, f"B / T = {u:.2f}."))
    if roofline is not None and roofline > limits.roofline_slack * facts.gpu_busy_us:
        raised.append(flag("roofline_above_busy", 1, f"R {short_time(roofline)}, B {short_time(facts.gpu_busy_us)}."))
    if measures.work is not None and context.ceilings is not None and measures.totals.self_cuda_time_total_us:
        share = measures.work.uncounted_us / measures.totals.self_cuda_time_total_us
        if share > limits.uncounted_share:
            names = ", ".join(measures.work.uncounted[:3])
            raised.append(flag("work_not_counted", 1, f"{share:.0%} of the GPU time, most of it in {names}."))
    if gpu is not None:
        if gpu.throttled_by:
            raised.append(flag("gpu_throttled", len(gpu.throttled_by), f"By {', '.join(gpu.throttled_by)}."))
        clock, top = gpu.sm_clock_mhz, gpu.sm_clock_max_mhz
        if u >= limits.gpu_bound_from and clock and top and clock < limits.low_clock * top:
            raised.append(flag("clocks_low", 1, f"{clock} of {top} MHz."))
        if gpu.other_processes:
            raised.append(flag("gpu_shared", gpu.other_processes))
    return raised


def _thread_flags(context: Context, limits: Thresholds) -> list[Flag]:
    share = context.unrecorded_threads(limits)
    return [flag("other_threads", 1, f"They used {share:.0%} of a core.")] if share is not None else []


class _Outcome:
    """One judgement in the making."""

    def __init__(
        self,
        measures: Measures,
        facts: StepFacts,
        context: Context,
        *,
        roofline: float | None,
        flags: list[Flag],
        limits: Thresholds,
    ) -> None:
        self.measures = measures
        self.facts = facts
        self.context = context
        self.roofline = roofline
        self.flags = {f.code: f for f in flags}
        self.limits = limits
        self.regime = regime(facts, limits)

    def verdict(self, basis: Basis) -> Verdict:
        undermined = self._undermined(basis)
        doubts = self._doubts(basis)
        name = "inconclusive" if undermined else self.regime
        if name == "inconclusive" and not undermined:
            undermined = ["Most GPU time is in kernels whose kind is not known by their names."]
        levels = [level for level, _ in doubts]
        confidence: Confidence = "low" if name == "inconclusive" or "low" in levels else "medium" if levels else "high"
        return Verdict(
            regime=name,
            cause=self._cause(),
            confidence=confidence,
            basis=basis,
            gpu_busy_fraction=self.facts.busy_fraction,
            summary=evidence.summary(name, self.facts, what="step" if self.measures.steps else "recording"),
            evidence=evidence.collect(self.measures, self.facts, self.context, self.roofline, self.limits),
            advice=advise(name, self.measures, self.facts, self.roofline),
            reasons=[*undermined, *(text for _, text in doubts)],
            thresholds=self.limits.as_dict(),
        )

    # -- what makes it inconclusive

    def _undermined(self, basis: Basis) -> list[str]:
        """Reasons why these data carry no verdict."""
        limits, u = self.limits, self.facts.busy_fraction
        undermining = ("gpu_not_measured", "partial_file", "several_processes")
        reasons = [self.flags[c].message for c in undermining if c in self.flags]
        if self.facts.waits_for_device(limits) and self.regime == "inconclusive":
            reasons.append(
                "Most of the GPU's idle time follows launches that were made in time: it waits for another device, "
                "another stream or its own start-up, not for the host."
            )
        if u > limits.not_the_same_work and basis == "unprofiled":
            reasons.append(
                f"GPU busy time is {u:.2f} of the step time given: trace and timing are not of the same work."
            )
        traced = self._traced_step_us()
        if basis == "unprofiled" and traced and self.facts.step_time_us > limits.longer_than_traced * traced:
            longer = number(self.facts.step_time_us / traced)
            reasons.append(
                f"The step time given is {longer} times that of the trace, and profiling only lengthens a step: they "
                "are not of the same work (or the unit is not microseconds)."
            )
        if u < limits.gpu_bound_from:
            reasons += self._gpu_partly_measured()
        if self._share_of("invalid_timestamps", self.measures.totals.gpu_events) > limits.invalid_share:
            reasons.append(self.flags["invalid_timestamps"].message)
        if basis == "profiled":
            reasons += self._inflated()
        return reasons

    def _traced_step_us(self) -> float | None:
        """The longest that the trace's own step can be read as."""
        window, steps = self.measures.window, max(self.measures.steps, 1)
        return max(window.duration_us or 0.0, window.device_duration_us or 0.0) / steps or None

    def _inflated(self) -> list[str]:
        """The second reading of a bare trace disagrees, or it holds compilation."""
        reasons = []
        other = regime(without_inflation(self.facts, self.limits), self.limits)
        if other != self.regime:
            reasons.append(
                f"Profiling inflates the host's side: read as it is the trace is {self.regime}, without the inflation "
                f"it may be {other}; give the unprofiled step time (--step-time-us)."
            )
        unseen = self.measures.unseen_queue_us / max(self.measures.steps, 1)
        idle = structs.replace(self.facts, step_time_us=self.facts.step_time_us + unseen)
        if regime(idle, self.limits) != self.regime:
            reasons.append(
                f"Before the first recorded GPU work lie {short_time(unseen)} a step in which a queue of earlier work "
                f"may have run or the GPU have idled: read the second way it is {regime(idle, self.limits)}; give the "
                "unprofiled step time (--step-time-us)."
            )
        if "recompiled_in_window" in self.flags:
            reasons.append(self.flags["recompiled_in_window"].message)
        return reasons

    def _gpu_partly_measured(self) -> list[str]:
        """The GPU may have done more than was recorded: no verdict that rests on its being idle."""
        if "under_recorded_graphs" in self.flags:
            return [self.flags["under_recorded_graphs"].message]
        silent = self._share_of("launches_without_gpu_work", self.measures.totals.launches)
        return [self.flags["launches_without_gpu_work"].message] if silent > self.limits.silent_launches else []

    def _share_of(self, code: FlagCode, whole: int) -> float:
        raised = self.flags.get(code)
        return raised.count / whole if raised and whole else 0.0

    # -- what lowers confidence

    def _doubts(self, basis: Basis) -> list[tuple[Confidence, str]]:
        """(confidence that is left, why)."""
        doubts: list[tuple[Confidence, str]] = []
        if basis == "profiled":
            doubts.append(("medium", "The step time comes from the profiled trace itself."))
        others = self._regimes_within_spread()
        if others:
            doubts.append(("low", f"Within the spread of the measurements it could also be {' or '.join(others)}."))
        doubts += self._near_a_limit()
        for code in _LOWERING:
            if code in self.flags:
                doubts.append(("low" if code == "no_steps" else "medium", self.flags[code].message))
        if self.regime in ("compute-bound", "memory-bound"):
            doubts += self._kind_doubts()
        return doubts

    def _near_a_limit(self) -> list[tuple[Confidence, str]]:
        """u next to the limit of the regime it is in; one that only another regime has does not matter."""
        u, limits = self.facts.busy_fraction, self.limits
        relevant = [limits.gpu_bound_from]
        if self.regime in ("overhead-bound", "mixed"):
            relevant.append(limits.overhead_bound_to)
        doubts: list[tuple[Confidence, str]] = [
            ("medium", f"u = {u:.2f} is close to the limit {limit}.")
            for limit in relevant
            if abs(u - limit) < limits.near
        ]
        if self.facts.gap_us and u < limits.gpu_bound_from:
            for name, explained in self.facts.explained_us().items():
                share = explained / self.facts.gap_us
                if abs(share - limits.cause_share) < limits.near:
                    doubts.append(("medium", f"{share:.0%} of the idle time speaks for {name}: close to the limit."))
        return doubts

    def _kind_doubts(self) -> list[tuple[Confidence, str]]:
        busy = self.facts.busy_by_limit_us
        total = sum(busy.values())
        a, b = busy.get("arithmetic", 0.0), busy.get("bandwidth", 0.0)
        if abs(a - b) <= busy.get("unknown", 0.0) + busy.get("latency", 0.0):
            return [("low", "Kernels of other kinds take enough time to turn compute- into memory-bound.")]
        if max(a, b) < self.limits.kernel_share * total:
            return [("medium", "No single limit takes most of the busy time.")]
        return []

    def _regimes_within_spread(self) -> list[Regime]:
        """Other regimes that a resample of the timing blocks and of the steps' GPU times gives."""
        time, busy = self.facts.step_time_us, self.facts.gpu_busy_us
        error = spread.busy_error(self.measures.per_step)
        found = {
            regime(self.facts.scaled(step_time_us=t, gpu_busy_us=b), self.limits)
            for t in (time, *(spread.time_interval(self.context.timing) or ()))
            for b in (busy, busy * max(1 - error, 0.01), busy * (1 + error))
        }
        return sorted(found - {self.regime})

    def _cause(self) -> Cause | None:
        """The largest cause of T - B on the host's side, the kind of GPU work with most time on the GPU's."""
        if self.facts.busy_fraction < self.limits.gpu_bound_from:
            causes = self.facts.idle_by_cause_us
            if self.regime == "sync-bound":
                return "synchronization"
            return max(causes.items(), key=lambda each: each[1])[0] if causes else None
        kinds: dict[KernelKind, float] = {}
        for kernel in self.measures.kernels:
            kinds[kernel.kind] = kinds.get(kernel.kind, 0.0) + kernel.total_us
        return max(kinds.items(), key=lambda each: each[1])[0] if kinds else None


_LOWERING: tuple[FlagCode, ...] = (
    "no_steps",
    "uneven_steps",
    "slow_under_profiler",
    "recompiled_in_window",
    "partial_window",
    "gpu_throttled",
    "clocks_low",
    "gpu_shared",
    "other_threads",
)
"""Flags that lower confidence, in the order they are named."""
