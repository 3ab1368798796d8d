"""What this device reaches of each unit's peak, by NVML's counters: measured once, and kept with the ceilings.

A product of large matrices never keeps the tensor cores busy in every cycle, nor does a copy use every cycle of the
memory's bus. A unit's use is compared with what such a load reaches instead of with the peak. Units that none of the
loads uses have no reachable value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from proftrack.capture import compat
from proftrack.capture.counters import Meter, count
from proftrack.capture.device import Device
from proftrack.capture.loads import copy, product
from proftrack.capture.timing import Stopwatch
from proftrack.record.ceilings import Ceilings
from proftrack.record.counters import Counters, Unit

_LOADED = 0.25
"""A load that reaches less of a unit does not use it: a float64 product runs on the tensor cores (dmma) or beside them
(fp64), whichever this GPU has."""
_WINDOW_SECONDS = 0.4
_WINDOWS = 2
"""The best one counts: single windows on an H200 gave 0.82 to 0.86 for the copy, 0.89 to 0.91 for the product."""
_SIZE = 8192
_COPY_BYTES = 1 << 30


class Load(NamedTuple):
    """Work that uses a unit as much as it can be used.

    `make` may raise RuntimeError or AttributeError: no memory, no such product.
    """

    units: tuple[Unit, ...]
    make: Callable[[Device], Callable[[], Any]]
    dtype: str | None = None
    """The load is only run if the step computes in this type; None: always."""


def with_reached(device: Device, dtypes: Iterable[str], ceilings: Ceilings, *, companions: int = 0) -> Ceilings:
    """The ceilings with the reachable values that are wanted for these dtypes and are not there yet.

    The same object if there are none to measure: all are known, or this device has no counters.
    """
    wanted = set(dtypes)
    loads = [
        load
        for load in LOADS
        if (load.dtype is None or load.dtype in wanted) and not any(unit in ceilings.reachable for unit in load.units)
    ]
    if not loads or not device.is_gpu:
        return ceilings
    reached = dict(ceilings.reachable)
    with Meter(device, companions=companions) as meter:
        for load in loads if meter.has_gpm else ():
            reached |= _reached(device, meter, load)
            device.release_memory()
    return msgspec.structs.replace(ceilings, reachable=reached) if reached != ceilings.reachable else ceilings


def with_reachable(counters: Counters | None, ceilings: Ceilings | None) -> Counters | None:
    """The counters, with what this device reaches."""
    if counters is None or ceilings is None:
        return counters
    return msgspec.structs.replace(counters, reachable=dict(ceilings.reachable))


def _reached(device: Device, meter: Meter, load: Load) -> dict[Unit, float]:
    import torch

    try:
        with torch.no_grad(), compat.products_in("ieee"):  # in TF32, float32 would load the tensor cores
            work = load.make(device)
            watch = Stopwatch(work, device)
            watch.block(1)
            step_seconds = watch.block(1)
            windows = [count(watch, meter, step_seconds, _WINDOW_SECONDS) for _ in range(_WINDOWS)]
    except (RuntimeError, AttributeError):
        return {}
    shares = [counters.shares for counters in windows if counters is not None]
    best = {unit: max((of_window.get(unit, 0.0) for of_window in shares), default=0.0) for unit in load.units}
    return {unit: share for unit, share in best.items() if share >= _LOADED}


def _product(dtype: str) -> Callable[[Device], Callable[[], Any]]:
    return lambda device: product(device, dtype, _SIZE)


LOADS = (
    Load(("tensor", "hmma"), _product("bfloat16")),
    Load(("dram",), lambda device: copy(device, _COPY_BYTES)[0]),
    Load(("fp32",), _product("float32")),
    Load(("dmma", "fp64"), _product("float64"), dtype="float64"),
    Load(("imma",), _product("int8"), dtype="int8"),
)
