"""A folder and the MLflow run that it goes to, from their making to the last status and the last line."""

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
"""Shows a sentence to whoever waits for the run."""


class Life:
    """What every run has; the methods stand in the order in which they are called.

    The hooks `find_run`, `watched`, `begin`, `settled` and `left` say what kind of run it is.
    """

    has_profile = True
    """Whether the run has a report and traces of its own."""

    def __init__(self, folder: Path, *, is_temporary: bool) -> None:
        """Hold a folder that was made for this. Raises StoreError where another process holds it."""
        self.folder = folder
        self.is_temporary = is_temporary
        """Whether the folder goes once everything in it is logged, or nothing was measured."""
        self.session: Session | None = None
        """The MLflow run; None before it is open, and where everything stays in the folder."""
        self._held = contextlib.ExitStack()
        self._held.enter_context(rundir.locked(folder))

    # ---- what kind of run it is

    def find_run(self) -> Opening | None:
        """The run that is to be opened; None where everything stays in the folder. Raises StoreError."""
        return None

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """What else the run depends on while it is measured."""
        return None

    def begin(self) -> None:
        """The run is open: note it where others look for it."""

    def settled(self) -> None:
        """The run is FINISHED: note that nothing is missing."""

    def left(self, error: BaseException) -> str | None:
        """What there is after a failure, in a sentence; a temporary folder with nothing in it is removed."""
        return None

    # ---- its life

    @contextlib.contextmanager
    def living(self, say: Say) -> Iterator[None]:
        """Open the run for the block, which measures and uploads, and end it whatever happens.

        `say` gets what is left where it ends before its time, also where the process goes without the main thread.
        Raises StoreError where the store cannot be used; ProftrackError of those that are watched in place of what came
        of it here.
        """

        def say_left(error: BaseException) -> None:
            self.release()
            sentence = self.left(error)
            if sentence is not None:
                say(sentence)

        try:
            with farewell(say_left):
                opening = self.find_run()
                with guarded(self.end, self.watched(opening)) as interrupts:
                    with interrupts.shield():
                        self.session = None if opening is None else opening.open()
                    self.begin()
                    yield
        except BaseException as error:
            say_left(error)
            raise

    def end(self, error: BaseException | None) -> None:
        """Give the run its last status, and the folder free.

        Raises StoreError where that of a whole run cannot be written.
        """
        try:
            if self.session is not None:
                self.session.end(error)
                if error is None:
                    self.settled()
        finally:
            self.release()

    def leave(self) -> list[str]:
        """Where everything is, a line each; a temporary folder is removed once all of it is logged."""
        run = self.session
        if run is None:
            return links.kept(self.folder, profile=self.has_profile)
        lines = links.lines(run.store, run.experiment_id, run.run_id, run.artifact_uri, profile=self.has_profile)
        if self.is_temporary:
            rundir.discard(self.folder)
            return lines
        return [*lines, f"Kept    {self.folder}"]

    def release(self) -> None:
        """Let others have the folder."""
        self._held.close()

    @property
    def run_id(self) -> str | None:
        """Of the MLflow run."""
        return None if self.session is None else self.session.run_id


@contextlib.contextmanager
def refusals_noted(*, mlflow: bool = True) -> Iterator[None]:
    """Put what is refused before a run is opened into the run of `mlflow run`, where there is one."""
    try:
        yield
    except ProftrackError as error:
        if mlflow:
            session.note_refusal(error)
        raise
