"""Pairs the parts of one run with the parts of the other.

GPU work is matched in passes, the strictest first; each pass takes what the earlier ones left, largest with largest:

    operator, shapes, kernel    the same work: slower, faster, more or fewer calls
    operator, shapes            the same call, another kernel: renamed (of the same kind before another kind)
    operator, kernel            other shapes
    operator, kind              other shapes and another kernel: renamed
    kernel                      launched by another operator
What is left was added or is gone. Every part is in exactly one row, so the rows have the same sum as the parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

from proftrack.compare.kernels import new_name
from proftrack.compare.parts import Part
from proftrack.compare.results import Row

SAME = 0.05
"""Times and counts that differ by less count as the same: a kernel's time follows the clock, which varies as much."""

Key = Callable[[Part], object]
Status = Literal["added", "gone", "slower", "faster", "more calls", "fewer calls", "renamed", "more", "less", "same"]

_GPU_PASSES: tuple[Key, ...] = (
    lambda p: (p.operator, p.shapes, p.name, p.kind),
    lambda p: (p.operator, p.shapes, p.kind),
    lambda p: (p.operator, p.shapes),
    lambda p: (p.operator, p.name, p.kind),
    lambda p: (p.operator, p.kind),
    lambda p: (p.name, p.kind),
)
_NEEDS_OPERATOR = (1, 2, 4)
"""Passes that cannot match work of unknown operators."""


def match(before: Sequence[Part], after: Sequence[Part]) -> list[Row]:
    """One row per pair, and per part that only one side has; largest contribution first."""
    rows = []
    for part in ("gpu", "idle", "host", "profiler"):
        old = [p for p in before if p.part == part]
        new = [p for p in after if p.part == part]
        rows += _match_gpu(old, new) if part == "gpu" else _match_by_name(old, new)
    return sorted(rows, key=lambda row: (-abs(row.change_us), row.name))


def _match_gpu(old: list[Part], new: list[Part]) -> list[Row]:
    rows: list[Row] = []
    for number, key in enumerate(_GPU_PASSES):
        pairs, old, new = _pair(old, new, key, named=number in _NEEDS_OPERATOR)
        rows += [_row(a, b) for a, b in pairs]
    return rows + [_row(a, None) for a in old] + [_row(None, b) for b in new]


def _match_by_name(old: list[Part], new: list[Part]) -> list[Row]:
    pairs, old, new = _pair(old, new, lambda p: p.name, named=False)
    return [_row(a, b) for a, b in pairs] + [_row(a, None) for a in old] + [_row(None, b) for b in new]


def _pair(
    old: list[Part], new: list[Part], key: Key, *, named: bool
) -> tuple[list[tuple[Part, Part]], list[Part], list[Part]]:
    """Pairs of equal keys, largest with largest, and what is left of both sides."""
    waiting: dict[object, list[Part]] = defaultdict(list)
    for part in sorted(new, key=lambda p: (-p.us, p.name, p.shapes)):
        waiting[key(part)].append(part)
    pairs, left = [], []
    for part in sorted(old, key=lambda p: (-p.us, p.name, p.shapes)):
        candidates = waiting.get(key(part))
        if candidates and (part.operator or not named):
            pairs.append((part, candidates.pop(0)))
        else:
            left.append(part)
    return pairs, left, [part for candidates in waiting.values() for part in candidates]


def _row(before: Part | None, after: Part | None) -> Row:
    shown = after or before
    assert shown is not None
    both = before is not None and after is not None
    return Row(
        part=shown.part,  # type: ignore[arg-type]  # parts_of gives no other words
        status=_status(before, after),
        name=shown.name,
        old_name=before.name if both and before.name != after.name else "",  # type: ignore[union-attr]
        operator=shown.operator,
        shapes=shown.shapes,
        old_shapes=before.shapes if both and before.shapes != after.shapes else "",  # type: ignore[union-attr]
        before_us=before.us if before else 0.0,
        after_us=after.us if after else 0.0,
        calls_before=before.calls if before else 0.0,
        calls_after=after.calls if after else 0.0,
        note=_note(before, after),
    )


def _status(before: Part | None, after: Part | None) -> Status:
    if before is None or after is None:
        return "added" if before is None else "gone"
    if before.name != after.name:
        return "renamed"
    if before.part in ("idle", "profiler"):
        return "same" if _near(before.us, after.us) else "more" if after.us > before.us else "less"
    return status_of_calls(before.calls, after.calls, before.mean_us, after.mean_us)


def status_of_calls(
    calls_before: float, calls_after: float, mean_before: float, mean_after: float
) -> Literal["slower", "faster", "more calls", "fewer calls", "same"]:
    """Which changed more: how often it is called, or how long a call takes."""
    by_count = (calls_after - calls_before) * mean_before
    by_time = (mean_after - mean_before) * calls_after
    count_same, time_same = _near(calls_before, calls_after), _near(mean_before, mean_after)
    if count_same and time_same:
        return "same"
    if time_same or (not count_same and abs(by_count) >= abs(by_time)):
        return "more calls" if calls_after > calls_before else "fewer calls"
    return "slower" if mean_after > mean_before else "faster"


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(abs(a), abs(b))


def _note(before: Part | None, after: Part | None) -> str:
    if before is None or after is None or before.part != "gpu":
        return ""
    notes = [new_name(before.name, after.name)] if before.name != after.name else []
    if before.operator != after.operator:
        new, old = (part.operator or "an unknown operator" for part in (after, before))
        notes.append(f"now launched by {new}, before by {old}")
    elif before.shapes != after.shapes:
        notes.append("other input shapes")
    return ", ".join(notes)
