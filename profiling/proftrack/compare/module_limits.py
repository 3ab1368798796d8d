"""Limits of modules: each module that a path of the policy names is held to the limit, and the worst one is the result.

A path may have `*` and `**` in it (`record.owners.paths`), but it has to be the whole path, not only its end.
"""

from __future__ import annotations

import math

from proftrack.compare.limits import Check, Outcome, check_of, within
from proftrack.compare.policy import Limit
from proftrack.compare.results import Comparison, Interval, ModuleRow
from proftrack.record.modules import starred
from proftrack.record.owners import paths
from proftrack.text import counted, meant

PREFIX = "modules."
"""How the names of these checks begin."""
_UNIT = "_us"
_ORDER: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")


def module_check(path: str, limit: Limit, comparison: Comparison, unfit: str, *, alone: bool) -> Check:
    """Check all modules that `path` names. A path that names none is never met, not even if it is optional.

    `unfit`: why times cannot be compared, else empty. `alone`: whether the candidate is too noisy by itself.
    """
    wanted = paths(path)
    rows = [row for row in comparison.module_rows if row.kind != "none" and any(map(wanted.fullmatch, _paths_of(row)))]
    if not rows:
        return _check(path, limit, None, "inconclusive", _nothing(path, comparison), counted=True)
    found = [(*_judged(row, limit, comparison, unfit, alone=alone), row) for row in rows]
    outcome, reason, row = min(found, key=lambda each: (_ORDER.index(each[0]), -_excess(each[2])))
    others = f"the worst of {counted(len(rows), 'module')}, " if len(rows) > 1 and outcome == "pass" else ""
    which = f"{row.path}: " if row.path != path else ""
    return _check(path, limit, row, outcome, f"{which}{others}{reason}" if reason else "")


def _check(
    path: str, limit: Limit, row: ModuleRow | None, outcome: Outcome, reason: str, *, counted: bool = False
) -> Check:
    before, after = (row.before_us, row.after_us) if row else (None, None)
    return check_of(f"{PREFIX}{path}", limit, before, after, outcome, reason, unit=_UNIT, counted=counted)


def _paths_of(row: ModuleRow) -> set[str]:
    return {row.path, row.old_path or row.path}


def _nothing(path: str, comparison: Comparison) -> str:
    if not comparison.module_rows:
        return comparison.module_notes[0].rstrip(".") if comparison.module_notes else "neither run has modules"
    known = dict.fromkeys(name for row in comparison.module_rows for name in (row.path, starred(row.path)) if name)
    hidden = "".join(f" ({note.rstrip('.')})" for note in comparison.module_notes if "not comparable" in note)
    return f"neither run has such a module{meant(path, known)}{hidden}"


def _judged(row: ModuleRow, limit: Limit, comparison: Comparison, unfit: str, *, alone: bool) -> tuple[Outcome, str]:
    if row.after_us is None:
        return "inconclusive", "the candidate does not have it"
    if row.before_us is None and not limit.is_absolute:
        return "inconclusive", "the baseline does not have it"
    time = comparison.busy or comparison.step_time
    if unfit and (alone or not limit.is_absolute):
        return "inconclusive", unfit
    if time.interval is None and not limit.is_absolute:
        return "inconclusive", time.reason
    return within(_UNIT, limit, row.before_us, row.after_us, _interval(row, comparison))


def _interval(row: ModuleRow, comparison: Comparison) -> Interval | None:
    """A module is as noisy as all GPU time (or, without a GPU, the step), or as it varies itself if that is more."""
    time = comparison.busy or comparison.step_time
    if not row.before_us or not row.after_us or time.interval is None:
        return None
    if time.same_data:
        return Interval(low=1.0, high=1.0)
    ratio, noise = row.after_us / row.before_us, row.noise_us / row.before_us
    low, high = time.interval.low / time.ratio, time.interval.high / time.ratio
    return Interval(low=min(ratio * low, ratio - noise), high=max(ratio * high, ratio + noise))


def _excess(row: ModuleRow) -> float:
    """How much longer it takes, as a ratio; one that a side lacks comes before all others."""
    if row.before_us is None or row.after_us is None:
        return math.inf
    return row.after_us / row.before_us if row.before_us else row.after_us
