"""A run of several ranks, from each rank's side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proftrack.errors import ProftrackError
from proftrack.experiment import Experiment
from proftrack.frontends.distributed.parts import keep_all, keep_part, part_folder
from proftrack.frontends.distributed.team import Team
from proftrack.record import Record
from proftrack.record.ranks import Joint
from proftrack.report.progress import Progress, Silent, progress
from proftrack.signals import Interrupts, abort
from proftrack.store.session import Session


class Result(NamedTuple):
    """What rank 0 has in the end."""

    record: Record
    joint: Joint
    session: Session | None
    """None where everything stays in the folder."""


def lead(team: Team, asked: Experiment, folder: Path, *, no_mlflow: bool, calibrate: bool = True) -> Result:
    """Rank 0: measure into `folder`, with the others; one MLflow run for all, unless `no_mlflow`.

    Raises what measuring raises; CaptureError naming the rank where another one failed.
    """
    from proftrack.rundir import run_folders
    from proftrack.store import session, upload

    if no_mlflow:
        with _others_failing(team), Interrupts(parent=team), told(team):
            team.announce(folder, None)
            return Result(*_measured(team, asked, folder, calibrate), None)
    with run_folders.locked(folder):
        with session.open_run(asked.name, asked.display_name, peers=team) as run, told(team):
            upload.begin(run, folder)
            team.announce(folder, run.run_id)
            record, joint = _measured(team, asked, folder, calibrate)
            upload.log_folder(run, folder)
        upload.mark_logged(run, folder)
    return Result(record, joint, run)


def follow(team: Team, asked: Experiment, *, calibrate: bool = True) -> Record:
    """Another rank: measure into the folder that rank 0 announces.

    Where rank 0 is dead, the lowest rank that lives ends its MLflow run for it.
    """
    from proftrack.capture import capture

    run_id: str | None = None

    def close(error: BaseException) -> None:
        if run_id is not None and team.leads_now():
            from proftrack.store import session

            session.end_for_another(run_id, str(error))

    with _others_failing(team), Interrupts(close, team) as interrupts:
        try:
            with told(team):
                folder, run_id = team.place()
                own = part_folder(folder, team.rank)
                captured = capture(
                    asked, output=own, progress=Silent(), pace=team, calibrate=calibrate, on_overrun=abort
                )
                return keep_part(team, captured, captured.experiment, folder)
        except BaseException as error:
            with interrupts.shield():  # torchrun ends the ranks that are left
                close(team.failure() or error)
            raise


def _measured(team: Team, asked: Experiment, folder: Path, calibrate: bool) -> tuple[Record, Joint]:
    from proftrack.capture import capture

    shown: Progress = progress()
    captured = capture(asked, output=folder, progress=shown, pace=team, calibrate=calibrate, on_overrun=abort)
    with shown.phase("the other ranks"):
        return keep_all(team, captured, captured.experiment, folder)


@contextlib.contextmanager
def told(team: Team) -> Iterator[None]:
    """Whatever ends this rank in the block, the others hear of it."""
    try:
        yield
    except BaseException as error:
        team.fail(error)
        raise


@contextlib.contextmanager
def _others_failing(team: Team) -> Iterator[None]:
    """Raise what another rank failed of, in place of what came of it here."""
    try:
        yield
    except BaseException as error:
        failure: ProftrackError | None = team.failure()
        if failure is not None:
            raise failure from error
        raise
