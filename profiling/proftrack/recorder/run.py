"""A run that is measured here."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from proftrack import process, rundir
from proftrack.errors import ProftrackError, StoreError
from proftrack.record import Record
from proftrack.record.ranks import Joint
from proftrack.recorder import content
from proftrack.recorder.life import Life, Say, refusals_noted
from proftrack.recorder.ranks import Peers, RankRecording, gathered, heard
from proftrack.rundir.layout import TRACES
from proftrack.store import links, session

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.experiment import Experiment
    from proftrack.record.figures import Flag
    from proftrack.store.session import Opening

Measure = Callable[[Path], "Analysis"]
"""Measures into a folder, where its traces stay, and gives what was found."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is recorded, and where to."""

    experiment: Experiment
    output: Path | None = None
    """A new folder that stays; None: one below the spool that goes once all of it is logged."""
    mlflow: bool | None = True
    """Whether it is logged; None, beside a program of the user's: where it can be."""
    parent: process.Parent | None = None
    """Whose end ends the run of an `mlflow run`."""
    peers: Peers | None = None
    """The ranks that this process is one of."""
    phase: Callable[[str], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    """Shows what is waited for while it is."""
    parent_run_id: str | None = None
    """Beside a program: whose child the run becomes, where that is not the run that is open."""


class Recorded(NamedTuple):
    """What came of it."""

    record: Record
    run_id: str | None
    lines: list[str]
    """Where everything is, to be shown below the result."""
    joint: Joint | None
    """The ranks side by side, where there are several."""


class RunRecording(Life):
    """One run that is measured here, from its folder to its last line."""

    def __init__(self, plan: Plan) -> None:
        """Make the folder. Raises UsageError where it cannot hold the run."""
        self.plan = plan
        self.joint: Joint | None = None
        self._is_beside = False
        super().__init__(rundir.new_folder(plan.output, plan.experiment.name), is_temporary=plan.output is None)

    @property
    def own_folder(self) -> Path:
        """Where the traces of this process go."""
        return self.folder

    @property
    def is_whole(self) -> bool:
        """Whether the folder holds everything that was measured."""
        return (self.folder / rundir.RECORD).is_file()

    # ---- the run

    def find_run(self) -> Opening | None:
        """Under `mlflow run` that run, else one of its own. Raises StoreError."""
        if not self.plan.mlflow:
            return None
        return session.opening(self.plan.experiment.name, self.plan.experiment.display_name)

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """The other ranks; under `mlflow run` that process."""
        return self.plan.peers or (self.plan.parent if opening is not None and opening.is_project else None)

    def open_beside(self, warn: Say) -> None:
        """Open the run beside a program that the user runs, whose own run and signals stay as they are.

        Raises StoreError where the run must be logged and cannot be; where it need not be, `warn` is told.
        """
        plan = self.plan
        self._is_beside = True
        if plan.mlflow is not False:
            try:
                self.session = session.opening_beside(
                    plan.experiment.name, plan.experiment.display_name, parent_run_id=plan.parent_run_id
                ).open()
                self._note_run()
            except ImportError as error:
                if plan.mlflow:
                    raise StoreError(
                        f"mlflow=True, but MLflow cannot be imported ({error})", "pip install mlflow"
                    ) from error
            except StoreError as error:
                if plan.mlflow:
                    raise
                if self.session is not None:
                    self.session.end(error)
                    self.session = None
                warn(f"{error}; the profile is kept in {self.folder}, log it later with: proftrack sync")
        self._announce()

    def begin(self) -> None:
        """Note in the folder which run it is for, and tell the other ranks where all is."""
        self._note_run()
        self._announce()

    def _note_run(self) -> None:
        from proftrack.store import upload

        if self.session is not None:
            upload.begin(self.session, self.folder)

    def _announce(self) -> None:
        if self.plan.peers is not None:
            self.plan.peers.announce(self.folder, self.run_id)

    # ---- the result

    def write(self, analysis: Analysis, flags: Sequence[Flag] = ()) -> Record:
        """Write the folder; gives the record as written, with `flags` beside those of the traces.

        With other ranks their parts are waited for and compared first: with all of the launch, or beside a program with
        those that profile too. Raises ProftrackError where the disk refuses, CaptureError where a part never comes.
        """
        if self.plan.peers is not None:
            with self.plan.phase("the other ranks"):
                analysis, self.joint = gathered(self.plan.peers, analysis, self.folder, joined=self._is_beside)
        quality = [*analysis.record.quality, *flags]
        analysis = analysis._replace(record=msgspec.structs.replace(analysis.record, quality=quality))
        return content.write(analysis, self.folder, code=self.plan.experiment.path.parent)

    def upload(self) -> None:
        """Log the folder. Raises StoreError where the store refuses, ProftrackError where the folder is not whole."""
        from proftrack.store import upload

        if self.session is not None:
            upload.log_folder(self.session, self.folder)

    def log(self) -> list[str]:
        """Upload and end, where no block does so; gives the lines of `leave`. Raises StoreError, ProftrackError."""
        self.upload()
        self.end(None)
        return self.leave()

    def settled(self) -> None:
        """Note in the folder that its run has all of it."""
        from proftrack.store import upload

        assert self.session is not None  # it is FINISHED
        upload.mark_logged(self.session, self.folder)

    # ---- a failure

    def fail(self, error: BaseException) -> None:
        """End the run with an error, where no block does so. A temporary folder without measurements is removed."""
        peers = self.plan.peers
        if peers is not None:
            peers.fail(error)
            error = (peers.failure() if self.session is not None else None) or error
        self.end(error)
        if self.is_temporary and not rundir.holds_measurements(self.folder):
            rundir.discard(self.folder)

    def left(self, error: BaseException) -> str | None:
        """Where the measurements are, where there are any."""
        if self.is_whole:
            again = f"log it later with: proftrack sync {shlex.quote(str(self.folder))}"
            return f"nothing is lost, everything measured is in {self.folder}; {again}"
        if isinstance(error, KeyboardInterrupt) or not rundir.holds_measurements(self.folder):
            if self.is_temporary:
                rundir.discard(self.folder)
            return None
        return f"the traces recorded so far are in {self.folder / TRACES}"


def record(plan: Plan, measure: Measure, say: Say) -> Recorded:
    """Record a run: its whole life, in a process of ours, in which signals end it.

    The run is opened before `measure` is called: a store that cannot be used is found out before minutes are spent.
    `say` gets a sentence about what is left where it ends before its time.
    Raises UsageError for a folder that cannot be used, StoreError for a store, and what measuring raises; CaptureError
    naming the rank where another one failed.
    """
    with heard(plan.peers):
        with refusals_noted(mlflow=bool(plan.mlflow)):
            recording = RunRecording(plan)
        with recording.living(say):
            written = recording.write(measure(recording.folder))
            recording.upload()
    return Recorded(written, recording.run_id, recording.leave(), recording.joint)


def begin_beside(plan: Plan, warn: Say) -> RunRecording | RankRecording:
    """Begin a run, or a rank's part of one, in a program of the user's; see the head of this package.

    Raises UsageError for a folder that cannot be used, StoreError where the run must be logged and cannot be,
    CaptureError where rank 0 takes no part.
    """
    if plan.peers is not None and plan.peers.rank != 0:
        plan.peers.need_first()
        return RankRecording(plan.peers)
    recording = RunRecording(plan)
    try:
        recording.open_beside(warn)
    except BaseException as error:
        recording.fail(error)
        raise
    return recording


def log_analysis(analysis: Analysis, traces: Sequence[Path]) -> list[str]:
    """Log traces that were analysed already as a run with their own times; gives the lines that say where it is.

    The same traces are logged once into a store, however often this is called. The record must hold the facts of a run.
    Raises StoreError where the store cannot be used, ProftrackError where the disk refuses.
    """
    from proftrack.recorder.write import write
    from proftrack.store import connect
    from proftrack.store.sync import sync_folder

    store = connect.resolve()
    client = connect.connect(store)
    with tempfile.TemporaryDirectory(prefix="proftrack-") as below:
        folder = Path(below)
        (folder / TRACES).mkdir()
        for path in traces:
            _copy(path, folder / TRACES / path.name)
        write(analysis, folder)
        done = sync_folder(store, client, folder)
    return links.lines(store, done.experiment_id, done.run_id, done.artifact_uri)


def _copy(path: Path, target: Path) -> None:
    try:
        shutil.copyfile(path, target)
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be copied for the log ({error.strerror})", "free some space") from error
