"""What a policy says of a candidate: each limit passes, fails, or cannot be told.

A limit on a time fails only where the candidate is beyond it and the difference is no noise; it passes only where the
noise would not have hidden going beyond it. Between the two it is inconclusive. Counts have no noise.

    outcome   fail where a check fails, else inconclusive where a required one cannot be told, else pass
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from proftrack.compare.comparison import BUSY, STEP_TIME, step_samples
from proftrack.compare.policy import COUNTS, Limit, Policy, describe
from proftrack.compare.results import Comparison, Count, Interval
from proftrack.compare.subjects import Subject

Outcome = Literal["pass", "fail", "inconclusive"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "inconclusive": 4}
_GROUNDS = ("samples", "runs")
"""Checks of the data, which are no limits."""
NOISELESS = ("peak_memory_bytes", "recorded_steps")
"""Metrics that are the same in every run of the same code."""


class Check(Struct, frozen=True, kw_only=True):
    """One limit."""

    name: str
    before: float | None = None
    after: float | None = None
    limit: str
    outcome: Outcome
    counted: bool = True
    """Whether it decides; a metric that is not required and cannot be told does not."""
    reason: str = ""


class Gate(Struct, frozen=True, kw_only=True):
    """`proftrack gate`."""

    outcome: Outcome
    reason: str
    """In one sentence."""
    candidate: str
    baseline: str | None
    policy: str
    checks: list[Check] = []
    comparison: Comparison | None = None

    @property
    def failed(self) -> list[str]:
        """The checks that failed."""
        return [check.name for check in self.checks if check.outcome == "fail"]


def undecided(candidate: str, policy: Policy, reason: str, baseline: str | None = None) -> Gate:
    """A gate that could not be held: no baseline, or one that is not comparable."""
    return Gate(outcome="inconclusive", reason=reason, candidate=candidate, baseline=baseline, policy=policy.source)


def evaluate(
    baseline: Subject,
    candidate: Subject,
    comparison: Comparison,
    policy: Policy,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> Gate:
    """Hold a candidate against a policy. `before` and `after`: the metrics of both runs."""
    checks = [*_samples(baseline, candidate, comparison, policy), _regime(comparison, policy)]
    enough = all(check.outcome == "pass" for check in checks[:2])
    counts = {count.name: count for count in comparison.counts}
    for name, limit in policy.metrics.items():
        count = counts.get(COUNTS.get(name, ""))
        if count is not None:
            checks.append(_counted(name, limit, count))
        else:
            checks.append(_metric(name, limit, before.get(name), after.get(name), comparison, enough=enough))
    outcome, reason = _outcome(checks)
    return Gate(
        outcome=outcome,
        reason=reason,
        candidate=candidate.label,
        baseline=baseline.run_id or baseline.label,
        policy=policy.source,
        checks=checks,
        comparison=comparison,
    )


def _outcome(checks: list[Check]) -> tuple[Outcome, str]:
    failed = [check for check in checks if check.outcome == "fail"]
    unclear = [check for check in checks if check.outcome == "inconclusive" and check.counted]
    passed = [check for check in checks if check.outcome == "pass" and check.counted and check.name not in _GROUNDS]
    skipped = [check for check in checks if check.outcome == "inconclusive" and not check.counted]
    if failed:
        return "fail", "; ".join(f"{check.name}: {check.reason}" for check in failed)
    if unclear:
        return "inconclusive", "; ".join(f"{check.name}: {check.reason}" for check in unclear)
    if not passed:
        return "inconclusive", "no limit of the policy could be checked"
    left = f", {len(skipped)} could not be checked and need not be" if skipped else ""
    return "pass", f"{len(passed)} limits kept{left}"


def _samples(baseline: Subject, candidate: Subject, comparison: Comparison, policy: Policy) -> list[Check]:
    """Whether there is enough to judge by: samples within each run, and runs."""
    fewest = min(len(step_samples(subject.record, comparison.basis).samples) for subject in (baseline, candidate))
    runs = min(baseline.runs(STEP_TIME), candidate.runs(STEP_TIME))
    noun = "timed blocks" if comparison.basis == "unprofiled" else "recorded steps"
    enough = fewest >= policy.min_samples or comparison.step_time.same_data
    few = f"only {fewest} {noun} in one of the runs; raise timing.min_seconds, or min_samples is too high"
    single = f"only {runs} of {policy.min_runs} runs on one side; profile that commit again"
    return [
        Check(
            name="samples",
            after=fewest,
            limit=f"at least {policy.min_samples}",
            outcome="pass" if enough else "inconclusive",
            reason="" if enough else few,
        ),
        Check(
            name="runs",
            after=runs,
            limit=f"at least {policy.min_runs}",
            outcome="pass" if runs >= policy.min_runs else "inconclusive",
            reason="" if runs >= policy.min_runs else single,
        ),
    ]


def _regime(comparison: Comparison, policy: Policy) -> Check:
    old, new = comparison.baseline.regime, comparison.candidate.regime
    allowed = policy.regime
    limit = "any" if allowed == "any" else old if allowed == "same" else " or ".join(allowed)
    said = f"{old} -> {new}"
    if allowed == "any":
        return Check(name="regime", limit=limit, outcome="pass", counted=False, reason=said)
    if new == "inconclusive" or (allowed == "same" and old == "inconclusive"):
        return Check(name="regime", limit=limit, outcome="inconclusive", reason=f"the verdict is inconclusive ({said})")
    kept = new == old if allowed == "same" else new in allowed
    return Check(name="regime", limit=limit, outcome="pass" if kept else "fail", reason=said)


def _counted(name: str, limit: Limit, count: Count) -> Check:
    """A count, which has no noise unless it differs between the steps of one run."""
    outcome, reason = _within(limit, count.before, count.after, None)
    if outcome == "fail" and count.varies:
        outcome, reason = "inconclusive", "it differs between the steps of one run"
    return _check(name, limit, count.before, count.after, outcome, reason)


def _metric(
    name: str, limit: Limit, before: float | None, after: float | None, comparison: Comparison, *, enough: bool
) -> Check:
    change = {STEP_TIME: comparison.step_time, BUSY: comparison.busy}.get(name)
    if change is not None:
        before, after = change.before_us, change.after_us
    if after is None or (before is None and not _is_absolute(limit)):
        missing = "the candidate" if after is None else "the baseline"
        return _check(name, limit, before, after, "inconclusive", f"{missing} has no {name}")
    interval = _interval(name, before, after, comparison)
    outcome, reason = _within(limit, before, after, interval)
    timed = name not in NOISELESS and name not in COUNTS
    if timed and not enough and not _is_absolute(limit):
        outcome, reason = "inconclusive", "too few samples"
    elif timed and change is not None and change.interval is None:
        outcome, reason = "inconclusive", change.reason
    return _check(name, limit, before, after, outcome, reason)


def _check(name: str, limit: Limit, before: float | None, after: float | None, outcome: Outcome, reason: str) -> Check:
    counted = limit.required or outcome != "inconclusive"
    return Check(
        name=name, before=before, after=after, limit=describe(limit), outcome=outcome, counted=counted, reason=reason
    )


def _is_absolute(limit: Limit) -> bool:
    """Whether it says nothing about the baseline."""
    relative = (limit.max_increase_pct, limit.max_decrease_pct, limit.max_increase, limit.max_decrease)
    return not limit.exact and all(bound is None for bound in relative)


def _interval(name: str, before: float | None, after: float, comparison: Comparison) -> Interval | None:
    """Of the ratio after / before; metrics that are not timed themselves are as noisy as the step time."""
    if name in NOISELESS or name in COUNTS or not before or after <= 0:
        return None
    if name == BUSY and comparison.busy is not None:
        return comparison.busy.interval
    time = comparison.step_time
    if name == STEP_TIME or time.interval is None:
        return time.interval
    ratio = after / before
    return Interval(low=ratio * time.interval.low / time.ratio, high=ratio * time.interval.high / time.ratio)


def _within(limit: Limit, before: float | None, after: float, interval: Interval | None) -> tuple[Outcome, str]:
    """The worst of a limit's bounds."""
    found: list[tuple[Outcome, str]] = []
    if limit.max is not None:
        found.append(_bound(after <= limit.max, f"{after:g} is above {limit.max:g}"))
    if limit.min is not None:
        found.append(_bound(after >= limit.min, f"{after:g} is below {limit.min:g}"))
    if before is not None:
        if limit.exact:
            found.append(_bound(after == before, f"{before:g} -> {after:g}, must be equal"))
        for most, is_increase in (
            (_most(limit.max_increase_pct, limit.max_increase, before), True),
            (_most(limit.max_decrease_pct, limit.max_decrease, before), False),
        ):
            if most is not None:
                found.append(_relative(before, after, interval, most, increase=is_increase))
    order: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")
    return min(found, key=lambda each: order.index(each[0])) if found else ("inconclusive", "no bound applies")


def _bound(kept: bool, reason: str) -> tuple[Outcome, str]:
    return ("pass", "") if kept else ("fail", reason)


def _most(percent: float | None, amount: float | None, before: float) -> float | None:
    """How far the value may go from `before`, in its own unit; the tighter of the two ways to say it."""
    bounds = [before * percent / 100] if percent is not None else []
    bounds += [amount] if amount is not None else []
    return min(bounds) if bounds else None


def _relative(
    before: float, after: float, interval: Interval | None, most: float, *, increase: bool
) -> tuple[Outcome, str]:
    change = after - before if increase else before - after
    said = f"{(after / before - 1) * 100:+.1f} %" if before else f"{before:g} -> {after:g}"
    if interval is None:
        return _bound(change <= most, said)
    # How much worse it is as a ratio, at least, at best guess, at most.
    low, high = (interval.low, interval.high) if increase else (1 / interval.high, 1 / interval.low)
    ratio = after / before if increase else before / after
    allowed = 1 + most / before if increase else before / max(before - most, 1e-12)
    noise = f"95 % interval {(interval.low - 1) * 100:+.1f} to {(interval.high - 1) * 100:+.1f} %"
    if ratio > allowed:
        return ("fail", f"{said} ({noise})") if low > 1 else ("inconclusive", f"{said}, which may be noise ({noise})")
    if high <= allowed or high / ratio <= allowed:
        return "pass", said
    return "inconclusive", f"{said}, but noise would hide more than is allowed ({noise})"
