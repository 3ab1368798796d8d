"""Run a gate between two references: find both sides, compare and judge them; the tags left on the candidate."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from proftrack.compare import compare
from proftrack.compare import gate as gates
from proftrack.compare.changed import commits_between
from proftrack.compare.gate import Gate
from proftrack.compare.policy import Policy
from proftrack.errors import IncomparableError, NotFoundError
from proftrack.store import baselines, fields, keys, noise
from proftrack.store.references import Named, References
from proftrack.store.runs import now


def hold(
    references: References,
    candidate_name: str,
    baseline_name: str | None,
    policy: Policy,
    *,
    experiment: str | None = None,
    across: Collection[str] = (),
    noise_floor: float | None = None,
) -> tuple[Gate, Named]:
    """The gate's outcome, and its candidate. `noise_floor` is in percent; `across` names keys that may differ.

    A missing or incomparable baseline makes the gate inconclusive. Raises NotFoundError for a missing candidate,
    StoreError if the store does not answer.
    """
    single = baseline_name is not None and references.is_single(baseline_name)
    baseline = _found_or_error(lambda: references.subject(baseline_name or "")) if single else None
    # If the baseline is named by its id or a file, a candidate named by a commit must be a run like it.
    like = baseline.like if isinstance(baseline, Named) else None
    candidate = references.subject(candidate_name, experiment=experiment, like=like)
    if baseline_name is None:
        baseline = _found_or_error(lambda: baselines.default_for(references, candidate, branch=policy.branch))
    elif baseline is None:
        baseline = _found_or_error(lambda: references.subject(baseline_name, like=candidate.like))
    label = _label(candidate)
    if isinstance(baseline, NotFoundError):
        return gates.undecided(label, policy, str(baseline), baseline_name), candidate
    before, after = baseline.subject, candidate.subject
    try:
        comparison = compare(
            before,
            after,
            across=across,
            noise=noise.floors_for(references, baseline, percent=noise_floor, otherwise=policy.noise_floor_pct),
            commits=commits_between(before.git_commit, after.git_commit),
            notes=[baseline.note] if baseline.note else [],
        )
    except IncomparableError as error:
        return gates.undecided(label, policy, str(error), before.run_id or before.label), candidate
    figures = ({point.key: point.value for point in fields.metrics(side.record)} for side in (before, after))
    named = msgspec.structs.replace(after, label=label)
    return gates.evaluate(before, named, comparison, policy, *figures), candidate


def _found_or_error(find: Callable[[], Named]) -> Named | NotFoundError:
    """A baseline, or the error if there is none: a missing baseline is an outcome of the gate."""
    try:
        return find()
    except NotFoundError as error:
        return error


def _label(candidate: Named) -> str:
    subject = candidate.subject
    return subject.label if subject.run_id in (None, subject.label) else f"{subject.label} (run {subject.run_id})"


def tags(gate: Gate) -> dict[str, str]:
    """The tags that the last gate leaves on the candidate's run."""
    across = [key.name for key in gate.comparison.across] if gate.comparison else []
    return {
        keys.GATE_OUTCOME_TAG: gate.outcome,
        keys.GATE_BASELINE_TAG: gate.baseline or "none",
        keys.GATE_POLICY_TAG: gate.policy,
        keys.GATE_FAILED_TAG: ", ".join(gate.failed) or "none",
        keys.GATE_REASON_TAG: gate.reason,
        keys.GATE_ACROSS_TAG: ", ".join(across) or "none",
        keys.GATE_TIME_TAG: now(),
    }
