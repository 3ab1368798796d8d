"""`proftrack run EXPERIMENT`: an experiment's workload, alone or as one of the ranks that torchrun has started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from proftrack.frontends.distributed.team import Team, join_team
from proftrack.record.ranks import Joint
from proftrack.recorder import Plan, Recorded, record, refusals_noted, take_part
from proftrack.signals import abort

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.capture.measurement import Progress
    from proftrack.experiment import Experiment
    from proftrack.recorder.life import Say


class Result(NamedTuple):
    """What came of a run, in the process that shows it."""

    recorded: Recorded
    joint: Joint | None = None
    """The ranks side by side, where there are several."""


def run(plan: Plan, *, calibrate: bool, say: Say) -> Result | None:
    """Record the plan's experiment, with the other ranks where there are any; None in another rank than 0.

    `say` gets a sentence about what is left where it ends before its time. Raises what `recorder.record` raises, and
    CaptureError where the other ranks cannot be found.
    """
    from proftrack.report.progress import Silent, progress

    experiment = plan.experiment
    with refusals_noted(mlflow=bool(plan.mlflow)):
        team = join_team()
    if team is None:
        return Result(record(plan, lambda folder: measured(experiment, folder, progress(), calibrate=calibrate), say))
    if team.rank == 0:
        return _lead(plan, team, progress(), calibrate=calibrate, say=say)
    take_part(team, lambda folder: measured(experiment, folder, Silent(), calibrate=calibrate, team=team))
    return None


def measured(
    experiment: Experiment, folder: Path, progress: Progress, *, calibrate: bool, team: Team | None = None
) -> Analysis:
    """Capture and analyse; the traces are in `folder`. Raises what capture and analysis raise."""
    from proftrack.capture import capture
    from proftrack.recorder import analysed

    captured = capture(experiment, output=folder, progress=progress, pace=team, calibrate=calibrate, on_overrun=abort)
    return analysed(captured, captured.experiment)


def _lead(plan: Plan, team: Team, progress: Progress, *, calibrate: bool, say: Say) -> Result:
    """Rank 0: its own run, which the others leave their parts in."""
    from proftrack.frontends.distributed.parts import gathered

    joint: Joint | None = None

    def measure(folder: Path) -> Analysis:
        nonlocal joint
        own = measured(plan.experiment, folder, progress, calibrate=calibrate, team=team)
        with progress.phase("the other ranks"):
            analysis, joint = gathered(team, own, folder)
        return analysis

    with _told(team):
        recorded = record(msgspec.structs.replace(plan, peers=team), measure, say)
    return Result(recorded, joint)


@contextlib.contextmanager
def _told(team: Team) -> Iterator[None]:
    """Whatever ends this rank before its run is open, the others hear of it."""
    try:
        yield
    except BaseException as error:
        team.fail(error)
        raise
