"""Judges the figures of a trace: regime, cause, confidence, evidence, advice."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from proftrack.measures import Measures
from proftrack.measures.loading import Loading
from proftrack.measures.quality import flag
from proftrack.measures.typical import EVALUATION
from proftrack.record.figures import Flag, FlagCode, IdleCause, KernelKind, Limit
from proftrack.record.verdict import Basis, Cause, Confidence, HostRegime, Regime, Verdict
from proftrack.text import counted, number, short_time
from proftrack.verdict import cpu, evidence, spread
from proftrack.verdict.advice import Step, advise
from proftrack.verdict.by_work import doubt_of_work
from proftrack.verdict.context import Context
from proftrack.verdict.rules import Ruling, StepFacts, close_calls, regime, ruling, without_inflation
from proftrack.verdict.thresholds import THRESHOLDS, Thresholds


class Judgement(NamedTuple):
    """A verdict, the times it is based on, and the flags that only judging can raise."""

    verdict: Verdict
    step_time_us: float | None
    roofline_us: float | None
    flags: list[Flag]


def judge(measures: Measures, context: Context | None = None, *, limits: Thresholds = THRESHOLDS) -> Judgement:
    """The verdict of a trace.

    T is the context's if it was measured without the profiler. Otherwise it is the trace's own, judged twice: as
    recorded, and with dispatch as short as it may be without the profiler.
    """
    context = context or Context()
    basis: Basis = "profiled" if context.unprofiled_us is None else "unprofiled"
    time = _traced_step_us(measures) if context.unprofiled_us is None else context.unprofiled_us
    roofline = context.roofline_us(measures)
    if not measures.gpu_busy_per_step_us or not time:
        verdict = cpu.verdict(measures, context, time, basis=basis, limits=limits)
        return Judgement(verdict, time, roofline, _timing_flags(context, time, limits))
    facts = facts_of(measures, time, context)
    flags = _flags(measures, facts, context, roofline, limits)
    if roofline is not None and roofline > limits.roofline_slack * facts.gpu_busy_us:
        roofline = None
    outcome = _Outcome(measures, facts, context, roofline=roofline, flags=[*measures.flags, *flags], limits=limits)
    return Judgement(outcome.verdict(basis), time, roofline, flags)


def _traced_step_us(measures: Measures) -> float | None:
    """T of a bare trace: its step without the stretches in which the profiler or start-up delayed the host."""
    traced, causes = measures.step_time_profiled_us, measures.idle.by_cause_us_per_step
    delayed = sum(causes.get(cause, 0.0) for cause in _NOT_THE_STEPS)
    return traced and max(traced - delayed, measures.gpu_busy_per_step_us or 0.0)


def facts_of(
    measures: Measures, step_time_us: float, context: Context, *, input_wait_us: float | None = None
) -> StepFacts:
    """The figures that the rules use, for a trace with GPU work, if T is this. `input_wait_us`: how long such a step
    waits for data, if that is not to be the context's.

    Recording takes time: the excess of the traced step over the unprofiled one is spread over the host rows, and
    subtracted from each cause by the rows recorded in its gaps. Work that records nothing (numpy, sleep, I/O) keeps
    its time.

    If it is known how long a step waits for data without the profiler, both steps count with that: the trace may have
    found a full queue, or an empty one.
    """
    steps, busy, part = measures.window.typical_steps, measures.gpu_busy_per_step_us or 0.0, measures.loading
    wait_us = context.input_wait_us(step_time_us) if input_wait_us is None else input_wait_us
    waited = 0.0 if wait_us is None else _idle_for_data(part, wait_us, steps, max(step_time_us - busy, 0.0))
    if wait_us is None or part is None:
        idle, shown = measures.idle, 0.0
    else:
        idle, shown = part.other_idle, (part.timed_us - part.over_gpu_us) / steps
    rows = idle.rows_by_cause_per_step
    added = max((_traced_step_us(measures) or step_time_us) - shown + waited - step_time_us, 0.0)
    a_row = added * steps / measures.host_rows if measures.host_rows else 0.0
    facts = StepFacts(
        step_time_us=step_time_us,
        gpu_busy_us=busy,
        idle_by_cause_us={
            cause: max(time - a_row * rows.get(cause, 0.0), 0.0)
            for cause, time in idle.by_cause_us_per_step.items()
            if cause not in _NOT_THE_STEPS
        },
        busy_by_limit_us={k: v / steps for k, v in measures.busy_by_limit_us.items()},
        waits_over_gpu_us=measures.waits_over_gpu_us / steps,
        waits_for_workers=wait_us is not None and part is not None and part.workers,
        counters=context.counters,
        counted_step_us=context.counted_step_us(step_time_us),
    )
    if wait_us is None:
        return facts
    return facts.with_input(waited + facts.idle_by_cause_us.get("input", 0.0))


def _idle_for_data(part: Loading | None, wait_us: float, steps: int, most_us: float) -> float:
    """How long the GPU idles for data in a step that waits for it so long; `part` is what so many steps of the trace
    show.

    A wait that the trace shows while the GPU works delays nothing; without the profiler that part is no longer, and as
    a share of the wait no larger.
    """
    hidden = 0.0
    if part is not None and part.timed_us:
        hidden = part.over_gpu_us / steps * min(wait_us * steps / part.timed_us, 1.0)
    return min(wait_us - hidden, most_us)


def _flags(
    measures: Measures, facts: StepFacts, context: Context, roofline: float | None, limits: Thresholds
) -> list[Flag]:
    """Flags that need more than the trace."""
    raised = _timing_flags(context, facts.step_time_us, limits)
    u, gpu = facts.busy_fraction, context.gpu
    if context.unprofiled_us is not None and limits.slow_under_profiler < u <= limits.not_the_same_work:
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


def _timing_flags(context: Context, step_time_us: float | None, limits: Thresholds) -> list[Flag]:
    """Flags about how T was measured."""
    raised = []
    share = context.unrecorded_threads(limits)
    if share is not None:
        raised.append(flag("other_threads", 1, f"They used {share:.0%} of a core."))
    timing, few = context.timing, limits.notable * (step_time_us or 0.0)
    ahead = timing.batches_ahead if timing is not None else None
    if timing is not None and ahead and timing.steps <= ahead and (timing.input_wait_us or 0.0) < few:
        steps = counted(timing.steps, "step")
        raised.append(flag("batches_ready", 1, f"{steps} ran, and its workers hold up to {ahead} batches."))
    return raised


class _Outcome:
    """One judgement of a trace with GPU work."""

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
        self.ruling = ruling(facts, limits) if facts.busy_fraction >= limits.gpu_bound_from else None

    def verdict(self, basis: Basis) -> Verdict:
        blockers = self._blocking_reasons(basis)
        doubts = self._doubts(basis) if blockers else [*self._doubts(basis), *self._not_counted()]
        name = "inconclusive" if blockers else self.regime
        if name == "inconclusive" and not blockers:
            blockers = [_NOTHING_TELLS]
        cause = self._cause()
        levels = [level for level, _ in doubts]
        confidence: Confidence = "low" if name == "inconclusive" or "low" in levels else "medium" if levels else "high"
        return Verdict(
            regime=name,
            cause=cause,
            confidence=confidence,
            basis=basis,
            gpu_busy_fraction=self.facts.busy_fraction,
            summary=evidence.summary(name, self.facts, what=evidence.timed(self.measures, basis), ruled=self.ruling),
            evidence=evidence.collect(
                self.measures, self.facts, self.context, self.roofline, self.limits, ruled=self.ruling
            ),
            advice=advise(name, cause, self._step(basis)),
            reasons=[*blockers, *(text for _, text in doubts if text not in blockers)],
            thresholds=self.limits.as_dict(),
        )

    def _step(self, basis: Basis) -> Step:
        """What the advice rests on. A roofline time that leaves out too much gives none about kernels."""
        missing = self.context.uncounted_share(self.measures)
        return Step(
            measures=self.measures,
            facts=self.facts,
            roofline_us=self.roofline if missing <= self.limits.headroom_uncounted else None,
            profiled=basis == "profiled",
            limits=self.limits,
        )

    # -- what makes it inconclusive

    def _blocking_reasons(self, basis: Basis) -> list[str]:
        """Reasons why the data does not support a verdict."""
        limits, u = self.limits, self.facts.busy_fraction
        codes = ("gpu_not_measured", "partial_file", "several_processes")
        reasons = [self.flags[c].message for c in codes if c in self.flags]
        if u < limits.gpu_bound_from:
            reasons += [*self._not_launched_late(), *self._mostly_start_up()]
        if u > limits.not_the_same_work and basis == "unprofiled":
            reasons.append(
                f"GPU busy time is {number(u)} times the given step time: trace and timing are not of the same work "
                "(or the unit is not microseconds)."
            )
        traced = self._traced_step_us()
        beyond = self.context.waits_beyond_trace_us(self.measures)
        without = self.facts.step_time_us - beyond
        if basis == "unprofiled" and traced and without > limits.longer_than_traced * traced:
            what = "step time less its waits for data" if beyond else "given step time"
            reasons.append(
                f"The {what} is {number(without / traced)} times that of the trace, but profiling only lengthens a "
                "step: the two are not of the same work (or the unit is not microseconds)."
            )
        if u < limits.gpu_bound_from:
            reasons += self._gpu_partly_measured()
        if self._share_of("invalid_timestamps", self.measures.totals.gpu_events) > limits.invalid_share:
            reasons.append(self.flags["invalid_timestamps"].message)
        if self.measures.impossible_us > limits.impossible_share * (self.measures.busy_us or 0.0):
            reasons.append(self.flags["impossible_durations"].message)
        if basis == "profiled":
            reasons += self._inflated()
        if self.regime == "inconclusive" and u < limits.gpu_bound_from and not reasons:
            reasons.append(self._too_little_explained())
        return reasons

    def _not_launched_late(self) -> list[str]:
        """What most of the idle time is for which no late launch is to blame."""
        cause = self.facts.mostly(self.limits)
        if cause == "queued":
            return [
                "Most of the GPU's idle time precedes work that was launched in time: it waits for another device, "
                "another stream or its own start-up, not for the host."
            ]
        if cause == "unknown":
            return [
                f"{self.facts.share_of(cause):.0%} of the GPU's idle time precedes work with no recorded launch: the "
                "trace does not show what it waited for."
            ]
        return []

    def _too_little_explained(self) -> str:
        """How T - B divides if late launches explain less than half of it, and nothing else explains more."""
        facts = self.facts
        parts = {
            "precedes work that was launched in time": facts.share_of("queued"),
            "precedes work with no recorded launch": facts.share_of("unknown"),
            "is not in the trace": 1 - sum(facts.idle_by_cause_us.values()) / facts.gap_us,
        }
        rest = [f"{share:.0%} {what}" for what, share in parts.items() if share >= 0.005]
        return f"Late launches explain only {facts.late_us / facts.gap_us:.0%} of T - B: {', '.join(rest)}."

    def _mostly_start_up(self) -> list[str]:
        """Whether start-up takes most of the idle time: what is between its calls then belongs to it."""
        startup = self.measures.idle.by_cause_us_per_step.get("startup", 0.0)
        if startup <= sum(self.facts.idle_by_cause_us.values()):
            return []
        return [
            f"Start-up takes {short_time(startup)} of the GPU's idle time, more than everything else: what is between "
            "its calls says little about later steps; record those."
        ]

    def _traced_step_us(self) -> float | None:
        """The longest possible reading of the trace's own step."""
        window, steps = self.measures.window, max(self.measures.steps, 1)
        return max((window.duration_us or 0.0) / steps, self.measures.step_time_profiled_us or 0.0) or None

    def _inflated(self) -> list[str]:
        """Whether the second reading of a bare trace disagrees, or the trace includes compilation."""
        reasons = []
        other = regime(without_inflation(self.facts, self.limits), self.limits)
        if other != self.regime != "inconclusive":
            reasons.append(
                f"Profiling inflates host time: as recorded, the trace is {self.regime}, but without the inflation it "
                f"may be {other}; give the unprofiled step time (--step-time-us)."
            )
        unseen = self.measures.unseen_queue_us / self.measures.window.typical_steps
        idle = structs.replace(self.facts, step_time_us=self.facts.step_time_us + unseen)
        if regime(idle, self.limits) != self.regime:
            reasons.append(
                "Before the first recorded GPU work, a queue of earlier work may have run, or the GPU may have been "
                f"idle: without a queue, a step may take {short_time(unseen)} longer, and the trace is "
                f"{regime(idle, self.limits)}. "
                "Give the unprofiled step time (--step-time-us)."
            )
        if "recompiled_in_window" in self.flags and not self._left_out("recompiled_in_window"):
            reasons.append(self.flags["recompiled_in_window"].message)
        return reasons

    def _gpu_partly_measured(self) -> list[str]:
        """If the GPU may have done more than was recorded, no verdict can rely on its idle time."""
        if "under_recorded_graphs" in self.flags:
            return [self.flags["under_recorded_graphs"].message]
        telling = (self.measures.totals.launches or 0) - self.measures.memory_sets
        silent = self._share_of("launches_without_gpu_work", telling)
        return [self.flags["launches_without_gpu_work"].message] if silent > self.limits.silent_launches else []

    def _share_of(self, code: FlagCode, whole: int) -> float:
        raised = self.flags.get(code)
        return raised.count / whole if raised and whole else 0.0

    # -- what lowers confidence

    def _doubts(self, basis: Basis) -> list[tuple[Confidence, str]]:
        """(remaining confidence, why)."""
        doubts: list[tuple[Confidence, str]] = []
        if basis == "profiled":
            doubts.append(("medium", "The step time comes from the profiled trace itself."))
            doubts += self._one_step_decides()
        others = self._regimes_within_spread()
        if others:
            named = " or ".join(name for name in others if name != "inconclusive")
            could = f"it could also be {named}" if named else "there may be no clear regime"
            doubts.append(("low", f"Within the spread of the measurements, {could}."))
        doubts += [*self._waits_in_bursts(), *self._workers_keep_no_pace(), *self._near_a_limit()]
        for code in _LOWERING:
            if code in self.flags and not self._left_out(code):
                doubts.append(("low" if code == "no_steps" else "medium", self.flags[code].message))
        if self.ruling is not None:
            doubts += self._limit_doubts(self.ruling)
        return doubts

    def _limit_doubts(self, ruled: Ruling) -> list[tuple[Confidence, str]]:
        """What leaves the limit of a busy GPU uncertain. Where a unit is near its limit, names and shapes do not."""
        use, limits = ruled.use, self.limits
        if use is None:
            return self._kind_doubts()
        both = f"{use.at('dram')} and {use.at(use.pipe)}"
        if ruled.at_limit:
            close = use.lead < limits.unit_lead
            return [("medium", f"{both}: they are too close for one alone to be the limit.")] if close else []
        if not ruled.overruled and ruled.by_kernels != "inconclusive":
            doubts = self._kind_doubts()
            rests = "what limits the kernels rests on their shapes and names"
        else:
            doubts = []
            rests = "the counters do not show what limits the kernels"
        unsure = ruled.by_kernels == "inconclusive" and limits.unit_bears <= min(use.memory, use.pipe_share)
        level: Confidence = "low" if unsure and use.lead < limits.unit_lead else "medium"
        return [*doubts, (level, f"No unit is near its limit ({both}): {rests}.")]

    def _not_counted(self) -> list[tuple[Confidence, str]]:
        """Whether names tell compute-bound from memory-bound, because neither counters nor counted work do."""
        if self.ruling is None or self.ruling.use is not None:
            return []
        context = self.context if self.roofline is not None else structs.replace(self.context, ceilings=None)
        text = doubt_of_work(self.regime, self.facts, self.measures, context, self.limits)
        return [("medium", text)] if text is not None else []

    def _one_step_decides(self) -> list[tuple[Confidence, str]]:
        """The regime would be another without what only one step shows: the longest, or the end of the only one."""
        facts, limits, part = self.facts, self.limits, self.measures.single
        if part is None or self.regime == "inconclusive":
            return []
        steps = self.measures.window.typical_steps
        left = steps if part.step is None else steps - 1
        lasting = part.time_us - sum(part.idle_us.get(cause, 0.0) for cause in _NOT_THE_STEPS)
        others = (facts.step_time_us * steps - lasting) / left
        if part.step is None:
            enough = lasting >= limits.cause_share * facts.gap_us
        else:
            enough = lasting > limits.long_step * others
        if not enough or facts.gpu_busy_us * steps <= part.busy_us:
            return []
        other = regime(facts.without(steps, lasting, part.busy_us, part.idle_us, left=left), limits)
        if other in (self.regime, "inconclusive"):
            return []
        if part.step is None:
            what = f"The only step takes {short_time(lasting)} after its last GPU work"
        else:
            what = f"{part.step} takes {short_time(lasting)}, the others {short_time(others)}"
        return [("low", f"{what}: without that, the trace is {other}. Record more steps.")]

    def _waits_in_bursts(self) -> list[tuple[Confidence, str]]:
        """T is a median, and steps that wait for data may be few and long: the regime would be another on average."""
        timing = self.context.timing
        if timing is None or not timing.chosen.input_waits_us:
            return []
        step, wait = (sum(each) / len(each) for each in (timing.chosen.samples_us, timing.chosen.input_waits_us))
        other = regime(facts_of(self.measures, step, self.context, input_wait_us=wait), self.limits)
        if wait - (timing.input_wait_us or 0.0) < self.limits.notable * self.facts.step_time_us or other == self.regime:
            return []
        return [
            (
                "low",
                f"Waits for data come in bursts: on average, a timed step takes {short_time(step)} and waits "
                f"{short_time(wait)} of it, which is {other}; most take {short_time(self.facts.step_time_us)}.",
            )
        ]

    def _workers_keep_no_pace(self) -> list[tuple[Confidence, str]]:
        """Steps that wait for workers take as long as these take for a batch, whatever else is removed from them."""
        facts, limits = self.facts, self.limits
        idle = facts.idle_by_cause_us.get("input", 0.0) if facts.waits_for_workers else 0.0
        if (
            self.regime in ("input-bound", "inconclusive")
            or facts.busy_fraction >= limits.gpu_bound_from
            or idle < limits.notable * facts.step_time_us
        ):
            return []
        return [
            (
                "medium",
                f"Steps wait {short_time(idle)} for the data loader's workers: unless these make more batches, a step "
                "that does the rest faster only waits longer.",
            )
        ]

    def _left_out(self, code: FlagCode) -> bool:
        """Whether the figures leave out all steps that raised this flag, so that it changes none of them."""
        if code == "recompiled_in_window":
            return not self.measures.compiling_us and self.measures.window.outlier_steps > 0
        return code == "evaluation_in_steps" and any(step.outlier == EVALUATION for step in self.measures.per_step)

    def _near_a_limit(self) -> list[tuple[Confidence, str]]:
        """u is close to a limit of its own regime; limits that only other regimes have do not matter."""
        u, limits = self.facts.busy_fraction, self.limits
        relevant = [limits.gpu_bound_from]
        if self.regime in ("overhead-bound", "mixed"):
            relevant.append(limits.overhead_bound_to)
        doubts: list[tuple[Confidence, str]] = []
        for limit in relevant:
            if abs(u - limit) < limits.near:
                beyond = limit - limits.near if u >= limit else limit + limits.near
                other = regime(self.facts.with_busy_fraction(beyond), limits)
                doubts.append(("medium", f"u = {u:.2f} is close to the limit of {limit}{_beyond(other, self.regime)}."))
        if self.facts.gap_us and u < limits.gpu_bound_from:
            causes: list[tuple[HostRegime | None, float]] = [*self.facts.explained_us().items()]
            if self.regime in ("overhead-bound", "mixed"):
                causes.append((None, self.facts.late_us))
            for name, explained in causes:
                share = explained / self.facts.gap_us
                if abs(share - limits.cause_share) < limits.near:
                    moved = limits.cause_share + (-limits.near if share >= limits.cause_share else limits.near)
                    other = regime(self.facts.with_explained(name, moved * self.facts.gap_us), limits)
                    where = f"close to the limit of {limits.cause_share:.0%}{_beyond(other, self.regime)}"
                    what = name or "late launches"
                    doubts.append(("medium", f"{share:.0%} of the idle time points to {what}: {where}."))
        return doubts

    def _kind_doubts(self) -> list[tuple[Confidence, str]]:
        """Kinds of GPU work whose shares hardly decide."""
        busy, limits = self.facts.busy_by_limit_us, self.limits
        doubts: list[tuple[Confidence, str]] = []
        if self.regime in ("compute-bound", "memory-bound"):
            a, b = busy.get("arithmetic", 0.0), busy.get("bandwidth", 0.0)
            if abs(a - b) <= busy.get("unknown", 0.0) + busy.get("latency", 0.0):
                text = "Other kernels take enough time to decide between compute-bound and memory-bound."
                doubts.append(("low", text))
            elif max(a, b) < limits.kernel_share * sum(busy.values()):
                doubts.append(("medium", "No single limit accounts for most of the busy time."))
        for limit, share, other in close_calls(busy, limits):
            text = f"{share:.0%} of the busy time is in {evidence.LIMIT_TEXT[limit]}: a close call"
            doubts.append(("medium", f"{text}{_beyond(other, self.regime)}."))
        return doubts

    def _regimes_within_spread(self) -> list[Regime]:
        """Other regimes within the uncertainty of the timing blocks and of the steps' GPU times.

        The T of a bare trace is that of the same steps: GPU work that takes longer in some makes those longer.
        """
        busy, ends = self.facts.gpu_busy_us, spread.time_interval(self.context.timing) or ()
        error, moves = spread.busy_error(self.measures.per_step), self.context.unprofiled_us is None
        regimes = {
            regime(facts.scaled(step_time_us=facts.step_time_us + (b - busy) * moves, gpu_busy_us=b), self.limits)
            for facts in (self.facts, *(facts_of(self.measures, t, self.context) for t in ends))
            for b in (busy, busy * max(1 - error, 0.01), busy * (1 + error))
        }
        return sorted(regimes - {self.regime})

    def _cause(self) -> Cause | None:
        """The largest cause of T - B if the host is the limit, else the kind of GPU work with the most time.

        Of work of unknown kind, what counters say of it.
        """
        if self.facts.busy_fraction < self.limits.gpu_bound_from:
            causes = self.facts.idle_by_cause_us
            if self.regime == "sync-bound":
                return "synchronization"
            if self.regime == "host-bound":
                return self.facts.host_cause
            return max(causes.items(), key=lambda each: each[1])[0] if causes else None
        kinds: dict[KernelKind, float] = {}
        for site in self.measures.sites:
            kinds[site.kind] = kinds.get(site.kind, 0.0) + site.busy_us
        largest = max(kinds.items(), key=lambda each: each[1])[0] if kinds else None
        if largest == "unknown" and self.ruling is not None and self.ruling.use is not None:
            return _LIMIT_OF.get(self.regime, largest)
        return largest


def _beyond(other: Regime, here: Regime) -> str:
    """What the regime would be on the other side of a limit."""
    return f" (beyond it: {other})" if other != here else ""


_NOTHING_TELLS = (
    "Most GPU time is in kernels with names that do not reveal their kind, and no hardware counters tell what limits "
    "them."
)
_LIMIT_OF: dict[Regime, Limit] = {
    "compute-bound": "arithmetic",
    "memory-bound": "bandwidth",
    "latency-bound": "latency",
}
_NOT_THE_STEPS: tuple[IdleCause, ...] = ("profiler", "startup")
"""Causes of idle time that later steps, or steps without the profiler, do not have."""
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
    "batches_ready",
    "evaluation_in_steps",
)
"""Flags that lower confidence, in the order in which they are listed."""
