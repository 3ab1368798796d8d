"""From a capture to a run folder: analysed, judged, and everything that there is to log about it on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.record import Record

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.record.environment import Environment

_GIT_DIFF_BYTES = 1_000_000


def keep(captured: Capture, experiment: Experiment, folder: Path, *, facts: Environment | None = None) -> Record:
    """Write the run folder of a capture whose traces are in `folder`, and give its record.

    `facts` are those of the process that measured, where that is another.
    Raises TraceError where a trace cannot be read, ProftrackError where the disk refuses.
    """
    return write(analysed(captured, experiment, facts=facts), folder, code=experiment.path.parent)


def analysed(captured: Capture, experiment: Experiment, *, facts: Environment | None = None) -> Analysis:
    """A capture read, measured and judged, with the Git state of the experiment's code.

    Raises TraceError where a trace cannot be read.
    """
    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture import environment

    here = facts or environment.collect(captured.device, code=experiment.path.parent)
    return analyze_capture(captured, experiment, here)


def write(analysis: Analysis, folder: Path, *, code: Path) -> Record:
    """Write the run folder; gives the record as written. Raises ProftrackError where the disk refuses."""
    from proftrack.git import git_diff
    from proftrack.recorder import write as run_folder

    return run_folder.write(analysis, folder, diff=git_diff(code, _GIT_DIFF_BYTES))
