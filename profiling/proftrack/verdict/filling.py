"""In words: how far the busiest kernels' launches can fill the GPU."""

from __future__ import annotations

from proftrack.record.figures import Kernel, Occupancy
from proftrack.text import brief, listed, number

MOST = 3
"""Kernels that a sentence names."""
LARGE_SHARE = 0.05
"""Of the GPU's time: a kernel below it is not worth a sentence."""
LONG_TAIL = 0.1
"""Share of the places for blocks that stay empty in the last wave, from which on it is mentioned."""
FULL = 0.99
"""From here on nothing is said of what limits."""
COVERED = 0.5
"""Share of the GPU's time that must be known for a statement about all of it."""


def fills_at_most(kernels: list[Kernel]) -> float | None:
    """The share of the warps that the GPU has room for which the launches can fill, weighed by their time, 0..1.

    None if that is derived for less than half of the GPU's time.
    """
    known = [kernel.occupancy for kernel in kernels if kernel.occupancy is not None]
    covered = sum(occupancy.covered_us for occupancy in known)
    if not covered or covered < COVERED * sum(kernel.total_us for kernel in kernels):
        return None
    return sum(occupancy.at_most * occupancy.covered_us for occupancy in known) / covered


def filling(kernels: list[Kernel]) -> str | None:
    """How far the launches can fill the GPU, and what limits the busiest of them; None if `fills_at_most` is.

    `kernels`: a record's, the largest first.
    """
    whole = fills_at_most(kernels)
    if whole is None:
        return None
    busiest = [_of(kernel, kernel.occupancy) for kernel in kernels[:MOST] if _worth(kernel) and kernel.occupancy]
    named = f": {'; '.join(busiest)}" if busiest else ""
    return f"Launches can fill at most {_share(whole)} of the GPU's room for warps (derived, not measured){named}."


def _worth(kernel: Kernel) -> bool:
    return kernel.share >= LARGE_SHARE


def _of(kernel: Kernel, occupancy: Occupancy) -> str:
    waves = number(occupancy.waves, 2)
    if occupancy.limited_by == ["grid"] and occupancy.waves <= 1:
        why = f" (its grid is {waves} waves)"
    elif occupancy.at_most > FULL:
        why = ""
    elif occupancy.limited_by == ["grid"] or occupancy.theoretical > FULL:
        why = " (some of its grids are under a wave)"
    else:
        why = f" (limited by {listed(occupancy.limited_by)})"
    # Of large and of small grids, the means of waves and tail describe neither.
    large = occupancy.waves > 1 and occupancy.at_most > FULL * occupancy.theoretical
    long_tail = large and occupancy.tail >= LONG_TAIL
    tail = f", and {occupancy.tail:.0%} of the places in its {waves} waves stay empty" if long_tail else ""
    return f"{brief(kernel.name, 60)}, {kernel.share:.0%} of the time, at most {_share(occupancy.at_most)}{why}{tail}"


def _share(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.01 else "1%"
