"""The verdict of a trace without GPU work: a run on the CPU, or one whose GPU was not measured.

Without a lane of GPU work there is no busy time to measure. Instead, the part of the operators' self time that does
necessary work (measures.work.cpu_work) is compared with T.
"""

from __future__ import annotations

from typing import NamedTuple

from proftrack.measures import Measures
from proftrack.measures.idle import LOADING
from proftrack.record.figures import CpuWork, Limit
from proftrack.record.verdict import GPU_REGIMES, Basis, Cause, Evidence, Regime, Verdict
from proftrack.text import counted, number, short_time
from proftrack.verdict import spread
from proftrack.verdict.advice import BETTER_DATA, advise_cpu
from proftrack.verdict.context import Context
from proftrack.verdict.cpu_fit import misfits
from proftrack.verdict.evidence import input_wait, item, named
from proftrack.verdict.rules import gpu_regime
from proftrack.verdict.thresholds import Thresholds


def verdict(measures: Measures, context: Context, time: float | None, *, basis: Basis, limits: Thresholds) -> Verdict:
    """Judge a CPU run; inconclusive if T, the ceilings, or the GPU were not measured."""
    flags = {f.code: f for f in measures.flags}
    if "gpu_not_measured" in flags:
        what, reason = "the host launched GPU work but none was recorded", flags["gpu_not_measured"].message
    elif measures.totals.gpu_events:
        what = "no GPU work belongs to the steps"
        reason = (
            "The GPU work in the trace has no usable times, has no duration, or ran only before or after the steps."
        )
        if "gpu_before_launch" in flags:
            reason = flags["gpu_before_launch"].message
    elif measures.other_us and (measures.cpu is None or context.unprofiled_us is None):
        rows = sorted(measures.other_us.items(), key=lambda kv: -kv[1])
        names = ", ".join(f"{name[:60] or 'without a category'} ({short_time(time_us)})" for name, time_us in rows[:4])
        what, reason = "no known kind of GPU work", f"Events of these categories are counted but not judged: {names}."
    elif not measures.ops:
        what, reason = "there is nothing to judge", "The trace has neither operators nor GPU work."
    elif measures.cpu is None or context.unprofiled_us is None or not time or not measures.steps:
        what = "a CPU-only trace"
        reason = "It has no GPU work, and judging a CPU takes its ceilings and an unprofiled step time."
        if context.timing is not None and context.ceilings is None:
            what = "the ceilings of this CPU are unknown"
            reason = (
                "Judging a CPU takes its ceilings, and they were not measured: --no-calibrate was given, or the time "
                "budget was too short for them (--budget allows more)."
            )
    else:
        return _judged(measures, measures.cpu, context, time, limits)
    seen = _operators_are_few(measures, limits) if what == "a CPU-only trace" and not context.threads_are_known else []
    return _inconclusive(measures, basis, limits, what, [reason, *seen])


def _operators_are_few(measures: Measures, limits: Thresholds) -> list[str]:
    """A caveat for a trace in which next to nothing runs: its self times say little about the program."""
    regions = {region.name for region in measures.regions}
    operators = sum(op.self_cpu_time_us for op in measures.ops_in_steps if op.name not in regions)
    whole = measures.window.duration_us or 0.0
    if operators >= limits.cpu_seen * whole:
        return []
    return [
        f"Operators take {short_time(operators)} of the {short_time(whole)} recorded. The rest is Python and waiting, "
        "or work in threads that the program starts: torch records those only with profile_all_threads (in "
        "torch.profiler's experimental_config)."
    ]


class _Reading(NamedTuple):
    """A CPU's step under one assumption about the cost of calls. Microseconds per step."""

    working: dict[Limit, float]
    """The operators' work by limit."""
    time: float
    inside: float
    """Time inside operators, in the trace."""
    calls: float
    host_work_us: float
    """Time between operators, per operator, above which it counts as the host's own work."""
    loading: float
    """Time spent getting data, outside operators."""

    @property
    def busy(self) -> float:
        """Working time, at most the step time."""
        return min(sum(self.working.values()), self.time)

    @property
    def u(self) -> float:
        """The share of the step that is work."""
        return self.busy / self.time

    @property
    def between(self) -> float:
        """Time outside operators."""
        return max(self.time - self.inside, 0.0)

    @property
    def between_each(self) -> float:
        """Time outside operators, per operator."""
        return self.between / max(self.calls, 1)

    def outside(self, limits: Thresholds) -> bool:
        """Whether most of the time that is not work is outside operators."""
        return self.between >= limits.cause_share * (self.time - self.busy)

    def regime(self, limits: Thresholds) -> tuple[Regime, Cause]:
        """The regime and its cause."""
        if self.u >= limits.gpu_bound_from:
            return gpu_regime(self.working, limits), max(self.working, key=lambda k: self.working[k])
        if min(self.loading, self.between) >= limits.cause_share * (self.time - self.busy):
            return "input-bound", "input"
        outside = self.outside(limits)
        if outside and self.between_each > self.host_work_us:
            return "host-bound", "host"
        return "overhead-bound" if self.u <= limits.overhead_bound_to else "mixed", "python" if outside else "dispatch"


def _judged(measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds) -> Verdict:
    own, costliest = _readings(measures, cpu, context, time, limits)
    regime, cause = own.regime(limits)
    unfit = misfits(measures, cpu, context, time, limits)
    against = [misfit.text for misfit in unfit if misfit.level == "inconclusive"]
    against += _undecided(regime, own, costliest, context, measures, limits)
    doubts = [misfit.text for misfit in unfit if misfit.level == "low"]
    if not against:
        doubts += _doubts(regime, own, costliest, context, limits)
    name = "inconclusive" if against else regime
    return Verdict(
        regime=name,
        cause=cause,
        confidence="low" if against or doubts else "medium",
        basis="unprofiled",
        gpu_busy_fraction=None,
        summary=f"Inconclusive (CPU): {_decapitalized(against[0])}" if against else _summary(name, own.busy, time),
        evidence=_evidence(measures, context, own, limits),
        advice=advise_cpu(name, context),
        reasons=[*against, *doubts, *_remarks(cpu, context, measures)],
        thresholds=limits.as_dict(),
    )


def _readings(
    measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds
) -> tuple[_Reading, _Reading]:
    """The step with each operator's own cost per call, and with the highest cost for all of them."""
    steps = measures.steps
    dispatch = context.ceilings.dispatch_us if context.ceilings is not None else None
    host_work = limits.host_work_dispatches * (dispatch or 1.0)
    inside, calls = cpu.operators_us / steps, cpu.operators / steps
    loading = _loading_us(measures, context)
    own, costliest = (
        _Reading({k: v / steps for k, v in working.items()}, time, inside, calls, host_work, loading)
        for working in (cpu.working_us, cpu.least_working_us)
    )
    return own, costliest


def _loading_us(measures: Measures, context: Context) -> float:
    """Time per step spent getting data, outside operators, as the trace shows it; where it is known how long a step
    waits without the profiler, by that much longer, or shorter in proportion."""
    own = sum(op.self_cpu_time_us for op in measures.ops_in_steps if LOADING.search(op.name)) / measures.steps
    waited, part = context.input_wait_us(), measures.loading
    if waited is None:
        return own
    shown = part.timed_us / measures.steps if part is not None else 0.0
    return own + waited - shown if waited >= shown else own * waited / shown


def _undecided(
    regime: str, own: _Reading, costliest: _Reading, context: Context, measures: Measures, limits: Thresholds
) -> list[str]:
    """Why consistent figures still name no regime."""
    other = costliest.regime(limits)[0]
    if other != regime:
        return [
            f"The cost of a call decides: {short_time(own.busy)} of the step is work if each call costs what it does "
            f"with nothing to compute ({regime}), but {short_time(costliest.busy)} if each costs as much as this "
            f"machine's most expensive call ({other})."
        ]
    if regime == "inconclusive":
        missing = _without_ceiling(context, measures)
        why = f"no ceiling was measured for {', '.join(missing)}" if missing else "their shapes do not show it"
        return [f"Most of the work is in operators with an unknown limit: {why}."]
    traced = context.traced_host_us(measures)
    shown = max(traced - own.inside, 0.0) if traced is not None else own.between
    if own.u < limits.gpu_bound_from and own.outside(limits) and shown < limits.cause_share * own.between:
        return [
            f"The operators take {short_time(own.inside)} in the trace and do not add up to the step's "
            f"{short_time(own.time)}, and the trace shows only {short_time(shown)} of anything else: something else "
            "ran while steps were timed."
        ]
    moving = own.working.get("bandwidth", 0.0) + own.working.get("unknown", 0.0)
    if regime == "host-bound" and own.between < limits.cpu_freeing * moving:
        return [
            f"The {short_time(own.between)} between operators may be spent freeing their results, which no operator "
            f"covers: operators that move memory take {short_time(moving)}."
        ]
    load = context.timing.load if context.timing is not None else None
    if regime == "overhead-bound" and load is not None:
        off = 1 - load.share(load.thread_us) - load.share(load.thread_waited_us)
        if off > limits.off_cpu:
            return [
                f"The thread that runs the steps was off the processor for {off:.0%} of the time: it waits for "
                "something (I/O, a lock, another thread), which is neither dispatch nor Python."
            ]
    return []


def _doubts(regime: str, own: _Reading, costliest: _Reading, context: Context, limits: Thresholds) -> list[str]:
    """Why the regime could be a different one."""
    out = []
    bounds = {limits.gpu_bound_from, *((limits.overhead_bound_to,) if regime in ("overhead-bound", "mixed") else ())}
    for limit in sorted(bounds):
        near = [reading.u for reading in (own, costliest) if abs(reading.u - limit) < limits.near]
        out += [f"{near[0]:.2f} of the step is work: close to the limit of {limit}."] if near else []
    if regime in ("host-bound", "overhead-bound") and own.outside(limits):
        ratio = own.between_each / own.host_work_us
        if 0.5 < ratio < 2:
            out.append(
                f"{short_time(own.between_each)} per operator is spent between operators: close to the limit of "
                f"{short_time(own.host_work_us)} that separates Python's call overhead from the host's own work."
            )
    ends = spread.time_interval(context.timing) or ()
    others = {_at(own, end, context).regime(limits)[0] for end in ends} - {regime}
    if others:
        out.append(f"Within the spread of the timed blocks, it could also be {' or '.join(sorted(others))}.")
    arithmetic, bandwidth = own.working.get("arithmetic", 0.0), own.working.get("bandwidth", 0.0)
    if regime in GPU_REGIMES and abs(arithmetic - bandwidth) <= own.working.get("unknown", 0.0):
        out.append("Work with an unknown limit takes enough time to decide between compute-bound and memory-bound.")
    return out


def _at(own: _Reading, time: float, context: Context) -> _Reading:
    """The same step if it takes this long: it may be longer because it waits longer for its data."""
    waited, then = context.input_wait_us(), context.input_wait_us(time)
    more = then - waited if waited is not None and then is not None else 0.0
    return own._replace(time=time, loading=max(own.loading + more, 0.0))


def _remarks(cpu: CpuWork, context: Context, measures: Measures) -> list[str]:
    """What a reader must know about any CPU verdict, and about this one."""
    out = ["A CPU's working time is an estimate: the operators' self time minus the measured cost of their calls."]
    if cpu.threads > 1:
        out.append(
            f"Operators ran on {cpu.threads} threads: times are those in which any of them worked, and the step's work "
            "is not counted, since counting sees only one thread."
        )
    missing = _without_ceiling(context, measures)
    if missing:
        out.append(f"R is unknown: no ceiling was measured for {', '.join(missing)}.")
    return out


def _without_ceiling(context: Context, measures: Measures) -> list[str]:
    """Types that the step computes in but that have no measured rate."""
    work, ceilings = context.work_of(measures), context.ceilings
    if work is None or ceilings is None:
        return []
    return sorted(d for d, flops in work.flops_by_dtype.items() if flops and ceilings.rate(d) is None)


def _decapitalized(text: str) -> str:
    return text if text[:2].isupper() or text.startswith("R ") else text[0].lower() + text[1:]


_TEXT = {
    "compute-bound": "most of it arithmetic",
    "memory-bound": "most of it moving memory",
    "overhead-bound": "the rest is dispatch and Python",
    "mixed": "work and overhead both limit it",
    "input-bound": "most of the rest is spent loading data",
    "host-bound": "the rest is spent outside torch's operators",
}


def _summary(name: str, busy: float, time: float) -> str:
    share = f"{short_time(busy)} of a {short_time(time)} step is work ({busy / time:.0%})"
    return f"{name.capitalize()} (CPU): {share}; {_TEXT[name]}."


def _evidence(measures: Measures, context: Context, reading: _Reading, limits: Thresholds) -> list[Evidence]:
    ceilings, time, busy = context.ceilings, reading.time, reading.busy
    calls, inside = reading.calls, reading.inside
    # What threads that were not recorded do is in no trace: "0 us of it is work" would be false.
    whole = context.threads_are_known and context.unrecorded_threads(limits) is None
    of_which = "" if whole else " of the recorded threads"
    work = f"{short_time(busy)} of it is work{of_which}, estimated from the operators' self time."
    operators = f"{number(calls)} operators per step{of_which} take {short_time(inside)} under the profiler."
    out = [
        item("step_time_us", time, "us", f"A step takes {short_time(time)} without the profiler."),
        item("cpu_working_us", busy, "us", work),
        item("operators_us", inside, "us", operators),
        *input_wait(measures, context, time),
    ]
    if ceilings is not None and ceilings.dispatch_us is not None:
        floor = ceilings.dispatch_us * calls
        text = f"Dispatching them costs at least {short_time(floor)} here ({short_time(ceilings.dispatch_us)} each)."
        out.append(item("dispatch_floor_us", floor, "us", text))
    roofline = context.roofline_us(measures)
    if roofline is not None:
        least = f"This CPU needs at least {short_time(roofline)} for it: {roofline / time:.0%} of the step"
        missing = context.uncounted_share(measures)
        names = named(context.uncounted_names(measures)) if missing >= 0.005 else ""
        text = f"{least}, without {missing:.0%} of its time that was not counted{names}." if names else f"{least}."
        out.append(item("roofline_time_us", roofline, "us", text))
    out += [
        item(f"working_{limit}_us", value, "us", f"{short_time(value)} of the work is limited by {_LIMIT[limit]}.")
        for limit, value in sorted(reading.working.items(), key=lambda kv: -kv[1])
    ]
    return out + _top_operators(measures)


_LIMIT = {"arithmetic": "arithmetic", "bandwidth": "memory bandwidth", "unknown": "something the shapes do not show"}


def _top_operators(measures: Measures) -> list[Evidence]:
    total = measures.totals.self_cpu_time_total_us
    if not total:
        return []
    out = []
    for op in sorted(measures.ops_in_steps, key=lambda o: -o.self_cpu_time_us)[:5]:
        calls = counted(op.calls, "call")
        text = f"{op.name}: {short_time(op.self_cpu_time_us)} self CPU in {calls} ({op.self_cpu_time_us / total:.0%})."
        out.append(item("self_cpu_time_us", op.self_cpu_time_us, "us", text))
    return out


def _inconclusive(measures: Measures, basis: Basis, limits: Thresholds, what: str, reasons: list[str]) -> Verdict:
    return Verdict(
        regime="inconclusive",
        cause=None,
        confidence="low",
        basis=basis,
        gpu_busy_fraction=None,
        summary=f"Inconclusive: {what}.",
        evidence=_top_operators(measures),
        advice=[BETTER_DATA],  # measuring again would not help
        reasons=reasons,
        thresholds=limits.as_dict(),
    )
