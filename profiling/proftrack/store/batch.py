"""Runs that belong together: a parent run with a child for each point of a sweep, or each variant.

    FOLDER/group.json            what is asked for, and what has become of each part; written anew after each
           <part>/record.json    the run folder of a part
           ...                   what is said about all of them: tables, plots, text

A folder is complete on disk before the store sees any of it, as a run's is: `proftrack sync` logs it later where there
is no store. A group has a key, what must be equal for its parts to be taken over instead of measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct, field

from proftrack import names, process, untrusted
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.experiment.sentences import show
from proftrack.process import Parent
from proftrack.redact import scrub
from proftrack.rundir import run_folders
from proftrack.store import compat, keys, lifecycle, ownership, session, sync
from proftrack.store import connect as stores
from proftrack.store.address import Store
from proftrack.store.errors import explained
from proftrack.store.fields import as_params, rounded
from proftrack.store.quiet import quiet
from proftrack.store.runs import StoredRun, search, set_tags
from proftrack.store.session import RUN_ID_VARIABLE, Session

if TYPE_CHECKING:
    from mlflow import MlflowClient

FILE = "group.json"
TAGS = frozenset(
    {keys.DEVICE_TAG, keys.COMMIT_TAG, keys.DIRTY_TAG, keys.WINNER_TAG, keys.REGIME_TAG, keys.CONCLUSION_TAG}
)
"""What a group may say of itself in tags; others are what runs are found, owned and settled by."""
_NOTE_CHARS = 7900
_SEARCH_DEPTH = 4


class Part(Struct, kw_only=True):
    """One point or variant."""

    key: str
    """What tells it from the others of its group."""
    name: str
    folder: str | None = None
    """Its run folder, relative to the group's; None where it failed, or lies in the store alone."""
    run_id: str | None = None
    """In the store where it was logged when it was measured."""
    error: str | None = None


class Group(Struct, kw_only=True):
    """group.json."""

    schema_version: int = 1
    kind: Literal["sweep", "variants"]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    key: str
    points: str = ""
    """What is asked for under that key: its parent run stands for these points and no others."""
    experiment: str
    name: str
    host: str = field(default_factory=socket.gethostname)
    user: str = field(default_factory=lifecycle.user)
    """Whose parent run, and made where, this folder may go on with."""
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    """None: not over, or interrupted."""
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    """Those of TAGS reach the store."""
    metrics: dict[str, float] = {}
    note: str = ""
    """The parent run's description, Markdown."""
    parts: list[Part] = []
    error: str | None = None
    """Why not everything that was asked for is there."""

    def part(self, key: str) -> Part | None:
        """The part with that key."""
        return next((part for part in self.parts if part.key == key), None)

    def put(self, part: Part) -> None:
        """Add a part, in place of one with its key."""
        self.parts = [*(each for each in self.parts if each.key != part.key), part]


def save(folder: Path, group: Group) -> None:
    """Write group.json, whole or not at all. Raises ProftrackError where the disk refuses."""
    aside = folder / f".{FILE}.{os.getpid()}"
    try:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(group), indent=1) + b"\n")
        aside.replace(folder / FILE)
    except OSError as error:
        raise ProftrackError(f"{folder}: cannot be written ({error.strerror}); free some space") from error


def load(folder: Path) -> Group:
    """Read group.json. Raises ProftrackError where it is missing, is none, or names a part outside of the folder."""
    path = folder / FILE
    try:
        group: Group = untrusted.decode(run_folders.read_bounded(path), Group)
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise ProftrackError(f"{path}: not the file of a sweep or of variants ({error})") from error
    if not _is_id(group.id):
        raise ProftrackError(f"{path}: id {group.id[:80]!r} is not one of proftrack's (32 hex digits); copy it again")
    _refuse_parts_elsewhere(folder, group)
    return group


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def find(folder: Path, depth: int = _SEARCH_DEPTH) -> list[Path]:
    """The folders of groups at or below `folder`, in order of their names."""
    if (folder / FILE).is_file():
        return [folder.absolute()]
    if depth == 0 or not folder.is_dir():
        return []
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [found for path in below for found in find(path, depth - 1)]


# ---- while it is measured --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_parent(group: Group, *, fresh: bool, parent: Parent | None = None) -> Iterator[Session]:
    """The parent run: under `mlflow run` that run, else the earlier one of the same key and points, else a new one.

    `fresh` never takes an earlier one; where one is taken, the group gets its id. Raises StoreError as
    `session.open_run` does.
    """
    earlier = None
    if not os.environ.get(RUN_ID_VARIABLE) and not fresh:
        store = stores.resolve()
        client = stores.connect(store)
        lifecycle.close_dead_runs(store, client)
        earlier = _earlier(store, client, group)
    if earlier is None:
        with session.open_run(group.experiment, group.name, parent=parent) as opened:
            # From the start: what is killed at any moment is found again by the next start and by `sync`.
            with explained(opened.store, "written to"), quiet():
                set_tags(opened.client, opened.run_id, _own_tags(group))
            yield opened
    else:
        # What an interrupted process has left in another folder goes on belonging to this run.
        if _is_id(begun := earlier.tags.get(keys.GROUP_TAG, "")):
            group.id = begun
        tags = {**ownership.tags(), **_own_tags(group)}
        with session.keep(store, client, lambda: lifecycle.reopen(store, client, earlier, tags)) as opened:
            yield opened


def _earlier(store: Store, client: MlflowClient, group: Group) -> StoredRun | None:
    """The newest parent run of the same points and key that nobody is at work on, as far as can be seen from here."""
    found = search(store, client, {keys.GROUP_KEY_TAG: group.key, keys.KIND_TAG: group.kind})
    here = process.this_process()
    free = []
    for run in found:
        owner = ownership.of(run.tags)
        if run.status != "RUNNING" or (owner is not None and process.is_dead(owner, here)):
            free.append(run)
    same = [run for run in free if _is_of(run, group)]
    return max(same, key=lambda run: run.started_ms, default=None)


def _is_of(run: StoredRun, group: Group) -> bool:
    """Whether a run is the parent of what the group asks for."""
    tags = run.tags
    return (tags.get(keys.GROUP_KEY_TAG), tags.get(keys.GROUP_POINTS_TAG, "")) == (
        group.key,
        group.points,
    ) and keys.RECORD_TAG not in tags


def log_part(opened: Session, group: Group, part: Part | None, folder: Path) -> sync.Outcome:
    """Log the run folder of a part as a child of the parent run; None: of one that was not written down.

    Raises StoreError, ProftrackError as sync does.
    """
    tags = {keys.PARENT_TAG: opened.run_id, keys.GROUP_KEY_TAG: group.key} | (
        {keys.PART_TAG: part.key} if part is not None else {}
    )
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
        said = {name: value for name, value in group.tags.items() if name in TAGS}
        set_tags(opened.client, opened.run_id, {**said, **_own_tags(group)})
        opened.client.set_tag(opened.run_id, keys.NOTE_TAG, scrub(group.note)[:_NOTE_CHARS])
        if opened.is_project and compat.is_generated(run.info.run_name):
            opened.client.update_run(opened.run_id, name=group.name)
        for path in files(folder):
            below = path.parent.as_posix()
            opened.client.log_artifact(opened.run_id, str(folder / path), None if below == "." else below)


def files(folder: Path) -> list[Path]:
    """The files about the whole group: none of a run folder inside, no hidden ones. Raises ProftrackError at a link."""
    inside = set(_run_folders(folder))
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(parent in inside for parent in relative.parents) or any(each.startswith(".") for each in relative.parts):
            continue
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored; rename or remove it")
        if path.is_symlink():
            raise ProftrackError(f"{path}: a symbolic link; a folder of runs holds plain files only")
        if path.is_file():
            found.append(relative)
    return found


def _run_folders(folder: Path) -> list[Path]:
    """The run folders inside of a group's, relative to it, whatever group.json says of them."""
    found = {path.parent.relative_to(folder) for path in folder.rglob(run_folders.RECORD) if path.is_file()} - {Path()}
    return sorted(each for each in found if found.isdisjoint(each.parents))


# ---- later: `proftrack sync` -----------------------------------------------------------------------------------------


def of_runs(folders: Iterable[Path]) -> dict[str, Path]:
    """Run id -> run folder, of those in the tree of a local store: mlruns/EXPERIMENT/RUN/artifacts."""
    named = {folder.parent.name: folder for folder in folders if folder.name == "artifacts"}
    return {run_id: folder for run_id, folder in named.items() if _is_id(run_id)}


def in_order(folders: Sequence[Path], moved: Mapping[str, Path]) -> dict[Path, set[Path]]:
    """Groups' folders, the earliest first, with those of `moved` that are their parts.

    A point that later sweeps took over is a child of the first. What cannot be read comes last, for its own error.
    """
    found: list[tuple[int, Path, set[Path]]] = []
    for folder in folders:
        try:
            group = load(folder)
        except ProftrackError:
            found.append((sys.maxsize, folder, set()))
        else:
            parts = {moved[part.run_id] for part in group.parts if part.run_id and part.run_id in moved}
            found.append((group.started_ns, folder, parts))
    return {folder: parts for _, folder, parts in sorted(found, key=lambda each: each[:2])}


def sync_group(
    store: Store, client: MlflowClient, folder: Path, moved: Mapping[str, Path] | None = None
) -> list[sync.Outcome]:
    """Log a group's folder: each part as a child of one parent run, each once; the parent's outcome comes last.

    `moved`: run id -> run folder of the store that the group was logged to, where that is what is synced.
    The parent is FINISHED where everything that was asked for is there, else FAILED with why not. One that is in the
    store as it is to be stays as it is; parts that are missing there go below it. Raises StoreError, ProftrackError
    for a part that cannot be logged, after the others were; StoreError where another process is at the folder.
    """
    with run_folders.locked(folder):
        return _sync_group(store, client, folder, moved or {})


def _sync_group(store: Store, client: MlflowClient, folder: Path, moved: Mapping[str, Path]) -> list[sync.Outcome]:
    group = load(folder)
    mark = hashlib.sha256(run_folders.read_bounded(folder / FILE)).hexdigest()[:32]
    known = _known(store, client, folder, group)
    if known is not None and _as_it_is_to_be(known, group, mark):
        opened = Session(store, client, known)
        outcomes, failures = _sync_parts(opened, group, folder, moved)
        if failures:
            raise failures[0]
        return [*outcomes, _outcome(opened, folder, "known", whole=_has_files(opened, group, folder))]

    def obtain() -> StoredRun:
        tags = {**ownership.tags(), **_own_tags(group)}
        if known is not None:
            return lifecycle.reopen(store, client, known, tags)
        experiment_id = stores.experiment_for(store, client, group.experiment)
        return lifecycle.create(store, client, experiment_id, group.name, tags, start_ms=group.started_ns // 1_000_000)

    ended = group.ended_ns // 1_000_000 if group.ended_ns else None
    with session.keep(store, client, obtain, end_ms=ended) as opened:
        outcomes, failures = _sync_parts(opened, group, folder, moved)
        log_parent(opened, group, folder)
        if failures:
            raise failures[0]
        with explained(store, "written to"), quiet():
            set_tags(client, opened.run_id, {keys.GROUP_LOGGED_TAG: mark})
        close(opened, group)
    return [*outcomes, _outcome(opened, folder, "logged" if known is None else "finished")]


def _own_tags(group: Group) -> dict[str, str]:
    """What the parent run of a group is found by."""
    return {
        keys.KIND_TAG: group.kind,
        keys.GROUP_TAG: group.id,
        keys.GROUP_KEY_TAG: group.key,
        keys.EXPERIMENT_TAG: group.experiment,
        **({keys.GROUP_POINTS_TAG: group.points} if group.points else {}),
    }


def _known(store: Store, client: MlflowClient, folder: Path, group: Group) -> StoredRun | None:
    """The parent run of this folder in this store: a whole one, else one that was begun and may be gone on with.

    A folder can name any group, so only that which is not whole, is not at work, and belongs to whoever measured the
    folder or syncs it now is gone on with. Raises StoreError where a process that lives is at it.
    """
    found = search(store, client, {keys.GROUP_TAG: group.id})
    same = [run for run in found if _is_of(run, group)]
    same.sort(key=lambda run: (run.status != "FINISHED", run.run_id))
    if same and same[0].status == "FINISHED":
        return same[0]
    here = process.this_process()
    for run in same:
        tags = run.tags
        owner = ownership.of(tags)
        if run.status == "RUNNING" and owner and owner != here and process.is_alive(owner, here):
            raise StoreError(
                f"{folder}: process {owner.pid} is logging the same group now, as run {run.run_id}; wait until "
                "that has ended"
            )
        at_work = run.status == "RUNNING" and not (owner and process.is_dead(owner, here))
        whose = (tags.get(keys.HOST_TAG), tags.get(keys.USER_TAG))
        if not at_work and whose in {(group.host, group.user), (here.host, lifecycle.user())}:
            return run
    return None


def _as_it_is_to_be(known: StoredRun, group: Group, mark: str) -> bool:
    if known.status == "FINISHED":
        return True
    to_fail = group.error is not None or group.ended_ns is None
    return to_fail and known.status == "FAILED" and known.tags.get(keys.GROUP_LOGGED_TAG) == mark


def _has_files(opened: Session, group: Group, folder: Path) -> bool:
    """Whether the parent run has the files about the whole group: in their sizes, or in later states of them."""
    own = {path.as_posix(): (folder / path).stat().st_size for path in files(folder)}
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


def _refuse_parts_elsewhere(folder: Path, group: Group) -> None:
    root = folder.resolve()
    for part in group.parts:
        if part.folder is None:
            continue
        if "\0" in part.folder or root not in (root / part.folder).resolve().parents:
            raise UsageError(f"{folder / FILE}: the part {show(part.folder)} lies outside of the folder")


def _sync_parts(
    opened: Session, group: Group, folder: Path, moved: Mapping[str, Path]
) -> tuple[list[sync.Outcome], list[Exception]]:
    """Log the parts, and run folders that no part names: their process was killed before it could write them down."""
    outcomes, failures = [], list[Exception]()
    inside = {(folder / path).resolve(): path for path in _run_folders(folder)}
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
