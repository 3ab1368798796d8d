"""How many FLOPs the kernels do for each byte, as far as operators' input shapes tell, against the device's ridge.

The ridge is the intensity at which arithmetic and memory traffic take equally long: attainable FLOP/s over bytes/s.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from proftrack.measures.limits import EXPOSED, clip_sum
from proftrack.measures.view import View
from proftrack.measures.window import Windows
from proftrack.measures.work import Floats, Owned
from proftrack.record.ceilings import Ceilings
from proftrack.record.figures import Limit
from proftrack.trace.categories import Kind
from proftrack.trace.table import Bools

LOWEST_RIDGE = 14.0
"""FLOPs per byte: no GPU since 2016 has a lower one in float32 (P100: 10.6 TFLOP/s over 0.73 TB/s)."""
HIGHEST_RIDGE = 430.0
"""And none a higher one for types of 16 bits and more (float16 of the L40S, by its data sheet: 362 TFLOP/s over 0.86
TB/s; B200: 281, H100: 295)."""
LOWEST_FLOAT64 = 0.5
"""GPUs made for graphics do a 64th of their float32 rate in float64 (RTX 4090: 1.3 TFLOP/s over 1 TB/s)."""
_NARROW = "float8"
"""Its rate is twice that of 16 bits."""


class Counted(Struct, frozen=True, kw_only=True):
    """The kernels of the typical steps whose FLOPs and bytes are known. Sums over these steps."""

    busy_us: float = 0.0
    """Their part of `Measures.busy_us`. Copies within the device belong to them: what they move is known."""
    copied_us: float = 0.0
    """The copies' part of that."""
    bytes: float = 0.0
    """Moved by kernels."""
    least: float = 0.0
    """Bytes that take at least as long to move as the FLOPs take to do."""
    most: float = 0.0
    """The same at most: without measured ceilings, the ridge is only known to be between two bounds."""

    def limit(self, factor: float) -> Limit | None:
        """What limits this work; None if its intensity is within this factor of the ridge."""
        if self.least >= factor * self.bytes and self.least:
            return "arithmetic"
        return "bandwidth" if self.bytes >= factor * self.most and self.bytes else None

    def roofline_us(self, ceilings: Ceilings) -> float:
        """The least time that this device needs for the work, where the ridge was measured."""
        return max(self.bytes, self.least) / ceilings.bytes_per_s * 1e6


def counted(
    seen: View,
    windows: Windows,
    classes: dict[Limit, Bools],
    busy_by_limit_us: dict[Limit, float],
    owned: Owned,
    ceilings: Ceilings | None,
) -> Counted:
    """The counted work of the typical steps; `busy_by_limit_us` is B by limit, times the steps."""
    gpu, owner, operators, costs = owned
    device = seen.on_device
    known = costs.known & device.usable & windows.typical.overlapping(device.start, device.end)
    low, high = _ridges(operators.dtypes, ceilings)
    flops, dtype = costs.flops[known], operators.dtype[owner[known]]
    kernels = np.zeros(len(gpu), dtype=bool)
    for name, rows in classes.items():
        if name not in EXPOSED:
            kernels |= rows
    copies = kernels & (seen.table.kind[gpu] != Kind.KERNEL)
    total = clip_sum(seen, kernels, windows)
    busy_us = sum(us for limit, us in busy_by_limit_us.items() if limit not in EXPOSED)
    copied_us, known_us = (
        clip_sum(seen, rows, windows) / total * busy_us if total else 0.0
        for rows in (copies, kernels & (costs.known | copies))
    )
    return Counted(
        busy_us=known_us,
        copied_us=copied_us,
        bytes=float(costs.bytes[known].sum()),
        least=float((flops / high[dtype]).sum()),
        most=float((flops / low[dtype]).sum()),
    )


def _ridges(dtypes: list[str], ceilings: Ceilings | None) -> tuple[Floats, Floats]:
    """The lowest and the highest possible ridge of each type: the measured one, if there is one.

    Infinite for `other` types: indices and flags do no arithmetic that could limit a GPU.
    """
    low, high = [], []
    for dtype in dtypes:
        rate = ceilings.rate(dtype) if ceilings else None
        if dtype == "other":
            bounds = (np.inf, np.inf)
        elif ceilings and rate:
            bounds = (rate / ceilings.bytes_per_s, rate / ceilings.bytes_per_s)
        else:
            highest = HIGHEST_RIDGE * (2 if dtype.startswith(_NARROW) else 1)
            bounds = (LOWEST_FLOAT64 if dtype == "float64" else LOWEST_RIDGE, highest)
        low.append(bounds[0])
        high.append(bounds[1])
    return np.array(low), np.array(high)
