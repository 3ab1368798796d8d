"""Each variant in processes of its own, in turns: A B A B, a fresh process each time.

Nothing is shared, memory least of all; results are not compared. What differs between processes of the same code is in
the rounds, so that an interval says what a user will see in the next process.
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
"""Processes that each variant is measured in."""
_ROUNDS = 10


class ToMeasure(Struct):
    """One variant to be measured by one process, into a new run folder."""

    reference: str
    name: str
    given: dict[str, str]
    sets: list[str]
    folder: Path


class Answer(Struct):
    """What one process measured."""

    status: Status
    error: str | None
    round_us: list[float]
    compilation: Compilation | None


def measure(
    asked: Sequence[Variant],
    folder_of: Callable[[Variant], Path],
    progress: Progress,
    *,
    reference: str,
    given: Mapping[str, str],
    sets: Sequence[str],
    work: Path,
    processes: int = RUNS,
) -> list[Measured]:
    """Measure the variants; the run folder of each is that of its last process. Their logs go to `work`/logs."""
    measured = {variant.name: Measured(variant=variant) for variant in asked}
    for number in range(1, processes + 1):
        for variant in asked:
            each = measured[variant.name]
            if each.status != "measured":
                continue
            inner = work / PROCESSES / f"{variant.name}-{number}"
            request = ToMeasure(reference, variant.name, dict(given), list(sets), inner)
            with progress.phase(f"{variant.name} ({number} of {processes})"):
                try:
                    answer = in_a_process(request, work / LOGS / f"{variant.name}-{number}.txt")
                    _take(each, answer, inner, folder_of(variant))
                except ProftrackError as error:
                    each.status, each.error = "failed", str(error)
            shutil.rmtree(inner, ignore_errors=True)
    shutil.rmtree(work / PROCESSES, ignore_errors=True)
    return [measured[variant.name] for variant in asked]


def in_a_process(asked: ToMeasure, log: Path) -> Answer:
    """Measure in a fresh process. Raises ProftrackError with its sentence, or how it died."""
    worker = Worker()
    try:
        return worker.call(measure_one, asked, Answer, log)
    finally:
        worker.end()


def measure_one(asked: ToMeasure) -> Answer:
    """What such a process does."""
    (variant,) = names.variants(asked.reference, asked.name, asked.given, asked.sets)
    (measured,) = measuring.measure([variant], lambda _: asked.folder, Lines(), rounds=_ROUNDS)
    return Answer(measured.status, measured.error, measured.round_us, measured.compilation)


def _take(each: Measured, answer: Answer, inner: Path, folder: Path) -> None:
    """Add what one process measured."""
    if answer.status != "measured":
        each.status, each.error = answer.status, answer.error
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(inner, folder)
    each.folder, each.record = folder, records.load(folder / RECORD)
    each.round_us = [*each.round_us, statistics.median(answer.round_us)]
    each.compilation = answer.compilation
