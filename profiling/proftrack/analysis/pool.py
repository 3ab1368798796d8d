"""Reads and measures several traces, in several processes if that is faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from proftrack.analysis.captured import CapturedIn
from proftrack.analysis.trace_files import TraceFiles
from proftrack.errors import NotATraceError, TraceError, UsageError
from proftrack.measures import Measures, measure
from proftrack.trace.reader import Trace, read

PAYS_FROM_BYTES = 4 << 20
"""Size of the files on disk: below this a process takes longer to start (0.2 s) than to read its share."""
PEAK_PER_BYTE = {True: 12, False: 0.75}
"""A reader's peak memory per byte on disk, by whether the trace is compressed (10 and 0.7 were observed)."""
PEAK_AT_LEAST = 100 << 20


class Measured(NamedTuple):
    """A trace and its figures."""

    trace: Trace
    measures: Measures


def read_and_measure(
    files: TraceFiles,
    *,
    salvage: bool = False,
    max_bytes: int | None = None,
    processes: int = 1,
    on_left_out: Callable[[Path], object] = lambda path: None,
    captured_in: Sequence[Path] = (),
) -> list[Measured]:
    """Each trace with its figures, in the order of `files`, read by at most `processes` processes at once.

    `captured_in`: files or folders with captures of the CUDA graphs that the traces replay (`CapturedIn`).
    `on_left_out` is called for each file of a folder that is JSON but not a trace. More than one process requires a
    main module that can be imported again, like the command line's. Raises TraceError if a trace cannot be read or has
    no events, UsageError if no file is a trace.
    """
    measured: list[Measured] = []
    others = 0
    captured = CapturedIn(captured_in, files.captured, salvage=salvage, max_bytes=max_bytes)
    job = partial(
        _read_and_measure, salvage=salvage, max_bytes=max_bytes, may_be_other=files.from_folders, captured=captured
    )
    with closing(_in_processes(job, files.paths, _workers(files.paths, processes))) as results:
        for path, result in zip(files.paths, results, strict=True):
            if result is not None:
                measured.append(result)
                continue
            others += 1
            if others == len(files.paths):
                raise UsageError(f"{path.parent}: no JSON file in this folder is a trace", "name a trace")
            on_left_out(path)
    return measured


def _in_processes(
    job: Callable[[Path], Measured | None], paths: Sequence[Path], workers: int
) -> Generator[Measured | None, None, None]:
    """The job's results in the order of `paths`, each as soon as it is available."""
    if workers == 1:
        yield from map(job, paths)
        return
    # Imported here because a single trace should not pay for these.
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not by fork: numpy has threads, and locks that they hold would stay locked in the child.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(job, paths)
        except BrokenProcessPool as error:
            folder = paths[0].parent
            raise TraceError(
                f"{folder}: a process reading traces was killed (out of memory?)", "name fewer traces at once"
            ) from error


def _read_and_measure(
    path: Path, salvage: bool, max_bytes: int | None, may_be_other: frozenset[Path], captured: CapturedIn
) -> Measured | None:
    """The trace with its figures; None if it is JSON of another kind and in `may_be_other`."""
    try:
        trace = read(path, salvage=salvage, max_bytes=max_bytes)
    except NotATraceError:
        if path in may_be_other:
            return None
        raise
    if not len(trace.table):
        raise TraceError(
            f"{path}: contains no complete events ({trace.events} of other kinds)", "export the trace again"
        )
    return Measured(trace, measure(trace.table, captured=captured.of(trace)))


def _workers(paths: Sequence[Path], processes: int) -> int:
    """As many as processors, traces and half of the free memory allow; one if more would not be faster."""
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
