"""The verdict in one sentence, and the figures behind it."""

from __future__ import annotations

from proftrack.measures import Measures
from proftrack.record.figures import IdleCause, Limit
from proftrack.record.verdict import Basis, Evidence, Regime
from proftrack.text import factor, plain, short_time
from proftrack.verdict.context import Context
from proftrack.verdict.rules import Ruling, StepFacts, regime, without_inflation
from proftrack.verdict.thresholds import Thresholds

CAUSE_TEXT: dict[IdleCause, str] = {
    "dispatch": "the host was launching (operators, runtime calls, the Python between them)",
    "host": "the host did work that launches nothing",
    "input": "the host waited for the data loader",
    "synchronization": "the host had waited for the GPU, and the GPU's queue ran empty",
    "allocator": "the host allocated or freed device memory",
    "profiler": "the profiler requested or flushed a buffer, which does not happen without it",
    "startup": "a context, a library or a kernel was loaded, which happens once",
    "queued": "the work was launched in time, or the host waited for it, but the device started it late",
    "unknown": "no launch was recorded for the work that followed",
}
LIMIT_TEXT: dict[Limit, str] = {
    "arithmetic": "kernels limited by arithmetic (matmul, convolution, attention)",
    "bandwidth": "kernels limited by memory bandwidth (elementwise, reduction, normalisation, copies)",
    "latency": "kernels with a grid that fills less than half of the GPU",
    "transfer": "copies between host and device that no kernel hides",
    "communication": "collectives that no kernel hides",
    "unknown": "kernels of unknown kind",
}
_SHOWN = 0.005
"""Shares that would read 0% are left out."""
_REGIME_TEXT: dict[Regime, str] = {
    "overhead-bound": "the host cannot launch fast enough",
    "mixed": "both the host and the GPU limit it",
    "input-bound": "it waits for the data loader",
    "sync-bound": "the host keeps waiting for the GPU and cannot launch ahead",
    "host-bound": "the host does work that launches nothing",
    "compute-bound": "most of it in kernels limited by arithmetic",
    "memory-bound": "most of it in kernels limited by memory bandwidth",
    "latency-bound": "most of it in kernels too small to fill the GPU",
    "transfer-bound": "most of it in copies between host and device",
    "communication-bound": "most of it in collectives",
    "inconclusive": "but the data does not support a verdict",
}
_NONE_NEAR = "no unit of the GPU is near its limit"
_ALLOCATING = "the host allocated or freed device memory"
_SEVERAL = "the host launches late, for several reasons"


def summary(name: Regime, facts: StepFacts, *, what: str = "step", ruled: Ruling | None = None) -> str:
    """The verdict in one plain sentence; `what` is what the times are of (see `timed`), `ruled` why the GPU is busy."""
    times = f"{short_time(facts.gpu_busy_us)} of a {short_time(facts.step_time_us)} {what}"
    allocating = name == "host-bound" and facts.host_cause == "allocator"
    several = name == "overhead-bound" and 2 * facts.idle_by_cause_us.get("dispatch", 0.0) < facts.late_us
    why = _ALLOCATING if allocating else _SEVERAL if several else _limited(name, ruled)
    return f"{name.capitalize()}: the GPU is busy {times} ({facts.busy_fraction:.0%}); {why}."


def _limited(name: Regime, ruled: Ruling | None) -> str:
    """Why the step is in this regime; `ruled` has what counters say of a busy GPU."""
    if ruled is None or ruled.use is None or name == "inconclusive":
        return _REGIME_TEXT[name]
    use = ruled.use
    if ruled.at_limit:
        return use.at(use.unit)
    if name == ruled.by_kernels:
        near = "" if name in (use.regime, "latency-bound") else f"; {use.at(use.unit)} is the nearest"
        return f"{_REGIME_TEXT[name]}, and no unit is near its limit{near}"
    return _NONE_NEAR if name == "latency-bound" else f"{_NONE_NEAR}, {use.at(use.unit)} is the nearest"


def timed(measures: Measures, basis: Basis) -> str:
    """What T is the time of. That of a recording without steps leaves its start-up out."""
    if measures.steps:
        return "step"
    cold = basis == "profiled" and any(flag.code == "cold_start" for flag in measures.flags)
    return "recording without its start-up" if cold else "recording"


def headroom(recorded: float, without_inflation: float | None = None) -> str:
    """How much faster a step could be: `at most 18x`, or a bound from a profiled step, `at most 18x to 68x`.

    Readings less than 2 % apart are one: `10.0x to 10x` says nothing.
    """
    most, least = max(recorded, 1.0), max(without_inflation or recorded, 1.0)
    return f"at most {factor(most)}" if most < 1.02 * least else f"at most {factor(least)} to {factor(most)}"


def collect(
    measures: Measures,
    facts: StepFacts,
    context: Context,
    roofline: float | None,
    limits: Thresholds,
    *,
    ruled: Ruling | None = None,
) -> list[Evidence]:
    """All figures for or against the verdict, the three times first; `ruled` says why the GPU is busy, if it is."""
    basis: Basis = "profiled" if context.unprofiled_us is None else "unprofiled"
    what = f"{'A' if measures.steps else 'The'} {timed(measures, basis)}"
    kind = "without the profiler" if basis == "unprofiled" else "in the trace"
    step, busy = short_time(facts.step_time_us), short_time(facts.gpu_busy_us)
    out = [
        item("step_time_us", facts.step_time_us, "us", f"{what} takes {step} {kind}."),
        item("gpu_busy_per_step_us", facts.gpu_busy_us, "us", f"The GPU is busy for {busy} of it."),
        *_headrooms(facts, context, measures, roofline, limits),
        *_idle(measures, facts, context, limits),
        *(_units(ruled, facts, limits) if ruled is not None else []),
        *_busy(facts, "By shapes and names, " if ruled is not None and ruled.use is not None else ""),
    ]
    if context.unprofiled_us is None:
        other = without_inflation(facts, limits).busy_fraction
        recorded, most = f"{facts.busy_fraction:.2f}", f"{other:.2f}"
        without = "hardly more" if most == recorded else f"up to {most}"
        text = f"u = {recorded} in the trace, and {without} without the profiler."
        out.append(item("gpu_busy_fraction_without_inflation", other, "", text))
    return out + _other_mode(facts, context, limits)


def _headrooms(
    facts: StepFacts, context: Context, measures: Measures, roofline: float | None, limits: Thresholds
) -> list[Evidence]:
    overhead = facts.step_time_us / facts.gpu_busy_us
    text = f"If the GPU never idled: {headroom(overhead)} faster."
    if context.unprofiled_us is None:
        other = 1 / without_inflation(facts, limits).busy_fraction
        text = (
            f"If the GPU never idled: {headroom(overhead, other)} faster. That is a bound from a profiled step: "
            "profiling lengthens the host's part."
        )
    out = [item("overhead_headroom", overhead, "x", text)]
    work = context.work_of(measures)
    if roofline is None or work is None:
        return out
    missing = context.uncounted_share(measures)
    how = "counted over one step" if work.source == "counted" else "from operator shapes, arithmetic only"
    least = f"This device needs at least {short_time(roofline)} for it ({how})"
    if missing > limits.headroom_uncounted:
        text = (
            f"{least}. That is only a lower bound: {missing:.0%} of the GPU's time is in work that was not counted"
            f"{named(context.uncounted_names(measures))}, so it does not tell what better kernels could gain."
        )
        return [*out, item("roofline_time_us", roofline, "us", text)]
    if missing >= 0.005:
        names = named(context.uncounted_names(measures))
        least += f", without {missing:.0%} of the GPU's time that was not counted{names}"
    kernels = facts.kernel_headroom(roofline)
    text = f"If every kernel reached the roofline: {headroom(kernels)} faster."
    return [*out, item("roofline_time_us", roofline, "us", f"{least}."), item("kernel_headroom", kernels, "x", text)]


_NAME_CHARS = 60


def named(uncounted: list[str]) -> str:
    """The first three names of what was not counted, in parentheses; empty if there are none."""
    shown = ", ".join(plain(name, _NAME_CHARS) for name in uncounted[:3])
    return f" ({shown}{', ...' if len(uncounted) > 3 else ''})" if shown else ""


def _idle(measures: Measures, facts: StepFacts, context: Context, limits: Thresholds) -> list[Evidence]:
    if facts.busy_fraction >= limits.gpu_bound_from:
        return []
    per, waited = measures.per, context.input_wait_us()
    causes = sorted(measures.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    whole = sum(us for _, us in causes)
    if waited is not None:  # what was measured takes the place of what the trace shows
        causes = [(cause, us) for cause, us in causes if cause != "input"]
    out = input_wait(measures, context, facts.step_time_us, idle_us=facts.idle_by_cause_us.get("input", 0.0))
    out += [
        item(f"idle_{cause}_us", us, "us", f"The GPU idles {short_time(us)} {per} in the trace: {CAUSE_TEXT[cause]}.")
        for cause, us in causes[:3]
        if us >= _SHOWN * whole
    ]
    launch = measures.launch
    if launch is not None and launch.interval_median_us and measures.totals.launches:
        work = (measures.totals.self_cuda_time_total_us or 0.0) / measures.totals.launches
        between = short_time(launch.interval_median_us)
        text = f"Each launch adds {short_time(work)} of GPU work, and the trace has one every {between}"
        if work >= launch.interval_median_us:
            text += ": the launch rate is not the limit"
        elif facts.idle_by_cause_us.get("dispatch", 0.0) == max(facts.idle_by_cause_us.values(), default=-1.0):
            text += ": the launch rate is the limit"
        text += "."
        out.append(item("launch_interval_us", launch.interval_median_us, "us", text))
    if facts.sync_us:
        text = f"The host waits {short_time(facts.waits_over_gpu_us)} {per} while the GPU works."
        out.append(item("waits_over_gpu_us", facts.waits_over_gpu_us, "us", text))
    return out


def input_wait(
    measures: Measures, context: Context, step_time_us: float, *, idle_us: float | None = None
) -> list[Evidence]:
    """How long a step waits for its data without the profiler, beside what the trace shows; `idle_us`: how long the GPU
    idles meanwhile."""
    waited, part = context.input_wait_us(), measures.loading
    shown = part.timed_us / measures.window.typical_steps if part is not None else 0.0
    if waited is None or max(waited, shown) < _SHOWN * step_time_us:
        return []
    text = f"A step waits {short_time(waited)} for its data without the profiler"
    if idle_us is not None:
        text += f", and the GPU idles for {short_time(idle_us)} of it"
    text += f"; in the trace it waits {short_time(shown)}"
    if part is not None and part.workers and shown < waited / 2:
        text += ", because its batches were ready"
    elif shown > 2 * waited:
        text += ", which profiling or workers that start make longer"
    return [item("input_wait_us", waited, "us", f"{text}.")]


def _units(ruled: Ruling, facts: StepFacts, limits: Thresholds) -> list[Evidence]:
    """The use of the GPU's units while it is busy, and what that says of shapes and names."""
    use = ruled.use
    if use is None:
        if facts.use is None:
            return []
        moving = facts.moving_us / facts.gpu_busy_us
        text = (
            f"Counters do not judge the kernels: {moving:.0%} of the busy time is in copies and collectives. Over "
            f"all of it, {facts.use.at('dram')}, {facts.use.at(facts.use.pipe)}."
        )
        return [item("busy_moving_fraction", moving, "", text)]
    pipe = use.at(use.pipe)
    out = [
        item("dram_utilization", use.memory, "", f"{use.at('dram')}."),
        item("pipe_utilization", use.pipe_share, "", f"{pipe[0].upper()}{pipe[1:]}; no pipe is used more."),
    ]
    if not ruled.at_limit:
        text = f"No unit is near its limit: that begins at {limits.unit_limits:.0%} of what is reachable."
        out.append(item("largest_utilization", use.largest, "", text))
    if ruled.overruled:
        says = f"The kernels' shapes and names say {ruled.by_kernels}"
        if ruled.at_limit:
            text = f"{says}; counters say {ruled.regime}, and they are measured."
        else:
            unit = "dram" if ruled.by_kernels == "memory-bound" else use.pipe
            text = f"{says}, but {use.at(unit)}: too little for that."
        out.append(item("kernels_against_counters", None, "", text))
    elif ruled.by_kernels == "inconclusive":
        text = f"The kernels' names do not tell what limits them{': counters do' if ruled.at_limit else ''}."
        out.append(item("kernels_against_counters", None, "", text))
    return out


def _busy(facts: StepFacts, judged_by: str) -> list[Evidence]:
    busy = sorted(facts.busy_by_limit_us.items(), key=lambda kv: -kv[1])
    total = sum(time for _, time in busy)
    return [
        item(f"busy_{limit}_us", time, "us", f"{judged_by}{time / total:.0%} of the busy time: {LIMIT_TEXT[limit]}.")
        for limit, time in busy[:3]
        if time >= _SHOWN * total
    ]


def _other_mode(facts: StepFacts, context: Context, limits: Thresholds) -> list[Evidence]:
    """The regime by the other step time, if it differs."""
    other = context.timing.other if context.timing is not None else None
    if other is None:
        return []
    scaled = facts.scaled(step_time_us=other.us, gpu_busy_us=facts.gpu_busy_us)
    waited, waits = context.input_wait_us(), other.input_wait_us()
    if waited is not None and waits is not None:
        scaled = scaled.with_input(facts.idle_by_cause_us.get("input", 0.0) + waits - waited)
    other_regime = regime(scaled, limits)
    if other_regime in (regime(facts, limits), "inconclusive"):  # the trace's causes are those of the other step
        return []
    name = "back to back" if other.noun == "block" else "synchronised after each step"
    text = f"Timed {name}, a step takes {short_time(other.us)} (u = {scaled.busy_fraction:.2f}): {other_regime}."
    return [item("other_step_time_us", other.us, "us", text)]


def item(name: str, value: float | None, unit: str, text: str) -> Evidence:
    """One piece of evidence."""
    return Evidence(name=name, value=value, unit=unit, text=text)
