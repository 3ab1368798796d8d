"""Counts the least work that one step must do, by running it once under a dispatch counter.

FLOPs: see `op_flops`. Bytes are the least that a perfect implementation moves: each external input and parameter read
once, each changed external tensor written once, each output written once. Tensors that the step creates and consumes
itself cost nothing: a fused step never moves them.

An operator that torch composes of others is taken apart, so that eager code, no_grad and inference_mode give the same
figures. A replayed CUDA graph dispatches nothing; what it does was counted when it was captured (`captured_graphs`).
What is not counted is named: operators without a formula and kernels that Python launches itself.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from proftrack.capture import compat
from proftrack.capture.compat import storage_of, tensors_in
from proftrack.capture.device import Device
from proftrack.capture.op_flops import UNCOUNTED, flops_of
from proftrack.record.ceilings import REPLAYED_GRAPH, StepWork

_TORCH = (
    "aten",
    "prims",
    "prim",
    "profiler",
    "c10d",
    "_c10d_functional",
    "c10d_functional",
    "_dtensor",
    "fsdp",
    "inductor",
)
# The first argument of these is overwritten, not read.
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
# The first argument of these is a lookup table that is not read whole: the bytes read are those of the result.
_LOOKUPS = ("embedding", "index_select", "gather", "index", "take")
_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
# Of the first argument of these only the shape, type and device are asked for.
_SHAPED = frozenset(
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_empty_strided new_zeros "
    "new_ones new_full record_stream".split()
)
# Of the first argument of these only the part is written that another argument has values for.
_PARTIAL = {
    "index_put_": "values",
    "_index_put_impl_": "values",
    "index_copy_": "source",
    "index_add_": "source",
    "index_fill_": "value",
    "index_reduce_": "source",
    "put_": "source",
    "scatter_": "src",
    "scatter_add_": "src",
    "scatter_reduce_": "src",
}
_ADDING = ("index_add_", "index_reduce_", "scatter_add_", "scatter_reduce_")
_MOST_NAMES = 50
# A multiply-add of complex numbers is four of real ones.
_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_REALS_IN_COMPLEX = 4.0
_ALREADY_REAL = ("_fft_c2c", "_fft_r2c", "_fft_c2r")
# Types of the same arithmetic have one ceiling.
_SAME_RATE = {"float8_e5m2": "float8_e4m3fn"}


def count_step(
    step: Callable[[], Any], device: Device, graphs: CapturedGraphs | None = None
) -> tuple[StepWork | None, str | None]:
    """The work of one step, and a note if it could not be counted.

    Compiled code runs eagerly for this one step: its operators are the work, however they are fused. `graphs`: those
    whose work is known, should the step replay them.
    """
    tally, graphs = _Tally(device.type), graphs or CapturedGraphs(device.type)
    with contextlib.ExitStack() as stack:
        stack.enter_context(compat.before_each_triton_launch(tally.launched))
        stack.enter_context(graphs.replayed_into(tally))
        try:
            with compat.eager(), graphs.counter(tally):
                result = step()
            device.synchronize()
        except Exception as error:  # the step worked before, but may fail under a dispatch mode
            return None, f"The step's work could not be counted: {type(error).__name__}: {str(error)[:200]}"
    if not tally.calls:
        return None, "The step's work could not be counted: it dispatches no operator."
    if tally.unseen_graphs == tally.calls:
        return None, "The step's work could not be counted: it replays a CUDA graph whose capture was not seen."
    return tally.work(result), None


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


class CapturedGraphs:
    """The work of CUDA graphs, counted while they are captured; graphs that are gone are forgotten.

    Threads may capture at the same time: each has its own dispatch modes.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._autocast = _Autocast(device_type)
        self._work: weakref.WeakKeyDictionary[Any, _Tally] = weakref.WeakKeyDictionary()
        self._running: dict[tuple[int, Any], tuple[_Tally, contextlib.ExitStack]] = {}
        """By thread and graph."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count each capture inside. Costs nothing but for the captures themselves."""
        with (
            compat.around_each_graph_capture(self._begin, self._end),
            compat.after_each_autocast(self._autocast.read),
        ):
            try:
                yield
            finally:
                for key in [each for each in self._running if each[0] == threading.get_ident()]:  # captures that failed
                    self._running.pop(key)[1].close()

    def counter(self, tally: _Tally) -> AbstractContextManager[Any]:
        """A dispatch mode that shows operators to a tally, for use inside of `watching`."""
        self._autocast.read()
        mode: AbstractContextManager[Any] = _counter_class()(tally, self._autocast)
        return mode

    @contextlib.contextmanager
    def replayed_into(self, tally: _Tally) -> Iterator[None]:
        """Add a graph's work to the tally at each replay inside; a capture inside is no work of the step."""

        def replay(graph: Any) -> None:
            tally.replayed(self._work.get(graph))

        with (
            compat.before_each_graph_replay(replay),
            compat.around_each_graph_capture(lambda _: tally.pause(), lambda _: tally.resume()),
            self.watching(),
        ):
            yield

    def _begin(self, graph: Any) -> None:
        key = threading.get_ident(), graph
        if key in self._running:  # watched twice
            return
        self._work.pop(graph, None)  # it was captured before
        tally, stack = _Tally(self._device_type), contextlib.ExitStack()
        # Compiled code must not meet a dispatch mode while it is captured: it would not be compiled, and its kernels
        # are not dispatched. Such a graph stays unknown.
        if not compat.has_compiled():
            stack.enter_context(compat.before_each_triton_launch(tally.launched))
            stack.enter_context(self.counter(tally))
        self._running[key] = tally, stack

    def _end(self, graph: Any) -> None:
        running = self._running.pop((threading.get_ident(), graph), None)
        if running is not None:
            tally, stack = running
            stack.close()
            if tally.calls and not compat.has_compiled():
                self._work[graph] = tally


# ---- operators -------------------------------------------------------------------------------------------------------


def _counter_class() -> Any:
    """The dispatch mode, defined on first use: its base class is in torch."""

    class Counter(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        """Shows each operator to a tally, those that torch composes of others in their parts."""

        supports_higher_order_operators = True

        def __init__(self, tally: _Tally, autocast: _Autocast) -> None:
            super().__init__()
            self._tally, self._autocast = tally, autocast

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if compat.is_wrapped(types):
                return NotImplemented
            with self._autocast.as_without_a_mode(func):
                if self._tally.is_composite(func, args, kwargs):
                    with self:
                        return compat.in_parts(func, args, kwargs)
                out = func(*args, **kwargs)
            self._tally.operator(func, args, kwargs, out)
            return out

    return Counter


class _Autocast:
    """Runs operators that a dispatch mode has received in autocast, if the program does: torch has it off by then.

    Else what they call themselves (einsum its products, under inference_mode) would be of another type.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._thread = threading.local()

    def read(self) -> None:
        """The program's autocast may have changed in this thread; do not call it in a dispatch mode."""
        self._thread.is_on = compat.autocasts(self._device_type)

    @contextlib.contextmanager
    def as_without_a_mode(self, func: Any) -> Iterator[None]:
        """A context to run an operator in."""
        before = getattr(self._thread, "is_on", False)
        is_on = before and not (compat.is_higher_order(func) or compat.has_autocast(func, self._device_type))
        self._thread.is_on = is_on
        try:
            with compat.autocasting(self._device_type) if is_on else contextlib.nullcontext():
                yield
        finally:
            self._thread.is_on = before


class _Tally:
    """FLOPs by type, bytes of external storages, and the names of what was not counted."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.calls = 0
        self.unseen_graphs = 0
        self.flops: dict[str, float] = {}
        self.traffic = _Traffic(device_type)
        self.unknown: set[str] = set()
        self.kernels: set[str] = set()
        self.dtypes: set[str] = set()
        self._paused = 0

    def pause(self) -> None:
        """Count nothing until `resume`."""
        self._paused += 1

    def resume(self) -> None:
        """Count again."""
        self._paused = max(self._paused - 1, 0)

    def is_composite(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the operator's parts are to be counted instead of itself."""
        if self._paused or compat.is_higher_order(func):
            return False
        return compat.is_composite(func, self._device_type, strided=compat.all_strided((args, kwargs)))

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add one call. Never raises: what cannot be counted is named."""
        if self._paused:
            return
        self.calls += 1
        if compat.is_higher_order(func):
            self.unknown.add(f"higher_order.{func.__name__}")
            self.traffic.opaque(args, out)
            return
        try:
            self.traffic.operator(func, args, kwargs, out)
            self._add_flops(func, args, kwargs, out)
        except Exception:  # an argument that a formula does not expect
            self.unknown.add(str(compat.operator_of(func)))

    def launched(self, kernel: str) -> None:
        """Python launches a kernel itself."""
        self.kernels.add(kernel)
        self.calls += 1

    def replayed(self, graph: _Tally | None) -> None:
        """A CUDA graph is replayed; None if its work is not known."""
        self.calls += 1
        if graph is None:
            self.unseen_graphs += 1
            self.unknown.add(REPLAYED_GRAPH)
            return
        for dtype, flops in graph.flops.items():
            self.flops[dtype] = self.flops.get(dtype, 0.0) + flops
        self.traffic.replayed(graph.traffic)
        self.unknown |= graph.unknown
        self.kernels |= graph.kernels
        self.dtypes |= graph.dtypes

    def work(self, returned: Any) -> StepWork:
        """All of it, for a step that returns this."""
        self.traffic.returned(returned)
        return StepWork(
            flops_by_dtype=self.flops,
            bytes=float(self.traffic.total()),
            source="counted",
            uncounted_ops=sorted(self.unknown)[:_MOST_NAMES],
            launched_kernels=sorted(self.kernels)[:_MOST_NAMES],
            dtypes=sorted({*self.dtypes, *self.flops}),
        )

    def _add_flops(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        operator = compat.operator_of(func)
        if not any(t.device.type == self._device_type for t in tensors_in((args, kwargs, out))):
            return
        dtype = _dtype(args)
        if dtype is not None:
            self.dtypes.add(_COMPLEX.get(dtype, dtype))
        flops = flops_of(func, args, kwargs, out)
        if flops is None:
            if operator.__name__ in UNCOUNTED or not (func.is_view or func.namespace in _TORCH):
                self.unknown.add(str(operator))
        elif flops:
            rated = _rated(operator.__name__, dtype, args)
            if rated is None:
                self.unknown.add(str(operator))
                return
            if dtype in _COMPLEX and operator.__name__ not in _ALREADY_REAL:
                flops *= _REALS_IN_COMPLEX
            self.flops[rated] = self.flops.get(rated, 0.0) + flops


def _dtype(args: Any) -> str | None:
    """The type of the first argument that has a floating or complex one."""
    for tensor in tensors_in(args):
        if tensor.is_floating_point() or tensor.is_complex():
            return str(tensor.dtype).removeprefix("torch.")
    return None


def _rated(name: str, dtype: str | None, args: Any) -> str | None:
    """The type whose ceiling limits the arithmetic; None for integers, except int8 products, which have one."""
    if dtype is None:
        return "int8" if name == "_int_mm" else None
    dtype = _SAME_RATE.get(dtype, _COMPLEX.get(dtype, dtype))
    in_cudnn = "convolution" in name or name.startswith("_cudnn_rnn")
    if in_cudnn and dtype == "float32" and tensors_in(args)[0].is_cuda and compat.convolutions_in_tf32():
        return "tfloat32"
    return dtype


# ---- bytes -----------------------------------------------------------------------------------------------------------


class _Traffic:
    """Bytes of storages that the step did not create, each view once, never more than the storage's size."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.made: set[int] = set()
        self._overwritten: set[int] = set()
        self.read: dict[int, dict[Any, int]] = {}
        self.written: dict[int, dict[Any, int]] = {}
        self.capacity: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        self._outputs = 0

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record what one operator reads, changes and creates."""
        if not func.is_view:
            name = compat.operator_of(func).__name__
            call = compat.bound(func, args, kwargs)
            part = _PARTIAL.get(name)
            for index, (argument, value) in enumerate(call.items()):
                if argument == "out" or (index == 0 and (name in _OVERWRITING or name in _SHAPED)):
                    continue
                if index == 0 and part is not None and not (name in _ADDING or call.get("accumulate")):
                    continue
                for tensor in tensors_in(value):
                    self._note(self.read, tensor, _moved(name, call, out, index, tensor))
            for tensor in _changed(func, call):
                self._note(self.written, tensor, _moved(name, call, out, 0, tensor) if part else _bytes(tensor))
                if name in _OVERWRITING or "out" in kwargs:
                    self._overwrite(tensor)
        given = {storage_of(t) for t in tensors_in((args, kwargs))}
        self._make(tensor for tensor in tensors_in(out) if storage_of(tensor) not in given)

    def opaque(self, args: Any, out: Any) -> None:
        """Record an operator without a schema: it reads what it is given."""
        for tensor in tensors_in(args):
            self._note(self.read, tensor, _bytes(tensor))
        self._make(tensors_in(out))

    def replayed(self, graph: _Traffic) -> None:
        """Record what a graph reads and changes; its own tensors are the step's from now on."""
        for mine, its in ((self.read, graph.read), (self.written, graph.written)):
            for key, views in its.items():
                if key in self.made or (its is graph.read and key in self._overwritten):
                    continue
                self.capacity[key] = graph.capacity[key]
                before = mine.setdefault(key, {})
                before.update({view: max(moved, before.get(view, 0)) for view, moved in views.items()})
        self.made |= graph.made

    def returned(self, result: Any) -> None:
        """Record the step's results that it created itself."""
        for tensor in {storage_of(t): t for t in tensors_in(result)}.values():
            if tensor.device.type == self._device_type and storage_of(tensor) in self.made:
                self._outputs += _bytes(tensor)

    def total(self) -> int:
        """Bytes read, written and returned."""
        return self._outputs + sum(
            min(sum(views.values()), self.capacity[key])
            for noted in (self.read, self.written)
            for key, views in noted.items()
        )

    def _make(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            self.made.add(self._key(tensor))

    def _key(self, tensor: Any) -> int:
        """An identifier of the tensor's memory, which no other memory gets while this traffic is known."""
        key = storage_of(tensor)
        if key not in self._kept:
            self._kept[key] = compat.weak_storage(tensor)
        return key

    def _note(self, noted: dict[int, dict[Any, int]], tensor: Any, moved: int) -> None:
        if tensor.device.type != self._device_type or storage_of(tensor) in self.made:
            return
        key = self._key(tensor)
        if noted is self.read and key in self._overwritten:
            return
        self.capacity[key] = tensor.untyped_storage().nbytes()
        views, view = noted.setdefault(key, {}), _elements(tensor)
        views[view] = max(moved, views.get(view, 0))  # a look-up may read less of it than something else

    def _overwrite(self, tensor: Any) -> None:
        """What the step has written whole it need not read any more."""
        key = storage_of(tensor)
        if key not in self.read and _bytes(tensor) >= tensor.untyped_storage().nbytes():
            self._overwritten.add(key)


def _moved(name: str, call: dict[str, Any], out: Any, index: int, tensor: Any) -> int:
    """Bytes of an argument that one call must move."""
    if index == 0 and name in _LOOKUPS:
        return sum(map(_bytes, tensors_in(out)))
    if index == 0 and name in _BAGS:
        return int(call["indices"].numel() * math.prod(tensor.shape[1:]) * tensor.element_size())
    if index == 0 and name == "index_fill_" and tensor.dim():
        along = int(tensor.shape[call["dim"]])
        return _bytes(tensor) * min(int(call["index"].numel()), along) // max(along, 1)
    if index == 0 and name in _PARTIAL:
        source = tensors_in(call.get(_PARTIAL[name]))
        return min(sum(map(_bytes, source)), _bytes(tensor)) if source else 0
    return _bytes(tensor)


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements; elements that an expanded view repeats count once."""
    size = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= extent if stride else min(extent, 1)
    return int(size)


def _elements(tensor: Any) -> tuple[Any, ...]:
    """Which elements of its storage a tensor shows: the same for a transposed or reshaped view."""
    dims = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and s)
    merged: list[tuple[int, int]] = []
    for stride, extent in dims:
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0], merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return (tensor.storage_offset(), *merged)


def _changed(func: Any, call: dict[str, Any]) -> list[Any]:
    """Tensors that the operator writes to, according to its schema.

    Fused optimizers declare that they write the gradients, but do so only to take out a scale.
    """
    scaled = call.get("grad_scale") is not None
    return [
        tensor
        for argument in compat.arguments_of(func)
        if argument.alias_info is not None and argument.alias_info.is_write
        if argument.name != "grads" or scaled
        for tensor in tensors_in(call[argument.name])
    ]
