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
from proftrack.recorder.ranks import Peers, RankRecording, failures_shared, gathered
from proftrack.rundir.layout import TRACES
from proftrack.store import links, session

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.experiment import Experiment
    from proftrack.record.figures import Flag
    from proftrack.store.session import Opening

Measure = Callable[[Path], "Analysis"]
"""Measures into a folder, where the traces stay, and returns their analysis."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is recorded, and where to."""

    experiment: Experiment
    output: Path | None = None
    """A new folder to keep; None: one below the spool, removed once all of it is logged."""
    mlflow: bool | None = True
    """Whether it is logged; None, inside the user's program: if possible."""
    parent: process.Parent | None = None
    """Its end also ends the run, under `mlflow run`."""
    peers: Peers | None = None
    """The other ranks, if this process is one of several."""
    phase: Callable[[str], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    """Shows what the run is waiting for."""
    parent_run_id: str | None = None
    """Inside the user's program: the parent of the run, if that is not the run that is open."""


class Recorded(NamedTuple):
    """A recorded run."""

    record: Record
    run_id: str | None
    lines: list[str]
    """Where everything is, to show below the result."""
    joint: Joint | None
    """The comparison of the ranks, if there are several."""


class RunRecording(Life):
    """One run that is measured here, from its folder to its last line of output."""

    def __init__(self, plan: Plan) -> None:
        """Create the folder. Raises UsageError if it cannot hold the run."""
        self.plan = plan
        self.joint: Joint | None = None
        self._is_beside = False
        super().__init__(rundir.new_folder(plan.output, plan.experiment.name), is_temporary=plan.output is None)

    @property
    def own_folder(self) -> Path:
        """Folder for the traces of this process."""
        return self.folder

    @property
    def is_whole(self) -> bool:
        """Whether the folder holds everything that was measured."""
        return (self.folder / rundir.RECORD).is_file()

    # ---- the run

    def find_run(self) -> Opening | None:
        """The run of `mlflow run`, else a new one. Raises StoreError."""
        if not self.plan.mlflow:
            return None
        return session.opening(self.plan.experiment.name, self.plan.experiment.display_name)

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """The other ranks, else the process of `mlflow run`."""
        return self.plan.peers or (self.plan.parent if opening is not None and opening.is_project else None)

    def open_beside(self, warn: Say) -> None:
        """Open the run inside the user's program, leaving the program's own run and signals alone.

        Raises StoreError if the run must be logged and cannot be; if logging is optional, calls `warn` instead.
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
                        f"mlflow=True, but MLflow cannot be imported ({error})", "install it: pip install mlflow"
                    ) from error
            except StoreError as error:
                if plan.mlflow:
                    raise
                if self.session is not None:
                    self.session.end(error)
                    self.session = None
                warn(f"{error}; the profile is kept in {self.folder}; log it later with: proftrack sync")
        self._announce()

    def begin(self) -> None:
        """Note in the folder which run it is for, and tell the other ranks where it is."""
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
        """Write the folder; returns the record as written, with `flags` added to those of the traces.

        If there are other ranks, waits for their parts and compares them first: all ranks of the launch, or, inside the
        user's program, those that profile too. Raises ProftrackError if the folder cannot be written, CaptureError if a
        part never comes.
        """
        if self.plan.peers is not None:
            with self.plan.phase("the other ranks"):
                analysis, self.joint = gathered(self.plan.peers, analysis, self.folder, joined=self._is_beside)
        quality = [*analysis.record.quality, *flags]
        analysis = analysis._replace(record=msgspec.structs.replace(analysis.record, quality=quality))
        return content.write(analysis, self.folder, code=self.plan.experiment.path.parent)

    def upload(self) -> None:
        """Log the folder. Raises StoreError if the store refuses, ProftrackError if the folder is incomplete."""
        from proftrack.store import upload

        if self.session is not None:
            upload.log_folder(self.session, self.folder)

    def log(self) -> list[str]:
        """Upload, and end the run outside of `living`; the lines of `leave`. Raises StoreError, ProftrackError."""
        self.upload()
        self.end(None)
        return self.leave()

    def on_finished(self) -> None:
        """Note in the folder that all of it was logged."""
        from proftrack.store import upload

        assert self.session is not None  # the run is FINISHED
        upload.mark_logged(self.session, self.folder)

    # ---- a failure

    def fail(self, error: BaseException) -> None:
        """End the run with an error outside of `living`. Removes a temporary folder without measurements."""
        peers = self.plan.peers
        if peers is not None:
            peers.fail(error)
            error = (peers.failure() if self.session is not None else None) or error
        self.end(error)
        if self.is_temporary and not rundir.holds_measurements(self.folder):
            rundir.discard(self.folder)

    def leftovers(self, error: BaseException) -> str | None:
        """Where the measurements are, if there are any."""
        if self.is_whole:
            remedy = f"log it later with: proftrack sync {shlex.quote(str(self.folder))}"
            return f"nothing is lost: all measurements are in {self.folder}; {remedy}"
        if isinstance(error, KeyboardInterrupt) or not rundir.holds_measurements(self.folder):
            if self.is_temporary:
                rundir.discard(self.folder)
            return None
        return f"the traces recorded so far are in {self.folder / TRACES}"


def record(plan: Plan, measure: Measure, say: Say) -> Recorded:
    """Record a run: its whole life, in our own process, where signals end it.

    The run is opened before `measure` is called, so that an unusable store is noticed before minutes are spent.
    If the run ends early, `say` gets a sentence about what is left.
    Raises UsageError for an unusable folder, StoreError for an unusable store, what measuring raises, and CaptureError
    naming the rank if another one failed.
    """
    with failures_shared(plan.peers):
        with refusals_noted(mlflow=bool(plan.mlflow)):
            recording = RunRecording(plan)
        with recording.living(say):
            written = recording.write(measure(recording.folder))
            recording.upload()
    return Recorded(written, recording.run_id, recording.leave(), recording.joint)


def begin_beside(plan: Plan, warn: Say) -> RunRecording | RankRecording:
    """Begin a run, or a rank's part of one, inside the user's program; see the docstring of this package.

    Raises UsageError for an unusable folder, StoreError if the run must be logged and cannot be, CaptureError if rank 0
    does not take part.
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
    """Log traces that were analyzed already, as a run with their own times; returns lines that say where it is.

    The same traces are logged to a store only once, however often this is called. The record must have the facts of a
    run. Raises StoreError if the store cannot be used, ProftrackError if files cannot be written.
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
        raise ProftrackError(f"{path}: cannot be copied for logging ({error.strerror})", "free some space") from error
