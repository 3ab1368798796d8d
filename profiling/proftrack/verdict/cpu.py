"""The verdict of a trace without GPU work: a run on the CPU, or one whose GPU was not measured.

There is no lane of GPU work to measure busy time on. In its place stands the part of the operators' self time that does
what has to be done (measures.work.cpu_work), against T.
"""

from __future__ import annotations

from proftrack.measures import Measures
from proftrack.measures.results import CpuWork
from proftrack.verdict.advice import advise_cpu
from proftrack.verdict.context import Context
from proftrack.verdict.evidence import item, number, us
from proftrack.verdict.result import Evidence, Verdict
from proftrack.verdict.rules import gpu_regime
from proftrack.verdict.thresholds import Thresholds

_SPREAD = 1 / 3
_OTHER_CONDITIONS_US = 1000.0
"""What the operators may take in the trace beyond twice the step: with more, the machine was not in one state."""
_HOST_WORK_US = 100.0
"""Time between operators, for each of them, that is no longer the price of calling it from Python."""


def verdict(measures: Measures, context: Context, time: float | None, *, basis: str, limits: Thresholds) -> Verdict:
    """Judge a CPU run; inconclusive where T or the ceilings were not measured, or the GPU was not."""
    flags = {f.code: f for f in measures.flags}
    if "gpu_not_measured" in flags:
        what, reason = "the host launched GPU work, but none was recorded", flags["gpu_not_measured"].message
    elif measures.totals.gpu_events:
        what = "no GPU work can be placed in the steps"
        reason = "The GPU work in the trace has no usable times, no length, or ran before and behind the steps only."
        if "gpu_before_launch" in flags:
            reason = flags["gpu_before_launch"].message
    elif measures.other_us and (measures.cpu is None or context.unprofiled_us is None):
        rows = sorted(measures.other_us.items(), key=lambda kv: -kv[1])
        named = ", ".join(f"{name[:60] or 'without a category'} ({us(time_us)})" for name, time_us in rows[:4])
        what, reason = "no GPU work that is known", f"Rows of these categories are counted and not judged: {named}."
    elif not measures.ops:
        what, reason = "the trace holds nothing to judge", "It holds neither operators nor GPU work."
    elif measures.cpu is None or context.unprofiled_us is None or not time or not measures.steps:
        what = "a trace of the CPU alone"
        reason = "It holds no GPU work, and a CPU is judged by its ceilings and an unprofiled step time only."
    else:
        return _judged(measures, measures.cpu, context, time, limits)
    return _inconclusive(measures, basis, limits, what, reason)


def _judged(measures: Measures, cpu: CpuWork, context: Context, time: float, limits: Thresholds) -> Verdict:
    steps = measures.steps
    working = {k: v / steps for k, v in cpu.working_us.items()}
    busy = min(sum(working.values()), time)
    u = busy / time
    between = max(time - cpu.operators_us / steps, 0.0)
    gap = time - busy
    if u >= limits.gpu_bound_from:
        name, cause = gpu_regime(working, limits), max(working, key=lambda k: working[k])
    elif between >= limits.cause_share * gap and between / max(cpu.operators / steps, 1) > _HOST_WORK_US:
        name, cause = "host-bound", "host"
    else:
        name = "overhead-bound" if u <= limits.overhead_bound_to else "mixed"
        cause = "python" if between >= limits.cause_share * gap else "dispatch"
    reasons = ["A CPU's working time is an estimate: roofline time, and self time beyond the price of a call."]
    unsteady = _unsteady(cpu, context, time, steps)
    summary = _summary(name, busy, time)
    if cpu.operators_us / steps > 2 * time + _OTHER_CONDITIONS_US:
        name = "inconclusive"
        inside = us(cpu.operators_us / steps)
        summary = f"Inconclusive (CPU): operators that take {inside} in the trace do not fit into a step of {us(time)}."
    near = [limit for limit in (limits.overhead_bound_to, limits.gpu_bound_from) if abs(u - limit) < limits.near]
    reasons += [f"{u:.2f} of the step is work: close to the limit {limit}." for limit in near]
    return Verdict(
        regime=name,
        cause=cause,
        confidence="low" if near or unsteady or name == "inconclusive" else "medium",
        basis="unprofiled",
        gpu_busy_fraction=None,
        summary=summary,
        evidence=_evidence(measures, cpu, context, time, working),
        advice=advise_cpu(name),
        reasons=[*reasons, *unsteady],
        thresholds=limits.as_dict(),
    )


def _unsteady(cpu: CpuWork, context: Context, time: float, steps: int) -> list[str]:
    """Signs that something else ran on the machine, while steps were timed or while they were recorded."""
    out = []
    blocks = sorted(context.timing.block_step_times_us) if context.timing is not None else []
    if blocks and blocks[-1 - len(blocks) // 10] > (1 + _SPREAD) * blocks[len(blocks) // 10]:
        out.append("The timed blocks differ by more than a third: another program may have used the machine.")
    if cpu.operators_us / steps > 2 * time:
        out.append("The operators took over twice as long in the trace as the whole step without it.")
    return out


_TEXT = {
    "compute-bound": "most of it arithmetic",
    "memory-bound": "most of it moving memory",
    "overhead-bound": "the rest is dispatch and Python",
    "mixed": "work and overhead both hold it back",
    "host-bound": "the rest is spent outside torch's operators",
    "inconclusive": "but the data do not carry a verdict",
}


def _summary(name: str, busy: float, time: float) -> str:
    return f"{name.capitalize()} (CPU): {us(busy)} of a {us(time)} step are work ({busy / time:.0%}); {_TEXT[name]}."


def _evidence(
    measures: Measures, cpu: CpuWork, context: Context, time: float, working: dict[str, float]
) -> list[Evidence]:
    steps, ceilings = measures.steps, context.ceilings
    busy = min(sum(working.values()), time)
    calls, inside = cpu.operators / steps, cpu.operators_us / steps
    out = [
        item("step_time_us", time, "us", f"A step takes {us(time)} without the profiler."),
        item("cpu_working_us", busy, "us", f"{us(busy)} of it are work, estimated from the operators' self time."),
        item("operators_us", inside, "us", f"{number(calls)} operators a step take {us(inside)} under the profiler."),
    ]
    if ceilings is not None and ceilings.dispatch_us is not None:
        floor = ceilings.dispatch_us * calls
        text = f"Dispatching so many costs at least {us(floor)} here ({us(ceilings.dispatch_us)} each)."
        out.append(item("dispatch_floor_us", floor, "us", text))
    roofline = context.roofline_us(measures)
    if roofline is not None:
        text = f"This CPU needs at least {us(roofline)} for it: {roofline / time:.0%} of the step."
        out.append(item("roofline_time_us", roofline, "us", text))
    out += [
        item(f"working_{limit}_us", value, "us", f"{us(value)} of the work is limited by {_LIMIT[limit]}.")
        for limit, value in sorted(working.items(), key=lambda kv: -kv[1])
    ]
    return out + _top_operators(measures)


_LIMIT = {"arithmetic": "arithmetic", "bandwidth": "memory bandwidth", "unknown": "what the shapes do not tell"}


def _top_operators(measures: Measures) -> list[Evidence]:
    total = measures.totals.self_cpu_time_total_us
    if not total:
        return []
    named = [op for op in measures.ops if not op.name.startswith("ProfilerStep")]
    out = []
    for op in sorted(named, key=lambda o: -o.self_cpu_time_us)[:5]:
        calls = "1 call" if op.calls == 1 else f"{op.calls} calls"
        text = f"{op.name}: {us(op.self_cpu_time_us)} self CPU in {calls} ({op.self_cpu_time_us / total:.0%})."
        out.append(item("self_cpu_time_us", op.self_cpu_time_us, "us", text))
    return out


def _inconclusive(measures: Measures, basis: str, limits: Thresholds, what: str, reason: str) -> Verdict:
    return Verdict(
        regime="inconclusive",
        cause=None,
        confidence="low",
        basis=basis,
        gpu_busy_fraction=None,
        summary=f"Inconclusive: {what}.",
        evidence=_top_operators(measures),
        advice=advise_cpu("inconclusive"),
        reasons=[reason],
        thresholds=limits.as_dict(),
    )
