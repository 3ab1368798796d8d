"""`proftrack run EXPERIMENT`: an experiment's workload, alone or as one rank of a torchrun launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack.errors import UsageError
from proftrack.frontends.distributed import Team, join_team
from proftrack.recorder import Plan, Recorded, record, refusals_noted, take_part
from proftrack.signals import abort

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.capture.measurement import Progress
    from proftrack.experiment import Experiment
    from proftrack.recorder.life import Say


def run(plan: Plan, *, calibrate: bool, say: Say) -> Recorded | None:
    """Record the plan's experiment, together with the other ranks if there are any. Ranks other than 0 return None.

    `say` gets a sentence about what was kept if the run ends early. Raises what `recorder.record` raises, and
    CaptureError if the other ranks cannot be found.
    """
    from proftrack.capture.replay import refuse_impossible
    from proftrack.report.progress import Silent, progress

    with refusals_noted(mlflow=bool(plan.mlflow)):
        refuse_impossible(plan.experiment)
        team = join_team()
        if team is not None and plan.experiment.timing.counters == "ncu":
            raise UsageError("counters=ncu replays the kernels of one process, not of several ranks", "run one alone")
    is_first = team is None or team.rank == 0
    shown = progress() if is_first else Silent()

    def measure(folder: Path) -> Analysis:
        return measured(plan.experiment, folder, shown, calibrate=calibrate, team=team)

    if team is not None and not is_first:
        take_part(team, measure)
        return None
    return record(msgspec.structs.replace(plan, peers=team, phase=shown.phase), measure, say)


def measured(
    experiment: Experiment, folder: Path, progress: Progress, *, calibrate: bool, team: Team | None = None
) -> Analysis:
    """Capture into `folder`, analyse, and replay the largest kernels if that is wanted.

    Raises what capture and analysis raise.
    """
    from proftrack.capture import capture
    from proftrack.recorder import analysed

    captured = capture(experiment, output=folder, progress=progress, pace=team, calibrate=calibrate, on_overrun=abort)
    analysis = analysed(captured, captured.experiment)
    if experiment.timing.counters != "ncu":
        return analysis
    with progress.phase("replay the largest kernels", live=True):
        return _with_replay(analysis, captured.experiment)


def _with_replay(analysis: Analysis, experiment: Experiment) -> Analysis:
    from proftrack.analysis.replay import joined, plan
    from proftrack.capture.replay import REPLAY_SHARE, replay

    planned = plan(analysis, experiment.timing.ncu_kernels, REPLAY_SHARE * experiment.timing.ncu_seconds)
    return joined(analysis, replay(experiment, planned.selection), planned)
