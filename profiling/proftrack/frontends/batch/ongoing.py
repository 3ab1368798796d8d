"""A batch while it is measured: its parts as they are done, and the files about all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from proftrack.frontends.batch import shown
from proftrack.frontends.batch.group import as_params, resolved
from proftrack.frontends.batch.keeping import Keeping
from proftrack.frontends.batch.result import Figures, fill
from proftrack.record import Record
from proftrack.rundir import batch
from proftrack.rundir.batch import Group, Part
from proftrack.rundir.layout import LOGS


class Ongoing:
    """The folder of a batch, its group.json, and where its parts are kept."""

    def __init__(self, group: Group, folder: Path, keeping: Keeping) -> None:
        self.group, self.folder = group, folder
        self._keeping = keeping

    def folder_for(self, name: str) -> Path:
        """The run folder of a part."""
        return self.folder / self.group.names.parts / name

    def log_for(self, name: str) -> Path:
        """Gets what the processes of a part print."""
        return self.folder / LOGS / f"{name}.txt"

    def earlier(self, part: Part, figures: Figures) -> Record | None:
        """The record of a part that was measured before, its figures filled in. Raises ProftrackError."""
        done = self._keeping.earlier(part)
        if done is None:
            return None
        record, figures.run_id = done
        fill(figures, record)
        part.run_id, part.error = figures.run_id, None
        return record

    def keep(self, part: Part, figures: Figures, folder: Path) -> None:
        """Keep a part whose run folder is whole. Raises ProftrackError; what the store refuses stays in the folder."""
        part.folder = folder.relative_to(self.folder).as_posix()
        # Before it is logged: killed at any moment, what is whole is known for what it is.
        self.group.put(part)
        self.save()
        part.run_id = figures.run_id = self._keeping.done(part, folder)
        part.error = None

    def resolve(self, shared: Mapping[str, Any], record: Record) -> dict[str, Any]:
        """The parameters that all parts share, `auto` replaced by what it became; the parent run gets them as well."""
        known = resolved(shared, record)
        self.group.params |= as_params(known)
        return known

    def save(self) -> None:
        """Write group.json. Raises ProftrackError where the disk refuses."""
        batch.save(self.folder, self.group)

    def write(self, result: Struct, page: shown.Page[Any], table: bytes) -> None:
        """Write the files about all parts, and group.json. Raises ProftrackError where the disk refuses."""
        names = self.group.names
        self.group.note = shown.markdown(page)
        batch.write_json(self.folder / names.result, result)
        batch.write(self.folder / names.table, table)
        batch.write(self.folder / names.text, self.group.note.encode())
        self.save()

    def end(self, error: str | None) -> None:
        """Note that all is done; `error` says why not everything that was asked for is there."""
        self.group.ended_ns, self.group.error = time.time_ns(), error
