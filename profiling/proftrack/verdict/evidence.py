"""The verdict in one sentence, and the figures that speak for it."""

from __future__ import annotations

from proftrack.measures import Measures
from proftrack.record.figures import IdleCause, Limit
from proftrack.record.verdict import Evidence, Regime
from proftrack.text import factor, short_time
from proftrack.verdict.context import Context
from proftrack.verdict.rules import StepFacts, regime, without_inflation
from proftrack.verdict.thresholds import Thresholds

CAUSE_TEXT: dict[IdleCause, str] = {
    "dispatch": "the host was launching (operators, runtime calls, the Python between them)",
    "host": "the host did work that launches nothing",
    "input": "the host waited for the data loader",
    "synchronization": "the host had waited for the GPU, which drained its queue",
    "allocator": "the host allocated or freed device memory",
    "profiler": "the profiler asked for or flushed a buffer, which costs nothing without it",
    "queued": "the work was launched in time, the device started it late",
    "unknown": "no launch was recorded for the work that followed",
}
LIMIT_TEXT: dict[Limit, str] = {
    "arithmetic": "kernels limited by arithmetic (matmul, convolution, attention)",
    "bandwidth": "kernels limited by memory bandwidth (elementwise, reduction, normalisation, copies)",
    "latency": "kernels whose grid fills under half of the GPU",
    "transfer": "copies between host and device that no kernel hides",
    "communication": "collectives that no kernel hides",
    "unknown": "kernels of unknown kind",
}
_REGIME_TEXT: dict[Regime, str] = {
    "overhead-bound": "the host cannot launch fast enough",
    "mixed": "host and GPU both hold it back",
    "input-bound": "it waits for the data loader",
    "sync-bound": "the host's waits for the GPU keep it from launching ahead",
    "host-bound": "the host does work that launches nothing",
    "compute-bound": "most of it in kernels that are limited by arithmetic",
    "memory-bound": "most of it in kernels that are limited by memory bandwidth",
    "latency-bound": "most of it in kernels too small to fill the GPU",
    "transfer-bound": "most of it in copies between host and device",
    "communication-bound": "most of it in collectives",
    "inconclusive": "but the data do not carry a verdict",
}


def summary(name: Regime, facts: StepFacts, *, what: str = "step") -> str:
    """The verdict in one plain sentence; `what` the times are of."""
    times = f"{short_time(facts.gpu_busy_us)} of a {short_time(facts.step_time_us)} {what}"
    return f"{name.capitalize()}: the GPU works {times} ({facts.busy_fraction:.0%}); {_REGIME_TEXT[name]}."


def collect(
    measures: Measures, facts: StepFacts, context: Context, roofline: float | None, limits: Thresholds
) -> list[Evidence]:
    """All figures that speak for or against the verdict, the three times first."""
    whole = "A step" if measures.steps else "The recording"
    kind = "without the profiler" if context.unprofiled_us is not None else "in the trace"
    step, busy = short_time(facts.step_time_us), short_time(facts.gpu_busy_us)
    out = [
        item("step_time_us", facts.step_time_us, "us", f"{whole} takes {step} {kind}."),
        item("gpu_busy_per_step_us", facts.gpu_busy_us, "us", f"The GPU is busy {busy} of it."),
        *_headrooms(facts, context, measures, roofline),
        *_idle(measures, facts, limits),
        *_busy(facts),
    ]
    if context.unprofiled_us is None:
        other = without_inflation(facts, limits).busy_fraction
        text = f"u = {facts.busy_fraction:.2f} as traced, up to {other:.2f} without the profiler."
        out.append(item("gpu_busy_fraction_without_inflation", other, "", text))
    return out + _other_mode(facts, context, limits)


def _headrooms(facts: StepFacts, context: Context, measures: Measures, roofline: float | None) -> list[Evidence]:
    overhead = facts.step_time_us / facts.gpu_busy_us
    most = factor(max(overhead, 1.0))
    out = [item("overhead_headroom", overhead, "x", f"If all launch overhead vanished: at most {most}.")]
    work = context.work_of(measures)
    if roofline is not None and work is not None:
        kernels = facts.kernel_headroom(roofline)
        how = "counted over one step" if work.source == "counted" else "by the operators' shapes, arithmetic alone"
        least, most = short_time(roofline), factor(max(kernels, 1.0))
        out += [
            item("roofline_time_us", roofline, "us", f"This device needs at least {least} for it ({how})."),
            item("kernel_headroom", kernels, "x", f"If every kernel reached the roofline: at most {most}."),
        ]
    return out


def _idle(measures: Measures, facts: StepFacts, limits: Thresholds) -> list[Evidence]:
    if facts.busy_fraction >= limits.gpu_bound_from:
        return []
    per = measures.per
    causes = sorted(measures.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    out = [
        item(f"idle_{cause}_us", us, "us", f"The GPU idles {short_time(us)} {per} in the trace: {CAUSE_TEXT[cause]}.")
        for cause, us in causes[:3]
    ]
    launch = measures.launch
    if launch is not None and launch.interval_median_us and measures.totals.launches:
        work = (measures.totals.self_cuda_time_total_us or 0.0) / measures.totals.launches
        limit = "the limit" if work < launch.interval_median_us else "not the limit"
        between = short_time(launch.interval_median_us)
        text = (
            f"A launch every {between} in the trace brings {short_time(work)} of GPU work: the launch rate is {limit}."
        )
        out.append(item("launch_interval_us", launch.interval_median_us, "us", text))
    if facts.sync_us:
        text = f"The host waits {short_time(facts.waits_over_gpu_us)} {per} while the GPU works."
        out.append(item("waits_over_gpu_us", facts.waits_over_gpu_us, "us", text))
    return out


def _busy(facts: StepFacts) -> list[Evidence]:
    busy = sorted(facts.busy_by_limit_us.items(), key=lambda kv: -kv[1])
    total = sum(time for _, time in busy)
    return [
        item(f"busy_{limit}_us", time, "us", f"{time / total:.0%} of the busy time: {LIMIT_TEXT[limit]}.")
        for limit, time in busy[:3]
    ]


def _other_mode(facts: StepFacts, context: Context, limits: Thresholds) -> list[Evidence]:
    """What the other step time would say, where that differs."""
    timing = context.timing
    if timing is None:
        return []
    other = timing.other
    if other is None:
        return []
    scaled = facts.scaled(step_time_us=other.us, gpu_busy_us=facts.gpu_busy_us)
    said = regime(scaled, limits)
    if said == regime(facts, limits):
        return []
    name = "back to back" if other.noun == "block" else "synchronised after each step"
    text = f"Timed {name}, a step takes {short_time(other.us)} (u = {scaled.busy_fraction:.2f}) and would be {said}."
    return [item("other_step_time_us", other.us, "us", text)]


def item(name: str, value: float | None, unit: str, text: str) -> Evidence:
    """One piece of evidence."""
    return Evidence(name=name, value=value, unit=unit, text=text)
