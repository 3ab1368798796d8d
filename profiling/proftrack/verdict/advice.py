"""What to do next in each regime, based on what the trace shows, and finally what would not help.

Each piece of advice is weighed by the most that it can save: what saves no notable part of the step is not given, and
what saves most comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from proftrack.measures import Measures
from proftrack.measures.waits import Wait
from proftrack.record.figures import IdleCause, Site
from proftrack.record.verdict import GPU_REGIMES, Cause, Regime
from proftrack.text import counted, factor, how_often, listed, plain, short_time
from proftrack.verdict.by_unit import FEWER_BYTES, not_in_roofline, words_below, words_for
from proftrack.verdict.context import Context
from proftrack.verdict.rules import Ruling, StepFacts, ruling
from proftrack.verdict.thresholds import Thresholds
from proftrack.verdict.unfilled import look_at

_MANY_LAUNCHES = 20
_SHARE = 0.3
_NEAR_ROOFLINE = 1.25
_FASTER = 1.2
_EXPOSED = "Collectives that no kernel hides take"
_MOST = 4
"""Pieces of specific advice: more are no help in choosing."""
_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_CAN_FUSE = re.compile(r"(Adam|AdamW|SGD|Adagrad)\.")
_FUSED = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
_NEARER_ALL = "shapes that fit the tiles, fused epilogues, fewer passes over the data"
_NEARER: dict[Regime, str] = {
    "memory-bound": "fewer passes over the data, contiguous accesses",
    "latency-bound": "fewer and larger kernels, contiguous accesses, fewer atomics",
}
_GIVES_BACK = re.compile(r"Free|Unmap|Release|Unregister")
_PINNED = "allocate pinned memory once and use it again."
_GROWING = (
    "the caching allocator asks the driver for memory and gives none back, as a program does until it has what a step "
    "needs: record later steps. If that goes on, memory grows: look for tensors that are kept."
)
_EXHAUSTED = (
    "the caching allocator returns memory to the driver and asks for it again. Take torch.cuda.empty_cache() out of "
    "the loop. If memory is nearly full, lower its peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "(PYTORCH_ALLOC_CONF in newer versions)."
)


class Step(NamedTuple):
    """What the advice rests on."""

    measures: Measures
    facts: StepFacts
    roofline_us: float | None
    """R; None if it is unknown, or leaves out too much work to judge kernels by."""
    profiled: bool
    """Whether T is that of the trace, which profiling lengthens."""
    limits: Thresholds

    def per_step(self, total_us: float) -> float:
        """A sum over the trace, per step: totals hold all steps, outliers too."""
        return total_us / max(self.measures.steps, 1)

    def idle(self, cause: IdleCause) -> float:
        """The part of T - B that this cause can explain."""
        return min(self.facts.idle_by_cause_us.get(cause, 0.0), self.facts.gap_us)

    @property
    def notable_us(self) -> float:
        """What following an advice must save to be given."""
        return self.limits.notable * self.facts.step_time_us

    @property
    def ruled(self) -> Ruling | None:
        """What counters say of a busy GPU; None if they do not judge it."""
        if self.facts.busy_fraction < self.limits.gpu_bound_from:
            return None
        ruled = ruling(self.facts, self.limits)
        return ruled if ruled.use is not None else None

    def of_step(self, us: float) -> str:
        """`12 us of a 51 us step`."""
        what = "step" if self.measures.steps else "recording"
        how = " as profiled" if self.profiled else ""
        return f"{short_time(us)} of a {short_time(self.facts.step_time_us)} {what}{how}"


class Advice(NamedTuple):
    """Sentences, and the most that following them can save per step."""

    saves_us: float
    text: str


def advise(name: Regime, cause: Cause | None, step: Step) -> list[str]:
    """Sentences in the order to try them; the last one says what would not help."""
    found = [advice for source in _SOURCES.get(name, ()) for advice in source(step)]
    found = [advice for advice in found if advice.saves_us >= step.notable_us]
    found.sort(key=lambda advice: -advice.saves_us)
    rest = list(_general(name, cause, step))
    if name in GPU_REGIMES and name not in _MOVING and step.roofline_us is not None:
        rest.insert(-1, _roofline_sentence(name, step, step.facts.kernel_headroom(step.roofline_us)))
    return [*(advice.text for advice in found[:_MOST]), *rest]


def advise_cpu(regime: str, context: Context) -> list[str]:
    """The same for a run on the CPU. A narrower type is suggested only if it was measured to be faster on this CPU."""
    faster = _faster_types(context) if regime in ("compute-bound", "memory-bound") else []
    narrower = [f"{dtype} computes {ratio:.1f} times as fast as {used} here: try it." for used, dtype, ratio in faster]
    return [*narrower, *_CPU[regime]]


def _faster_types(context: Context) -> list[tuple[str, str, float]]:
    """(a type that the step uses, the fastest narrower type, how many times as fast that was measured to be)."""
    rates = context.ceilings.flops_per_s if context.ceilings is not None else {}
    used = context.work.flops_by_dtype if context.work is not None else {}
    faster = []
    for dtype in sorted(used):
        rate, width = rates.get(dtype), _WIDTH.get(dtype, 0)
        narrower = {d: other / rate for d, other in rates.items() if rate and _WIDTH.get(d, width) < width}
        if narrower and max(narrower.values()) > _FASTER:
            best = max(narrower, key=lambda d: narrower[d])
            faster.append((dtype, best, narrower[best]))
    return faster


def _roofline_sentence(name: Regime, step: Step, headroom: float) -> str:
    if headroom <= _NEAR_ROOFLINE:
        return (
            f"The kernels are close to this device's limit (at most {factor(max(headroom, 1))} faster): only less "
            "work, lower precision or different hardware can shorten the step."
        )
    above, ruled = f"The kernels are {factor(headroom)} above the roofline", step.ruled
    if ruled is not None and ruled.use is not None and ruled.at_limit and not_in_roofline(ruled.use, step.measures):
        return f"{above}, but that is made of bytes and products: it does not tell what less of this arithmetic gains."
    return f"{above}: start with the largest and its distance from the roofline ({_NEARER.get(name, _NEARER_ALL)})."


# -- the host's part: what the trace shows of the causes of T - B


def _launching(step: Step) -> Iterator[Advice]:
    """Fewer launches save what the host's launching costs. Beside a better optimizer they are weighed by the rest."""
    optimizer = list(_optimizer(step))
    yield from optimizer
    saves = _launching_us(step)
    measures = step.measures
    launches, most = measures.launches_per_step, f"(at most {step.of_step(saves)})"
    waiting = list(dict.fromkeys(wait.operator or wait.call for wait in measures.waits))[:2]
    once = f" once nothing in it waits for the GPU (here {listed(waiting)})" if waiting else ""
    names = {op.name for op in measures.ops}
    if measures.replays_graphs:
        text = f"The step already replays a graph: put more work into each replay: more steps, a larger batch {most}."
    elif any(re.search(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction", name) for name in names):
        lookups = step.per_step(sum(op.self_cpu_time_us for op in measures.ops if "Cache Lookup" in op.name))
        cost = f" (its guards alone cost {short_time(lookups)} {measures.per} in the trace)" if lookups else ""
        text = (
            f"The step is already compiled{cost}: replay it as a CUDA graph with mode='reduce-overhead' {most}, and "
            "measure whether eager is faster at this size."
        )
    elif launches is None or launches > 1:
        many = "" if launches is None else f"{counted(round(launches), 'launch')} {measures.per}: "
        text = (
            f"{many}replay the step as a CUDA graph {most}{once}, or let torch.compile fuse its operators and measure "
            "whether that is faster."
        )
        text = text[0].upper() + text[1:]
    else:
        text = f"One launch {measures.per}: only a larger batch gives the GPU more to do."
    yield Advice(saves - sum(advice.saves_us for advice in optimizer), text)


def _launching_us(step: Step) -> float:
    """The part of T - B that no cause other than launching explains: the most that fewer launches can save."""
    others = sum(us for cause, us in step.facts.idle_by_cause_us.items() if cause != "dispatch")
    return max(step.idle("dispatch"), step.facts.gap_us - others)


def _optimizer(step: Step) -> Iterator[Advice]:
    """For a for-loop or foreach optimizer that makes many of the step's launches."""
    measures = step.measures
    total = measures.launches_per_step or 0.0
    everywhere = sum(each.launches or 0 for each in measures.per_step) or measures.totals.launches or 1
    for region in measures.regions:
        launches = total * min((region.launches or 0) / everywhere, 1.0)
        few = launches < max(_SHARE * total, _MANY_LAUNCHES)
        if not region.name.startswith("Optimizer.step#") or few or _is_fused(step):
            continue
        foreach = any(op.name.startswith("aten::_foreach_") for op in measures.ops)
        remedy = "fused=True" if foreach else "foreach=True or fused=True"
        name = region.name.removeprefix("Optimizer.step#")
        made = f"{launches:.0f} of {total:.0f} launches {measures.per}"
        saves = _launching_us(step) * launches / total
        yield Advice(saves, f"{name} makes {made}: pass it {remedy} (saves up to about {step.of_step(saves)}).")
        return


def _waiting(step: Step) -> Iterator[Advice]:
    """Without a wait the host launches ahead: that saves what it waited while the GPU worked, at most T - B."""
    for wait in step.measures.waits:
        saves = min(wait.over_gpu_us / step.measures.window.typical_steps, step.facts.gap_us)
        if saves:
            yield Advice(saves, f"{_without(wait, step)} (at most {step.of_step(saves)}).")


def _without(wait: Wait, step: Step) -> str:
    """What waits how often, and what to do about it."""
    calls, per = wait.calls / step.measures.window.typical_steps, step.measures.per
    if wait.operator in ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"):
        return (
            f".item() or a similar call reads {counted(calls, 'value')} {per} from the GPU: keep them there and "
            "read them rarely"
        )
    often = f"waits for the GPU {how_often(calls)} {per}"
    if wait.operator in ("aten::copy_", "aten::_to_copy"):
        return f"A copy between host and device {often}: use pinned memory and non_blocking=True, or copy rarely"
    if wait.operator.startswith("aten::"):
        return f"{wait.operator} {often}: it needs a value or a size that only the GPU knows; avoid it in the step"
    inside = f" in {wait.operator}" if wait.operator else ""
    return f"{wait.call}{inside} {often}: find its caller and remove it"


def _loading(step: Step) -> Iterator[Advice]:
    saves = step.idle("input")
    what = "The GPU waits for data: load it ahead"
    part = step.measures.loading
    if part is not None and part.in_process:
        what = "The DataLoader runs in the training process (num_workers=0): give it workers"
    elif part is not None and part.workers:
        what = "The DataLoader's workers make batches more slowly than steps use them: more workers, or cheaper samples"
    yield Advice(saves, f"{what} (at most {step.of_step(saves)}).")


def _hosting(step: Step) -> Iterator[Advice]:
    saves = step.idle("host")
    gap = next((gap for gap in step.measures.idle.largest if gap.cause == "host"), None)
    longest = f" The longest such gap takes {short_time(gap.duration_us)}{_during(gap.during)}." if gap else ""
    yield Advice(saves, f"The host's own work that launches nothing costs at most {step.of_step(saves)}.{longest}")


def _during(name: str) -> str:
    """What the host did in a gap, if one row says so for most of it."""
    unknown = not name or name.startswith(("unrecorded host activity", "unknown host activity"))
    return "" if unknown else f", during {name[:120]}"


def _allocating(step: Step) -> Iterator[Advice]:
    saves = step.idle("allocator")
    calls = step.measures.allocator_calls
    names = [op.name for op in sorted(calls, key=lambda op: -op.cpu_time_us)][:2]
    pinned = bool(names) and "Host" in names[0]
    who = f"Calls of {' and '.join(names)}" if names else "Allocator calls"
    what = f"{who} leave the GPU idle for at most {step.of_step(saves)}"
    grows = bool(calls) and not any(_GIVES_BACK.search(op.name) for op in calls)
    yield Advice(saves, f"{what}: {_PINNED if pinned else _GROWING if grows else _EXHAUSTED}")


# -- the GPU's part


def _kernels_us(step: Step, sites: list[Site]) -> float:
    """Busy time of this work per typical step: what runs side by side shares its time."""
    return sum(site.busy_us for site in sites) / step.measures.window.typical_steps


def _copying(step: Step) -> Iterator[Advice]:
    sites = [site for site in step.measures.sites if "Pageable" in site.kernel]
    exposed = min(_kernels_us(step, sites), step.facts.busy_by_limit_us.get("transfer", 0.0))  # a kernel hides the rest
    saves = min(exposed, step.facts.step_time_us)  # under the profiler they may take longer
    back = [site for site in sites if site.kernel.endswith("Pageable)")]
    which = "from" if not back else "to" if len(back) == len(sites) else "from and to"
    yield Advice(
        saves,
        f"Copies {which} pageable memory take {step.of_step(saves)}: pin it (pin_memory=True). That alone is several "
        "times faster.",
    )


def _communicating(step: Step) -> Iterator[Advice]:
    saves = step.facts.busy_by_limit_us.get("communication", 0.0)
    yield Advice(saves, f"{_EXPOSED} {step.of_step(saves)}: overlap them with compute.")


def about_exposed(advice: str) -> bool:
    """Whether this is the advice to overlap collectives: no help to a rank that mostly waits in them."""
    return advice.startswith(_EXPOSED)


def _computing(step: Step) -> Iterator[Advice]:
    ruled = step.ruled
    if ruled is not None and ruled.use is not None and ruled.at_limit and ruled.use.unit in ("dram", "fp32"):
        return  # they wait for memory, or by_unit says it of the whole step
    slow = [site for site in step.measures.sites if re.search(r"sgemm|f32f32_f32f32|_simt_s|ffma", site.kernel)]
    saves = _kernels_us(step, slow)
    yield Advice(
        saves,
        f"Float32 arithmetic without tensor cores takes {step.of_step(saves)}: bfloat16 (autocast) or TF32 "
        "(torch.set_float32_matmul_precision('high')) is several times faster.",
    )


def _moving(step: Step) -> Iterator[Advice]:
    pointwise = [site for site in step.measures.sites if site.kind == "elementwise"]
    calls = sum(site.calls for site in pointwise) / step.measures.window.typical_steps
    saves = _kernels_us(step, pointwise)
    if calls >= 3:
        yield Advice(
            saves,
            f"{calls:.0f} elementwise kernels {step.measures.per} take {step.of_step(saves)}, and each reads and "
            "writes its data again: let torch.compile fuse them.",
        )


def _updating(step: Step) -> Iterator[Advice]:
    """For an optimizer that passes over parameters and states several times, though it can do so once."""
    for region in step.measures.regions:
        name = region.name.removeprefix("Optimizer.step#")
        if name == region.name or not _CAN_FUSE.match(name) or region.gpu_busy_us is None or _is_fused(step):
            continue
        saves = min(step.per_step(region.gpu_busy_us), step.facts.gpu_busy_us)
        yield Advice(
            saves,
            f"{name} takes {step.of_step(saves)}, in several passes over parameters and states: pass it fused=True, "
            "which makes one.",
        )


def _is_fused(step: Step) -> bool:
    return any(op.name.startswith(_FUSED) for op in step.measures.ops)


_Source = Callable[[Step], Iterator[Advice]]
_GPU: tuple[_Source, ...] = (_computing, _moving, _updating, _copying)
_MOVING: tuple[Regime, ...] = ("transfer-bound", "communication-bound")
"""Their kernels' distance from the roofline is beside the point."""
_SOURCES: dict[Regime, tuple[_Source, ...]] = {
    "overhead-bound": (_waiting, _launching, _loading, _hosting, _allocating),
    "mixed": (_waiting, _launching, _loading, _hosting, _allocating, *_GPU, _communicating),
    "sync-bound": (_waiting, _loading, _hosting, _allocating),
    "input-bound": (_loading, _waiting, _hosting, _allocating),
    "host-bound": (_hosting, _allocating, _loading, _waiting),
    "transfer-bound": (*_GPU, _communicating),
    "compute-bound": (*_GPU, _communicating),
    "memory-bound": (*_GPU, _communicating),
    "latency-bound": (*_GPU, _communicating),
    "communication-bound": _GPU,
}


# -- what holds for every step of a regime


def _general(name: Regime, cause: Cause | None, step: Step) -> tuple[str, ...]:
    if name == "mixed":
        return _both_sides(step)
    if name == "host-bound" and cause == "allocator":
        return (_NOT_THE_ALLOCATOR,)
    if name == "compute-bound":
        return (*_limited(name, step), *_launching_less(step))
    if name in ("memory-bound", "latency-bound"):
        return _limited(name, step)
    few = step.measures.launches_per_step == 1 or step.measures.replays_graphs
    if name == "overhead-bound" and (few or _launching_us(step) < step.notable_us):
        return _GENERAL[name][1:]
    return _GENERAL[name]


def _limited(name: Regime, step: Step) -> tuple[str, ...]:
    """For a busy GPU: by the unit near its limit; if none is, with what else to look at; else what holds for all."""
    ruled, general = step.ruled, _GENERAL[name]
    if name == "compute-bound" and step.facts.moving_us >= step.notable_us:
        general = (_BEYOND_MOVING,)
    if ruled is None or ruled.use is None:
        return general
    limits, measures = step.limits, step.measures
    if ruled.at_limit:
        words = words_for(ruled.use, measures, only_less=limits.unit_at_limit, lead=limits.unit_lead)
        if name == "memory-bound":
            return (*words.tries, general[0], *(words.useless or general[1:]))
        return (*words.tries, *words.useless)
    others = look_at(measures, step.facts)
    if name == "latency-bound":
        return (*others, _NO_UNIT)
    below = words_below(ruled.use, name, measures)
    return (*below, *others, *((_NO_UNIT,) if name == "memory-bound" else ()))


def _launching_less(step: Step) -> tuple[str, ...]:
    saves = _launching_us(step)
    gains = f"gains at most {step.of_step(saves)}" if saves else "gains nothing"
    return (f"Launching less (CUDA graphs, fusion to save launch overhead) {gains}.",)


def _both_sides(step: Step) -> tuple[str, ...]:
    """What each side can gain, and where to look on the GPU's."""
    idle, busy = step.of_step(step.facts.gap_us), short_time(step.facts.gpu_busy_us)
    largest = step.measures.kernels[0] if step.measures.kernels else None
    where = f", most of all {plain(largest.name, 80)} ({largest.share:.0%} of its time)" if largest else ""
    return (
        f"Both sides matter: the GPU idles {idle}; beyond that only less work for the GPU helps{where}.",
        f"Faster kernels alone cannot gain more than the {busy} that the GPU works, nor the host more than the rest.",
    )


_BEYOND_MOVING = (
    "Beyond copies and collectives, only better kernels, lower precision or less arithmetic helps: the GPU is busy "
    "nearly all the time."
)
_NO_UNIT = (
    "Fewer bytes or less arithmetic alone may not help, nor does launching the same kernels faster: the GPU is busy, "
    "but no unit of it is near its limit."
)
BETTER_DATA = "Address the caveats: a verdict needs better data."
_NOT_THE_ALLOCATOR = (
    "A CUDA graph or fused kernels do not help here: the host waits for the driver to allocate or free memory."
)
_GENERAL: dict[Regime, tuple[str, ...]] = {
    "overhead-bound": (
        "Launch less: a larger batch, fused operators, or a CUDA graph that replays the step.",
        "Faster kernels or lower precision do not help here: the GPU waits for the host.",
    ),
    "compute-bound": (
        "Only better kernels, lower precision or less arithmetic helps: the GPU computes nearly all the time.",
    ),
    "memory-bound": (
        FEWER_BYTES,
        "Faster arithmetic does not help here: the kernels wait for memory.",
    ),
    "latency-bound": (
        "The kernels are too small to fill the GPU: increase the batch, or merge kernels, so that each has more "
        "blocks.",
        "Launch overhead is not the limit: the GPU is busy, but most of its multiprocessors are empty.",
    ),
    "transfer-bound": (
        "Copy from or to pinned memory with non_blocking=True on a second stream, so that kernels hide the copies; "
        "copy less, or use a narrower type.",
        "Better kernels do not help here: the GPU's time goes into copies between host and device.",
    ),
    "communication-bound": (
        "Overlap collectives with compute (smaller buckets, gradient accumulation), or send less.",
        "Waiting for a slower rank looks the same: compare the ranks before tuning the network.",
    ),
    "input-bound": (
        "Feed the GPU: more DataLoader workers, pin_memory=True, prefetching, cheaper decoding, or cached data.",
        "Better kernels, torch.compile or CUDA graphs do not help while the model waits for its data.",
    ),
    "sync-bound": (
        "Remove the calls that make the host wait during the step: .item(), .cpu(), printing losses, "
        "torch.cuda.synchronize(), blocking copies.",
        "Fusing kernels gains little while every wait drains the queue.",
    ),
    "host-bound": (
        "Move the host's own work out of the step (numpy, tokenising, logging, sleep), or run it in another thread or "
        "process.",
        "Fusing kernels, torch.compile or CUDA graphs do not help: nothing is launched during that time.",
    ),
    "inconclusive": (BETTER_DATA,),
}
_CPU: dict[str, tuple[str, ...]] = {
    "compute-bound": (
        "Only less arithmetic, better kernels or more cores help.",
        "Fewer operators, or torch.compile to save dispatch, gain next to nothing.",
    ),
    "memory-bound": (
        "Move fewer bytes: let torch.compile fuse chains of operators, work in place.",
        "Faster arithmetic does not help here.",
    ),
    "overhead-bound": (
        "Call fewer and larger operators: a larger batch, or torch.compile.",
        "More threads or faster arithmetic do not help here: dispatch and Python take the time.",
    ),
    "input-bound": (
        "Prepare the data in advance: DataLoader workers if cores are free, cheaper decoding, cached data.",
        "Fusing or compiling the operators does not shorten that time.",
    ),
    "host-bound": (
        "Move the work outside torch's operators (numpy, Python loops, I/O) out of the step.",
        "Fusing or compiling the operators does not shorten that time.",
    ),
    "mixed": (
        "Both the operators' work and the cost of calling them matter: batch more, then look at the largest operator.",
    ),
    "inconclusive": (
        "Address the caveats: close other programs and measure again, or measure longer (--min-seconds 2); "
        "docs/faq.md says what to do about common caveats.",
    ),
}
