"""Delete old traces from the store. Records, tables, reports and events stay, and so does everything of a baseline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from msgspec import Struct

from proftrack.errors import UsageError
from proftrack.store import compat, keys
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.runs import Runs, StoredRun, now

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([hdwmy])")
_HOURS = {"h": 1, "d": 24, "w": 24 * 7, "m": 24 * 30, "y": 24 * 365}


class Pruned(Struct, frozen=True, kw_only=True):
    """A run with traces to delete."""

    run: StoredRun
    files: int
    bytes: int


def age_ms(text: str) -> int:
    """An age such as `90d`, `12h`, `4w`, `6m` (of 30 days), `1y`, in milliseconds. Raises UsageError for other text."""
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{text}: not an age", "write it as 90d, 12h, 4w, 6m (of 30 days) or 1y")
    return round(float(match[1]) * _HOURS[match[2]] * 3_600_000)


def old_traces(runs: Runs, age: int, *, experiment: str | None = None, now_ms: int | None = None) -> Iterator[Pruned]:
    """Runs that ended more than `age` milliseconds ago and hold traces; never baselines or running ones."""
    limit = (now_ms if now_ms is not None else time.time_ns() // 1_000_000) - age
    tags = {keys.EXPERIMENT_TAG: experiment} if experiment is not None else {}
    more = f"attributes.start_time < {limit} and attributes.status != 'RUNNING' and tags.`{keys.VERSION_TAG}` LIKE '%'"
    for run in runs.search(tags, finished=False, more=more):
        ended = run.ended_ms if run.ended_ms is not None else run.started_ms
        if run.is_baseline or keys.TRACES_DROPPED_TAG in run.tags or ended >= limit:
            continue
        with explained(runs.store, "asked for a run's files"), quiet():
            files = [item for item in runs.client.list_artifacts(run.run_id, keys.TRACES) if not item.is_dir]
        if files:
            yield Pruned(run=run, files=len(files), bytes=sum(item.file_size or 0 for item in files))


def drop(runs: Runs, pruned: Pruned) -> None:
    """Delete the traces of one run and tag the run, unless it has become a baseline meanwhile. Raises StoreError."""
    run = runs.get(pruned.run.run_id)
    if run.is_baseline:
        return
    with explained(runs.store, "asked to remove traces"), quiet():
        compat.artifacts_at(run.artifact_uri, runs.store.uri).delete_artifacts(keys.TRACES)
    runs.tag(run, {keys.TRACES_DROPPED_TAG: now()})
