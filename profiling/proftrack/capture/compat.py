"""The parts of torch that capture uses without a guarantee: private names, and names that not every version has.

Written for torch 2.6 to 2.13; tests/test_compat.py checks which of them this torch has. No other module uses a private
name of torch. If a name may be missing, the function's docstring says what happens then; the other names are required.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

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


def bound(overload: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """A call's arguments by the names in the operator's schema, defaults included."""
    arguments = arguments_of(overload)
    given = {**{each.name: value for each, value in zip(arguments, args, strict=False)}, **kwargs}
    defaults = {each.name: each.default_value for each in arguments if each.has_default_value()}
    return {each.name: given.get(each.name, defaults.get(each.name)) for each in arguments}


def is_higher_order(overload: Any) -> bool:
    """Whether a dispatch mode received an operator of operators (flex_attention, cond), which has no schema."""
    import torch

    return isinstance(overload, torch._ops.HigherOrderOperator)


def is_composite(overload: Any, device_type: str, *, strided: bool = True) -> bool:
    """Whether torch runs this operator as a composition of others on such a device.

    With autograd a dispatch mode sees only the parts, under inference_mode the whole. `strided`: no argument is sparse.
    """
    import torch

    has, name = torch._C._dispatch_has_kernel_for_dispatch_key, overload.name()
    if not has(name, "CompositeImplicitAutograd"):
        return False
    backend = device_type.upper()
    keys = [backend] if strided else [backend, f"Sparse{backend}", f"SparseCsr{backend}"]
    return not any(has(name, key) for key in keys)


def in_parts(overload: Any, args: Any, kwargs: Any) -> Any:
    """Run a composite operator as torch does. `overload.decompose` may take a version in Python with other parts."""
    import torch

    return overload._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def autocasts(device_type: str) -> bool:
    """Whether this thread computes in autocast on such a device. Inside a dispatch mode: False, see `autocasting`."""
    import torch

    return bool(torch.is_autocast_enabled(device_type))


def has_autocast(overload: Any, device_type: str) -> bool:
    """Whether autocast has a rule for this operator, so that what the operator calls is no longer in autocast."""
    import torch

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), f"Autocast{device_type.upper()}"))


def autocasting(device_type: str) -> AbstractContextManager[Any]:
    """Autocast inside a dispatch mode: before it sees an operator, torch turns off all that comes before the mode."""
    import torch

    key = getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}")
    guard: AbstractContextManager[Any] = torch._C._SetExcludeDispatchKeyGuard(key, False)
    return guard


@contextlib.contextmanager
def after_each_autocast(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` when `torch.autocast` was entered or left anywhere in this process.

    Its own methods must stay: torch.jit compiles them.
    """
    import torch

    with _around(torch, "set_autocast_enabled", after=lambda *_: call()):
        yield


def is_wrapped(types: Any) -> bool:
    """Whether tensors are of classes that consist of other tensors, such as DTensor: the parts are dispatched next."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

    return any(is_traceable_wrapper_subclass_type(each) for each in types)


def tensors_in(tree: Any) -> list[Any]:
    """The tensors in nested lists, tuples and dicts; of a sparse tensor, the dense ones that it consists of."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [part for tensor in tensors for part in _dense_parts(tensor)]


def all_strided(tree: Any) -> bool:
    """Whether no tensor in a tree is sparse."""
    import torch
    from torch.utils._pytree import tree_leaves

    return all(leaf.layout is torch.strided for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _dense_parts(tensor: Any) -> list[Any]:
    import torch

    layout = tensor.layout
    if layout is torch.strided:
        return [tensor]
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # oneDNN's own layout: it has no storage to look at


def storage_of(tensor: Any) -> int:
    """An identifier that tensors share exactly if they share memory, while both are alive."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Any) -> Any:
    """While this object lives, `storage_of` the tensor is no other storage's, though its memory may be freed."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


# ---- regions, hooks of modules, and optimizers -----------------------------------------------------------------------


def fast_region() -> Callable[[str], AbstractContextManager[Any]]:
    """Makes a region of this name in the trace, as an operator: `record_function` at a third of its cost.

    It is `record_function` itself if torch has no other (all versions so far have).
    """
    import torch

    made: Any = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
    return made  # type: ignore[no-any-return]


def children_of(module: Any) -> dict[str, Any]:
    """A module's children by name; none of a module that was never initialised. Nothing of its own code runs."""
    children = module.__dict__.get("_modules") or {}
    return {name: child for name, child in children.items() if child is not None}


def has_parameters(module: Any) -> bool:
    """Whether a module itself has any, apart from its children."""
    return any(each is not None for each in (module.__dict__.get("_parameters") or {}).values())


def compiled_call(module: Any) -> Any:
    """What `module.compile()` made of the module's call; None if it did not run."""
    return module.__dict__.get("_compiled_call_impl")


def is_replica(module: Any) -> bool:
    """Whether DataParallel made this module, for one call, as a replica of another."""
    return bool(module.__dict__.get("_is_replica", False))


def remove_hooks(module: Any, ids: set[int]) -> None:
    """Take hooks with these ids away from a module that may be a copy of the one that they were registered with."""
    for name in ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called"):
        hooks = module.__dict__.get(name) or {}
        for each in [key for key in hooks if key in ids]:
            hooks.pop(each, None)


@contextlib.contextmanager
def around_compiled_call(module: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace what `module.compile()` made of the module's call by `wrap` of it; then restore it."""
    attributes = module.__dict__
    before = attributes["_compiled_call_impl"]
    ours = attributes["_compiled_call_impl"] = wrap(before)
    try:
        yield
    finally:
        if attributes.get("_compiled_call_impl") is ours:  # else the program has compiled it again
            attributes["_compiled_call_impl"] = before


def works_by_groups(optimizer: Any) -> bool:
    """Whether `before_each_group` has an effect: not for LBFGS, SparseAdam, and many that are not torch's.

    Nor for what only wraps an optimizer, and so has no groups of its own: some are of its class, but never initialised.
    """
    return hasattr(type(optimizer), "_init_group") and "param_groups" in optimizer.__dict__


@contextlib.contextmanager
def before_each_group(optimizer: Any, call: Callable[[Any], None], ended: Callable[[], None]) -> Iterator[None]:
    """Call `call(group)` before an optimizer's step works on one of its parameter groups, `ended` after the step.

    Has no effect if the optimizer has no `_init_group`.
    """
    if not works_by_groups(optimizer):
        yield
        return
    init = optimizer._init_group

    def after_call(group: Any, *args: Any, **kwargs: Any) -> Any:
        call(group)
        return init(group, *args, **kwargs)

    handle = optimizer.register_step_post_hook(lambda *_: ended())
    attributes = optimizer.__dict__
    before = attributes.get("_init_group")
    try:
        attributes["_init_group"] = after_call
        yield
    finally:
        handle.remove()
        if before is not None:
            attributes["_init_group"] = before
        elif attributes.get("_init_group") is after_call:
            del attributes["_init_group"]


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


def has_compiled() -> bool:
    """Whether this process has compiled code with torch.compile."""
    return bool(compile_counters().get("stats", {}).get("unique_graphs"))


def may_have_compiled() -> bool:
    """Whether this process has the means of torch.compile in memory, without which nothing was compiled."""
    return "torch._dynamo.eval_frame" in sys.modules


def compiled_from(function: Any) -> Any:
    """What torch.compile made this function, or this module, from; None if it is not compiled."""
    original = getattr(function, "_torchdynamo_orig_callable", None)
    # Of what must not be compiled, torch keeps the original, too.
    return original if not getattr(function, "_torchdynamo_disable", False) else None


def is_made_by_compiler(module: Any) -> bool:
    """Whether a module is a graph that torch.compile or torch.export traced on its way, and no model of a program."""
    names = [each.__name__ for each in type(module).__mro__]
    if "GraphModule" not in names or "_StatefulGraphModule" in names:  # the latter is what torch.export gives
        return False
    tracer = module.__dict__.get("_tracer_cls")
    return "_LazyGraphModule" in names or tracer is None or tracer.__module__.startswith("torch.fx.experimental")


def guards_hooks() -> bool:
    """Whether torch.compile compiles a module again once hooks were added to it; by default it does not."""
    config: Any = sys.modules.get("torch._dynamo.config")
    return config is not None and not getattr(config, "skip_nnmodule_hook_guards", False)


def never_compile(*functions: Any) -> None:
    """Keep torch.compile from compiling these if compiled code calls them from outside of its graphs.

    Has no effect if torch has no `skip_code`: they may then count as compiled code.
    """
    skip: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    for function in functions if skip is not None else ():
        skip(function.__code__)


def is_compiling() -> Callable[[], bool]:
    """The function that tells whether torch.compile traces the code that asks; it takes the answer for a constant."""
    import torch

    asks: Callable[[], bool] = torch.compiler.is_compiling
    return asks


def compiled(step: Callable[[], Any], mode: str) -> Any:
    """The step compiled, isolated from other steps of the same code if this torch supports it."""
    import torch

    options: dict[str, Any] = {"mode": mode}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # or variants of the same code would count as recompilations
    return torch.compile(step, **options)


def forget_compiled() -> None:
    """Have torch.compile compile everything again, and give up the CUDA graphs and the memory that it keeps."""
    import torch

    torch.compiler.reset()


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run compiled code operator by operator; has no effect if torch has no `set_stance`."""
    import torch

    stance = getattr(torch.compiler, "set_stance", None)
    with stance("force_eager") if stance is not None else contextlib.nullcontext():
        yield


# ---- CUDA graphs, and kernels that Python launches itself ------------------------------------------------------------


@contextlib.contextmanager
def before_each_graph_capture(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` before a CUDA graph is captured anywhere in this process."""
    import torch

    with _around(torch.cuda.CUDAGraph, "capture_begin", before=lambda *_, **__: call()):
        yield


@contextlib.contextmanager
def around_each_graph_capture(begun: Callable[[Any], None], ending: Callable[[Any], None]) -> Iterator[None]:
    """Call `begun(graph)` when the capture of a CUDA graph has begun and `ending(graph)` before it ends."""
    import torch

    graph = torch.cuda.CUDAGraph
    with (
        _around(graph, "capture_begin", after=lambda each, *_, **__: begun(each)),
        _around(graph, "capture_end", before=ending),
    ):
        yield


@contextlib.contextmanager
def before_each_graph_replay(call: Callable[[Any], None]) -> Iterator[None]:
    """Call `call(graph)` before a CUDA graph is replayed from Python."""
    import torch

    with _around(torch.cuda.CUDAGraph, "replay", before=call):
        yield


@contextlib.contextmanager
def around_each_graph(
    *,
    begins: Callable[[Any], None],
    ended: Callable[[Any], None],
    replays: Callable[[Any], None],
    replayed: Callable[[Any], None],
) -> Iterator[None]:
    """Call these with the graph around the whole capture of a CUDA graph, and around each replay from Python.

    `ended` and `replayed` are not called for a capture that cannot begin or end, and a replay that fails.
    """
    import torch

    graph = torch.cuda.CUDAGraph
    with (
        _around(graph, "capture_begin", before=lambda each, *_, **__: begins(each)),
        _around(graph, "capture_end", after=ended),
        _around(graph, "replay", before=replays, after=replayed),
    ):
        yield


@contextlib.contextmanager
def kept_graphs() -> Iterator[Callable[[Any], bool]]:
    """CUDA graphs that are made inside keep what they captured. Yields a function that tells, for one whose capture has
    just ended, whether its work is a chain: each piece after one other, in the order of their launches.

    That is False if it is not known: before torch 2.8, and without NVIDIA's driver.
    """
    import torch

    graph: Any = torch.cuda.CUDAGraph
    if not hasattr(graph, "raw_cuda_graph"):
        yield lambda _: False
        return
    # Its __new__ takes the option, too, but what is in C++ reads it here.
    init, is_own = graph.__init__, "__init__" in vars(graph)

    def keeping(each: Any, keep_graph: bool = True) -> None:
        init(each, True)

    graph.__init__ = keeping
    try:
        yield _is_chain
    finally:
        if is_own:
            graph.__init__ = init
        else:
            del graph.__init__


def _is_chain(graph: Any) -> bool:
    try:
        nodes, edges = _nodes_and_edges(graph.raw_cuda_graph())
    except (RuntimeError, OSError, AttributeError):  # made before, or no driver that tells
        return False
    finally:
        with contextlib.suppress(RuntimeError):  # one that is made without keeping anything is by now
            graph.instantiate()
    # Without cycles, and with one edge less than nodes, these are the edges of one path.
    befores, afters = {one for one, _ in edges}, {other for _, other in edges}
    return len(edges) == nodes - 1 == len(befores) == len(afters)


def _nodes_and_edges(raw: int) -> tuple[int, list[tuple[int, int]]]:
    """The number of a CUDA graph's nodes, and its edges, by NVIDIA's driver. Raises OSError, AttributeError."""
    driver, address, count = _driver(), ctypes.c_void_p(raw), ctypes.c_size_t(0)
    _checked(driver.cuGraphGetNodes(address, None, ctypes.byref(count)))
    nodes = int(count.value)
    # With data since CUDA 12.3: edges that have some, of programmatic launches, make the older function fail.
    with_data = hasattr(driver, "cuGraphGetEdges_v2")
    get = driver.cuGraphGetEdges_v2 if with_data else driver.cuGraphGetEdges
    _checked(get(address, None, None, *([None] if with_data else []), ctypes.byref(count)))
    size = int(count.value)
    befores, afters = (ctypes.c_void_p * size)(), (ctypes.c_void_p * size)()
    data = [(ctypes.c_byte * (_EDGE_DATA_BYTES * size))()] if with_data else []
    _checked(get(address, befores, afters, *data, ctypes.byref(count)))
    return nodes, [(int(one or 0), int(other or 0)) for one, other in zip(befores, afters, strict=True)]


_EDGE_DATA_BYTES = 8


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _checked(code: int) -> None:
    if code:
        raise OSError(f"NVIDIA's driver answers {code}")


@contextlib.contextmanager
def before_each_triton_launch(call: Callable[[str], None]) -> Iterator[None]:
    """Call `call(name)` before Python launches a Triton kernel of this name; a dispatch mode does not see that.

    Has no effect if Triton is not in use, or has no `JITFunction.run` (all versions so far have it).
    """
    function: Any = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if not hasattr(function, "run"):
        yield
        return

    def named(kernel: Any, *_: Any, warmup: bool = False, **__: Any) -> None:
        if not warmup:
            call(str(getattr(kernel, "__name__", "a Triton kernel")))

    with _around(function, "run", before=named):
        yield


def _nothing(*_: Any, **__: Any) -> None:
    pass


@contextlib.contextmanager
def _around(
    owner: Any, method: str, *, before: Callable[..., Any] = _nothing, after: Callable[..., Any] = _nothing
) -> Iterator[None]:
    """Call `before` and `after` with a method's arguments before and after the method."""
    original = getattr(owner, method)

    def with_calls(*arguments: Any, **named: Any) -> Any:
        before(*arguments, **named)
        out = original(*arguments, **named)
        after(*arguments, **named)
        return out

    setattr(owner, method, with_calls)
    try:
        yield
    finally:
        setattr(owner, method, original)


def capturing() -> bool:
    """Whether this thread records a CUDA graph, so that no value on the GPU can be read."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


# ---- products of narrow types, and TF32 ------------------------------------------------------------------------------


def float8_product(x: Any, columns: Any) -> Callable[[], Any]:
    """A function that multiplies float8 matrices, the second stored by columns, to bfloat16 (with scales of one).

    It raises RuntimeError if the device has no such product, AttributeError if torch has no `_scaled_mm`.
    """
    import torch

    one = torch.ones((), device=x.device)
    return lambda: torch._scaled_mm(
        x, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=x.is_cuda
    )


def int8_product(x: Any, columns: Any) -> Callable[[], Any]:
    """A function that multiplies int8 matrices, the second stored by columns, to int32.

    It raises RuntimeError if the device has no such product, AttributeError if torch has no `_int_mm`.
    """
    import torch

    return lambda: torch._int_mm(x, columns)


def float32_products() -> str:
    """How products of float32 matrices are computed: `ieee`, `tf32` or another name of torch's."""
    import torch

    backend: Any = torch.backends.cuda.matmul
    if _uses_new_precision(backend):
        return str(backend.fp32_precision)
    return "tf32" if backend.allow_tf32 else "ieee"


def _uses_new_precision(backend: Any) -> bool:
    """Whether the program has used the settings of torch 2.9, which forbid reading the older ones."""
    try:
        backend.allow_tf32  # noqa: B018  # reading is what raises
    except RuntimeError:
        return True
    return False


def convolutions_in_tf32() -> bool:
    """Whether cuDNN may compute convolutions and recurrent layers of float32 in TF32, which is its default."""
    import torch

    backend: Any = torch.backends.cudnn
    with contextlib.suppress(RuntimeError, AttributeError):
        return bool(backend.allow_tf32)
    return str(backend.conv.fp32_precision) != "ieee"  # the program mixes the old settings with the new


@contextlib.contextmanager
def products_in(precision: Literal["tf32", "ieee"]) -> Iterator[None]:
    """Compute products of float32 matrices like this inside, whatever the program chose."""
    import torch

    before, backend = float32_products(), torch.backends.cuda.matmul
    if before == precision:
        yield
        return
    new = _uses_new_precision(backend)
    settings = (precision, before) if new else (precision == "tf32", before == "tf32")
    name, (inside, after) = "fp32_precision" if new else "allow_tf32", settings
    setattr(backend, name, inside)
    try:
        yield
    finally:
        setattr(backend, name, after)
