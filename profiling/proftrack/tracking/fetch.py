"""Files of a logged run, out of the store: the record and the events; a trace only where it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.errors import StoreError, UsageError
from proftrack.tracking import store as stores
from proftrack.tracking.faults import explained, quiet
from proftrack.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient

RECORD = "record.json"
EVENTS = "events.parquet"
TRACES = "trace"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def is_run_id(text: str) -> bool:
    """Whether a text has the form of an MLflow run id."""
    return _RUN_ID.fullmatch(text) is not None


class StoredRun:
    """One run of the store that MLflow would use here.

    Raises StoreError where the store cannot be used, UsageError where it has no such run.
    """

    def __init__(self, run_id: str) -> None:
        from mlflow.exceptions import MlflowException

        self.run_id = run_id
        self._store: Store = stores.resolve()
        self._client: MlflowClient = stores.connect(self._store, create=False)
        with explained(self._store, "read"), quiet():
            try:
                self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                raise UsageError(
                    f"{run_id}: no such run in {self._store.public}; set MLFLOW_TRACKING_URI to the store that has it"
                ) from error

    def names(self, below: str | None = None) -> list[str]:
        """The files of the run, or of one folder of it, by their paths."""
        with explained(self._store, "read"), quiet():
            return [item.path for item in self._client.list_artifacts(self.run_id, below) if not item.is_dir]

    def fetch(self, wanted: Sequence[str], folder: Path) -> list[Path]:
        """Copy these files of the run into `folder`, by the paths that they have in the run; returns where they are."""
        with explained(self._store, "read"), quiet():
            return [Path(self._client.download_artifacts(self.run_id, name, str(folder))) for name in wanted]

    def fetch_record(self, folder: Path) -> list[Path]:
        """record.json, and events.parquet where the run has it. Raises StoreError where there is no record."""
        there = set(self.names())
        if RECORD not in there:
            raise StoreError(f"{self.run_id}: holds no {RECORD}; it was not logged by proftrack, or has not ended yet")
        return self.fetch([name for name in (RECORD, EVENTS) if name in there], folder)
