"""Counts the least work that one step must do, by running it once under a dispatch counter.

FLOPs come from torch (torch.utils.flop_counter). Bytes are the least that a perfect implementation moves: each external
input and parameter read once, each changed external tensor written once, each output written once. Tensors that the
step creates and consumes itself cost nothing: a fused step never moves them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proftrack.capture import compat
from proftrack.capture.compat import storage_of, tensors_in
from proftrack.capture.device import Device
from proftrack.record.ceilings import StepWork

_NO_FLOAT = "other"
# The first argument of these is overwritten, not read.
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
# The first argument of these is a lookup table that is not read whole: the bytes read are those of the result.
_LOOKUPS = ("embedding", "index_select", "gather", "index", "take", "embedding_bag")


def count_step(step: Callable[[], Any], device: Device) -> tuple[StepWork | None, str | None]:
    """The work of one step, and a note if it could not be counted.

    Compiled code runs eagerly for this one step: its operators are the work, however they are fused. A replayed CUDA
    graph dispatches nothing and gives None.
    """
    counter = _counter_class()(device.type)
    try:
        with compat.eager(), counter:
            result = step()
        device.synchronize()
    except Exception as error:  # the step worked before, but may fail under a dispatch mode
        return None, f"The step's work could not be counted: {type(error).__name__}: {str(error)[:200]}"
    if not counter.calls:
        return None, "The step's work could not be counted: it dispatches no operator (is it a replayed graph?)."
    return counter.result(result), None


def _counter_class() -> Any:
    """The counter, defined on first use: its base class is in torch."""
    from torch.utils.flop_counter import flop_registry

    class Counter(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        """Counts FLOPs by dtype and bytes of external storages."""

        def __init__(self, device_type: str) -> None:
            super().__init__()
            self.device_type = device_type
            self.calls = 0
            self.flops: dict[str, float] = {}
            self.traffic = _Traffic(device_type)
            self.unknown: set[str] = set()
            self.dtypes: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            out = func(*args, **kwargs)
            self.calls += 1
            self.traffic.operator(func, args, kwargs, out)
            self.dtypes.add(_dtype(args))
            self._count_flops(func, args, kwargs, out)
            return out

        def _count_flops(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
            operator = compat.operator_of(func)
            formula = flop_registry.get(operator)
            if formula is None:
                if not func.is_view and func.namespace != "profiler":
                    self.unknown.add(str(operator))
                return
            dtype = _dtype(args)
            self.flops[dtype] = self.flops.get(dtype, 0.0) + float(formula(*args, **kwargs, out_val=out))

        def result(self, returned: Any) -> StepWork:
            self.traffic.returned(returned)
            return StepWork(
                flops_by_dtype=self.flops,
                bytes=float(self.traffic.total()),
                source="counted",
                uncounted_ops=sorted(self.unknown)[:50],
                dtypes=sorted(self.dtypes - {_NO_FLOAT}),
            )

    return Counter


def _dtype(args: Any) -> str:
    for tensor in tensors_in(args):
        if tensor.is_floating_point() or tensor.is_complex():
            return str(tensor.dtype).removeprefix("torch.")
    return _NO_FLOAT


class _Traffic:
    """Bytes of storages that the step did not create, each view once, never more than the storage's size."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._made: set[int] = set()
        self._read: dict[int, dict[Any, int]] = {}
        self._written: dict[int, dict[Any, int]] = {}
        self._capacity: dict[int, int] = {}
        self._outputs = 0

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record what one operator reads, changes and creates."""
        if not func.is_view:
            name = compat.operator_of(func).__name__
            looked_up, overwritten = name in _LOOKUPS, name in _OVERWRITING
            read = [*args, *(value for key, value in kwargs.items() if key != "out")]
            for index, value in enumerate(read):
                if overwritten and index == 0:
                    continue
                for tensor in tensors_in(value):
                    self._note(self._read, tensor, out if looked_up and index == 0 else tensor)
            for tensor in _changed(func, args, kwargs):
                self._note(self._written, tensor, tensor)
        given = {storage_of(t) for t in tensors_in((args, kwargs))}
        self._made.update(key for t in tensors_in(out) if (key := storage_of(t)) not in given)

    def returned(self, result: Any) -> None:
        """Record the step's results that it created itself."""
        for tensor in {storage_of(t): t for t in tensors_in(result)}.values():
            if tensor.device.type == self._device_type and storage_of(tensor) in self._made:
                self._outputs += _bytes(tensor)

    def total(self) -> int:
        """Bytes read, written and returned."""
        return self._outputs + sum(
            min(sum(views.values()), self._capacity[key])
            for noted in (self._read, self._written)
            for key, views in noted.items()
        )

    def _note(self, noted: dict[int, dict[Any, int]], tensor: Any, moved: Any) -> None:
        key = storage_of(tensor)
        if tensor.device.type != self._device_type or key in self._made:
            return
        self._capacity[key] = tensor.untyped_storage().nbytes()
        view = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        noted.setdefault(key, {})[view] = sum(map(_bytes, tensors_in(moved)))


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements; elements that an expanded view repeats count once."""
    size = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= extent if stride else min(extent, 1)
    return int(size)


def _changed(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Tensors that the operator writes to, according to its schema."""
    changed = []
    for index, argument in enumerate(compat.arguments_of(func)):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            changed += tensors_in(value)
    return changed
