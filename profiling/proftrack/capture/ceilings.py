"""Attainable rates of this very device, measured in seconds and kept in the user's cache.

Arithmetic: square matmuls of random values (zeros run faster: they switch fewer transistors), the best of several
sizes. Traffic: a copy far larger than any cache, bytes read plus bytes written. Best of several repeats, since a
ceiling is what the device can do undisturbed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from proftrack.capture.device import Device
from proftrack.capture.load import load_between, read_load
from proftrack.capture.prices import call_prices
from proftrack.hardware import Ceilings

_GPU_SIZES = {"bfloat16": (4096, 8192), "float16": (4096, 8192), "float32": (4096, 8192), "float64": (2048, 4096)}
_CPU_SIZES = {"bfloat16": (1024, 2048), "float32": (1024, 2048), "float64": (1024,)}
_GPU_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 256 << 20
_REPEATS = 5
_BUSY = 0.1
"""Share of the time without a core from which on ceilings are too low for a machine that has nothing else to do."""
_BUSY_KEPT_NS = 600 * 10**9
"""How long such ceilings are kept: the next run may have the machine to itself."""
_REPEAT_SECONDS = 0.03
"""A timed repeat is about this long: its clock and synchronisation are nothing against it."""


def ceilings_of(device: Device, *, fresh: bool = False) -> Ceilings:
    """The device's ceilings, from the cache where they were measured before (`fresh` measures again)."""
    facts = _facts(device)
    path = cache_folder() / f"{_digest(facts)}.json"
    if not fresh and (known := _cached(path)) is not None:
        return known
    measured = measure(device)
    _keep(path, facts, measured)
    return measured


def cache_folder() -> Path:
    """Where ceilings are kept: $XDG_CACHE_HOME/proftrack/ceilings, else under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "proftrack" / "ceilings"


def _facts(device: Device) -> dict[str, Any]:
    """All that a ceiling depends on and that can change under the same file."""
    import torch

    from proftrack.environment import driver_version

    facts: dict[str, Any] = {"device": device.name, "torch": str(torch.__version__), "type": device.type, "format": 2}
    if device.is_gpu:
        properties = torch.cuda.get_device_properties(device.torch_device)
        facts |= {
            "driver": driver_version(),
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "float32_matmul": torch.get_float32_matmul_precision(),
        }
    else:
        facts |= {"threads": torch.get_num_threads(), "machine": platform.machine(), "cores": os.cpu_count()}
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
    """A cache that cannot be written costs the next run some seconds, nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode({"facts": facts, "ceilings": ceilings}), indent=1))
        part.replace(path)


def measure(device: Device) -> Ceilings:
    """Measure arithmetic rates, bandwidth and, on a CPU, what a call costs."""
    import torch

    before = read_load()
    with torch.no_grad():
        sizes = _GPU_SIZES if device.is_gpu else _CPU_SIZES
        rates = {dtype: rate for dtype in sizes if (rate := _matmul_rate(device, dtype, sizes[dtype])) is not None}
        bandwidth = _copy_rate(device)
        dispatch = None if device.is_gpu else _dispatch(device)
    prices = {} if device.is_gpu else call_prices()
    load = load_between(before, read_load())
    return Ceilings(
        device=device.name,
        flops_per_s=rates,
        bytes_per_s=bandwidth,
        dispatch_us=dispatch,
        call_us=prices,
        waited=0.0 if device.is_gpu else load.share(load.waited_us),
        measured_ns=time.time_ns(),
    )


def _matmul_rate(device: Device, dtype: str, sizes: tuple[int, ...]) -> float | None:
    """FLOP/s of the best size; None where the device has no matmul of this type or no room for it."""
    import torch

    best = None
    for n in sizes:
        try:
            x, w = (torch.randn(n, n, device=device.torch_device).to(getattr(torch, dtype)) for _ in range(2))
            out = torch.empty_like(x)
            seconds = _best(device, lambda x=x, w=w, out=out: torch.mm(x, w, out=out))  # type: ignore[misc]
        except RuntimeError:  # out of memory, or not implemented
            continue
        rate = 2 * n**3 / seconds
        best = rate if best is None else max(best, rate)
    return best


def _copy_rate(device: Device) -> float:
    import torch

    size = _GPU_COPY_BYTES if device.is_gpu else _CPU_COPY_BYTES
    while True:
        try:
            source = torch.ones(size, dtype=torch.uint8, device=device.torch_device)
            target = torch.empty_like(source)
            break
        except RuntimeError:  # a small or a full device
            size //= 4
    return 2 * size / _best(device, lambda: target.copy_(source))


def _best(device: Device, work: Callable[[], Any]) -> float:
    """Seconds of one call: the best of several repeats of many calls, after a warm-up."""
    calls = 1
    for _ in range(2):
        work()
    device.synchronize()
    while (elapsed := _timed(device, work, calls)) < _REPEAT_SECONDS and calls < 1 << 16:
        calls *= 2
    if elapsed > 1.0:  # a slow device: once is enough
        return elapsed / calls
    return min([elapsed, *(_timed(device, work, calls) for _ in range(_REPEATS))]) / calls


def _timed(device: Device, work: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    device.synchronize()
    return time.perf_counter() - begin


def _dispatch(device: Device) -> float:
    """Microseconds of an operator with next to nothing to do."""
    import torch

    x = torch.ones(1, device=device.torch_device)
    return _best(device, lambda: torch.add(x, x)) * 1e6
