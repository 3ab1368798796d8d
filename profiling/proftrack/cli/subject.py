"""What a command is about: RUN, RECORD or TRACE, whichever of them the user named."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.errors import UsageError
from proftrack.rundir import by_path
from proftrack.rundir.by_path import EVENTS, FORMS, RECORD

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis


def load(reference: str) -> Analysis:
    """The record that `reference` names, with its events where they are at hand; a trace is analyzed.

    Of a run in the store the record and the events are fetched, never the trace. Raises UsageError where it names
    nothing, and what reading it raises.
    """
    path = Path(reference)
    if by_path.exists(path):
        return by_path.load(path)
    run_id = run_id_of(reference)
    from proftrack.store import query

    runs = query.connect()
    run = runs.get(run_id)
    with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
        runs.download(run, RECORD, Path(folder))
        if EVENTS in runs.names(run):
            runs.download(run, EVENTS, Path(folder))
        return by_path.load(Path(folder))


def run_id_of(reference: str) -> str:
    """`reference` where it can be an MLflow run id or the beginning of one.

    Raises UsageError where it cannot, and is no path either.
    """
    from proftrack.store.query import may_be_run_id

    if not may_be_run_id(reference):
        raise UsageError(f"{reference}: no such file, and no run id", FORMS)
    return reference


def find_trace(reference: str, cycle: int | None, kept: ExitStack) -> Path:
    """The trace file that `reference` names; one of the store is fetched and removed when `kept` closes.

    Of several cycles the one of that number, from 1 on; the first where none is asked for.
    """
    path = Path(reference)
    if by_path.exists(path):
        return _of_cycle(by_path.traces(path), cycle, reference)
    run_id = run_id_of(reference)
    from proftrack.store import query

    runs = query.connect()
    run = runs.get(run_id)
    name = _of_cycle(sorted(map(Path, runs.names(run, query.TRACES))), cycle, reference)
    below = kept.enter_context(tempfile.TemporaryDirectory(prefix="proftrack-"))
    return runs.download(run, name.as_posix(), Path(below))


def _of_cycle(traces: list[Path], cycle: int | None, reference: str) -> Path:
    if not traces:
        raise UsageError(f"{reference}: holds no trace", FORMS)
    number = 1 if cycle is None else cycle
    if number > len(traces):
        raise UsageError(f"--cycle {number}: {reference} has {len(traces)}")
    return traces[number - 1]
