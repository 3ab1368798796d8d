"""Measure each variant in processes of its own, in turns: A B A B, a fresh process each time.

Variants share nothing, not even memory, and their outputs are not compared. The rounds include the differences between
processes that run the same code, so the interval covers what a user will see in the next process.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import record as records
from proftrack.errors import ProftrackError
from proftrack.frontends.batch.worker import Worker
from proftrack.frontends.variants import measure as measuring
from proftrack.frontends.variants import names
from proftrack.frontends.variants.measure import Measured
from proftrack.frontends.variants.names import Variant
from proftrack.frontends.variants.result import Status
from proftrack.record.compilation import Compilation
from proftrack.report.progress import Lines
from proftrack.rundir.layout import LOGS, PROCESSES, RECORD

if TYPE_CHECKING:
    from proftrack.capture.measurement import Progress

RUNS = 5
"""Processes per variant."""
_ROUNDS = 10


class ToMeasure(Struct):
    """A variant to measure in one process, into a new run folder."""

    reference: str
    name: str
    given: dict[str, str]
    sets: list[str]
    folder: Path


class Answer(Struct):
    """The result of one process."""

    status: Status
    error: str | None
    round_us: list[float]
    compilation: Compilation | None


def measure(
    variants: Sequence[Variant],
    folder_of: Callable[[Variant], Path],
    progress: Progress,
    *,
    reference: str,
    given: Mapping[str, str],
    sets: Sequence[str],
    work: Path,
    processes: int = RUNS,
) -> list[Measured]:
    """Measure the variants. Each keeps the run folder of its last process; the logs go to `work`/logs."""
    results = [Measured(variant=variant) for variant in variants]
    for number in range(1, processes + 1):
        for result in results:
            if result.status != "measured":
                continue
            variant = result.variant
            inner = work / PROCESSES / f"{variant.name}-{number}"
            request = ToMeasure(reference, variant.name, dict(given), list(sets), inner)
            with progress.phase(f"{variant.name} ({number} of {processes})"):
                try:
                    answer = in_a_process(request, work / LOGS / f"{variant.name}-{number}.txt")
                    _take(result, answer, inner, folder_of(variant))
                except ProftrackError as error:
                    result.status, result.error = "failed", str(error)
            shutil.rmtree(inner, ignore_errors=True)
    shutil.rmtree(work / PROCESSES, ignore_errors=True)
    return results


def in_a_process(request: ToMeasure, log: Path) -> Answer:
    """Measure in a fresh process. Raises ProftrackError with its error, or with how it died."""
    worker = Worker()
    try:
        return worker.call(measure_one, request, Answer, log)
    finally:
        worker.end()


def measure_one(request: ToMeasure) -> Answer:
    """Measure one variant in this process."""
    (variant,) = names.variants(request.reference, request.name, request.given, request.sets)
    (measured,) = measuring.measure([variant], lambda _: request.folder, Lines(), rounds=_ROUNDS)
    return Answer(measured.status, measured.error, measured.round_us, measured.compilation)


def _take(result: Measured, answer: Answer, inner: Path, folder: Path) -> None:
    """Add the answer of one process to the variant's result."""
    if answer.status != "measured":
        result.status, result.error = answer.status, answer.error
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(inner, folder)
    result.folder, result.record = folder, records.load(folder / RECORD)
    result.round_us = [*result.round_us, statistics.median(answer.round_us)]
    result.compilation = answer.compilation
