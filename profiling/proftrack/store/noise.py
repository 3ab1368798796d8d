"""The noise between fresh processes, as the store's own runs show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from proftrack.compare.floors import measured_floor
from proftrack.compare.results import Floor
from proftrack.record.timing import metric_of
from proftrack.store.query import Found

STEP_TIME, BUSY = "step_time_us", "gpu_busy_per_step_us"
NEWEST = 40
"""Older runs say little about the machine as it is."""


def floors(comparable: Sequence[Found], mode: str = "throughput") -> dict[str, Floor]:
    """Noise floors by metric, from runs of one fingerprint with the same parameters, oldest first.

    Runs of one commit are repeats; where there are too few, runs of successive commits stand in. Runs with uncommitted
    changes are left out: what they ran is not known. `mode` says which step time is meant (timing.mode).
    """
    clean = [run for run in comparable if run.code is not None][-NEWEST:]
    found = {}
    for name, metric in ((STEP_TIME, metric_of(mode)), (BUSY, BUSY)):
        groups: dict[str, list[float]] = defaultdict(list)
        for run in clean:
            if metric in run.metrics and run.code is not None:
                groups[run.code].append(run.metrics[metric])
        floor = measured_floor(list(groups.values()), [values[0] for values in groups.values()])
        if floor is not None:
            found[name] = floor
    return found
