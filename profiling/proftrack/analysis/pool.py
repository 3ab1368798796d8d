"""Reads and measures several traces, in processes of their own where that pays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from proftrack.errors import TraceError
from proftrack.measures import Measures, measure
from proftrack.trace.reader import Trace, read

PAYS_FROM_BYTES = 4 << 20
"""Of files on disk: below this a process takes longer to start (0.2 s) than to read its share."""
PEAK_PER_BYTE = {True: 12, False: 0.75}
"""Peak memory of a reader for each byte on disk, of a compressed and of a plain trace (seen: 10 and 0.7)."""
PEAK_AT_LEAST = 100 << 20


class Measured(NamedTuple):
    """A trace and its figures."""

    trace: Trace
    measures: Measures


def read_and_measure(
    paths: Sequence[Path], *, salvage: bool = False, max_bytes: int | None = None, processes: int = 1
) -> list[Measured]:
    """Each trace with its figures, in the order of `paths`, read by at most `processes` processes at once.

    More than one process needs a main module that may be imported again, as the command line's. Raises TraceError where
    a trace cannot be read or holds no events.
    """
    job = partial(_read_and_measure, salvage=salvage, max_bytes=max_bytes)
    workers = _workers(paths, processes)
    if workers == 1:
        return [job(path) for path in paths]
    # Here: one trace has no use for what these cost.
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not by fork: numpy has threads, and what they hold would stay held in a copy.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(job, paths))
        except BrokenProcessPool as error:
            folder = paths[0].parent
            raise TraceError(
                f"{folder}: a process that read traces was ended (too little memory?); name fewer traces at once"
            ) from error


def _read_and_measure(path: Path, salvage: bool, max_bytes: int | None) -> Measured:
    trace = read(path, salvage=salvage, max_bytes=max_bytes)
    if not len(trace.table):
        raise TraceError(f"{path}: holds no complete events ({trace.events} of other kinds); export the trace again")
    return Measured(trace, measure(trace.table))


def _workers(paths: Sequence[Path], processes: int) -> int:
    """As many as processors, traces and half of the free memory allow; one where more would not pay."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    if len(paths) < 2 or sum(sizes) < PAYS_FROM_BYTES:
        return 1
    peak = max(
        size * PEAK_PER_BYTE[path.suffix == ".gz"] + PEAK_AT_LEAST for path, size in zip(paths, sizes, strict=True)
    )
    return max(1, min(processes, len(paths), int(_free_bytes() / 2 / peak)))


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on macOS, not on Windows
        return 4 << 30
