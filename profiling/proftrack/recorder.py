"""From a capture to a run folder: analysed, judged, and everything that there is to log about it on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack.record import Record

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.record.environment import Environment
    from proftrack.record.figures import Flag

_GIT_DIFF_BYTES = 1_000_000


def keep(
    captured: Capture,
    experiment: Experiment,
    folder: Path,
    *,
    code: Path,
    flags: Sequence[Flag] = (),
    facts: Environment | None = None,
) -> Record:
    """Write the run folder of a capture whose traces are in `folder`, and give its record.

    `code` is where the profiled code lies, for its Git state; `flags` are added to those of the traces. `facts` are
    those of the process that measured, where that is another.
    Raises TraceError where a trace cannot be read, ProftrackError where the disk refuses.
    """
    analysis = analysed(captured, experiment, code=code, facts=facts)
    record = msgspec.structs.replace(analysis.record, quality=[*analysis.record.quality, *flags])
    return write(analysis._replace(record=record), folder, code=code)


def analysed(captured: Capture, experiment: Experiment, *, code: Path, facts: Environment | None = None) -> Analysis:
    """A capture read, measured and judged. Raises TraceError where a trace cannot be read."""
    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture import environment

    return analyze_capture(captured, experiment, facts or environment.collect(captured.device, code=code))


def write(analysis: Analysis, folder: Path, *, code: Path) -> Record:
    """Write the run folder; gives the record as written. Raises ProftrackError where the disk refuses."""
    from proftrack.git import git_diff
    from proftrack.rundir import write as run_folder

    return run_folder.write(analysis, folder, diff=git_diff(code, _GIT_DIFF_BYTES))
