"""What to do next in each regime, tied to what the trace shows; and, last, what would win nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from proftrack.measures import Measures
from proftrack.record.verdict import GPU_REGIMES
from proftrack.text import counted, factor, how_often, short_time
from proftrack.verdict.context import Context
from proftrack.verdict.rules import StepFacts

_MANY_LAUNCHES = 20
_SHARE = 0.3
_NEAR_ROOFLINE = 1.25
_FASTER = 1.2
_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def advise(regime: str, measures: Measures, facts: StepFacts, roofline: float | None) -> list[str]:
    """Sentences in the order in which to try them; the last one says what would not help."""
    first = _FIRST[regime](measures) if regime in _FIRST else []
    rest = list(_GENERAL[regime])
    if regime in GPU_REGIMES and roofline is not None:
        rest.insert(-1, _roofline_sentence(facts.kernel_headroom(roofline)))
    return [*first, *rest]


def advise_cpu(regime: str, context: Context) -> list[str]:
    """The same for a run on the CPU. A narrower type only where it was measured to be faster on this one."""
    faster = _faster_types(context) if regime in ("compute-bound", "memory-bound") else []
    narrower = [f"{dtype} computes {ratio:.1f} times as fast as {used} here: try it." for used, dtype, ratio in faster]
    return [*narrower, *_CPU[regime]]


def _faster_types(context: Context) -> list[tuple[str, str, float]]:
    """A type that the step uses, the fastest narrower one, and how many times as fast it was measured to be."""
    rates = context.ceilings.flops_per_s if context.ceilings is not None else {}
    used = context.work.flops_by_dtype if context.work is not None else {}
    found = []
    for dtype in sorted(used):
        own, width = rates.get(dtype), _WIDTH.get(dtype, 0)
        narrower = {d: rate / own for d, rate in rates.items() if own and _WIDTH.get(d, width) < width}
        if narrower and max(narrower.values()) > _FASTER:
            best = max(narrower, key=lambda d: narrower[d])
            found.append((dtype, best, narrower[best]))
    return found


def _roofline_sentence(headroom: float) -> str:
    if headroom <= _NEAR_ROOFLINE:
        return (
            f"The kernels are near what this device can do (at most {factor(max(headroom, 1))} left): only less work, "
            "a lower precision or other hardware makes the step shorter."
        )
    return (
        f"The kernels leave {headroom:.1f}x to the roofline: look at the largest first, by its distance from it "
        "(shapes that fit the tiles, fused epilogues, fewer passes over the data)."
    )


# -- what the trace itself shows


def _launching(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    launches = measures.launches_per_step
    out = []
    names = {op.name for op in measures.ops}
    if any(name.startswith(("cudaGraphLaunch", "hipGraphLaunch")) for name in names):
        out.append("The step already replays a graph: put more work into one replay (more steps, a larger batch).")
    elif any(re.search(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction", name) for name in names):
        lookups = sum(op.self_cpu_time_us for op in measures.ops if "Cache Lookup" in op.name) / steps
        cost = f" (guards alone cost {lookups:.0f} us {measures.per} in the trace)" if lookups else ""
        out.append(
            f"The step is compiled already{cost}: replay it as a CUDA graph (mode='reduce-overhead'), and measure "
            "whether eager is faster at this size."
        )
    else:
        out.append(
            f"{launches:.0f} launches {measures.per}: replay the step as a CUDA graph, or let torch.compile fuse its "
            "operators and measure whether that wins."
            if launches > 1
            else f"One launch {measures.per}: a larger batch is all that gives the GPU more to do."
        )
    return _optimizer(measures) + out


def _optimizer(measures: Measures) -> list[str]:
    """A for-loop or foreach optimizer that launches much of the step."""
    steps = max(measures.steps, 1)
    total = measures.launches_per_step * steps
    for region in measures.regions:
        if not region.name.startswith("Optimizer.step#") or not total or region.launches < _SHARE * total:
            continue
        if region.launches / steps < _MANY_LAUNCHES:
            continue
        foreach = any(op.name.startswith("aten::_foreach_") for op in measures.ops)
        remedy = "fused=True" if foreach else "foreach=True or fused=True"
        name = region.name.removeprefix("Optimizer.step#")
        launches = f"{region.launches / steps:.0f} of {total / steps:.0f} launches {measures.per}"
        return [f"{name} makes {launches}: give it {remedy}."]
    return []


def _waiting(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    reads = sum(op.calls for op in measures.ops if op.name == "aten::_local_scalar_dense") / steps
    if reads:
        values = f"{counted(reads, 'value')} {measures.per}"
        return [f".item() or its like reads {values} from the GPU: keep them there, read them rarely."]
    waits = [op for op in measures.ops if re.search(r"(?:Device|Stream|Event)Synchronize", op.name)]
    if waits:
        worst = max(waits, key=lambda op: op.self_cpu_time_us)
        rate = f"{how_often(worst.calls / steps)} {measures.per}"
        return [f"{worst.name} is called {rate}: find its caller and take it out."]
    return []


def _loading(measures: Measures) -> list[str]:
    single = any("_SingleProcessDataLoaderIter" in op.name for op in measures.ops)
    return ["The DataLoader runs in the training process (num_workers=0): give it workers."] if single else []


def _copying(measures: Measures) -> list[str]:
    pageable = sum(k.total_us for k in measures.kernels if "Pageable" in k.name)
    if pageable > _SHARE * (measures.totals.self_cuda_time_total_us or 0.0):
        return ["The copies come from pageable memory: pin it (pin_memory=True), which alone is several times faster."]
    return []


def _computing(measures: Measures) -> list[str]:
    total = measures.totals.self_cuda_time_total_us or 0.0
    single = sum(k.total_us for k in measures.kernels if re.search(r"sgemm|f32f32_f32f32|_simt_s|ffma", k.name))
    if single > _SHARE * total:
        return [
            "Much of it is float32 arithmetic without tensor cores: bfloat16 (autocast) or TF32 "
            "(torch.set_float32_matmul_precision('high')) is several times faster."
        ]
    return []


def _moving(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    pointwise = sum(k.calls for k in measures.kernels if k.kind == "elementwise") / steps * measures.own_share
    if pointwise >= 3:
        kernels = f"{pointwise:.0f} elementwise kernels {measures.per}"
        return [f"{kernels} each move their data again: let torch.compile fuse them."]
    return []


def _hosting(measures: Measures) -> list[str]:
    named = [gap for gap in measures.idle.largest if gap.cause == "host"]
    if not named:
        return []
    return [f"The largest such stretch takes {short_time(named[0].duration_us)}, during {named[0].during[:120]}."]


_FIRST: dict[str, Callable[[Measures], list[str]]] = {
    "overhead-bound": _launching,
    "mixed": lambda m: [*_waiting(m), *_launching(m)],
    "sync-bound": _waiting,
    "input-bound": _loading,
    "host-bound": _hosting,
    "transfer-bound": _copying,
    "compute-bound": _computing,
    "memory-bound": _moving,
}
_GENERAL: dict[str, tuple[str, ...]] = {
    "overhead-bound": (
        "Launch less: a larger batch, fused operators, or a CUDA graph that replays the step.",
        "A faster kernel or a lower precision wins nothing here: the GPU waits for the host.",
    ),
    "compute-bound": (
        "Only a better kernel, a lower precision or less arithmetic helps: the GPU computes nearly all the time.",
        "Launching less (CUDA graphs, fusion for launch overhead's sake) wins next to nothing here.",
    ),
    "memory-bound": (
        "Move fewer bytes: fuse chains of operators, keep data in a narrower type, avoid copies and layout changes.",
        "Faster arithmetic wins nothing here: the kernels wait for memory.",
    ),
    "latency-bound": (
        "The kernels are too small to fill the GPU: raise the batch, or merge kernels, so that each has more blocks.",
        "Launch overhead is not the limit: the GPU is busy, with most of its multiprocessors empty.",
    ),
    "transfer-bound": (
        "Copy from pinned memory with non_blocking=True on a second stream, so that kernels hide it; copy less, or in "
        "a narrower type.",
        "Better kernels win nothing here: the GPU's time goes into copies between host and device.",
    ),
    "communication-bound": (
        "Overlap collectives with compute (smaller buckets, gradient accumulation), or send less.",
        "Waiting for a slower rank looks the same: compare the ranks before tuning the network.",
    ),
    "input-bound": (
        "Feed the GPU: more DataLoader workers, pin_memory=True, prefetching, cheaper decoding, or data kept ready.",
        "Better kernels, torch.compile or CUDA graphs win nothing while the model waits for its data.",
    ),
    "sync-bound": (
        "Remove what makes the host wait in the step: .item(), .cpu(), printing losses, torch.cuda.synchronize(), "
        "blocking copies.",
        "Fusing kernels wins little while the queue is drained at each wait.",
    ),
    "host-bound": (
        "Take the host's own work out of the step (numpy, tokenising, logging, sleep), or run it in another thread or "
        "process.",
        "Fusing kernels, torch.compile or CUDA graphs win nothing: in that time nothing is launched.",
    ),
    "mixed": (
        "Both sides matter: overlap host and GPU first (fewer waits, fewer launches), then look at the largest kernel.",
        "Neither faster kernels alone nor fewer launches alone can win more than its part of the step.",
    ),
    "inconclusive": ("Follow the reasons given; a verdict needs better data.",),
}
_CPU: dict[str, tuple[str, ...]] = {
    "compute-bound": (
        "Only less arithmetic, better kernels or more cores help.",
        "Fewer operators or torch.compile for dispatch's sake win next to nothing.",
    ),
    "memory-bound": (
        "Move fewer bytes: let torch.compile fuse chains of operators, work in place.",
        "Faster arithmetic wins nothing here.",
    ),
    "overhead-bound": (
        "Call fewer and larger operators: a larger batch, or torch.compile.",
        "More threads or faster arithmetic win nothing here: dispatch and Python take the time.",
    ),
    "input-bound": (
        "Get the data ready beforehand: DataLoader workers where cores are free, cheaper decoding, data kept ready.",
        "Fusing or compiling the operators wins nothing in that time.",
    ),
    "host-bound": (
        "Take the work outside torch's operators (numpy, Python loops, I/O) out of the step.",
        "Fusing or compiling the operators wins nothing in that time.",
    ),
    "mixed": ("Both the operators' work and the price of calling them matter: batch more, then look at the largest.",),
    "inconclusive": (
        "Follow the reasons given: close other programs and measure again, or measure longer (--min-seconds 2); "
        "docs/faq.md has what each of them asks for.",
    ),
}
