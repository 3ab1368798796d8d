"""From a capture to a run folder: analyze it, judge it, and write everything to be logged to disk."""

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
    """Write the run folder of a capture whose traces are in `folder`, and return its record.

    `facts` describe the process that measured, if that was another one.
    Raises TraceError if a trace cannot be read, ProftrackError if the folder cannot be written.
    """
    return write(analysed(captured, experiment, facts=facts), folder, code=experiment.path.parent)


def analysed(captured: Capture, experiment: Experiment, *, facts: Environment | None = None) -> Analysis:
    """Read, measure and judge a capture; adds the Git state of the experiment's code.

    Raises TraceError if a trace cannot be read.
    """
    from proftrack.analysis.pipeline import analyze_capture
    from proftrack.capture import environment

    facts = facts or environment.collect(captured.device, code=experiment.path.parent)
    return analyze_capture(captured, experiment, facts)


def write(analysis: Analysis, folder: Path, *, code: Path) -> Record:
    """Write the run folder; returns the record as written. Raises ProftrackError if it cannot be written."""
    from proftrack.git import git_diff
    from proftrack.recorder import write as run_folder

    return run_folder.write(analysis, folder, diff=git_diff(code, _GIT_DIFF_BYTES))
