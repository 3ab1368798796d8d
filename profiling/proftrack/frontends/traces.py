"""Somebody's traces into the store, as runs with the traces' own times."""

from __future__ import annotations

import hashlib

import msgspec

from proftrack.analysis.pipeline import Analysis
from proftrack.record import Record, RunFacts
from proftrack.recorder import log_analysis

EXPERIMENT = "traces"
"""MLflow experiment of logged traces, unless MLFLOW_EXPERIMENT_NAME names another."""
_EPOCH_FROM_NS = 10**18
"""A clock that shows less (2001) does not count from the epoch."""


def log_traces(found: Analysis) -> list[str]:
    """Log one rank's traces as a run; returns the lines that say where it is.

    The same traces are logged once into a store, however often this is called. Raises StoreError where the store cannot
    be used.
    """
    record = msgspec.structs.replace(found.record, run=run_facts(found))
    return log_analysis(found._replace(record=record), found.paths)


def run_facts(found: Analysis) -> RunFacts:
    """What stands in for the facts of a run that nobody asked us to make."""
    first, last = found.tables[0], found.tables[-1]
    started = first.started_ns
    ended = last.started_ns + int(last.end[last.valid].max(initial=0))
    if started < _EPOCH_FROM_NS:  # no clock to go by: when the file was written
        ended = found.paths[-1].stat().st_mtime_ns
        started = ended - int(first.end[first.valid].max(initial=0))
    rank = {} if found.rank is None or found.rank_is_assumed else {"rank": found.rank}
    keys = {"traces": [p.name for p in found.paths], "device": _device(found.record)}
    name = found.paths[0].name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    return RunFacts(
        experiment=EXPERIMENT,
        params={"trace": found.paths[0].name, **rank},
        variant_params=[],
        schedule={},
        profiler={},
        fingerprint=hashlib.sha256(msgspec.json.encode(keys, order="sorted")).hexdigest()[:12],
        fingerprint_keys=keys,
        started_ns=started,
        ended_ns=ended,
        display_name=name,
    )


def _device(record: Record) -> str:
    return record.environment.device.name if record.environment.device else "unknown"
