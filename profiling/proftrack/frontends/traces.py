"""Log existing traces to the store, as runs with the times of the traces."""

from __future__ import annotations

import hashlib

import msgspec

from proftrack.analysis.pipeline import Analysis
from proftrack.record import RunFacts
from proftrack.recorder import log_analysis

EXPERIMENT = "traces"
"""The MLflow experiment for logged traces, unless MLFLOW_EXPERIMENT_NAME names another."""
_EPOCH_FROM_NS = 10**18
"""Trace times below this (2001) do not count from the epoch."""


def log_traces(analysis: Analysis) -> list[str]:
    """Log one rank's traces as a run; returns the lines that tell where it is.

    However often this is called, a store gets the same traces once. Raises StoreError if the store cannot be used.
    """
    record = msgspec.structs.replace(analysis.record, run=run_facts(analysis))
    return log_analysis(analysis._replace(record=record), analysis.paths)


def run_facts(analysis: Analysis) -> RunFacts:
    """The facts of a run, taken from its traces, for a run that proftrack did not make."""
    first, last = analysis.tables[0], analysis.tables[-1]
    started = first.started_ns
    ended = last.started_ns + int(last.end[last.valid].max(initial=0))
    if started < _EPOCH_FROM_NS:  # no usable clock: the file's time stands in
        ended = analysis.paths[-1].stat().st_mtime_ns
        started = ended - int(first.end[first.valid].max(initial=0))
    rank = {} if analysis.rank is None or analysis.rank_is_assumed else {"rank": analysis.rank}
    device = analysis.record.environment.device
    keys = {"traces": [p.name for p in analysis.paths], "device": device.name if device else "unknown"}
    name = analysis.paths[0].name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    return RunFacts(
        experiment=EXPERIMENT,
        params={"trace": analysis.paths[0].name, **rank},
        variant_params=[],
        schedule={},
        profiler={},
        fingerprint=hashlib.sha256(msgspec.json.encode(keys, order="sorted")).hexdigest()[:12],
        fingerprint_keys=keys,
        started_ns=started,
        ended_ns=ended,
        display_name=name,
    )
