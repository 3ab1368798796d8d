"""The parent run of a batch, with a child for each point of a sweep, or each variant.

`proftrack.rundir.batch` is the folder that all of it comes from.
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
from proftrack.store import compat, keys, lifecycle, ownership, session, sync
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
"""What a group may say of itself in tags; others are what runs are found, owned and settled by."""
_NOTE_CHARS = 7900


# ---- while it is measured --------------------------------------------------------------------------------------------


def opening(group: Group, *, fresh: bool) -> Opening:
    """The parent run: under `mlflow run` that run, else the earlier one of the same key and points, else a new one.

    `fresh` never takes an earlier one; where one is taken, the group gets its id. Raises StoreError as
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
    # What an interrupted process has left in another folder goes on belonging to this run.
    if batch.is_id(begun := earlier.tags.get(keys.GROUP_TAG, "")):
        group.id = begun
    return Opening(store, client, lambda: lifecycle.reopen(store, client, earlier, ownership.tags()))


def begin(opened: Session, group: Group) -> None:
    """Tag the parent run from the start: what is killed at any moment is found again by the next start and by `sync`.

    Raises StoreError.
    """
    with explained(opened.store, "written to"), quiet():
        set_tags(opened.client, opened.run_id, _own_tags(group))


def _earlier(store: Store, client: MlflowClient, group: Group) -> StoredRun | None:
    """The newest parent run of the same points and key that nobody is at work on, as far as can be seen from here."""
    of_key = search(store, client, {keys.GROUP_KEY_TAG: group.key, keys.KIND_TAG: group.kind})
    same = [run for run in of_key if ownership.is_free(run) and _is_of(run, group)]
    return max(same, key=lambda run: run.started_ms, default=None)


def _is_of(run: StoredRun, group: Group) -> bool:
    """Whether a run is the parent of what the group asks for."""
    tags = run.tags
    return (tags.get(keys.GROUP_KEY_TAG), tags.get(keys.GROUP_POINTS_TAG, "")) == (
        group.key,
        group.points,
    ) and keys.RECORD_TAG not in tags


def children(opened: Session, group: Group) -> dict[str, str]:
    """Part key -> run, of all whole runs measured under the same key; the newest of each. Raises StoreError."""
    runs = Runs(opened.store, opened.client)
    children = [run for run in runs.search({keys.GROUP_KEY_TAG: group.key}) if keys.PART_TAG in run.tags]
    return {run.tags[keys.PART_TAG]: run.run_id for run in children}


def record_of(opened: Session, run_id: str) -> Record:
    """The record of a part in the store. Raises StoreError, ProftrackError."""
    runs = Runs(opened.store, opened.client)
    return runs.record(runs.get(run_id))


def log_part(opened: Session, group: Group, part: Part | None, folder: Path) -> sync.Outcome:
    """Log the run folder of a part as a child of the parent run; None: of one that was not written down.

    Raises StoreError, ProftrackError as sync does.
    """
    tags = {keys.PARENT_TAG: opened.run_id, keys.GROUP_KEY_TAG: group.key}
    if part is not None:
        tags[keys.PART_TAG] = part.key
    return sync.sync_folder(
        opened.store, opened.client, folder, sync.Within(experiment_id=opened.experiment_id, tags=tags)
    )


def log_parent(opened: Session, group: Group, folder: Path) -> None:
    """Put what is known about all of the group into its parent run. May be done again: everything is written over.

    Raises StoreError.
    """
    from mlflow.entities import Metric, Param

    with explained(opened.store, "written to"), quiet():
        run = opened.client.get_run(opened.run_id)
        params = [Param(k, v) for k, v in as_params(group.params).items() if k not in run.data.params]
        now = (group.ended_ns or time.time_ns()) // 1_000_000
        # A count of nothing would be an empty chart, and `failed_points` one of the first.
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
    """Log a group's folder: each part as a child of one parent run, each once; the parent's outcome comes last.

    `moved`: run id -> run folder of the store that the group was logged to, where that is what is synced.
    The parent is FINISHED where everything that was asked for is there, else FAILED with why not. One that is in the
    store as it is to be stays as it is; parts that are missing there go below it. Raises StoreError, ProftrackError
    for a part that cannot be logged, after the others were; StoreError where another process is at the folder.
    """
    with rundir.locked(folder):
        return _sync_group(store, client, folder, moved or {})


def _sync_group(store: Store, client: MlflowClient, folder: Path, moved: Mapping[str, Path]) -> list[sync.Outcome]:
    group = batch.load(folder)
    mark = hashlib.sha256(rundir.read_bounded(folder / BATCH)).hexdigest()[:32]
    there = _parent_there(store, client, folder, group)
    if there is not None and _as_it_is_to_be(there, group, mark):
        opened = Session(store, client, there)
        outcomes, failures = _sync_parts(opened, group, folder, moved)
        if failures:
            raise failures[0]
        return [*outcomes, _outcome(opened, folder, "known", whole=_has_files(opened, group, folder))]

    def obtain() -> StoredRun:
        tags = {**ownership.tags(), **_own_tags(group)}
        if there is not None:
            return lifecycle.reopen(store, client, there, tags)
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
    return [*outcomes, _outcome(opened, folder, "logged" if there is None else "finished")]


def _own_tags(group: Group) -> dict[str, str]:
    """What the parent run of a group is found by."""
    return {
        keys.KIND_TAG: group.kind,
        keys.GROUP_TAG: group.id,
        keys.GROUP_KEY_TAG: group.key,
        keys.EXPERIMENT_TAG: group.experiment,
        **({keys.GROUP_POINTS_TAG: group.points} if group.points else {}),
    }


def _parent_there(store: Store, client: MlflowClient, folder: Path, group: Group) -> StoredRun | None:
    """The parent run of this folder in this store: a whole one, else one that was begun and may be gone on with.

    A folder can name any group, so only that which is not whole, is not at work, and belongs to whoever measured the
    folder or syncs it now is gone on with. Raises StoreError where a process that lives is at it.
    """
    of_id = search(store, client, {keys.GROUP_TAG: group.id})
    same = [run for run in of_id if _is_of(run, group)]
    same.sort(key=lambda run: (run.status != "FINISHED", run.run_id))
    if same and same[0].status == "FINISHED":
        return same[0]
    here = process.this_process()
    for run in same:
        ownership.refuse_at_work(run, folder, "group")
        whose = (run.tags.get(keys.HOST_TAG), run.tags.get(keys.USER_TAG))
        if ownership.is_free(run) and whose in {(group.host, group.user), (here.host, process.user())}:
            return run
    return None


def _as_it_is_to_be(there: StoredRun, group: Group, mark: str) -> bool:
    if there.status == "FINISHED":
        return True
    to_fail = group.error is not None or group.ended_ns is None
    return to_fail and there.status == "FAILED" and there.tags.get(keys.GROUP_LOGGED_TAG) == mark


def _has_files(opened: Session, group: Group, folder: Path) -> bool:
    """Whether the parent run has the files about the whole group: in their sizes, or in later states of them."""
    own = {path.as_posix(): (folder / path).stat().st_size for path in batch.files(folder)}
    there: dict[str, int | None] = {}
    with explained(opened.store, "asked for the run's artifacts"), quiet():
        for below in {path.rpartition("/")[0] for path in own}:
            there |= {item.path: item.file_size for item in opened.client.list_artifacts(opened.run_id, below or None)}
    if group.ended_ns is None:
        return own.keys() <= there.keys()
    return all(there.get(path, -1) in (size, None) for path, size in own.items())


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
    """Say how the parent run is to end: FINISHED where everything that was asked for is there."""
    if group.ended_ns is None:
        opened.fail("interrupted before all was measured")
    elif group.error is not None:
        opened.fail(group.error)
    else:
        opened.complete()


def _sync_parts(
    opened: Session, group: Group, folder: Path, moved: Mapping[str, Path]
) -> tuple[list[sync.Outcome], list[Exception]]:
    """Log the parts, and run folders that no part names: their process was killed before it could write them down."""
    outcomes, failures = [], list[Exception]()
    inside = {(folder / path).resolve(): path for path in batch.part_folders(folder)}
    todo: list[tuple[Part | None, Path]] = []
    for part in group.parts:
        own = folder / part.folder if part.folder is not None else None
        if own is not None and inside.pop(own.resolve(), None) is not None:
            todo.append((part, own))
        elif part.run_id is not None and part.run_id in moved:
            todo.append((part, moved[part.run_id]))
        elif own is not None and _is_missed(group, part):
            todo.append((part, own))
    todo += [(None, folder / path) for path in inside.values()]
    for each, path in todo:
        try:
            outcomes.append(log_part(opened, group, each, path))
        except (ProftrackError, OSError, MemoryError) as error:
            failures.append(error)
    return outcomes, failures


def _is_missed(group: Group, part: Part) -> bool:
    """Whether a part without its run folder is an error: not where it was at work when all ended."""
    return part.run_id is None and group.ended_ns is not None
