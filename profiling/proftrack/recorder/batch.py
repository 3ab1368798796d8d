"""The parent run of a batch, a sweep or variants, from its folder to its last status; its parts are child runs.

A part is whole on disk, then logged: an interrupted batch goes on with those that are not whole. Parts that the store
refuses stay in the folder.
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
    """A folder that stays, new or with an interrupted batch that goes on; None: one below the spool."""
    mlflow: bool = True
    """Whether it is logged."""
    fresh: bool = False
    """Whether parts that are done are measured again, below a parent run of their own."""
    parent: process.Parent | None = None
    """Whose end ends the run of an `mlflow run`."""


class Batch(Life):
    """A sweep or variants while they are measured: the folder, its group.json, the parent run and the parts."""

    has_profile = False  # report and traces are the children's

    def __init__(self, group: Group, destination: Destination) -> None:
        """Make the folder, or go on with the one that was begun.

        Raises UsageError where it cannot hold this batch, StoreError where another process holds it.
        """
        self.group = group
        self.destination = destination
        self._children: dict[str, str] = {}
        """Part key -> run, of the parts that the store has."""
        self._failures: list[StoreError] = []
        """What the store refused."""
        output = destination.output
        super().__init__(folders.begin(group, output, fresh=destination.fresh), is_temporary=output is None)
        self.save()

    # ---- the parent run

    def find_run(self) -> Opening | None:
        """Under `mlflow run` that run, else the earlier one of the same key and points, else a new one."""
        from proftrack.store import batch

        return batch.opening(self.group, fresh=self.destination.fresh) if self.destination.mlflow else None

    def watched(self, opening: Opening | None) -> process.Watched | None:
        """Under `mlflow run` that process."""
        return self.destination.parent if opening is not None and opening.is_project else None

    def begin(self) -> None:
        """Note in the run whose it is, and find the parts that are done."""
        from proftrack.store import batch

        if self.session is not None:
            batch.begin(self.session, self.group)
            self._children = {} if self.destination.fresh else batch.children(self.session, self.group)

    @contextlib.contextmanager
    def living(self, say: Say) -> Iterator[None]:
        """As every life; what is known about the whole batch is logged after the block, also where that fails."""
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
        """FINISHED where everything that was asked for is there. Raises StoreError where a part is not in the store."""
        from proftrack.store import batch

        if self._failures:
            raise self._failures[0]
        if self.session is not None:
            batch.close(self.session, self.group)

    def left(self, error: BaseException) -> str | None:
        """Where the parts are that were measured and are not logged, and how it goes on."""
        whole = [path for path in self.folder.rglob(RECORD) if path.is_file()]
        if whole:
            folder = shlex.quote(str(self.folder))
            return (
                f"{counted(len(whole), 'part')} kept in {self.folder}; the same command with --output {folder} goes on "
                f"from there, or log them with: proftrack sync {folder}"
            )
        if self.is_temporary:
            discard(self.folder)
        if self.destination.mlflow and isinstance(error, Interrupted):
            return "what was done is logged; the same command goes on from there"
        return None

    # ---- its parts

    def folder_for(self, name: str) -> Path:
        """The run folder of a part."""
        return self.folder / self.group.names.parts / name

    def log_for(self, name: str) -> Path:
        """Gets what the processes of a part print."""
        return self.folder / LOGS / f"{name}.txt"

    def earlier(self, part: Part) -> Record | None:
        """The record of a part that is done, whichever batch of the same key measured it; None where it must be.

        A part that the folder alone has is logged. Raises StoreError, ProftrackError where nobody can say.
        """
        if self.session is not None and part.key in self._children:
            from proftrack.store import batch

            part.run_id = self._children[part.key]
            record: Record | None = batch.record_of(self.session, part.run_id)
        else:
            record = self._whole(part)
            if record is not None and self.session is not None:
                part.run_id = self._log_part(part)
        if record is not None:
            part.error = None
        return record

    def _whole(self, part: Part) -> Record | None:
        """The record of a part that an interrupted batch into the same folder has left whole."""
        if part.folder is None:
            return None
        try:
            return records.load(self.folder / part.folder / RECORD)
        except ProftrackError:
            return None

    def keep(self, part: Part, folder: Path) -> None:
        """Keep a part that was measured, its run folder whole. Raises ProftrackError where it is not."""
        part.folder, part.error = folder.relative_to(self.folder).as_posix(), None
        # Before it is logged: killed at any moment, what is whole is known for what it is.
        self.put(part)
        part.run_id = self._log_part(part)

    def _log_part(self, part: Part) -> str | None:
        """Log a part as a child; the folder of one that is logged goes with the folder of all."""
        from proftrack.store import batch

        if self.session is None:
            return None
        assert part.folder is not None  # it is whole
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
        """Write down what has become of a part. Raises ProftrackError where the disk refuses."""
        self.group.put(part)
        self.save()

    def save(self) -> None:
        """Write group.json. Raises ProftrackError where the disk refuses."""
        folders.save(self.folder, self.group)

    def write(self, result: Struct, text: str, table: bytes) -> None:
        """Write what is known of all parts: their figures, a text for people (the run's description), MLflow's table.

        Raises ProftrackError where the disk refuses.
        """
        names = self.group.names
        self.group.note = text
        folders.write_json(self.folder / names.result, result)
        folders.write(self.folder / names.table, table)
        folders.write(self.folder / names.text, f"{text}\n".encode())
        self.save()

    def over(self, error: str | None) -> None:
        """Note that all is done; `error` says why not everything that was asked for is there."""
        self.group.ended_ns, self.group.error = time.time_ns(), error
