"""Attainable rates of this device, measured within seconds and kept in the user's cache.

Arithmetic: square matmuls of random values (zeros run faster: they switch fewer transistors), the best of several
sizes, small ones first, for the requested dtypes; float8 and int8 by torch's scaled and integer products. Traffic: a
copy far larger than any cache, bytes read plus bytes written. Best of several repeats, since a ceiling is what the
device can do undisturbed.

No figure takes more than CEILING_SECONDS: an emulated dtype, such as bfloat16 on a CPU without instructions for it, is
measured with products that are small enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from proftrack.capture import compat
from proftrack.capture.call_costs import call_costs
from proftrack.capture.cpu_load import Reading, load_between, read_load
from proftrack.capture.device import Device
from proftrack.capture.loads import copy, product
from proftrack.capture.reachable import with_reached
from proftrack.record.ceilings import Ceilings

DTYPES = ("bfloat16", "float16", "float32", "float64", "tfloat32", "float8_e4m3fn", "int8")
"""The dtypes that have a ceiling, where the device has such a product. tfloat32: float32 that may be computed in TF32.

float32 is computed as the program chose (`torch.set_float32_matmul_precision`)."""
_GPU_ONLY = ("tfloat32", "float8_e4m3fn")
CEILING_SECONDS = 2.0
_GPU_SIZES = (1024, 4096, 8192)
_CPU_SIZES = (256, 512, 1024, 2048)
_GPU_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 256 << 20
_REPEATS = 5
_BUSY = 0.1
"""From this share of the time spent waiting for a core, ceilings are lower than an idle machine would reach."""
_BUSY_KEPT_NS = 600 * 10**9
"""How long such ceilings are kept: the next run may have the machine to itself."""
_REPEAT_SECONDS = 0.03
"""A timed repeat is about this long: reading the clock and synchronising is negligible against it."""


def ceilings_of(
    device: Device, dtypes: Iterable[str] = DTYPES, *, fresh: bool = False, companions: int = 0
) -> Ceilings:
    """The device's ceilings for at least these dtypes, from the cache if they were measured before.

    `fresh` measures again. `companions`: other processes that are known to be idle on this GPU. A dtype without a
    ceiling (see DTYPES) or without a matmul on this device is left out.
    """
    facts = _facts(device)
    path = cache_folder() / f"{_digest(facts)}.json"
    known = None if fresh else _cached(path)
    missing = _missing(device, dtypes, known)
    ceilings = measure(device, missing, known) if known is None or missing else known
    ceilings = with_reached(device, dtypes, ceilings, companions=companions)
    if ceilings is not known:
        _keep(path, facts, ceilings)
    return ceilings


def known_ceilings(device: Device, dtypes: Iterable[str]) -> Ceilings | None:
    """The ceilings for these dtypes if they were measured before; nothing is measured."""
    known = _cached(cache_folder() / f"{_digest(_facts(device))}.json")
    return None if _missing(device, dtypes, known) else known


def _missing(device: Device, dtypes: Iterable[str], known: Ceilings | None) -> list[str]:
    wanted = set(dtypes) - set(() if device.is_gpu else _GPU_ONLY)
    return [dtype for dtype in DTYPES if dtype in wanted and (known is None or dtype not in known.flops_per_s)]


def cache_folder() -> Path:
    """The folder of cached ceilings: $XDG_CACHE_HOME/proftrack/ceilings, else under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "proftrack" / "ceilings"


def _facts(device: Device) -> dict[str, Any]:
    """Everything that a ceiling depends on. A change of any of them needs a new measurement."""
    import torch

    from proftrack.capture.environment import driver_version

    facts: dict[str, Any] = {"device": device.name, "torch": str(torch.__version__), "type": device.type, "format": 3}
    if device.is_gpu:
        properties = torch.cuda.get_device_properties(device.torch_device)
        facts |= {
            "driver": driver_version(),
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "float32_matmul": compat.float32_products(),
        }
    else:
        facts |= {
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "instructions": [torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")],
        }
    return facts


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]


def _cached(path: Path) -> Ceilings | None:
    try:
        known = msgspec.convert(msgspec.json.decode(path.read_bytes())["ceilings"], Ceilings)
        return known if known.waited < _BUSY or time.time_ns() - known.measured_ns < _BUSY_KEPT_NS else None
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return None


def _keep(path: Path, facts: dict[str, Any], ceilings: Ceilings) -> None:
    """Write the cache. If that fails, the next run only takes some seconds longer."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode({"facts": facts, "ceilings": ceilings}), indent=1))
        part.replace(path)


def measure(device: Device, dtypes: Iterable[str], known: Ceilings | None = None) -> Ceilings:
    """Measure the arithmetic rate of each dtype and, unless `known` has them, bandwidth and, on a CPU, call costs.

    Returns the known and the measured figures together.
    """
    import torch

    before = read_load()
    with torch.no_grad():
        rates = {dtype: rate for dtype in dtypes if (rate := _matmul_rate(device, dtype, CEILING_SECONDS)) is not None}
        if known is not None:
            waited = max(known.waited, _waited(device, before))
            return msgspec.structs.replace(known, flops_per_s={**known.flops_per_s, **rates}, waited=waited)
        bandwidth = _copy_rate(device)
        dispatch = None if device.is_gpu else _dispatch(device)
    costs = {} if device.is_gpu else call_costs()
    return Ceilings(
        device=device.name,
        flops_per_s=rates,
        bytes_per_s=bandwidth,
        dispatch_us=dispatch,
        call_us=costs,
        waited=_waited(device, before),
        measured_ns=time.time_ns(),
    )


def _waited(device: Device, before: Reading) -> float:
    """Share of the time since `before` in which the measurement on a CPU waited for a core."""
    load = load_between(before, read_load())
    return 0.0 if device.is_gpu else load.share(load.waited_us)


def _matmul_rate(device: Device, dtype: str, within: float) -> float | None:
    """FLOP/s of the best size that can be measured `within` so many seconds.

    None if the device has no matmul of this type or no memory for it.
    """
    best: float | None = None
    end = time.perf_counter() + within
    for n in _GPU_SIZES if device.is_gpu else _CPU_SIZES:
        left = end - time.perf_counter()
        # Warm-up and two timed products, at the rate seen so far.
        if best is not None and 3 * 2 * n**3 / best > left:
            break
        try:
            with compat.products_in("tf32") if dtype == "tfloat32" else contextlib.nullcontext():
                seconds = _best(device, product(device, dtype, n), left)
        except (RuntimeError, AttributeError):  # out of memory, or not implemented
            continue
        best = max(2 * n**3 / seconds, best or 0.0)
    return best


def _copy_rate(device: Device) -> float:
    work, size = copy(device, _GPU_COPY_BYTES if device.is_gpu else _CPU_COPY_BYTES)
    return 2 * size / _best(device, work, CEILING_SECONDS)


def _best(device: Device, work: Callable[[], Any], within: float) -> float:
    """Seconds per call: the best of several repeats of many calls, as many as fit `within` so many seconds."""
    end = time.perf_counter() + within
    calls, elapsed = 1, _timed(device, work, 1)  # also the warm-up; the only call if it takes all the time
    best = elapsed
    while time.perf_counter() + 2 * elapsed < end and elapsed < _REPEAT_SECONDS and calls < 1 << 16:
        calls *= 2
        elapsed = _timed(device, work, calls)
        best = min(best, elapsed / calls)
    for _ in range(_REPEATS):
        if time.perf_counter() + elapsed > end:
            break
        elapsed = _timed(device, work, calls)
        best = min(best, elapsed / calls)
    return best


def _timed(device: Device, work: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    device.synchronize()
    return time.perf_counter() - begin


def _dispatch(device: Device) -> float:
    """Microseconds of an operator that does almost no work."""
    import torch

    x = torch.ones(1, device=device.torch_device)
    return _best(device, lambda: torch.add(x, x), CEILING_SECONDS) * 1e6
