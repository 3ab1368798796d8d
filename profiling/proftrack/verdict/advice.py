"""What to do next in each regime, based on what the trace shows, and finally what would not help."""

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
    """Sentences in the order to try them; the last one says what would not help."""
    first = _FIRST[regime](measures) if regime in _FIRST else []
    rest = list(_GENERAL[regime])
    if regime in GPU_REGIMES and roofline is not None:
        rest.insert(-1, _roofline_sentence(facts.kernel_headroom(roofline)))
    return [*first, *rest]


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


def _roofline_sentence(headroom: float) -> str:
    if headroom <= _NEAR_ROOFLINE:
        return (
            f"The kernels are close to this device's limit (at most {factor(max(headroom, 1))} faster): only less "
            "work, lower precision or different hardware can shorten the step."
        )
    return (
        f"The kernels are {headroom:.1f}x above the roofline: start with the largest and its distance from the "
        "roofline (shapes that fit the tiles, fused epilogues, fewer passes over the data)."
    )


# -- what the trace itself shows


def _launching(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    launches = measures.launches_per_step
    out = []
    names = {op.name for op in measures.ops}
    if any(name.startswith(("cudaGraphLaunch", "hipGraphLaunch")) for name in names):
        out.append("The step already replays a graph: put more work into each replay (more steps, a larger batch).")
    elif any(re.search(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction", name) for name in names):
        lookups = sum(op.self_cpu_time_us for op in measures.ops if "Cache Lookup" in op.name) / steps
        cost = f" (its guards alone cost {lookups:.0f} us {measures.per} in the trace)" if lookups else ""
        out.append(
            f"The step is already compiled{cost}: replay it as a CUDA graph (mode='reduce-overhead'), and measure "
            "whether eager is faster at this size."
        )
    elif launches is None:
        out.append(
            "Replay the step as a graph, or let torch.compile fuse its operators and measure whether that is faster."
        )
    else:
        out.append(
            f"{launches:.0f} launches {measures.per}: replay the step as a CUDA graph, or let torch.compile fuse its "
            "operators and measure whether that is faster."
            if launches > 1
            else f"One launch {measures.per}: only a larger batch gives the GPU more to do."
        )
    return _optimizer(measures) + out


def _optimizer(measures: Measures) -> list[str]:
    """For a for-loop or foreach optimizer that makes many of the step's launches."""
    steps = max(measures.steps, 1)
    total = (measures.launches_per_step or 0.0) * steps
    for region in measures.regions:
        count = region.launches or 0
        if not region.name.startswith("Optimizer.step#") or not total or count < _SHARE * total:
            continue
        if count / steps < _MANY_LAUNCHES:
            continue
        foreach = any(op.name.startswith("aten::_foreach_") for op in measures.ops)
        remedy = "fused=True" if foreach else "foreach=True or fused=True"
        name = region.name.removeprefix("Optimizer.step#")
        launches = f"{count / steps:.0f} of {total / steps:.0f} launches {measures.per}"
        return [f"{name} makes {launches}: pass it {remedy}."]
    return []


def _waiting(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    reads = sum(op.calls for op in measures.ops if op.name == "aten::_local_scalar_dense") / steps
    if reads:
        values = f"{counted(reads, 'value')} {measures.per}"
        return [f".item() or a similar call reads {values} from the GPU: keep them there and read them rarely."]
    waits = [op for op in measures.ops if re.search(r"(?:Device|Stream|Event)Synchronize", op.name)]
    if waits:
        worst = max(waits, key=lambda op: op.self_cpu_time_us)
        rate = f"{how_often(worst.calls / steps)} {measures.per}"
        return [f"{worst.name} is called {rate}: find its caller and remove it."]
    return []


def _loading(measures: Measures) -> list[str]:
    single = any("_SingleProcessDataLoaderIter" in op.name for op in measures.ops)
    return ["The DataLoader runs in the training process (num_workers=0): give it workers."] if single else []


def _copying(measures: Measures) -> list[str]:
    pageable = sum(k.total_us for k in measures.kernels if "Pageable" in k.name)
    if pageable > _SHARE * (measures.totals.self_cuda_time_total_us or 0.0):
        return ["The copies come from pageable memory: pin it (pin_memory=True). That alone is several times faster."]
    return []


def _computing(measures: Measures) -> list[str]:
    total = measures.totals.self_cuda_time_total_us or 0.0
    single = sum(k.total_us for k in measures.kernels if re.search(r"sgemm|f32f32_f32f32|_simt_s|ffma", k.name))
    if single > _SHARE * total:
        return [
            "Much of the work is float32 arithmetic without tensor cores: bfloat16 (autocast) or TF32 "
            "(torch.set_float32_matmul_precision('high')) is several times faster."
        ]
    return []


def _moving(measures: Measures) -> list[str]:
    steps = max(measures.steps, 1)
    pointwise = sum(k.calls for k in measures.kernels if k.kind == "elementwise") / steps * measures.own_share
    if pointwise >= 3:
        kernels = f"{pointwise:.0f} elementwise kernels {measures.per}"
        return [f"{kernels} each read and write their data again: let torch.compile fuse them."]
    return []


def _hosting(measures: Measures) -> list[str]:
    gaps = [gap for gap in measures.idle.largest if gap.cause == "host"]
    if not gaps:
        return []
    return [f"The longest such gap takes {short_time(gaps[0].duration_us)}, during {gaps[0].during[:120]}."]


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
        "Faster kernels or lower precision do not help here: the GPU waits for the host.",
    ),
    "compute-bound": (
        "Only better kernels, lower precision or less arithmetic helps: the GPU computes nearly all the time.",
        "Launching less (CUDA graphs, fusion to save launch overhead) gains next to nothing here.",
    ),
    "memory-bound": (
        "Move fewer bytes: fuse chains of operators, keep data in a narrower type, avoid copies and layout changes.",
        "Faster arithmetic does not help here: the kernels wait for memory.",
    ),
    "latency-bound": (
        "The kernels are too small to fill the GPU: increase the batch, or merge kernels, so that each has more "
        "blocks.",
        "Launch overhead is not the limit: the GPU is busy, but most of its multiprocessors are empty.",
    ),
    "transfer-bound": (
        "Copy from pinned memory with non_blocking=True on a second stream, so that kernels hide the copies; copy "
        "less, or use a narrower type.",
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
    "mixed": (
        "Both sides matter: overlap host and GPU first (fewer waits, fewer launches), then look at the largest kernel.",
        "Faster kernels alone, or fewer launches alone, can gain no more than their part of the step.",
    ),
    "inconclusive": ("Address the caveats: a verdict needs better data.",),
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
