"""Runs of a store, as plain structs: the only place that searches, reads and tags them.

It fetches what MLflow's search returns and, of a run's artifacts, record.json (and events.parquet on request), never
traces: a run can be compared on a machine that has nothing but access to the store.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import record as records
from proftrack.errors import NotFoundError, StoreError, UsageError
from proftrack.record import Record
from proftrack.record.timing import metric_of
from proftrack.store import connect as stores
from proftrack.store import fields, keys
from proftrack.store.address import TRACKING_VARIABLE, Store
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

_PAGE = 1000
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_BEGINNING = re.compile(r"[0-9a-f]{8,32}")


class StoredRun(Struct, frozen=True, kw_only=True):
    """One run of the store."""

    run_id: str
    experiment_id: str
    name: str
    status: str
    started_ms: int
    ended_ms: int | None
    artifact_uri: str
    deleted: bool = False
    tags: dict[str, str] = {}
    params: dict[str, str] = {}
    metrics: dict[str, float] = {}

    @property
    def experiment(self) -> str:
        """The name of its experiment file."""
        return self.tags.get(keys.EXPERIMENT_TAG, "")

    @property
    def fingerprint(self) -> str:
        """Two runs with the same fingerprint may be compared."""
        return self.tags.get(keys.FINGERPRINT_TAG, "")

    @property
    def commit(self) -> str | None:
        """The commit of the profiled code."""
        return self.tags.get(keys.COMMIT_TAG)

    @property
    def branch(self) -> str | None:
        """The branch that was checked out."""
        return self.tags.get(keys.BRANCH_TAG)

    @property
    def dirty(self) -> bool:
        """Whether the code had uncommitted changes."""
        return self.tags.get(keys.DIRTY_TAG) == "true"

    @property
    def untracked_only(self) -> bool:
        """Whether it is dirty only because of untracked files."""
        return self.tags.get(keys.UNTRACKED_TAG) == "true"

    @property
    def is_baseline(self) -> bool:
        """Whether `proftrack baseline` marked it."""
        return keys.BASELINE_TAG in self.tags

    @property
    def is_parent(self) -> bool:
        """Whether it is the parent run of a sweep or of variants."""
        return keys.KIND_TAG in self.tags or keys.GROUP_TAG in self.tags

    @property
    def code(self) -> str | None:
        """Identifies the code that ran: the commit. None if the tree had uncommitted changes."""
        return self.commit if not self.dirty else None

    @property
    def step_time_us(self) -> float | None:
        """T, the step time selected by its timing.mode."""
        return self.metrics.get(metric_of(self.params.get(keys.TIMING_MODE_PARAM)))

    @property
    def workload_params(self) -> dict[str, str]:
        """The workload's parameters, including variants."""
        others = (keys.SCHEDULE_PARAMS, keys.TIMING_PARAMS)
        return {
            name: value
            for name, value in self.params.items()
            if name != keys.EXPERIMENT_PARAM and not name.startswith(others)
        }


class Runs:
    """The runs of one store. Every method raises StoreError if the store cannot be read or written."""

    def __init__(self, store: Store, client: MlflowClient) -> None:
        self.store, self.client = store, client

    @classmethod
    def connect(cls) -> Runs:
        """The runs of the store that MLflow would use here. Raises StoreError, also if the store does not exist."""
        store = stores.resolve()
        if store.database is not None and not store.database.is_file():
            raise StoreError(
                f"{store.public}: no such store",
                f"set {TRACKING_VARIABLE} to the one that holds the runs, or work in the folder where they were made",
            )
        return cls(store, stores.connect(store, create=False))

    def get(self, run_id: str) -> StoredRun:
        """One run by its id, or by the first eight or more digits of its id.

        Raises NotFoundError if there is none, or it was deleted; UsageError if several ids begin with these digits.
        """
        from mlflow.exceptions import MlflowException

        run: StoredRun | None = None
        if not is_run_id(run_id):
            run = self.beginning(run_id)
            if run is None:
                raise NotFoundError(f"{self.store.public}: no run whose id begins with {run_id}")
            return run
        with explained(self.store, "read"), quiet(), quick_retries():
            try:
                run = from_mlflow(self.client.get_run(run_id))
            except MlflowException as error:
                # A server with users answers 403 both for a missing run and for one that this user may not read.
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"):
                    raise
        if run is None or run.deleted:
            raise NotFoundError(
                f"{self.store.public}: no run {run_id} that can be read here",
                "check that MLFLOW_TRACKING_URI is the store that holds it, and that this user may read it",
            )
        return run

    def beginning(self, digits: str) -> StoredRun | None:
        """The run whose id begins with these digits (eight or more); None if there is none.

        Raises UsageError if there are several.
        """
        if not may_be_run_id(digits):
            return None
        begins = f"attributes.run_id LIKE '{digits}%'"  # hexadecimal digits: nothing to escape
        found = self.search(finished=False, more=begins)
        if len(found) > 1:
            ids = ", ".join(run.run_id for run in found[:5])
            raise UsageError(f"{digits}: {len(found)} run ids begin with these digits ({ids})", "give more digits")
        return found[0] if found else None

    def search(
        self,
        tags: Mapping[str, str] = {},
        *,
        finished: bool = True,
        more: str = "",
        experiment_ids: Sequence[str] | None = None,
    ) -> list[StoredRun]:
        """Runs with exactly these tags, oldest first, each record once.

        `finished`: only FINISHED runs. `more`: a further condition in MLflow's filter language. `experiment_ids`: only
        in these MLflow experiments; None means all that this user may read.
        """
        conditions = ["attributes.status = 'FINISHED'"] if finished else []
        conditions += [more] if more else []
        with quick_retries():
            return list(once(search(self.store, self.client, tags, *conditions, experiment_ids=experiment_ids)))

    def deleted(self, tags: Mapping[str, str] = {}) -> set[str]:
        """Ids of the deleted runs with these tags that can still be restored."""
        with quick_retries():
            return {run.run_id for run in search(self.store, self.client, tags, deleted=True)}

    def experiments(self) -> dict[str, int]:
        """The MLflow experiments that this user may read: id -> creation time (epoch milliseconds)."""
        with explained(self.store, "searched"), quiet(), quick_retries():
            return {str(each.experiment_id): int(each.creation_time or 0) for each in _experiments(self.client)}

    def record(self, run: StoredRun) -> Record:
        """The run's record.json. Raises NotFoundError if it has none."""
        with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
            return records.load(self.download(run, keys.RECORD, Path(folder)))

    def names(self, run: StoredRun, below: str | None = None) -> list[str]:
        """The paths of a run's files, at the top or in one folder."""
        with explained(self.store, f"asked for the files of run {run.run_id}"), quiet(), quick_retries():
            return [item.path for item in self.client.list_artifacts(run.run_id, below) if not item.is_dir]

    def download(self, run: StoredRun, name: str, folder: Path) -> Path:
        """Download one artifact (record.json, trace/...) into `folder`. Raises NotFoundError if the run lacks it."""
        if name not in self.names(run, name.rpartition("/")[0] or None):
            raise NotFoundError(f"run {run.run_id}: has no {name}; it was not logged by proftrack, or not completely")
        with explained(self.store, f"asked for {name} of run {run.run_id}"), quiet():
            return Path(self.client.download_artifacts(run.run_id, name, str(folder)))

    def tag(self, run: StoredRun, tags: Mapping[str, str]) -> None:
        """Set tags on a run."""
        with explained(self.store, "given tags"), quiet(), quick_retries():
            set_tags(self.client, run.run_id, {**tags, keys.CHANGED_TAG: now()})

    def untag(self, run: StoredRun, name: str) -> None:
        """Remove a tag from a run that has it."""
        if name in run.tags:
            with explained(self.store, "given tags"), quiet(), quick_retries():
                self.client.delete_tag(run.run_id, name)
                set_tags(self.client, run.run_id, {keys.CHANGED_TAG: now()})

    def log_file(self, run: StoredRun, path: Path, folder: str) -> None:
        """Log a file as an artifact of a run."""
        stores.check_artifact_location(self.store, run.artifact_uri, f"run {run.run_id}")
        with explained(self.store, "written to"), quiet():
            self.client.log_artifact(run.run_id, str(path), folder)


def search(
    store: Store,
    client: MlflowClient,
    tags: Mapping[str, str] = {},
    *conditions: str,
    experiment_ids: Sequence[str] | None = None,
    deleted: bool = False,
) -> list[StoredRun]:
    """Runs with exactly these tags that meet the conditions (in MLflow's filter language), oldest first.

    `experiment_ids`: only in these MLflow experiments; None means all that this user may read. `deleted`: deleted runs
    instead. Raises StoreError.
    """
    from mlflow.entities import ViewType

    conditions = (*filter(None, (_equals(name, value) for name, value in tags.items())), *conditions)
    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    with explained(store, "searched"), quiet():
        runs = list(_pages(client, " and ".join(conditions), experiment_ids, view))
    # Compare again here: a filter cannot express every value.
    return [run for run in runs if tags.items() <= run.tags.items()]


def _pages(
    client: MlflowClient, condition: str, experiment_ids: Sequence[str] | None, view: int
) -> Iterator[StoredRun]:
    ids = [one.experiment_id for one in _experiments(client)] if experiment_ids is None else experiment_ids
    token: str | None = None
    while ids:
        page = client.search_runs(
            list(ids), condition, view, max_results=_PAGE, order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from map(from_mlflow, page)
        token = page.token
        if not token:
            return


def _experiments(client: MlflowClient) -> list[Experiment]:
    """All MLflow experiments that this user may read."""
    experiments: list[Experiment] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=_PAGE, page_token=token)
        experiments += page
        token = page.token
        if not token:
            return experiments


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set several tags at once; call it inside `explained`."""
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in fields.bounded(dict(tags)).items()])


def now() -> str:
    """The current time as tags have it, UTC: `2026-11-29T20:05:06Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def is_run_id(text: str) -> bool:
    """Whether a text has the form of an MLflow run id."""
    return _RUN_ID.fullmatch(text) is not None


def may_be_run_id(text: str) -> bool:
    """Whether a text can be a run id, or the beginning of one."""
    return _BEGINNING.fullmatch(text) is not None


def once(runs: Iterable[StoredRun]) -> Iterator[StoredRun]:
    """The runs, each record once: a run that was logged twice is one measurement."""
    seen: set[str] = set()
    for run in runs:
        identity = run.tags.get(keys.RECORD_TAG, run.run_id)
        if identity not in seen:
            seen.add(identity)
            yield run


def _equals(tag: str, value: str) -> str | None:
    """`tags.x = 'value'` in MLflow's filter language; None for a value that the language cannot express."""
    if "'" not in value:
        return f"tags.`{tag}` = '{value}'"
    return f'tags.`{tag}` = "{value}"' if '"' not in value else None


def from_mlflow(run: Run) -> StoredRun:
    """A run as MLflow's client gives it."""
    info, data = run.info, run.data
    return StoredRun(
        run_id=str(info.run_id),
        experiment_id=str(info.experiment_id),
        name=str(info.run_name or ""),
        status=str(info.status),
        started_ms=int(info.start_time or 0),
        ended_ms=info.end_time,
        artifact_uri=str(info.artifact_uri),
        deleted=info.lifecycle_stage != "active",
        tags=dict(data.tags),
        params=dict(data.params),
        metrics={name: float(value) for name, value in data.metrics.items()},
    )


def from_record(record: Record) -> StoredRun | None:
    """A record outside the store, as the run that a search would return for it; None for a bare trace."""
    if record.run is None:
        return None
    return StoredRun(
        run_id="",
        experiment_id="",
        name=fields.run_name(record),
        status="FINISHED",
        started_ms=record.run.started_ns // 1_000_000,
        ended_ms=record.run.ended_ns // 1_000_000,
        artifact_uri="",
        tags=fields.tags(record),
        params=fields.params(record),
        metrics={point.key: point.value for point in fields.metrics(record)},
    )
