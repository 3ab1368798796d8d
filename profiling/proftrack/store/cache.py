"""The runs of an experiment, kept on this machine, so that only new ones are fetched.

MLflow hands out a thousand runs in two to three seconds, whatever is done with them afterwards: a history over ten
thousand would take half a minute each time. A run does not change once it is FINISHED, unless proftrack tags it (gate,
baseline); every write of proftrack's is dated by the tag proftrack.changed. So after the first time it is enough to ask
for what was changed since the last time, for what was deleted, and for which MLflow experiments may be read now.

    $XDG_CACHE_HOME/proftrack/runs/<store, user, experiment>.msgpack     else below ~/.cache; for this user's eyes only

MLflow's filters compare texts by LIKE alone, so a span of time is asked for by prefixes: `2026-11-29T20%`.
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
"""With fewer runs all of them are fetched each time: that takes a second, and is right also where tags were edited."""
SLACK = timedelta(hours=2)
"""How far clocks of other machines may be off, and how long a run may take from its tags to its last status."""


class _Cache(Struct, frozen=True, kw_only=True):
    format: int
    asked_at: datetime
    """UTC; everything changed before (less SLACK) is in here."""
    experiments: dict[str, int]
    """Those that could be read then: id -> when it was made. A store that was made anew has the same ids."""
    runs: list[StoredRun]


def runs_of(runs: Runs, experiment: str, *, refresh: bool = False) -> list[StoredRun]:
    """All FINISHED runs of an experiment, oldest first, each record once: what `runs.search` gives, sooner.

    `refresh` fetches everything anew. Raises StoreError.
    """
    path = _path(runs, experiment)
    asked_at = datetime.now(timezone.utc)
    readable = runs.experiments()
    known = None if refresh else _load(path)
    if known is None:
        found = runs.search({keys.EXPERIMENT_TAG: experiment})
        if len(found) < WORTH_KEEPING:
            path.unlink(missing_ok=True)
            return found
    else:
        found = _brought_up_to_date(runs, experiment, known, readable, asked_at)
    if known is None or found != known.runs or asked_at - known.asked_at > SLACK:
        _save(path, _Cache(format=FORMAT, asked_at=asked_at, experiments=readable, runs=found))
    return _shown(runs, experiment, found)


def _brought_up_to_date(
    runs: Runs, experiment: str, known: _Cache, readable: dict[str, int], asked_at: datetime
) -> list[StoredRun]:
    kept = {run.run_id: run for run in known.runs if _same(run.experiment_id, known.experiments, readable)}
    for prefix in prefixes(known.asked_at - SLACK, asked_at + SLACK):
        condition = f"tags.`{keys.CHANGED_TAG}` LIKE '{prefix}%'"
        kept |= {run.run_id: run for run in runs.search({keys.EXPERIMENT_TAG: experiment}, more=condition)}
    # An MLflow experiment that could not be read before, or is new: all of it.
    new = [name for name in readable if not _same(name, known.experiments, readable)]
    if new:
        kept |= {run.run_id: run for run in runs.search({keys.EXPERIMENT_TAG: experiment}, experiment_ids=new)}
    return list(once(sorted(kept.values(), key=lambda run: (run.started_ms, run.run_id))))


def _same(experiment_id: str, before: dict[str, int], now: dict[str, int]) -> bool:
    return experiment_id in now and before.get(experiment_id) == now[experiment_id]


def _shown(runs: Runs, experiment: str, found: list[StoredRun]) -> list[StoredRun]:
    """Without those that are deleted now: they may be restored, so they stay in the cache."""
    deleted = runs.deleted({keys.EXPERIMENT_TAG: experiment})
    return [run for run in found if run.run_id not in deleted]


def prefixes(start: datetime, end: datetime) -> list[str]:
    """The fewest prefixes of years, months, days and hours that cover the time from `start` to `end` (UTC)."""
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
    """A cache that cannot be written costs the next call some time, nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(path, msgspec.msgpack.encode(cache), mode=0o600)
