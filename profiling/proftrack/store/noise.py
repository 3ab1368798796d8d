"""The noise between fresh processes: what is given, what repeats show, or what the store's own runs show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from proftrack.compare.comparable import check
from proftrack.compare.floors import given_floor, measured_floor
from proftrack.compare.results import Floor
from proftrack.errors import UsageError
from proftrack.record import Record
from proftrack.store import baselines, keys
from proftrack.store.references import Named, References
from proftrack.store.runs import StoredRun

NEWEST = 40
"""Older runs say little about the machine as it is."""


def floors_for(
    references: References,
    baseline: Named,
    *,
    percent: float | None = None,
    repeats: Sequence[Named] = (),
    otherwise: float | None = None,
) -> dict[str, Floor]:
    """Noise floors by metric: what the caller gives, else his repeats, else what the store's runs show, else
    `otherwise` (percent).

    Raises IncomparableError for repeats that are not of the baseline's kind, UsageError for too few of them.
    """
    if percent is not None:
        return {keys.STEP_TIME_US: given_floor(percent)}
    if repeats:
        return _of_repeats([baseline.subject.record, *(each.subject.record for each in repeats)])
    assumed = {keys.STEP_TIME_US: given_floor(otherwise)} if otherwise is not None else {}
    if baseline.run is None:
        return assumed  # of files alone, nothing more is known
    timing = baseline.subject.record.timing
    comparable = baselines.comparable(references.runs, baseline.run)
    return {**assumed, **_of_runs(comparable, timing.mode if timing else None)}


def _of_runs(comparable: Sequence[StoredRun], mode: str | None) -> dict[str, Floor]:
    """From runs of one fingerprint with the same parameters, oldest first; `mode` says which step time is meant.

    Runs of one commit are repeats; where there are too few, runs of successive commits stand in. Runs with uncommitted
    changes are left out: what they ran is not known.
    """
    clean = [run for run in comparable if run.code is not None][-NEWEST:]
    found = {}
    for name, metric in keys.compared_metrics(mode).items():
        by_code: dict[str, list[float]] = defaultdict(list)
        for run in clean:
            if metric in run.metrics and run.code is not None:
                by_code[run.code].append(run.metrics[metric])
        floor = measured_floor(list(by_code.values()), [values[0] for values in by_code.values()])
        if floor is not None:
            found[name] = floor
    return found


def _of_repeats(records: Sequence[Record]) -> dict[str, Floor]:
    """From runs that the caller says are of the same code, the baseline's first."""
    for record in records[1:]:
        check(records[0], record)
    times = {
        keys.STEP_TIME_US: [record.unprofiled_step_time_us for record in records],
        keys.GPU_BUSY_PER_STEP_US: [record.times.gpu_busy_per_step_us for record in records],
    }
    floors = {name: measured_floor([[value for value in values if value]]) for name, values in times.items()}
    found = {name: floor for name, floor in floors.items() if floor is not None}
    if keys.STEP_TIME_US not in found:
        raise UsageError(
            f"--repeat-runs: {len(records)} runs of the baseline's code with a step time are too few to measure noise",
            "give two or more beside the baseline",
        )
    return found
