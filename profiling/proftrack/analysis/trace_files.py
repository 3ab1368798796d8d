"""Finds the trace files to read: those named directly, and the JSON files in a named folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from proftrack.errors import NotFoundError, UsageError
from proftrack.files import no_such_file
from proftrack.names import is_captured
from proftrack.rundir.layout import RECORD, TRACES

PATTERNS = ("*.json", "*.json.gz")
_CYCLE = re.compile(r"\.cycle\d+(?=(?:\.rank\d+)?\.pt\.trace\.json(?:\.gz)?$)")


class TraceFiles(NamedTuple):
    """Files to read as traces."""

    paths: list[Path]
    from_folders: frozenset[Path]
    """The `paths` found in a named folder: one that turns out to be other JSON is left out."""
    captured: tuple[Path, ...] = ()
    """Traces in which a run captured its CUDA graphs once more, found beside those of its steps."""


def find(given: Iterable[Path]) -> TraceFiles:
    """The files that `given` names, with folders replaced by the JSON files directly in them.

    A folder without any stands for those in its folders, one a rank, and the folder of a run for the run's traces. In
    folders, a run's traces of captures are told apart by their names.

    Raises NotFoundError if a path does not exist; UsageError if nothing is named, a folder has no JSON file, or a file
    is named twice.
    """
    paths: list[Path] = []
    from_folders: set[Path] = set()
    captured: list[Path] = []
    for path in given:
        if not path.exists():
            raise NotFoundError(no_such_file(path))
        if path.is_dir():
            inside = _in_folder(path)
            own = [file for file in inside if is_captured(file.name)]
            if len(own) < len(inside):
                captured += own
                inside = [file for file in inside if file not in own]
            from_folders.update(inside)
            paths += inside
        else:
            paths.append(path)
            captured += beside(path)
    if not paths:
        raise UsageError("no trace given", "name at least one trace")
    duplicates = sorted({path for path in paths if paths.count(path) > 1})
    if duplicates:
        raise UsageError(f"{duplicates[0]}: given twice", "name each trace once")
    return TraceFiles(paths, frozenset(from_folders), tuple(captured))


def beside(trace: Path) -> list[Path]:
    """The trace in which a run captured the CUDA graphs of this trace, one of its own, once more; none if it has none.

    Both have the names that the run gave them.
    """
    name = _CYCLE.sub(".captured", trace.name)
    captured = trace.with_name(name)
    return [captured] if name != trace.name and captured.is_file() else []


def _in_folder(folder: Path) -> list[Path]:
    """Smallest first: JSON of other kinds is small, and so is recognized before much is read."""
    if (folder / RECORD).is_file() and (folder / TRACES).is_dir():  # a run's
        folder = folder / TRACES
    inside = {file for pattern in PATTERNS for file in folder.glob(pattern)} or {
        file for pattern in PATTERNS for file in folder.glob(f"*/{pattern}")
    }
    if not inside:
        raise UsageError(f"{folder}: no .json or .json.gz file in this folder", "name a trace or its folder")
    return sorted(inside, key=lambda file: (file.stat().st_size if file.is_file() else 0, file))
