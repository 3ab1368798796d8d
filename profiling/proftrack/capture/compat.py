"""The parts of torch that capture uses without a guarantee: private names, and names that not every version has.

Written for torch 2.6 to 2.13; tests/test_compat.py checks which of them this torch has. No other module uses a private
name of torch. If a name may be missing, the function's docstring says what happens then; the other names are required.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

# ---- the profiler ----------------------------------------------------------------------------------------------------


def profiler_is_on() -> bool:
    """Whether a profiler records in this process or thread, no matter who started it."""
    import torch

    # The first misses a profiler of all threads, the second one that was started from C++.
    return bool(torch.autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled)


@contextlib.contextmanager
def before_each_profiler(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` before a profiler starts recording anywhere in this process. Its exceptions reach whoever starts it.

    Has no effect if torch has no `profile._prepare_trace` (all versions so far have it).
    """
    from torch.autograd.profiler import profile

    prepare = getattr(profile, "_prepare_trace", None)
    if prepare is None:
        yield
        return

    def prepare_after_call(session: Any) -> Any:
        call()
        return prepare(session)

    profile._prepare_trace = prepare_after_call
    try:
        yield
    finally:
        profile._prepare_trace = prepare


def every_thread() -> Any:
    """The profiler option that records every thread of the process; None before torch 2.7."""
    import torch

    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return None


def recorded_events(profiler: Any) -> list[Any]:
    """Kineto's events of a torch.profiler.profile that has ended."""
    return list(profiler.profiler.kineto_results.events())


# ---- operators -------------------------------------------------------------------------------------------------------


def dispatch_mode() -> Any:
    """The base class for modes that see each operator before it runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def operator_of(overload: Any) -> Any:
    """The operator of an overload that a dispatch mode receives: aten.add for aten.add.Tensor."""
    return overload._overloadpacket


def arguments_of(overload: Any) -> list[Any]:
    """An operator's arguments as its schema declares them; `alias_info.is_write` is set for one that it writes."""
    return list(overload._schema.arguments)


def tensors_in(tree: Any) -> list[Any]:
    """The tensors in nested lists, tuples and dicts."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: Any) -> int:
    """An identifier that tensors share exactly if they share memory, while both are alive."""
    return int(tensor.untyped_storage()._cdata)


# ---- data loaders ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def around_each_batch(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace what gets a DataLoader's next batch, and what starts its iterator, by `wrap` of it; then restore both.

    Iterators of all kinds, those that exist included, inherit the former. Without `_BaseDataLoaderIter` (all versions
    so far have it), only the latter is replaced.
    """
    from torch.utils.data import dataloader

    iterator: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
    methods = [(dataloader.DataLoader, "__iter__"), *([(iterator, "__next__")] if iterator is not None else [])]
    replaced = [(owner, name, getattr(owner, name), wrap(getattr(owner, name))) for owner, name in methods]
    for owner, name, _, ours in replaced:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for owner, name, before, ours in replaced:
            if getattr(owner, name) is ours:  # whoever has replaced it since calls ours
                setattr(owner, name, before)


def batches_ahead(iterator: Any) -> int:
    """How many batches a DataLoader's iterator may have ready; 0 without worker processes, or if that is not known."""
    return (getattr(iterator, "_num_workers", 0) or 0) * (getattr(iterator, "_prefetch_factor", 0) or 0)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def compile_counters() -> dict[str, dict[str, int]]:
    """torch.compile's counters by group and name; empty if nothing was compiled or this torch has no counters."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", {})
    return {str(group): {str(k): int(v) for k, v in counts.items()} for group, counts in counters.items()}


def compiled(step: Callable[[], Any], mode: str) -> Any:
    """The step compiled, isolated from other steps of the same code if this torch supports it."""
    import torch

    options: dict[str, Any] = {"mode": mode}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # or variants of the same code would count as recompilations
    return torch.compile(step, **options)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run compiled code operator by operator; has no effect if torch has no `set_stance`."""
    import torch

    stance = getattr(torch.compiler, "set_stance", None)
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def before_each_graph_capture(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` before a CUDA graph is captured anywhere in this process."""
    import torch

    graph: Any = torch.cuda.CUDAGraph
    begin = graph.capture_begin

    def begin_after_call(*arguments: Any, **named: Any) -> Any:
        call()
        return begin(*arguments, **named)

    graph.capture_begin = begin_after_call
    try:
        yield
    finally:
        graph.capture_begin = begin
