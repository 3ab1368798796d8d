"""Where the points of a sweep (or variants) go as they are done, and where those are that were done before."""

from __future__ import annotations

import shutil
from pathlib import Path

from proftrack import record as records
from proftrack.errors import ProftrackError, StoreError
from proftrack.record import Record
from proftrack.store import batch as groups
from proftrack.store.batch import Group, Part
from proftrack.store.session import Session


class InFolder:
    """In the group's folder alone; `proftrack sync` logs it later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def earlier(self, part: Part) -> tuple[Record, str | None] | None:
        """The point that an interrupted sweep into the same folder has left whole."""
        record = _whole(self._folder, part)
        return None if record is None else (record, part.run_id)

    def done(self, part: Part, folder: Path) -> str | None:
        """Nothing to do: it is there."""
        return None


class InStore:
    """In MLflow, as children of an open parent run. Points that cannot be logged stay in the folder.

    `keep`: leave the run folders where they are; otherwise they are removed once they are logged. `fresh`: measure all
    points again, whatever the store has.
    """

    def __init__(self, opened: Session, group: Group, folder: Path, *, keep: bool, fresh: bool) -> None:
        self.failures: list[StoreError] = []
        """What the store refused; the points are in the folder."""
        self._opened, self._group, self._folder = opened, group, folder
        self._keep = keep
        self._found = {} if fresh else _children(opened, group)

    def earlier(self, part: Part) -> tuple[Record, str | None] | None:
        """The point from the store, whichever sweep of the same key measured it; else one that the folder has."""
        run_id = self._found.get(part.key)
        if run_id is not None:
            return _record_of(self._opened, run_id), run_id
        record = _whole(self._folder, part)
        if record is None or part.folder is None:
            return None
        return record, self.done(part, self._folder / part.folder)

    def done(self, part: Part, folder: Path) -> str | None:
        """Log it as a child."""
        try:
            outcome = groups.log_part(self._opened, self._group, part, folder)
        except StoreError as error:
            self.failures.append(error)
            return None
        if not self._keep:
            shutil.rmtree(folder, ignore_errors=True)
            part.folder = None
        return outcome.run_id


def _whole(folder: Path, part: Part) -> Record | None:
    if part.folder is None:
        return None
    try:
        return records.load(folder / part.folder / "record.json")
    except ProftrackError:
        return None


def _children(opened: Session, group: Group) -> dict[str, str]:
    """Part key -> run, of all whole children that were measured under the same key; the newest of each."""
    from proftrack.store import keys
    from proftrack.store.runs import Runs

    runs = Runs(opened.store, opened.client)
    children = [run for run in runs.search({keys.GROUP_KEY_TAG: group.key}) if keys.PART_TAG in run.tags]
    return {run.tags[keys.PART_TAG]: run.run_id for run in children}


def _record_of(opened: Session, run_id: str) -> Record:
    from proftrack.store.runs import Runs

    runs = Runs(opened.store, opened.client)
    return runs.record(runs.get(run_id))
