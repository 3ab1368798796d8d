"""Each variant in processes of its own, in turns: A B A B, a fresh process each time.

Nothing is shared, memory least of all; results are not compared. What differs between processes of the same code is in
the rounds, so that an interval says what a user will see in the next process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack import record as records
from proftrack.errors import ProftrackError
from proftrack.sweep.point import run_command
from proftrack.tracking import group as groups
from proftrack.variants import result
from proftrack.variants.measure import Measured
from proftrack.variants.names import Variant

if TYPE_CHECKING:
    from proftrack.capture.subject import Progress

PROCESSES = 5
PROCESSES_FOLDER = "processes"


def measure(
    asked: Sequence[Variant],
    folder_of: Callable[[Variant], Path],
    progress: Progress,
    *,
    reference: str,
    given: Mapping[str, str],
    sets: Sequence[str],
    work: Path,
    processes: int = PROCESSES,
) -> list[Measured]:
    """Measure the variants; the run folder of each is that of its last process. Their logs go to `work`/logs."""
    found = {variant.name: Measured(variant=variant) for variant in asked}
    for number in range(1, processes + 1):
        for variant in asked:
            each = found[variant.name]
            if each.status != "measured":
                continue
            inner = work / PROCESSES_FOLDER / f"{variant.name}-{number}"
            arguments = _arguments(variant, reference, given, sets, inner)
            with progress.phase(f"{variant.name} ({number} of {processes})"):
                try:
                    run_command(arguments, work / "logs" / f"{variant.name}-{number}.txt")
                    _take(each, inner, folder_of(variant))
                except ProftrackError as error:
                    each.status, each.reason = "failed", str(error)
            shutil.rmtree(inner, ignore_errors=True)
    shutil.rmtree(work / PROCESSES_FOLDER, ignore_errors=True)
    return [found[variant.name] for variant in asked]


def _arguments(
    variant: Variant, reference: str, given: Mapping[str, str], sets: Sequence[str], folder: Path
) -> list[str]:
    pairs = [word for key, value in given.items() for word in ("-P", f"{key}={value}")]
    named = [word for text in sets for word in ("--set", text)]
    alone = ["--variants", variant.name, "--alone", "--rounds", "10", "--no-mlflow", "--output", str(folder)]
    return ["variants", reference, *pairs, *named, *alone]


def _take(each: Measured, inner: Path, folder: Path) -> None:
    """Add what one process measured."""
    entry = result.load(inner / "variants.json").entries[0]
    if entry.status != "measured":
        each.status, each.reason = entry.status, entry.reason
        return
    part = groups.load(inner).parts[0]
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(inner / str(part.folder), folder)
    each.folder, each.record = folder, records.load(folder / "record.json")
    each.round_us = [*each.round_us, entry.step_time_us or 0.0]
    each.compilation = _compilation(entry.compiled)


def _compilation(entry: result.Compiled | None) -> Any:
    from proftrack.capture.compilation import Compilation

    return None if entry is None else Compilation(**msgspec.structs.asdict(entry))
