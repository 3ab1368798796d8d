"""The verdict in one sentence, and the figures that speak for it."""

from __future__ import annotations

from proftrack.measures import Measures
from proftrack.record.verdict import Evidence
from proftrack.verdict.context import Context
from proftrack.verdict.rules import StepFacts, regime, without_inflation
from proftrack.verdict.thresholds import Thresholds

CAUSE_TEXT = {
    "dispatch": "the host was launching (operators, runtime calls, the Python between them)",
    "host": "the host did work that launches nothing",
    "input": "the host waited for the data loader",
    "synchronization": "the host had waited for the GPU, which drained its queue",
    "allocator": "the host allocated or freed device memory",
    "profiler": "the profiler asked for or flushed a buffer, which costs nothing without it",
    "queued": "the work was launched in time, the device started it late",
    "unknown": "no launch was recorded for the work that followed",
}
LIMIT_TEXT = {
    "arithmetic": "kernels limited by arithmetic (matmul, convolution, attention)",
    "bandwidth": "kernels limited by memory bandwidth (elementwise, reduction, normalisation, copies)",
    "latency": "kernels whose grid fills under half of the GPU",
    "transfer": "copies between host and device that no kernel hides",
    "communication": "collectives that no kernel hides",
    "unknown": "kernels of unknown kind",
}
_REGIME_TEXT = {
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


def summary(name: str, facts: StepFacts, *, what: str = "step") -> str:
    """The verdict in one plain sentence; `what` the times are of."""
    share = f"the GPU works {us(facts.gpu_busy_us)} of a {us(facts.step_time_us)} {what} ({facts.busy_fraction:.0%})"
    return f"{name.capitalize()}: {share}; {_REGIME_TEXT[name]}."


def collect(
    measures: Measures, facts: StepFacts, context: Context, roofline: float | None, limits: Thresholds
) -> list[Evidence]:
    """All figures that speak for or against the verdict, the three times first."""
    whole = "A step" if measures.steps else "The recording"
    kind = "without the profiler" if context.unprofiled_us is not None else "in the trace"
    out = [
        item("step_time_us", facts.step_time_us, "us", f"{whole} takes {us(facts.step_time_us)} {kind}."),
        item("gpu_busy_per_step_us", facts.gpu_busy_us, "us", f"The GPU is busy {us(facts.gpu_busy_us)} of it."),
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
    out = [item("overhead_headroom", overhead, "x", f"If all launch overhead vanished: at most {_factor(overhead)}.")]
    work = context.work_of(measures)
    if roofline is not None and work is not None:
        kernels = facts.kernel_headroom(roofline)
        how = "counted over one step" if work.source == "counted" else "by the operators' shapes, arithmetic alone"
        out += [
            item("roofline_time_us", roofline, "us", f"This device needs at least {us(roofline)} for it ({how})."),
            item("kernel_headroom", kernels, "x", f"If every kernel reached the roofline: at most {_factor(kernels)}."),
        ]
    return out


def _factor(value: float) -> str:
    return f"{max(value, 1.0):.0f}x" if value >= 10 else f"{max(value, 1.0):.1f}x"


def _idle(measures: Measures, facts: StepFacts, limits: Thresholds) -> list[Evidence]:
    if facts.busy_fraction >= limits.gpu_bound_from:
        return []
    per = measures.per
    causes = sorted(measures.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    out = [
        item(f"idle_{cause}_us", time, "us", f"The GPU idles {us(time)} {per} in the trace: {CAUSE_TEXT[cause]}.")
        for cause, time in causes[:3]
    ]
    launch = measures.launch
    if launch is not None and launch.interval_median_us and measures.totals.launches:
        work = (measures.totals.self_cuda_time_total_us or 0.0) / measures.totals.launches
        limit = "the limit" if work < launch.interval_median_us else "not the limit"
        between = us(launch.interval_median_us)
        text = f"A launch every {between} in the trace brings {us(work)} of GPU work: the launch rate is {limit}."
        out.append(item("launch_interval_us", launch.interval_median_us, "us", text))
    if facts.sync_us:
        text = f"The host waits {us(facts.waits_over_gpu_us)} {per} while the GPU works."
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
    text = f"Timed {name}, a step takes {us(other.us)} (u = {scaled.busy_fraction:.2f}) and would be {said}."
    return [item("other_step_time_us", other.us, "us", text)]


def item(name: str, value: float | None, unit: str, text: str) -> Evidence:
    """One piece of evidence."""
    return Evidence(name=name, value=value, unit=unit, text=text)


def number(value: float, digits: int = 3) -> str:
    """A count or a ratio for a sentence, never with an exponent: 0.333, 2, 12.5, 1,234."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 or not value else f"{value:.9f}".rstrip("0").rstrip(".")


def amount(metric: str, value: float) -> str:
    """A metric's value with its unit: 2.65 s, 60 GB, 0.5."""
    if metric.endswith("_us"):
        return us(value)
    if not metric.endswith("_bytes"):
        return number(value)
    power = next((power for power in (12, 9, 6, 3) if abs(value) >= 0.9995 * 10**power), 0)
    return f"{value / 10**power:.3g} {' kMGT'[power // 3].strip()}B"


def times(count: float) -> str:
    """How often: once, 3 times, 0.5 times."""
    text = number(count)
    return "once" if text == "1" else f"{text} times"


def difference(fraction: float) -> str:
    """How far apart two figures are, 0.12 being 12.0 %; from a factor of ten on as a factor: 240x."""
    return f"{fraction * 100:.1f} %" if fraction < 9 else f"{number(1 + fraction)}x"


def us(value: float) -> str:
    """A time for a sentence: 7.68 ns, 3 us, 51 us, 1.2 ms, 2,650 s."""
    if 0 < abs(value) < 0.1:
        return f"{number(value * 1e3)} ns"
    for divisor, unit in ((1, "us"), (1e3, "ms")):
        if value / divisor < 999.5:  # what rounds to 1000 has the next unit
            return f"{number(value / divisor)} {unit}"
    return f"{number(value / 1e6)} s"


def counted(value: float, noun: str) -> str:
    """How many, in a sentence: 1 launch, 0.333 launches, 12 launches."""
    text = number(value)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"
