"""Runs that are in the store, as plain structs: found by id, commit, experiment or fingerprint.

Only what MLflow's search gives is fetched, and of a run's artifacts record.json (and events.parquet where it is asked
for), never its traces: a run is compared on a machine that has nothing but the store.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import record as records
from proftrack.errors import NotFoundError, StoreError, UsageError
from proftrack.record import Record
from proftrack.record.timing import metric_of
from proftrack.rundir.layout import RECORD
from proftrack.store import connect as stores
from proftrack.store.connect import Store
from proftrack.store.errors import explained, quiet
from proftrack.store.lifecycle import CHANGED_TAG, EXPERIMENT_TAG, RECORD_TAG, experiments, now, set_tags
from proftrack.store.retry import quick_retries

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FINGERPRINT_TAG, COMMIT_TAG, BRANCH_TAG, DIRTY_TAG = "proftrack.fingerprint", "git.commit", "git.branch", "git.dirty"
UNTRACKED_TAG = "git.untracked_only"
BASELINE_TAG = "proftrack.baseline"
ACTIVE_ONLY = 1
"""MLflow's ViewType; it is not imported with this module."""
_PAGE = 1000
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_BEGINNING = re.compile(r"[0-9a-f]{8,32}")


class Found(Struct, frozen=True, kw_only=True):
    """One run of the store."""

    run_id: str
    experiment_id: str
    name: str
    status: str
    started_ms: int
    ended_ms: int | None
    artifact_uri: str
    tags: dict[str, str] = {}
    params: dict[str, str] = {}
    metrics: dict[str, float] = {}

    @property
    def experiment(self) -> str:
        """Its experiment file's name."""
        return self.tags.get(EXPERIMENT_TAG, "")

    @property
    def fingerprint(self) -> str:
        """Equal where two runs may be compared."""
        return self.tags.get(FINGERPRINT_TAG, "")

    @property
    def commit(self) -> str | None:
        """The commit of the profiled code."""
        return self.tags.get(COMMIT_TAG)

    @property
    def branch(self) -> str | None:
        """The branch that was checked out."""
        return self.tags.get(BRANCH_TAG)

    @property
    def dirty(self) -> bool:
        """Whether the code was not what its commit says."""
        return self.tags.get(DIRTY_TAG) == "true"

    @property
    def untracked_only(self) -> bool:
        """Whether it is dirty for untracked files alone."""
        return self.tags.get(UNTRACKED_TAG) == "true"

    @property
    def is_baseline(self) -> bool:
        """Whether `proftrack baseline` marked it."""
        return BASELINE_TAG in self.tags

    @property
    def code(self) -> str | None:
        """What two runs have in common that ran the same code: the commit. None where that is not certain."""
        return self.commit if not self.dirty else None

    @property
    def step_time_us(self) -> float | None:
        """T, the step time that its timing.mode chooses."""
        return self.metrics.get(metric_of(self.params.get("timing.mode")))

    @property
    def workload_params(self) -> dict[str, str]:
        """The workload's parameters, variants among them."""
        declared = ("schedule.", "timing.")
        return {n: value for n, value in self.params.items() if n != "experiment" and not n.startswith(declared)}


class Runs:
    """The runs of one store. Every method raises StoreError where the store cannot be read or written."""

    def __init__(self, store: Store, client: MlflowClient) -> None:
        self.store, self.client = store, client

    def get(self, run_id: str) -> Found:
        """One run by its id, or by eight digits or more that no other id begins with.

        Raises NotFoundError where there is none, or it was deleted, UsageError where several begin so.
        """
        from mlflow.exceptions import MlflowException

        if not is_run_id(run_id):
            begun = self.beginning(run_id)
            if begun is None:
                raise NotFoundError(f"{self.store.public}: no run whose id begins with {run_id}")
            return begun
        with explained(self.store, "read"), quiet(), quick_retries():
            try:
                run = self.client.get_run(run_id)
            except MlflowException as error:
                # A server with users refuses (403) what is not there just as what is not this user's.
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"):
                    raise
                run = None
        if run is None or run.info.lifecycle_stage != "active":
            raise NotFoundError(
                f"{self.store.public}: no run {run_id} that can be read here; is MLFLOW_TRACKING_URI the store that "
                "holds it, and may this user read it?"
            )
        return _found(run)

    def beginning(self, digits: str) -> Found | None:
        """The run whose id begins with these digits (eight or more); None where there is none.

        Raises UsageError where there are several.
        """
        if not may_be_run_id(digits):
            return None
        begins = f"attributes.run_id LIKE '{digits}%'"  # hexadecimal digits: nothing to escape
        found = self.search(finished=False, more=begins)
        if len(found) > 1:
            ids = ", ".join(run.run_id for run in found[:5])
            raise UsageError(f"{digits}: {len(found)} run ids begin so ({ids}); give more digits")
        return found[0] if found else None

    def search(
        self,
        tags: Mapping[str, str] = {},
        *,
        finished: bool = True,
        more: str = "",
        experiment_ids: Sequence[str] | None = None,
    ) -> list[Found]:
        """Runs with exactly these tags, oldest first, each record once.

        `finished`: only whole ones. `more`: a further condition in MLflow's filter language. `experiment_ids`: in these
        MLflow experiments; None: in all that this user may read.
        """
        conditions = [condition for name, value in tags.items() if (condition := _equals(name, value))]
        conditions += ["attributes.status = 'FINISHED'"] if finished else []
        conditions += [more] if more else []
        with explained(self.store, "searched"), quiet(), quick_retries():
            runs = [_found(run) for run in self._pages(" and ".join(conditions), experiment_ids)]
        # A value that a filter cannot hold is looked at here.
        return list(once(run for run in runs if tags.items() <= run.tags.items()))

    def deleted(self, tags: Mapping[str, str] = {}) -> set[str]:
        """Ids of deleted runs with these tags that could be restored still."""
        from mlflow.entities import ViewType

        conditions = [condition for name, value in tags.items() if (condition := _equals(name, value))]
        with explained(self.store, "searched"), quiet(), quick_retries():
            return {str(run.info.run_id) for run in self._pages(" and ".join(conditions), None, ViewType.DELETED_ONLY)}

    def experiments(self) -> dict[str, int]:
        """The MLflow experiments that this user may read: id, and when each was made (epoch milliseconds)."""
        with explained(self.store, "searched"), quiet(), quick_retries():
            return {str(each.experiment_id): int(each.creation_time or 0) for each in experiments(self.client)}

    def _pages(self, condition: str, experiment_ids: Sequence[str] | None, view: int = ACTIVE_ONLY) -> Iterator[Run]:
        ids = [each.experiment_id for each in experiments(self.client)] if experiment_ids is None else experiment_ids
        token: str | None = None
        while ids:
            page = self.client.search_runs(
                list(ids), condition, view, max_results=_PAGE, order_by=["attributes.start_time ASC"], page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def record(self, run: Found) -> Record:
        """The run's record.json. Raises NotFoundError for a run that has none."""
        with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
            return records.load(self.download(run, RECORD, Path(folder)))

    def names(self, run: Found, below: str | None = None) -> list[str]:
        """The files of a run, or of one folder of it, by their paths."""
        with explained(self.store, f"asked for the files of run {run.run_id}"), quiet(), quick_retries():
            return [item.path for item in self.client.list_artifacts(run.run_id, below) if not item.is_dir]

    def download(self, run: Found, name: str, folder: Path) -> Path:
        """One artifact (record.json, trace/...) into `folder`. Raises NotFoundError where the run has none."""
        if name not in self.names(run, name.rpartition("/")[0] or None):
            raise NotFoundError(f"run {run.run_id}: holds no {name}; it was not logged by proftrack, or not whole")
        with explained(self.store, f"asked for {name} of run {run.run_id}"), quiet():
            return Path(self.client.download_artifacts(run.run_id, name, str(folder)))

    def tag(self, run: Found, tags: Mapping[str, str]) -> None:
        """Set tags on a run."""
        with explained(self.store, "given tags"), quiet(), quick_retries():
            set_tags(self.client, run.run_id, {**tags, CHANGED_TAG: now()})

    def untag(self, run: Found, name: str) -> None:
        """Take a tag from a run; nothing happens where it has none."""
        if name in run.tags:
            with explained(self.store, "given tags"), quiet(), quick_retries():
                self.client.delete_tag(run.run_id, name)
                set_tags(self.client, run.run_id, {CHANGED_TAG: now()})

    def log_file(self, run: Found, path: Path, folder: str) -> None:
        """Put a file among a run's artifacts."""
        stores.check_artifact_location(self.store, run.artifact_uri, f"run {run.run_id}")
        with explained(self.store, "written to"), quiet():
            self.client.log_artifact(run.run_id, str(path), folder)


def connect() -> Runs:
    """The runs of the store that MLflow would use here. Raises StoreError; a store that is not there is not made."""
    store = stores.resolve()
    if store.database is not None and not store.database.is_file():
        raise StoreError(
            f"{store.public}: no such store; set MLFLOW_TRACKING_URI to the one that holds the runs, or work in the "
            "folder that they were made in"
        )
    return Runs(store, stores.connect(store, create=False))


def is_run_id(text: str) -> bool:
    """Whether a text has the form of MLflow's run ids."""
    return _RUN_ID.fullmatch(text) is not None


def may_be_run_id(text: str) -> bool:
    """Whether a text can be the beginning of a run id, or all of it."""
    return _BEGINNING.fullmatch(text) is not None


def once(runs: Iterable[Found]) -> Iterator[Found]:
    """Each record once: a run that was logged twice is one measurement."""
    seen: set[str] = set()
    for run in runs:
        identity = run.tags.get(RECORD_TAG, run.run_id)
        if identity not in seen:
            seen.add(identity)
            yield run


def _equals(tag: str, value: str) -> str | None:
    """`tags.x = 'value'` in MLflow's filter language; None for a value that it cannot express."""
    if "'" not in value:
        return f"tags.`{tag}` = '{value}'"
    return f'tags.`{tag}` = "{value}"' if '"' not in value else None


def _found(run: Run) -> Found:
    info, data = run.info, run.data
    return Found(
        run_id=str(info.run_id),
        experiment_id=str(info.experiment_id),
        name=str(info.run_name or ""),
        status=str(info.status),
        started_ms=int(info.start_time or 0),
        ended_ms=info.end_time,
        artifact_uri=str(info.artifact_uri),
        tags=dict(data.tags),
        params=dict(data.params),
        metrics={name: float(value) for name, value in data.metrics.items()},
    )
