"""How far a kernel's launches can fill the GPU: NVIDIA's occupancy calculation, from what a trace says of each launch.

Derived, not measured. The rules are those of the CUDA toolkit's cuda_occupancy.h (13.0), and the limits that a trace
does not state are there and in the "Compute Capabilities" tables of the CUDA programming guide. Not in a trace, and
so not considered: the shared memory carve-out (the largest is assumed; a smaller one lets fewer blocks run), thread
block clusters (whose blocks must start together) and named barriers.

Profilers differ: torch's "est. achieved occupancy %" says 0 for every block with more than 48 KB of shared memory,
since it assumes the limit that holds for kernels which do not ask for more, and it rounds small grids to 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from proftrack.record.figures import Occupancy, OccupancyLimit
from proftrack.trace.codes import grouped, grouped_values
from proftrack.trace.table import NONE, EventTable, Ints, LaunchConfig

Floats = npt.NDArray[np.float64]

BLOCKS_PER_SM = {
    (6, 0): 32,
    (6, 1): 32,
    (7, 0): 32,
    (7, 2): 32,
    (7, 5): 16,
    (8, 0): 32,
    (8, 6): 16,
    (8, 7): 16,
    (8, 9): 24,
    (9, 0): 32,
    (10, 0): 32,
    (10, 3): 32,
    (11, 0): 24,
    (12, 0): 24,
    (12, 1): 24,
}
"""The most blocks that a multiprocessor runs at a time, by compute capability (cudaOccMaxBlocksPerMultiprocessor).
Others are unknown: their granularities could differ, too."""
WARP = 32
REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of this."""
_ROCM = "maxSharedMemoryPerMultiProcessor"
"""A property that only ROCm's traces have: its compute capability is a gfx number, which looks like NVIDIA's."""
_PROPERTIES = ("numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor")
_RESOURCES: tuple[OccupancyLimit, ...] = ("threads", "registers", "shared memory", "blocks")
_FULL, _GRID = 1, 1 << len(_RESOURCES)
"""What limits a launch that fills all warps (their number alone), and one with too few blocks for that."""


class SmLimits(NamedTuple):
    """What one multiprocessor of a device has for blocks, and how many multiprocessors there are."""

    sms: int
    threads: int
    registers: int
    partitions: int
    """Parts that registers are divided among; a warp's are in one of them."""
    shared_bytes: int
    """With the largest carve-out."""
    shared_unit: int
    """Shared memory is allocated to a block in multiples of this many bytes."""
    reserved_bytes: int
    """Taken from a block's shared memory by the system."""
    blocks: int


class Fill(NamedTuple):
    """How launches fill a device; each field has a value per launch."""

    theoretical: Floats
    blocks_per_sm: Ints
    """0 if the numbers are missing or impossible on the device: then nothing else is meaningful."""
    waves: Floats
    last_wave_share: Floats
    tail: Floats
    limits: Ints
    """What allows no more: a bit for each of _RESOURCES, or _GRID."""


_WHOLE = ("blocks_per_sm", "limits")
"""The fields of Fill that are integers."""


def limits_of(properties: dict[str, Any] | None) -> SmLimits | None:
    """The limits of a device, from a trace's deviceProperties; None if they, or the architecture, are not known."""
    stated = properties or {}
    capability: Any = (stated.get("computeMajor"), stated.get("computeMinor"))
    if stated.get("warpSize") != WARP or _ROCM in stated or not all(type(part) is int for part in capability):
        return None
    sizes: list[Any] = [stated.get(name) for name in _PROPERTIES]
    if capability not in BLOCKS_PER_SM or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        return None
    sms, threads, registers, shared = sizes
    if threads < WARP:
        return None
    ampere_on = capability >= (8, 0)
    return SmLimits(
        sms=sms,
        threads=threads,
        registers=registers,
        partitions=2 if capability == (6, 0) else 4,
        shared_bytes=shared,
        shared_unit=128 if ampere_on else 256,
        reserved_bytes=1024 if ampere_on else 0,
        blocks=BLOCKS_PER_SM[capability],
    )


def fill(limits: SmLimits, blocks: Ints, block_threads: Ints, registers: Ints, shared_bytes: Ints) -> Fill:
    """How launches with these numbers fill the device. A missing number is NONE."""
    known = (blocks > 0) & (block_threads > 0) & (registers > 0) & (shared_bytes >= 0)
    known &= (block_threads <= limits.threads) & (registers <= limits.registers) & (shared_bytes <= limits.shared_bytes)
    blocks, block_threads, registers, shared_bytes = (
        np.where(known, numbers, 1) for numbers in (blocks, block_threads, registers, shared_bytes)
    )
    slots_of_warps = limits.threads // WARP
    warps = _units(block_threads, WARP)
    per_warp = _units(registers * WARP, REGISTER_UNIT) * REGISTER_UNIT
    shared = _units(shared_bytes + limits.reserved_bytes, limits.shared_unit) * limits.shared_unit
    most = np.array(
        [
            slots_of_warps // warps,
            limits.registers // limits.partitions // per_warp * limits.partitions // warps,
            limits.shared_bytes // np.maximum(shared, 1),
            np.full(len(blocks), limits.blocks),
        ]
    )
    per_sm = np.where(known, most.min(axis=0), 0)
    slots = np.maximum(per_sm * limits.sms, 1)
    last = (blocks - 1) % slots + 1
    binding = (most == per_sm).T @ (1 << np.arange(len(_RESOURCES)))
    return Fill(
        theoretical=per_sm * warps / slots_of_warps,
        blocks_per_sm=per_sm,
        waves=blocks / slots,
        last_wave_share=last / slots,
        tail=1 - blocks / (_units(blocks, slots) * slots),
        limits=np.where(blocks < slots, _GRID, np.where(per_sm * warps == slots_of_warps, _FULL, binding)),
    )


def _units(amount: Ints, unit: Ints | int) -> Ints:
    """How many units hold an amount."""
    units: Ints = -(-amount // unit)
    return units


def occupancies(table: EventTable, gpu: Ints, group: npt.NDArray[np.integer], count: int) -> list[Occupancy | None]:
    """The occupancy of each of `count` groups of GPU work, weighed by time; None where nothing is known of it.

    `gpu`: rows of the table. `group`: the group of each.
    """
    out: list[Occupancy | None] = [None] * count
    kinds, kind = grouped((table.device[gpu], table.config[gpu]))
    filled, shapes = fill_of(table, gpu[kinds]), _shapes(table, gpu[kinds])
    known = np.flatnonzero(filled.blocks_per_sm[kind] > 0)
    if not len(known):
        return out
    mine, kind, time = group[known].astype(np.int64), kind[known], table.dur[gpu[known]]
    weight = np.maximum(time, 1).astype(np.float64)
    total = np.bincount(mine, weights=weight, minlength=count)
    covered = np.bincount(mine, weights=time, minlength=count)

    def mean(values: Floats) -> Floats:
        sums = np.bincount(mine, weights=weight * values[kind], minlength=count)
        return np.divide(sums, total, out=np.zeros(count), where=total > 0)

    means = [mean(values) for values in (*filled[:1], np.minimum(filled.waves, 1) * filled.theoretical, *filled[2:5])]
    shape, share = _largest(mine, shapes[kind], weight, count)
    limit, _ = _largest(mine, filled.limits[kind], weight, count)
    for i in np.flatnonzero(total).tolist():
        theoretical, at_most, waves, last, tail = (round(float(values[i]), 5) for values in means)
        of_shape = kind[shape[i]]
        config = table.configs[table.config[gpu[kinds[of_shape]]]]
        out[i] = Occupancy(
            theoretical=theoretical,
            at_most=at_most,
            waves=waves,
            last_wave_share=last,
            tail=tail,
            limited_by=_names(int(filled.limits[kind[limit[i]]])),
            covered_us=float(covered[i]) / 1000,
            blocks_per_sm=int(filled.blocks_per_sm[of_shape]),
            registers=config.registers,
            shared_bytes=config.shared_bytes,
            block_threads=config.block_threads,
            shape_share=round(float(share[i]), 5),
        )
    return out


def fill_of(table: EventTable, rows: Ints) -> Fill:
    """How the launches of these rows fill their devices."""
    launched, device = _launched(table, rows), table.device[rows]
    out = Fill(*(np.zeros(len(rows), dtype=np.int64 if field in _WHOLE else float) for field in Fill._fields))
    for each in np.unique(device).tolist():
        limits = limits_of(table.meta.device(each))
        if limits is not None:
            here = device == each
            for column, values in zip(out, fill(limits, *launched[:, here]), strict=True):
                column[here] = values
    return out


def _launched(table: EventTable, rows: Ints) -> Ints:
    """The fields of LaunchConfig, a line each."""
    unknown = LaunchConfig(NONE, NONE, NONE, NONE)
    launched: Ints = np.array([*table.configs, unknown], dtype=np.int64)[table.config[rows]].T
    return launched


def _shapes(table: EventTable, rows: Ints) -> Ints:
    """The same number for rows on one device with equal blocks, registers and shared memory, however large the grid."""
    _, *of_block = _launched(table, rows)
    return grouped_values([table.device[rows], *of_block])[1]


def _largest(group: Ints, key: npt.NDArray[np.integer], weight: Floats, count: int) -> tuple[Ints, Floats]:
    """Of each group a place with the key that has the largest weight, and that key's share of the group's weight."""
    first, pair = grouped((group, key))
    sums = np.bincount(pair, weights=weight)
    order = np.argsort(sums, kind="stable")
    place, most = np.zeros(count, dtype=np.int64), np.zeros(count)
    place[group[first[order]]] = first[order]  # the last one written stays
    most[group[first[order]]] = sums[order]
    total = np.bincount(group, weights=weight, minlength=count)
    return place, np.divide(most, total, out=most, where=total > 0)


def _names(limits: int) -> list[OccupancyLimit]:
    if limits == _GRID:
        return ["grid"]
    return [name for bit, name in enumerate(_RESOURCES) if limits >> bit & 1]


def combined(parts: list[Occupancy]) -> Occupancy | None:
    """One kernel's occupancy over several cycles, weighed by the time that each describes."""
    if not parts:
        return None
    weights = [max(part.covered_us, 1e-3) for part in parts]
    largest = parts[int(np.argmax([w * part.shape_share for w, part in zip(weights, parts, strict=True)]))]
    shape = _shape(largest)
    same = sum(w * part.shape_share for w, part in zip(weights, parts, strict=True) if _shape(part) == shape)
    means = {
        name: round(sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True)) / sum(weights), 5)
        for name in ("theoretical", "at_most", "waves", "last_wave_share", "tail")
    }
    covered = sum(part.covered_us for part in parts)
    return replace(largest, **means, covered_us=covered, shape_share=round(same / sum(weights), 5))


def _shape(occupancy: Occupancy) -> tuple[int, int, int, int]:
    return occupancy.blocks_per_sm, occupancy.registers, occupancy.shared_bytes, occupancy.block_threads
