"""The parent run of a batch (a sweep or variants), from its folder to its final status; its parts are child runs.

Each part is complete on disk before it is logged: an interrupted batch resumes with the incomplete parts. Parts that
the store refuses stay in the folder.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import process
from proftrack import record as records
from proftrack.errors import ProftrackError, StoreError
from proftrack.record import Record
from proftrack.recorder.life import Life, Say
from proftrack.rundir import batch as folders
from proftrack.rundir import discard
from proftrack.rundir.batch import Group, Part
from proftrack.rundir.layout import LOGS, RECORD
from proftrack.signals import Interrupted
from proftrack.text import counted

if TYPE_CHECKING:
    from proftrack.store.session import Opening


class Destination(Struct, frozen=True, kw_only=True):
    """Where a batch goes."""

    output: Path | None = None
    """A folder to keep, new or with an interrupted batch to resume; None: a folder below the spool."""
    mlflow: bool = True
    """Whether it is logged."""
    fresh: bool = False
    """Whether parts that are done are measured again, under a parent run of their own."""
    parent: process.Parent | None = None
    """Its end also ends the run, under `mlflow run`."""


class Batch(Life):
    """A sweep or variants while they are measured: the folder, its group.json, the parent run and the parts."""

    has_profile = False  # report and traces are the children's

    def __init__(self, group: Group, destination: Destination) -> None:
        """Create the folder, or resume in an existing one.

        Raises UsageError if the folder cannot hold this batch, StoreError if another process has locked it.
        """
        self.group = group
        self.destination = destination
        self._children: dict[str, str] = {}
        """Part key -> run id, for the parts that are in the store."""
        self._failures: list[StoreError] = []
        """Errors of the store while parts were logged."""
        output = destination.output
        super().__init__(folders.begin(group, output, fresh=destination.fresh), is_temporary=output is None)
        self.save()

    # ---- the parent run

    def find_run(self) -> Opening | None:
        """The run of `mlflow run`, else the earlier one with the same key and points, else a new one."""
        from proftrack.store import batch

        return batch.opening(self.group, fresh=self.destination.fresh) if self.destination.mlflow else None

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """The process of `mlflow run`, if there is one."""
        return self.destination.parent if opening is not None and opening.is_project else None

    def begin(self) -> None:
        """Note the batch in its run, and find the parts that are done."""
        from proftrack.store import batch

        if self.session is not None:
            batch.begin(self.session, self.group)
            self._children = {} if self.destination.fresh else batch.children(self.session, self.group)

    @contextlib.contextmanager
    def living(self, say: Say) -> Iterator[None]:
        """As in Life; what is known about the whole batch is logged after the block, even if the block fails."""
        with super().living(say):
            try:
                yield
            except BaseException:
                with contextlib.suppress(ProftrackError):
                    self._log()
                raise
            self._log()
            self._close()

    def _log(self) -> None:
        from proftrack.store import batch

        if self.session is not None:
            batch.log_parent(self.session, self.group, self.folder)

    def _close(self) -> None:
        """Set FINISHED if all requested parts exist. Raises StoreError if a part is not in the store."""
        from proftrack.store import batch

        if self._failures:
            raise self._failures[0]
        if self.session is not None:
            batch.close(self.session, self.group)

    def leftovers(self, error: BaseException) -> str | None:
        """Where the parts are that were measured but not logged, and how to continue."""
        complete = [path for path in self.folder.rglob(RECORD) if path.is_file()]
        if complete:
            folder = shlex.quote(str(self.folder))
            return (
                f"{counted(len(complete), 'part')} kept in {self.folder}; to continue, repeat the command with "
                f"--output {folder}; to log them, run: proftrack sync {folder}"
            )
        if self.is_temporary:
            discard(self.folder)
        if self.destination.mlflow and isinstance(error, Interrupted):
            return "all completed parts are logged; repeat the same command to continue"
        return None

    # ---- its parts

    def folder_for(self, name: str) -> Path:
        """The run folder of a part."""
        return self.folder / self.group.names.parts / name

    def log_for(self, name: str) -> Path:
        """The file for what the processes of a part print."""
        return self.folder / LOGS / f"{name}.txt"

    def earlier(self, part: Part) -> Record | None:
        """The record of a part that a batch with the same key has measured; None if it must be measured.

        A part that is only in the folder gets logged. Raises StoreError or ProftrackError if that cannot be found out.
        """
        if self.session is not None and part.key in self._children:
            from proftrack.store import batch

            part.run_id = self._children[part.key]
            record: Record | None = batch.record_of(self.session, part.run_id)
        else:
            record = self._complete(part)
            if record is not None and self.session is not None:
                part.run_id = self._log_part(part)
        if record is not None:
            part.error = None
        return record

    def _complete(self, part: Part) -> Record | None:
        """The record of a part that an interrupted batch left complete in this folder."""
        if part.folder is None:
            return None
        try:
            return records.load(self.folder / part.folder / RECORD)
        except ProftrackError:
            return None

    def keep(self, part: Part, folder: Path) -> None:
        """Keep a part that was measured and has a complete run folder. Raises ProftrackError if that is incomplete."""
        part.folder, part.error = folder.relative_to(self.folder).as_posix(), None
        # Before it is logged: if we are killed at any moment, complete parts are recognized.
        self.put(part)
        part.run_id = self._log_part(part)

    def _log_part(self, part: Part) -> str | None:
        """Log a part as a child run; its folder is then removed if the whole batch folder is temporary."""
        from proftrack.store import batch

        if self.session is None:
            return None
        assert part.folder is not None  # it is complete
        folder = self.folder / part.folder
        try:
            outcome = batch.log_part(self.session, self.group, part, folder)
        except StoreError as error:
            self._failures.append(error)
            return None
        if self.is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
            part.folder = None
        return outcome.run_id

    # ---- its files

    def put(self, part: Part) -> None:
        """Save the state of a part. Raises ProftrackError if the file cannot be written."""
        self.group.put(part)
        self.save()

    def save(self) -> None:
        """Write group.json. Raises ProftrackError if it cannot be written."""
        folders.save(self.folder, self.group)

    def write(self, result: Struct, text: str, table: bytes) -> None:
        """Write what is known about all parts: their figures, a readable text (the run's description), MLflow's table.

        Raises ProftrackError if a file cannot be written.
        """
        names = self.group.names
        self.group.note = text.rstrip()
        folders.write_json(self.folder / names.result, result)
        folders.write(self.folder / names.table, table)
        folders.write(self.folder / names.text, text.encode())
        self.save()

    def over(self, error: str | None) -> None:
        """Note that the batch is over; `error` says why a requested part is missing."""
        self.group.ended_ns, self.group.error = time.time_ns(), error
