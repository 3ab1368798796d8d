"""The parent run of a batch, with a child run for each point of a sweep, or for each variant.

`proftrack.rundir.batch` describes the folder that all of it comes from.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from proftrack import process, rundir
from proftrack.errors import ProftrackError
from proftrack.record import Record
from proftrack.redact import scrub
from proftrack.rundir import batch
from proftrack.rundir.batch import Group, Part
from proftrack.rundir.layout import BATCH
from proftrack.store import compat, keys, lifecycle, session, sync
from proftrack.store import connect as stores
from proftrack.store.address import Store
from proftrack.store.errors import explained
from proftrack.store.fields import as_params, rounded
from proftrack.store.quiet import quiet
from proftrack.store.runs import Runs, StoredRun, search, set_tags
from proftrack.store.session import RUN_ID_VARIABLE, Opening, Session

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAGS = frozenset(
    {keys.DEVICE_TAG, keys.COMMIT_TAG, keys.DIRTY_TAG, keys.WINNER_TAG, keys.REGIME_TAG, keys.CONCLUSION_TAG}
)
"""The tags that a group may set itself; runs are found, owned and settled by the others."""
_NOTE_CHARS = 7900


# ---- during measurement ----------------------------------------------------------------------------------------------


def opening(group: Group, *, fresh: bool) -> Opening:
    """The parent run: under `mlflow run` that run, else an earlier one with the same key and points, else a new one.

    `fresh` rules out an earlier run; if an earlier run is resumed, the group takes over its id. Raises StoreError as
    `session.opening` does.
    """
    if fresh or os.environ.get(RUN_ID_VARIABLE):
        return session.opening(group.experiment, group.name)
    store = stores.resolve()
    client = stores.connect(store)
    lifecycle.close_dead_runs(store, client)
    earlier = _earlier(store, client, group)
    if earlier is None:
        return session.opening(group.experiment, group.name)
    # What an interrupted process left in another folder still belongs to this run.
    if batch.is_id(group_id := earlier.tags.get(keys.GROUP_TAG, "")):
        group.id = group_id
    return Opening(store, client, lambda: lifecycle.reopen(store, client, earlier, lifecycle.owner_tags()))


def begin(opened: Session, group: Group) -> None:
    """Tag the parent run from the start, so that the next start and `sync` find it even if this process is killed.

    Raises StoreError.
    """
    with explained(opened.store, "written to"), quiet():
        set_tags(opened.client, opened.run_id, _own_tags(group))


def _earlier(store: Store, client: MlflowClient, group: Group) -> StoredRun | None:
    """The newest parent run with the same points and key that no process works on, as far as this machine can tell."""
    same_key = search(store, client, {keys.GROUP_KEY_TAG: group.key, keys.KIND_TAG: group.kind})
    free = [run for run in same_key if lifecycle.is_free(run) and _is_parent_of(run, group)]
    return max(free, key=lambda run: run.started_ms, default=None)


def _is_parent_of(run: StoredRun, group: Group) -> bool:
    """Whether a run is the parent run of the group's key and points."""
    tags = run.tags
    return (tags.get(keys.GROUP_KEY_TAG), tags.get(keys.GROUP_POINTS_TAG, "")) == (
        group.key,
        group.points,
    ) and keys.RECORD_TAG not in tags


def children(opened: Session, group: Group) -> dict[str, str]:
    """Part key -> id of the newest FINISHED run measured under the same group key. Raises StoreError."""
    runs = Runs(opened.store, opened.client)
    parts = [run for run in runs.search({keys.GROUP_KEY_TAG: group.key}) if keys.PART_TAG in run.tags]
    return {run.tags[keys.PART_TAG]: run.run_id for run in parts}


def record_of(opened: Session, run_id: str) -> Record:
    """The record of a part in the store. Raises StoreError, ProftrackError."""
    runs = Runs(opened.store, opened.client)
    return runs.record(runs.get(run_id))


def log_part(opened: Session, group: Group, part: Part | None, folder: Path) -> sync.Outcome:
    """Log the run folder of a part as a child of the parent run; `part` is None if the group does not list it.

    Raises StoreError, ProftrackError as sync does.
    """
    tags = {keys.PARENT_TAG: opened.run_id, keys.GROUP_KEY_TAG: group.key}
    if part is not None:
        tags[keys.PART_TAG] = part.key
    return sync.sync_folder(
        opened.store, opened.client, folder, sync.Within(experiment_id=opened.experiment_id, tags=tags)
    )


def log_parent(opened: Session, group: Group, folder: Path) -> None:
    """Log everything about the group as a whole to its parent run. Safe to repeat: it overwrites. Raises StoreError."""
    from mlflow.entities import Metric, Param

    with explained(opened.store, "written to"), quiet():
        run = opened.client.get_run(opened.run_id)
        params = [Param(k, v) for k, v in as_params(group.params).items() if k not in run.data.params]
        now = (group.ended_ns or time.time_ns()) // 1_000_000
        # A count of zero would be an empty chart, and `failed_points` would be among the first charts shown.
        metrics = [Metric(name, rounded(value), now, 0) for name, value in group.metrics.items() if value]
        opened.client.log_batch(opened.run_id, metrics=metrics, params=params, synchronous=True)
        tags = {name: value for name, value in group.tags.items() if name in TAGS}
        set_tags(opened.client, opened.run_id, {**tags, **_own_tags(group)})
        opened.client.set_tag(opened.run_id, keys.NOTE_TAG, scrub(group.note)[:_NOTE_CHARS])
        if opened.is_project and compat.is_generated(run.info.run_name):
            opened.client.update_run(opened.run_id, name=group.name)
        for path in batch.files(folder):
            below = path.parent.as_posix()
            opened.client.log_artifact(opened.run_id, str(folder / path), None if below == "." else below)


# ---- later: `proftrack sync` -----------------------------------------------------------------------------------------


def sync_group(
    store: Store, client: MlflowClient, folder: Path, moved: Mapping[str, Path] | None = None
) -> list[sync.Outcome]:
    """Log a group's folder: each part once, as a child of one parent run; the parent's outcome comes last.

    `moved`: run id -> run folder inside the local store that the group was first logged to, when syncing from there.
    The parent ends as FINISHED if everything requested is there, else as FAILED with the reason. A parent that is
    already complete in the store is left alone; only missing parts are added below it. If a part cannot be logged, the
    others are logged first, then its StoreError or ProftrackError is raised. Also raises StoreError if another process
    is using the folder.
    """
    with rundir.locked(folder):
        return _sync_group(store, client, folder, moved or {})


def _sync_group(store: Store, client: MlflowClient, folder: Path, moved: Mapping[str, Path]) -> list[sync.Outcome]:
    group = batch.load(folder)
    mark = hashlib.sha256(rundir.read_bounded(folder / BATCH)).hexdigest()[:32]
    parent = _find_parent(store, client, folder, group)
    if parent is not None and _is_settled(parent, group, mark):
        opened = Session(store, client, parent)
        outcomes, failures = _sync_parts(opened, group, folder, moved)
        if failures:
            raise failures[0]
        return [*outcomes, _outcome(opened, folder, "known", whole=_has_files(opened, group, folder))]

    def obtain() -> StoredRun:
        tags = {**lifecycle.owner_tags(), **_own_tags(group)}
        if parent is not None:
            return lifecycle.reopen(store, client, parent, tags)
        experiment_id = stores.experiment_for(store, client, group.experiment)
        return lifecycle.create(store, client, experiment_id, group.name, tags, start_ms=group.started_ns // 1_000_000)

    ended = group.ended_ns // 1_000_000 if group.ended_ns else None
    with session.keep(Opening(store, client, obtain), end_ms=ended) as opened:
        outcomes, failures = _sync_parts(opened, group, folder, moved)
        log_parent(opened, group, folder)
        if failures:
            raise failures[0]
        with explained(store, "written to"), quiet():
            set_tags(client, opened.run_id, {keys.GROUP_LOGGED_TAG: mark})
        close(opened, group)
    return [*outcomes, _outcome(opened, folder, "logged" if parent is None else "finished")]


def _own_tags(group: Group) -> dict[str, str]:
    """The tags by which a group's parent run is found."""
    return {
        keys.KIND_TAG: group.kind,
        keys.GROUP_TAG: group.id,
        keys.GROUP_KEY_TAG: group.key,
        keys.EXPERIMENT_TAG: group.experiment,
        **({keys.GROUP_POINTS_TAG: group.points} if group.points else {}),
    }


def _find_parent(store: Store, client: MlflowClient, folder: Path, group: Group) -> StoredRun | None:
    """The parent run of this folder in this store: a FINISHED one, else an unfinished one that may be resumed.

    A folder can name any group, so a run is resumed only if it is unfinished, no process works on it, and it belongs to
    whoever measured the folder or is syncing it. Raises StoreError if a live process is working on it.
    """
    same_id = search(store, client, {keys.GROUP_TAG: group.id})
    parents = [run for run in same_id if _is_parent_of(run, group)]
    parents.sort(key=lambda run: (run.status != "FINISHED", run.run_id))
    if parents and parents[0].status == "FINISHED":
        return parents[0]
    here = process.this_process()
    for run in parents:
        lifecycle.refuse_if_logging(run, folder, "group")
        owner = (run.tags.get(keys.HOST_TAG), run.tags.get(keys.USER_TAG))
        if lifecycle.is_free(run) and owner in {(group.host, group.user), (here.host, process.user())}:
            return run
    return None


def _is_settled(parent: StoredRun, group: Group, mark: str) -> bool:
    """Whether the parent run already has its final status: FINISHED, or FAILED from this very group.json."""
    if parent.status == "FINISHED":
        return True
    should_fail = group.error is not None or group.ended_ns is None
    return should_fail and parent.status == "FAILED" and parent.tags.get(keys.GROUP_LOGGED_TAG) == mark


def _has_files(opened: Session, group: Group, folder: Path) -> bool:
    """Whether the parent run has the group's files: with the same sizes, or in a later state if the group goes on."""
    sizes = {path.as_posix(): (folder / path).stat().st_size for path in batch.files(folder)}
    stored: dict[str, int | None] = {}
    with explained(opened.store, "asked for the run's artifacts"), quiet():
        for below in {path.rpartition("/")[0] for path in sizes}:
            stored |= {item.path: item.file_size for item in opened.client.list_artifacts(opened.run_id, below or None)}
    if group.ended_ns is None:
        return sizes.keys() <= stored.keys()
    return all(stored.get(path, -1) in (size, None) for path, size in sizes.items())


def _outcome(
    opened: Session, folder: Path, did: Literal["logged", "finished", "known"], *, whole: bool = True
) -> sync.Outcome:
    return sync.Outcome(
        folder=folder,
        run_id=opened.run_id,
        experiment_id=opened.experiment_id,
        artifact_uri=opened.artifact_uri,
        did=did,
        whole=whole,
    )


def close(opened: Session, group: Group) -> None:
    """Set how the parent run will end: FINISHED if everything requested is there."""
    if group.ended_ns is None:
        opened.fail("interrupted before everything was measured")
    elif group.error is not None:
        opened.fail(group.error)
    else:
        opened.complete()


def _sync_parts(
    opened: Session, group: Group, folder: Path, moved: Mapping[str, Path]
) -> tuple[list[sync.Outcome], list[Exception]]:
    """Log the parts, and run folders that no part names: their process was killed before it could list them."""
    outcomes, failures = [], list[Exception]()
    inside = {(folder / path).resolve(): path for path in batch.part_folders(folder)}
    todo: list[tuple[Part | None, Path]] = []
    for part in group.parts:
        part_folder = folder / part.folder if part.folder is not None else None
        if part_folder is not None and inside.pop(part_folder.resolve(), None) is not None:
            todo.append((part, part_folder))
        elif part.run_id is not None and part.run_id in moved:
            todo.append((part, moved[part.run_id]))
        elif part_folder is not None and part.run_id is None and group.ended_ns is not None:
            # Its folder is missing: logging fails and says so. If the group was interrupted, this part was too.
            todo.append((part, part_folder))
    todo += [(None, folder / path) for path in inside.values()]
    for listed, path in todo:
        try:
            outcomes.append(log_part(opened, group, listed, path))
        except (ProftrackError, OSError, MemoryError) as error:
            failures.append(error)
    return outcomes, failures
