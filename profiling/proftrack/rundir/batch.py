"""The folder of a batch: a sweep with a run folder for each point, or variants with one for each.

    FOLDER/group.json            what was requested, and the state of each part; rewritten after each part
           points/NAME/          the run folder of a point; for variants: runs/NAME/
           logs/NAME.txt         what the processes of a part printed
           sweep.json            the figures of all parts; for variants: variants.json
           sweep.md, tables/sweep.json, plots/sweep.png
                                 the same as text, for `mlflow.log_table` and as a plot

As with a run, a folder is complete on disk before the store sees any of it: without a store, `proftrack sync` logs it
later. A batch has a key: parts are reused instead of measured again if their key is the same.
"""

from __future__ import annotations

import re
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from proftrack import files as whole_files
from proftrack import names, process, untrusted
from proftrack.errors import ProftrackError, UsageError
from proftrack.rundir.layout import BATCH, GITIGNORE, RECORD, SWEEP, VARIANTS, BatchNames
from proftrack.rundir.read import read_bounded
from proftrack.rundir.spool import new_folder
from proftrack.text import show

Kind = Literal["sweep", "variants"]

_NAMES: dict[Kind, BatchNames] = {"sweep": SWEEP, "variants": VARIANTS}
_SEARCH_DEPTH = 4


class Part(Struct, kw_only=True):
    """One point or variant."""

    key: str
    """Distinguishes it from the other parts of its group."""
    name: str
    folder: str | None = None
    """Its run folder, relative to the group's; None if it failed or is only in the store."""
    run_id: str | None = None
    """In the store that it was logged to when it was measured."""
    error: str | None = None


class Group(Struct, kw_only=True):
    """The content of group.json."""

    schema_version: int = 1
    kind: Kind
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    key: str
    points: str = ""
    """What was requested under that key: the parent run stands for exactly these points."""
    experiment: str
    name: str
    host: str = field(default_factory=socket.gethostname)
    user: str = field(default_factory=process.user)
    """Only a parent run of this user on this host may be resumed from this folder."""
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    """None: not finished, or interrupted."""
    params: dict[str, str] = {}
    """What its runs have in common, as far as known."""
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    note: str = ""
    """The parent run's description, Markdown."""
    parts: list[Part] = []
    error: str | None = None
    """Why a requested part is missing."""

    @property
    def names(self) -> BatchNames:
        """The names of its files and folders."""
        return _NAMES[self.kind]

    def part(self, key: str) -> Part | None:
        """The part with that key."""
        return next((part for part in self.parts if part.key == key), None)

    def put(self, part: Part) -> None:
        """Add a part, replacing one with the same key."""
        self.parts = [*(each for each in self.parts if each.key != part.key), part]


# ---- a folder --------------------------------------------------------------------------------------------------------


def begin(group: Group, output: Path | None, *, fresh: bool) -> Path:
    """The folder for a group: a new one, or `output` if it holds this same group, which is then resumed.

    A resumed group gets the id, start and parts of the earlier one. Raises UsageError if `output` holds something else,
    or holds this group although all of it is to be measured again (`fresh`).
    """
    if output is None or not (output / BATCH).is_file():
        folder = new_folder(output, f"{group.experiment}-{group.kind}")
        # Inside a repository it must not make the code look changed: a resumed sweep would then have another key.
        (folder / GITIGNORE).write_text("*\n", encoding="utf-8")
        return folder
    earlier = load(output)
    if earlier.kind != group.kind or earlier.key != group.key:
        what = "sweep" if earlier.kind == "sweep" else "set of variants"
        raise UsageError(
            f"--output {output}: holds another {what} (its code, machine or parameters differ)", "name a new folder"
        )
    if fresh:
        raise UsageError(
            f"--output {output}: holds this {group.kind} already", "name a new folder to measure it again with --fresh"
        )
    group.id, group.started_ns, group.parts = earlier.id, earlier.started_ns, earlier.parts
    return output.absolute()


def save(folder: Path, group: Group) -> None:
    """Write group.json atomically. Raises ProftrackError if it cannot be written."""
    write_json(folder / BATCH, group)


def write_json(path: Path, value: Struct) -> None:
    """Write a file of a batch atomically, as readable JSON. Raises ProftrackError as `write` does."""
    write(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write(path: Path, data: bytes) -> None:
    """Write a file of a batch atomically. Raises ProftrackError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_files.replace(path, data)
    except OSError as error:
        raise ProftrackError(f"{path.parent}: cannot be written ({error.strerror})", "free some space") from error


def load(folder: Path) -> Group:
    """Read group.json. Raises ProftrackError if it is missing or invalid, or names a part outside of the folder."""
    path = folder / BATCH
    try:
        group: Group = untrusted.decode(read_bounded(path), Group)
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror})", "copy the folder again") from error
    except msgspec.MsgspecError as error:
        raise ProftrackError(
            f"{path}: not a valid {BATCH} of a sweep or of variants ({error})", "copy the folder again"
        ) from error
    if not is_id(group.id):
        raise ProftrackError(f"{path}: the id {group.id[:80]!r} is not 32 hex digits", "copy the folder again")
    _refuse_parts_elsewhere(folder, group)
    return group


def is_id(text: str) -> bool:
    """Whether a text is the id of a run or group: 32 hex digits."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def _refuse_parts_elsewhere(folder: Path, group: Group) -> None:
    root = folder.resolve()
    for part in group.parts:
        if part.folder is None:
            continue
        if "\0" in part.folder or root not in (root / part.folder).resolve().parents:
            raise UsageError(
                f"{folder / BATCH}: the part {show(part.folder)} is outside of the folder",
                "remove the part from that file",
            )


def files(folder: Path) -> list[Path]:
    """The files about the batch itself: not those in run folders, nor hidden ones. Raises ProftrackError for a link."""
    parts = set(part_folders(folder))
    batch_files = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(parent in parts for parent in relative.parents) or any(each.startswith(".") for each in relative.parts):
            continue
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored", "rename or remove it")
        if path.is_symlink():
            raise ProftrackError(f"{path}: is a symbolic link", "remove it: only plain files are allowed here")
        if path.is_file():
            batch_files.append(relative)
    return batch_files


def part_folders(folder: Path) -> list[Path]:
    """The run folders inside a batch folder, relative to it, whether or not group.json names them."""
    inside = {path.parent.relative_to(folder) for path in folder.rglob(RECORD) if path.is_file()}
    inside.discard(Path())
    return sorted(each for each in inside if inside.isdisjoint(each.parents))


# ---- several folders -------------------------------------------------------------------------------------------------


def find(folder: Path, depth: int = _SEARCH_DEPTH) -> list[Path]:
    """The batch folders at or below `folder`, sorted by name."""
    if (folder / BATCH).is_file():
        return [folder.absolute()]
    if depth == 0 or not folder.is_dir():
        return []
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [each for path in below for each in find(path, depth - 1)]


def of_runs(folders: Iterable[Path]) -> dict[str, Path]:
    """Run id -> run folder, for folders in the tree of a local store: mlruns/EXPERIMENT/RUN/artifacts."""
    by_run = {folder.parent.name: folder for folder in folders if folder.name == "artifacts"}
    return {run_id: folder for run_id, folder in by_run.items() if is_id(run_id)}


def in_order(folders: Sequence[Path], moved: Mapping[str, Path]) -> dict[Path, set[Path]]:
    """Batch folders, the earliest first, each with its parts among `moved` (run id -> run folder).

    A point that later sweeps reused is a child of the first. Unreadable folders come last; reading them raises later.
    """
    by_start: list[tuple[int, Path, set[Path]]] = []
    for folder in folders:
        try:
            group = load(folder)
        except ProftrackError:
            by_start.append((sys.maxsize, folder, set()))
        else:
            parts = {moved[part.run_id] for part in group.parts if part.run_id and part.run_id in moved}
            by_start.append((group.started_ns, folder, parts))
    return {folder: parts for _, folder, parts in sorted(by_start, key=lambda each: each[:2])}
