"""Check a candidate against a policy: each limit passes, fails, or is inconclusive.

A limit on a time fails only if the candidate exceeds it and the difference is not noise; it passes only if noise could
not have hidden exceeding it. Between the two it is inconclusive. Counts have no noise.

    outcome   fail if any check fails, else inconclusive if a required check is inconclusive, else pass

If there are too few samples, or a run is noisy by itself, limits on times are not judged; counts and memory still are.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from proftrack.compare import floors
from proftrack.compare.comparison import BUSY, STEP_TIME, step_samples
from proftrack.compare.limits import Check, Outcome, check_of, within
from proftrack.compare.module_limits import module_check
from proftrack.compare.policy import COUNTS, Limit, Policy
from proftrack.compare.results import Comparison, Count, Floor, Interval
from proftrack.compare.subjects import Subject
from proftrack.text import counted, difference

EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "inconclusive": 4}
NOISE = "noise"
TOO_NOISY = 0.25
"""A run (or its code) whose own times differ by more than this cannot be judged against another one."""
_GROUNDS = ("samples", "runs", NOISE)
"""Checks of the data, not limits of the policy."""
NOISELESS = ("peak_memory_bytes", "recorded_steps")
"""Metrics that are equal in all runs of the same code."""


class Gate(Struct, frozen=True, kw_only=True):
    """The result of `proftrack gate`."""

    outcome: Outcome
    reason: str
    """One sentence."""
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
    """The result if there is no baseline, or none that is comparable."""
    return Gate(outcome="inconclusive", reason=reason, candidate=candidate, baseline=baseline, policy=policy.source)


def evaluate(
    baseline: Subject,
    candidate: Subject,
    comparison: Comparison,
    policy: Policy,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> Gate:
    """Check a candidate against a policy. `before` and `after`: the metrics of both runs."""
    grounds = [*_samples(baseline, candidate, comparison, policy), _noise(baseline, candidate, comparison, policy)]
    unfit = next((_UNFIT[check.name] for check in grounds if check.outcome != "pass"), "")
    noise = grounds[-1]
    noisy = noise.outcome != "pass"
    alone = noisy and (noise.after or 0.0) > TOO_NOISY  # then even an absolute limit on its times cannot be judged
    checks = [*grounds, _regime(comparison, policy, noisy=noisy)]
    counts = {count.name: count for count in comparison.counts}
    for name, limit in policy.metrics.items():
        count = counts.get(COUNTS.get(name, ""))
        if count is not None:
            checks.append(_counted(name, limit, count))
        else:
            checks.append(_metric(name, limit, before.get(name), after.get(name), comparison, unfit, alone=alone))
    on_gpu = unfit == _UNFIT[NOISE] and comparison.busy is not None  # as for BUSY
    for path, limit in policy.modules.items():
        checks.append(module_check(path, limit, comparison, "" if on_gpu else unfit, alone=alone))
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
    left = f"; {len(skipped)} optional could not be checked" if skipped else ""
    return "pass", f"{counted(len(passed), 'limit')} met{left}"


def _samples(baseline: Subject, candidate: Subject, comparison: Comparison, policy: Policy) -> list[Check]:
    """Whether there is enough data: samples within each run, and runs."""
    fewest = min(len(step_samples(subject.record, comparison.basis).samples) for subject in (baseline, candidate))
    runs = min(baseline.runs(STEP_TIME), candidate.runs(STEP_TIME))
    timing = candidate.record.timing
    noun = f"timed {timing.chosen.noun}s" if timing and comparison.basis == "unprofiled" else "recorded steps"
    enough = fewest >= policy.min_samples or comparison.step_time.same_data
    few = f"only {fewest} {noun} in one of the runs; raise timing.min_seconds, or lower min_samples"
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


_UNFIT = {"samples": "too few samples", "runs": "too few samples", NOISE: "too noisy to judge a time"}


def _noise(baseline: Subject, candidate: Subject, comparison: Comparison, policy: Policy) -> Check:
    """Whether a run, or the runs of its code, vary too much by themselves. Counts only if the policy limits a time."""
    before, after = _own(baseline), _own(candidate)
    between = comparison.step_time.floor
    if between.source == "measured" and between.fraction > (before.fraction if before else 0.0):
        before = between  # the noise of the runs like the baseline
    sentences = [
        _noise_sentence("baseline", baseline, before, "or name another one with --baseline"),
        _noise_sentence("candidate", candidate, after, "with nothing else running"),
    ]
    alone = after is not None and after.fraction > TOO_NOISY
    reason = "" if comparison.step_time.same_data else "; ".join(filter(None, sentences))
    return Check(
        name=NOISE,
        before=before.fraction if before else None,
        after=after.fraction if after else None,
        limit=f"at most {TOO_NOISY * 100:g} %",
        outcome="inconclusive" if reason else "pass",
        counted=any(
            _is_timed(name) and name != BUSY and (alone or not limit.is_absolute)
            for name, limit in policy.metrics.items()
        )
        or (comparison.busy is None and any(alone or not limit.is_absolute for limit in policy.modules.values())),
        reason=reason,
    )


def _own(subject: Subject) -> Floor | None:
    timing = subject.record.timing
    return floors.own_floor(timing.chosen if timing else None, subject.repeats.get(STEP_TIME, []))


def _noise_sentence(noun: str, subject: Subject, own: Floor | None, remedy: str) -> str:
    if own is None or own.fraction <= TOO_NOISY:
        return ""
    what = subject.record.run.experiment if subject.record.run else subject.label
    return (
        f"the {noun}'s own noise is {difference(own.fraction)}, over {TOO_NOISY * 100:g} % ({own.text.rstrip('.')}); "
        f"profile {what} again on a quiet machine, {remedy}"
    )


def _is_timed(name: str) -> bool:
    """Whether a metric is a time, or derived from one."""
    return name not in NOISELESS and name not in COUNTS


def _regime(comparison: Comparison, policy: Policy, *, noisy: bool) -> Check:
    old, new = comparison.baseline.regime, comparison.candidate.regime
    allowed = policy.regime
    limit = "any" if allowed == "any" else old if allowed == "same" else " or ".join(allowed)
    change = f"{old} -> {new}"
    if allowed == "any":
        return Check(name="regime", limit=limit, outcome="pass", counted=False, reason=change)
    if new == "inconclusive" or (allowed == "same" and old == "inconclusive"):
        reason = f"the verdict is inconclusive ({change})"
        return Check(name="regime", limit=limit, outcome="inconclusive", reason=reason)
    if noisy:
        return Check(name="regime", limit=limit, outcome="inconclusive", reason=f"{_UNFIT[NOISE]} ({change})")
    kept = new == old if allowed == "same" else new in allowed
    return Check(name="regime", limit=limit, outcome="pass" if kept else "fail", reason=change)


def _counted(name: str, limit: Limit, count: Count) -> Check:
    """Check a count, which has no noise unless it differs between the steps of one run."""
    outcome, reason = within(name, limit, count.before, count.after, None)
    if outcome == "fail" and count.varies:
        outcome, reason = "inconclusive", "it differs between the steps of one run"
    return check_of(name, limit, count.before, count.after, outcome, reason)


def _metric(
    name: str,
    limit: Limit,
    before: float | None,
    after: float | None,
    comparison: Comparison,
    unfit: str,
    *,
    alone: bool,
) -> Check:
    change = {STEP_TIME: comparison.step_time, BUSY: comparison.busy}.get(name)
    if change is not None:
        before, after = change.before_us, change.after_us
    if after is None or (before is None and not limit.is_absolute):
        missing = "the candidate" if after is None else "the baseline"
        return check_of(name, limit, before, after, "inconclusive", f"{missing} has no {name}")
    interval = _interval(name, before, after, comparison)
    outcome, reason = within(name, limit, before, after, interval)
    timed = _is_timed(name)
    if name == BUSY and unfit == _UNFIT[NOISE]:
        unfit = ""  # the noise of the step comes from the host; the interval covers the GPU's own
    if unfit and timed and (alone or not limit.is_absolute):
        outcome, reason = "inconclusive", unfit
    elif timed and change is not None and change.interval is None:
        outcome, reason = "inconclusive", change.reason
    return check_of(name, limit, before, after, outcome, reason)


def _interval(name: str, before: float | None, after: float, comparison: Comparison) -> Interval | None:
    """The interval of after / before; metrics without an interval of their own are as noisy as the step time."""
    if name in NOISELESS or name in COUNTS or not before or after <= 0:
        return None
    if name == BUSY and comparison.busy is not None:
        return comparison.busy.interval
    time = comparison.step_time
    if name == STEP_TIME or time.interval is None:
        return time.interval
    ratio = after / before
    return Interval(low=ratio * time.interval.low / time.ratio, high=ratio * time.interval.high / time.ratio)
