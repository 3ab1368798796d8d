"""From a capture to a run folder: analysed, judged, and everything that there is to log about it on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack.record import Record

if TYPE_CHECKING:
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.measures.results import Flag

_GIT_DIFF_BYTES = 1_000_000


def keep(captured: Capture, experiment: Experiment, folder: Path, *, code: Path, flags: Sequence[Flag] = ()) -> Record:
    """Write the run folder of a capture whose traces are in `folder`, and give its record.

    `code` is where the profiled code lies, for its Git state; `flags` are added to those of the traces.
    Raises TraceError where a trace cannot be read, ProftrackError where the disk refuses.
    """
    from proftrack import environment
    from proftrack import folder as run_folder
    from proftrack.analysis import analyze_capture

    facts = environment.collect(captured.device, code=code)
    analysis = analyze_capture(captured, experiment, facts)
    record = msgspec.structs.replace(analysis.record, quality=[*analysis.record.quality, *flags])
    diff = environment.git_diff(code, _GIT_DIFF_BYTES)
    return run_folder.write(analysis._replace(record=record), folder, diff=diff)
