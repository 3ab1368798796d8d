"""A folder and its MLflow run, from their creation to the final status and the last line of output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack import process, rundir
from proftrack.errors import ProftrackError
from proftrack.signals import farewell, guarded
from proftrack.store import links, session

if TYPE_CHECKING:
    from proftrack.store.session import Opening, Session

Say = Callable[[str], None]
"""Shows a sentence to the user."""


class Life:
    """What every run has; the methods appear in the order in which they are called.

    The hooks `find_run`, `watched`, `begin`, `on_finished` and `leftovers` define the kind of run.
    """

    has_profile = True
    """Whether the run has a report and traces of its own."""

    def __init__(self, folder: Path, *, is_temporary: bool) -> None:
        """Lock a folder that was made for this run. Raises StoreError if another process has locked it."""
        self.folder = folder
        self.is_temporary = is_temporary
        """Whether the folder is removed once everything in it is logged, or if nothing was measured."""
        self.session: Session | None = None
        """The MLflow run; None before it is open, and if everything stays in the folder."""
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(rundir.locked(folder))

    # ---- what kind of run it is

    def find_run(self) -> Opening | None:
        """The run to open; None if everything stays in the folder. Raises StoreError."""
        return None

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """What the run depends on, besides this process, while it is measured."""
        return None

    def begin(self) -> None:
        """The run is open: note it where other processes look for it."""

    def on_finished(self) -> None:
        """The run is FINISHED: note that nothing is missing."""

    def leftovers(self, error: BaseException) -> str | None:
        """A sentence about what is left after a failure, or None. Removes a temporary folder with nothing in it."""
        return None

    # ---- its life

    @contextlib.contextmanager
    def living(self, say: Say) -> Iterator[None]:
        """Open the run for the block, which measures and uploads, and end it whatever happens.

        If the run ends early, `say` gets a sentence about what is left, even if the process ends without the main
        thread. Raises StoreError if the store cannot be used. If something watched has failed, its ProftrackError is
        raised instead of the error that it caused here.
        """

        def say_leftovers(error: BaseException) -> None:
            self.release()
            sentence = self.leftovers(error)
            if sentence is not None:
                say(sentence)

        try:
            with farewell(say_leftovers):
                opening = self.find_run()
                with guarded(self.end, self.watched(opening)) as interrupts:
                    with interrupts.shield():
                        self.session = None if opening is None else opening.open()
                    self.begin()
                    yield
        except BaseException as error:
            say_leftovers(error)
            raise

    def end(self, error: BaseException | None) -> None:
        """Set the final status of the run and release the folder.

        Raises StoreError if the status of a complete run cannot be written.
        """
        try:
            if self.session is not None:
                self.session.end(error)
                if error is None:
                    self.on_finished()
        finally:
            self.release()

    def leave(self) -> list[str]:
        """Lines that say where everything is. Removes a temporary folder if the run was logged."""
        run = self.session
        if run is None:
            return links.kept(self.folder, profile=self.has_profile)
        lines = links.lines(run.store, run.experiment_id, run.run_id, run.artifact_uri, profile=self.has_profile)
        if self.is_temporary:
            rundir.discard(self.folder)
            return lines
        return [*lines, f"Kept    {self.folder}"]

    def release(self) -> None:
        """Unlock the folder for other processes."""
        self._lock.close()

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run."""
        return None if self.session is None else self.session.run_id


@contextlib.contextmanager
def refusals_noted(*, mlflow: bool = True) -> Iterator[None]:
    """Report errors from before a run is opened in the run of `mlflow run`, if there is one."""
    try:
        yield
    except ProftrackError as error:
        if mlflow:
            session.note_refusal(error)
        raise
