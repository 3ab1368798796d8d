"""Compare two records: joins the parts of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from proftrack.compare import changed, floors, why
from proftrack.compare.comparable import check, keys_of, threads_of
from proftrack.compare.headline import Findings, headline
from proftrack.compare.match import match
from proftrack.compare.modules import compare_modules
from proftrack.compare.parts import parts_of
from proftrack.compare.results import CommitRange, Comparison, Different, Floor, TimeChange
from proftrack.compare.subjects import Subject
from proftrack.compare.timing import Samples, compare_times
from proftrack.errors import ProftrackError
from proftrack.record import Record
from proftrack.verdict.rules import StepFacts, without_inflation
from proftrack.verdict.thresholds import THRESHOLDS

STEP_TIME, BUSY = "step_time_us", "gpu_busy_per_step_us"
Basis = Literal["unprofiled", "profiled"]
_UNDERMINING = {
    "no_steps": "the whole recording counts as one step",
    "partial_file": "its trace file is incomplete",
    "partial_window": "its trace does not contain all steps",
    "gpu_not_measured": "its GPU was not measured",
    "under_recorded_graphs": "its CUDA graphs were only partly recorded",
    "invalid_timestamps": "some of its GPU timestamps are impossible",
    "impossible_durations": "some of its GPU work lasts impossibly long",
    "recompiled_in_window": "it compiled while it was being recorded",
    "evaluation_in_steps": "some of its steps hold evaluation",
    "outlier_steps": "T and B leave out some of its steps, while calls on the host count in all of them",
    "gpu_throttled": "its GPU was throttled",
    "gpu_shared": "its GPU was shared",
}
RECORDING_US = 10.0
"""The most that recording one row on the host costs, with shapes."""
_NO_STEP_TIME = ("no_steps", "partial_file", "recompiled_in_window")
"""With these flags, nothing may be claimed about the trace's own step time."""


def compare(
    baseline: Subject,
    candidate: Subject,
    *,
    across: Collection[str] = (),
    noise: dict[str, Floor] | None = None,
    commits: CommitRange | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare two runs, two traces, or one with the other.

    `noise`: the known noise between processes, by metric (`step_time_us`, `gpu_busy_per_step_us`); missing ones are
    assumed. `notes`: what else to tell the reader. Raises IncomparableError if keys differ that `across` does not name,
    ProftrackError if a side has no step time.
    """
    before, after = baseline.record, candidate.record
    allowed = check(before, after, across)
    basis = _basis(before, after)
    same = _same_data(before, after)
    noise = noise or {}
    time = _step_time(baseline, candidate, basis, noise.get(STEP_TIME), same=same)
    rows = match(parts_of(before, time.before_us), parts_of(after, time.after_us))
    counts, host = why.counts(before, after), why.host_rows(before, after)
    tried = [*allowed, *(v for v in changed.variants(before, after) if f"params.{v.name}" not in _names(allowed))]
    used = why.counters(before, after)
    busy = _busy(baseline, candidate, noise.get(BUSY), same=same)
    modules = compare_modules(before, after, _reach(busy or time))
    findings = Findings(
        time=time,
        rows=rows,
        counts=counts,
        counters=used,
        host=host,
        modules=modules.changes,
        tried=tried,
        profiled=basis == "profiled",
        same_data=same,
    )
    return Comparison(
        headline=headline(findings),
        word=time.word,
        basis=basis,
        baseline=baseline.side(),
        candidate=candidate.side(),
        step_time=time,
        busy=busy,
        counts=counts,
        rows=rows,
        counters=used,
        modules=modules.changes,
        module_rows=modules.rows,
        module_notes=modules.notes,
        host=host,
        changed=changed.changed(before, after),
        commits=commits,
        across=allowed,
        notes=[*notes, *_notes(baseline, candidate, basis)],
    )


def _names(facts: list[Different]) -> set[str]:
    return {fact.name for fact in facts}


def _basis(before: Record, after: Record) -> Basis:
    """Step times without the profiler if both have one, else those of both traces; never one of each."""
    return "unprofiled" if before.verdict.basis == after.verdict.basis == "unprofiled" else "profiled"


def _same_data(before: Record, after: Record) -> bool:
    """Whether both are the same measurement, whatever their file names."""
    return msgspec.structs.replace(before, source=after.source) == after


def step_samples(record: Record, basis: Basis, runs: int = 1) -> Samples:
    """T with its samples: blocks (or latencies) without the profiler, the steps' own times in a trace.

    Raises ProftrackError if there is none.
    """
    if basis == "unprofiled" and record.timing is not None:
        return Samples(record.timing.chosen.us, record.timing.chosen.samples_us, runs)
    value = record.step_time_us if basis == "unprofiled" else record.times.step_time_profiled_us
    if not value:
        files = ", ".join(file.name for file in record.source.files)
        raise ProftrackError(f"{files}: has no step time to compare", "record steps with a schedule and step()")
    return Samples(
        value, [step.host_us for step in record.typical_steps] if basis == "profiled" else [], runs, mean=True
    )


def _step_time(baseline: Subject, candidate: Subject, basis: Basis, known: Floor | None, *, same: bool) -> TimeChange:
    before = step_samples(baseline.record, basis, baseline.runs(STEP_TIME))
    after = step_samples(candidate.record, basis, candidate.runs(STEP_TIME))
    blocks = [side.samples.tolist() for side in (before, after)] if basis == "unprofiled" else []
    floor = known or floors.assumed_floor(_least_busy(baseline.record, candidate.record, before, after), blocks)
    inflated = (_inflation(baseline.record, before), _inflation(candidate.record, after))
    change = compare_times(
        STEP_TIME, before, after, floor, same_data=same, inflated=inflated if basis == "profiled" else (1.0, 1.0)
    )
    spoiled = _spoiled(baseline.record, candidate.record) if basis == "profiled" and not same else None
    return msgspec.structs.replace(change, word="inconclusive", reason=spoiled) if spoiled else change


def _inflation(record: Record, samples: Samples) -> float:
    """By what factor a trace's step may be too long, since profiling slows the host down.

    On a GPU the same as in the verdict of a bare trace: dispatch divided by four (short steps) or two. Without a GPU:
    the cost of recording the host rows, at most a factor of four.
    """
    busy, time = record.times.gpu_busy_per_step_us, samples.value
    if not busy:
        rows = sum(op.calls for op in record.ops) / max(record.window.steps, 1)
        return time / max(time - rows * RECORDING_US, time / 4)
    facts = StepFacts(
        step_time_us=time,
        gpu_busy_us=busy,
        idle_by_cause_us=record.idle.by_cause_us_per_step,
        busy_by_limit_us={},
        waits_over_gpu_us=0.0,
    )
    return time / without_inflation(facts, THRESHOLDS).step_time_us


def _least_busy(before: Record, after: Record, a: Samples, b: Samples) -> float | None:
    """The smaller B / T of the two: the larger the host's share of a step, the more it may vary."""
    shares = [
        record.times.gpu_busy_per_step_us / samples.value
        for record, samples in ((before, a), (after, b))
        if record.times.gpu_busy_per_step_us
    ]
    return min(shares) if len(shares) == 2 else None


def _spoiled(before: Record, after: Record) -> str | None:
    flags = [flag for record in (before, after) for flag in record.quality if flag.code in _NO_STEP_TIME]
    return f"The step time of a trace is not reliable: {flags[0].message}" if flags else None


def _busy(baseline: Subject, candidate: Subject, known: Floor | None, *, same: bool) -> TimeChange | None:
    """B of both, with the GPU times of the steps as samples."""
    sides = []
    for subject in (baseline, candidate):
        busy = subject.record.times.gpu_busy_per_step_us
        if not busy:
            return None
        steps = [step.self_cuda_time_us or 0.0 for step in subject.record.typical_steps]
        sides.append(Samples(busy, steps, subject.runs(BUSY), mean=True))
    return compare_times(BUSY, sides[0], sides[1], known or floors.assumed_busy_floor(), same_data=same)


def _reach(change: TimeChange) -> float:
    """How far noise alone may take the ratio of a time from 1, as a fraction."""
    if change.interval is None or change.same_data:
        return change.floor.fraction
    return max(change.interval.high / change.ratio, change.ratio / change.interval.low) - 1


def _notes(baseline: Subject, candidate: Subject, basis: Basis) -> list[str]:
    """What the reader must know before trusting the figures."""
    notes = []
    for noun, subject in (("baseline", baseline), ("candidate", candidate)):
        for flag in subject.record.quality:
            if flag.code in _UNDERMINING:
                notes.append(f"The {noun}: {_UNDERMINING[flag.code]} ({flag.code}).")
    if basis == "profiled":
        notes.append("Step times come from the traces, where profiling slows the host down.")
    if (baseline.record.run is None) != (candidate.record.run is None):
        notes.append("One side is a bare trace, so it cannot be checked that both ran the same workload.")
    if not keys_of(baseline.record) or not keys_of(candidate.record):
        notes.append("A trace does not name its device, so it cannot be checked that both used the same one.")
    threads = _threads(baseline.record, candidate.record)
    return [*notes, threads] if threads else notes


def _threads(before: Record, after: Record) -> str | None:
    """A note if thread counts differ or are unknown. On a CPU, a difference is refused unless --across allows it."""
    if before.run is None or after.run is None:
        return None
    a, b = threads_of(before), threads_of(after)
    if a is None and b is None:
        return "Neither run says how many threads torch used." if _on_cpu(before) else None
    if a is None or b is None:
        return (
            f"{'The baseline' if a is None else 'The candidate'} does not say how many threads torch used; the other "
            f"run used {a or b}."
        )
    if a == b:
        return None
    return f"torch's threads: {a} in the baseline, {b} in the candidate; this alone can change the host's times."


def _on_cpu(record: Record) -> bool:
    return record.environment.device is not None and record.environment.device.type == "cpu"
