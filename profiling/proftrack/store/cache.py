"""A cache of an experiment's runs on this machine, so that only new runs are fetched.

MLflow returns a thousand runs in two to three seconds, whatever is done with them afterwards, so a history over ten
thousand would take half a minute each time. A FINISHED run does not change unless proftrack tags it (gate, baseline),
and proftrack dates each of its writes with the tag proftrack.changed. So after the first time it is enough to ask for
the runs changed since, the deleted runs, and the MLflow experiments that may be read now.

    $XDG_CACHE_HOME/proftrack/runs/<store, user, experiment>.msgpack     else below ~/.cache; readable by this user only

MLflow's filters compare text with LIKE only, so a span of time is queried by prefixes: `2026-11-29T20%`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack import files
from proftrack.store import keys
from proftrack.store.runs import Runs, StoredRun, once

FORMAT = 1
WORTH_KEEPING = 500
"""Fewer runs are all fetched each time: that takes a second, and also sees tags that someone edited."""
SLACK = timedelta(hours=2)
"""How far other machines' clocks may be off, and how long a run may take from its tags to its final status."""


class _Cache(Struct, frozen=True, kw_only=True):
    format: int
    asked_at: datetime
    """UTC; every change before this time (less SLACK) is in the cache."""
    experiments: dict[str, int]
    """The experiments readable then: id -> creation time. A recreated store reuses the ids."""
    runs: list[StoredRun]


def runs_of(runs: Runs, experiment: str, *, refresh: bool = False) -> list[StoredRun]:
    """All FINISHED runs of an experiment, oldest first, each record once: the result of `runs.search`, but faster.

    `refresh` fetches everything again. Raises StoreError.
    """
    path = _path(runs, experiment)
    asked_at = datetime.now(timezone.utc)
    readable = runs.experiments()
    cached = None if refresh else _load(path)
    if cached is None:
        current = runs.search({keys.EXPERIMENT_TAG: experiment})
        if len(current) < WORTH_KEEPING:
            path.unlink(missing_ok=True)
            return current
    else:
        current = _updated(runs, experiment, cached, readable, asked_at)
    if cached is None or current != cached.runs or asked_at - cached.asked_at > SLACK:
        _save(path, _Cache(format=FORMAT, asked_at=asked_at, experiments=readable, runs=current))
    # Deleted runs stay in the cache, since they may be restored.
    deleted = runs.deleted({keys.EXPERIMENT_TAG: experiment})
    return [run for run in current if run.run_id not in deleted]


def _updated(
    runs: Runs, experiment: str, cached: _Cache, readable: dict[str, int], asked_at: datetime
) -> list[StoredRun]:
    kept = {run.run_id: run for run in cached.runs if _same(run.experiment_id, cached.experiments, readable)}
    for prefix in prefixes(cached.asked_at - SLACK, asked_at + SLACK):
        condition = f"tags.`{keys.CHANGED_TAG}` LIKE '{prefix}%'"
        kept |= {run.run_id: run for run in runs.search({keys.EXPERIMENT_TAG: experiment}, more=condition)}
    # Fetch all of an MLflow experiment that is new, or could not be read before.
    new = [name for name in readable if not _same(name, cached.experiments, readable)]
    if new:
        kept |= {run.run_id: run for run in runs.search({keys.EXPERIMENT_TAG: experiment}, experiment_ids=new)}
    return list(once(sorted(kept.values(), key=lambda run: (run.started_ms, run.run_id))))


def _same(experiment_id: str, before: dict[str, int], now: dict[str, int]) -> bool:
    return experiment_id in now and before.get(experiment_id) == now[experiment_id]


def prefixes(start: datetime, end: datetime) -> list[str]:
    """The shortest list of year, month, day and hour prefixes that covers the time from `start` to `end` (UTC)."""
    return list(_cover(start.replace(minute=0, second=0, microsecond=0), end))


def _cover(at: datetime, end: datetime) -> Iterator[str]:
    while at < end:
        day = at.replace(hour=0)
        month, year = day.replace(day=1), day.replace(month=1, day=1)
        spans = (
            (year, (year + timedelta(days=366)).replace(day=1), "%Y-"),
            (month, (month + timedelta(days=31)).replace(day=1), "%Y-%m-"),
            (day, day + timedelta(days=1), "%Y-%m-%dT"),
        )
        whole = ((until, form) for begins, until, form in spans if begins == at and until <= end)
        at_next, form = next(whole, (at + timedelta(hours=1), "%Y-%m-%dT%H:"))
        yield at.strftime(form)
        at = at_next


def _path(runs: Runs, experiment: str) -> Path:
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    key = "\0".join([hashlib.sha256(runs.store.uri.encode()).hexdigest(), user, experiment])
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "proftrack" / "runs" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.msgpack"


def _load(path: Path) -> _Cache | None:
    try:
        cache = msgspec.msgpack.decode(path.read_bytes(), type=_Cache)
    except (OSError, msgspec.MsgspecError):
        return None
    return cache if cache.format == FORMAT and cache.asked_at.tzinfo is not None else None


def _save(path: Path, cache: _Cache) -> None:
    """Write the cache. Failing to do so only costs the next call some time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(path, msgspec.msgpack.encode(cache), mode=0o600)
