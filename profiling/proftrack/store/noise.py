"""The noise between fresh processes: as given, from repeats, or from the store's runs."""

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
"""Older runs say little about the machine as it is now."""


def floors_for(
    references: References,
    baseline: Named,
    *,
    percent: float | None = None,
    repeats: Sequence[Named] = (),
    otherwise: float | None = None,
) -> dict[str, Floor]:
    """Noise floors by metric: `percent` if given, else from `repeats`, else from the store's runs, else `otherwise`
    (percent).

    Raises IncomparableError for repeats that cannot be compared with the baseline, UsageError for too few of them.
    """
    if percent is not None:
        return {keys.STEP_TIME_US: given_floor(percent)}
    if repeats:
        return _of_repeats([baseline.subject.record, *(repeat.subject.record for repeat in repeats)])
    assumed = {keys.STEP_TIME_US: given_floor(otherwise)} if otherwise is not None else {}
    if baseline.run is None:
        return assumed  # a file: the store has no runs to measure noise from
    timing = baseline.subject.record.timing
    comparable = baselines.comparable(references.runs, baseline.run)
    return {**assumed, **_of_runs(comparable, timing.mode if timing else None)}


def _of_runs(comparable: Sequence[StoredRun], mode: str | None) -> dict[str, Floor]:
    """Floors from runs with the same fingerprint and parameters, oldest first; `mode` chooses the step time.

    Runs of one commit are repeats; if there are too few, runs of successive commits are used. Runs with uncommitted
    changes are left out: it is not known what they ran.
    """
    clean = [run for run in comparable if run.code is not None][-NEWEST:]
    floors = {}
    for name, metric in keys.compared_metrics(mode).items():
        by_code: dict[str, list[float]] = defaultdict(list)
        for run in clean:
            if metric in run.metrics and run.code is not None:
                by_code[run.code].append(run.metrics[metric])
        floor = measured_floor(list(by_code.values()), [values[0] for values in by_code.values()])
        if floor is not None:
            floors[name] = floor
    return floors


def _of_repeats(records: Sequence[Record]) -> dict[str, Floor]:
    """Floors from runs that the caller says are of the same code, the baseline's first."""
    for record in records[1:]:
        check(records[0], record)
    times = {
        keys.STEP_TIME_US: [record.unprofiled_step_time_us for record in records],
        keys.GPU_BUSY_PER_STEP_US: [record.times.gpu_busy_per_step_us for record in records],
    }
    measured = {name: measured_floor([[value for value in values if value]]) for name, values in times.items()}
    floors = {name: floor for name, floor in measured.items() if floor is not None}
    if keys.STEP_TIME_US not in floors:
        raise UsageError(
            f"--repeat-runs: {len(records)} runs of the baseline's code with a step time are too few to measure noise",
            "give two or more besides the baseline",
        )
    return floors
