"""The folder of a batch: a sweep with a run folder for each point, or variants with one for each.

    FOLDER/group.json            what is asked for, and what has become of each part; written anew after each
           points/NAME/          the run folder of a point; runs/NAME/ that of a variant
           logs/NAME.txt         what the processes of a part printed
           sweep.json            the figures of all parts; variants.json
           sweep.md, tables/sweep.json, plots/sweep.png
                                 the same for people, for `mlflow.log_table` and as a plot

A folder is complete on disk before the store sees any of it, as a run's is: `proftrack sync` logs it later where there
is no store. A batch has a key, what must be equal for its parts to be taken over instead of measured again.
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
    kind: Kind
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    key: str
    points: str = ""
    """What is asked for under that key: its parent run stands for these points and no others."""
    experiment: str
    name: str
    host: str = field(default_factory=socket.gethostname)
    user: str = field(default_factory=process.user)
    """Whose parent run, and made where, this folder may go on with."""
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    """None: not over, or interrupted."""
    params: dict[str, str] = {}
    """What its runs share, as far as it is known."""
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    note: str = ""
    """The parent run's description, Markdown."""
    parts: list[Part] = []
    error: str | None = None
    """Why not everything that was asked for is there."""

    @property
    def names(self) -> BatchNames:
        """Its files and folders."""
        return _NAMES[self.kind]

    def part(self, key: str) -> Part | None:
        """The part with that key."""
        return next((part for part in self.parts if part.key == key), None)

    def put(self, part: Part) -> None:
        """Add a part, in place of one with its key."""
        self.parts = [*(each for each in self.parts if each.key != part.key), part]


# ---- a folder --------------------------------------------------------------------------------------------------------


def begin(group: Group, output: Path | None, *, fresh: bool) -> Path:
    """The folder for a group: a new one, or `output` where it holds this very group, which then goes on.

    A group that goes on gets identity, start and parts of what was begun. Raises UsageError where `output` holds
    something else, or where all is to be measured anew (`fresh`) and `output` has some of it.
    """
    if output is None or not (output / BATCH).is_file():
        folder = new_folder(output, f"{group.experiment}-{group.kind}")
        # Inside of a repository it must not make the code look changed: a sweep that goes on would be another one.
        (folder / GITIGNORE).write_text("*\n", encoding="utf-8")
        return folder
    begun = load(output)
    if begun.kind != group.kind or begun.key != group.key:
        raise UsageError(
            f"--output {output}: holds another {begun.kind if begun.kind == 'sweep' else 'set of variants'} (its code, "
            "machine or parameters differ)",
            "name a new folder",
        )
    if fresh:
        raise UsageError(
            f"--output {output}: holds this {group.kind} already", "name a new folder to measure it --fresh"
        )
    group.id, group.started_ns, group.parts = begun.id, begun.started_ns, begun.parts
    return output.absolute()


def save(folder: Path, group: Group) -> None:
    """Write group.json, whole or not at all. Raises ProftrackError where the disk refuses."""
    write_json(folder / BATCH, group)


def write_json(path: Path, value: Struct) -> None:
    """Write a batch's file as JSON that people can read, whole or not at all. Raises ProftrackError as `write` does."""
    write(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write(path: Path, data: bytes) -> None:
    """Write a batch's file, whole or not at all. Raises ProftrackError where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_files.replace(path, data)
    except OSError as error:
        raise ProftrackError(f"{path.parent}: cannot be written ({error.strerror})", "free some space") from error


def load(folder: Path) -> Group:
    """Read group.json. Raises ProftrackError where it is missing, is none, or names a part outside of the folder."""
    path = folder / BATCH
    try:
        group: Group = untrusted.decode(read_bounded(path), Group)
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise ProftrackError(f"{path}: not the file of a sweep or of variants ({error})") from error
    if not is_id(group.id):
        raise ProftrackError(f"{path}: id {group.id[:80]!r} is not one of proftrack's (32 hex digits)", "copy it again")
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
            raise UsageError(f"{folder / BATCH}: the part {show(part.folder)} lies outside of the folder")


def files(folder: Path) -> list[Path]:
    """The files about the whole batch: none of a run folder inside, no hidden ones. Raises ProftrackError at a link."""
    inside = set(part_folders(folder))
    about_all = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(parent in inside for parent in relative.parents) or any(each.startswith(".") for each in relative.parts):
            continue
        if names.leads_elsewhere(path.name):
            raise ProftrackError(f"{folder}: the file {relative.as_posix()!r} cannot be stored", "rename or remove it")
        if path.is_symlink():
            raise ProftrackError(f"{path}: a symbolic link", "a folder of runs holds plain files only")
        if path.is_file():
            about_all.append(relative)
    return about_all


def part_folders(folder: Path) -> list[Path]:
    """The run folders inside of a batch's, relative to it, whatever group.json says of them."""
    inside = {path.parent.relative_to(folder) for path in folder.rglob(RECORD) if path.is_file()}
    inside.discard(Path())
    return sorted(each for each in inside if inside.isdisjoint(each.parents))


# ---- several folders -------------------------------------------------------------------------------------------------


def find(folder: Path, depth: int = _SEARCH_DEPTH) -> list[Path]:
    """The folders of batches at or below `folder`, in order of their names."""
    if (folder / BATCH).is_file():
        return [folder.absolute()]
    if depth == 0 or not folder.is_dir():
        return []
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [each for path in below for each in find(path, depth - 1)]


def of_runs(folders: Iterable[Path]) -> dict[str, Path]:
    """Run id -> run folder, of those in the tree of a local store: mlruns/EXPERIMENT/RUN/artifacts."""
    named = {folder.parent.name: folder for folder in folders if folder.name == "artifacts"}
    return {run_id: folder for run_id, folder in named.items() if is_id(run_id)}


def in_order(folders: Sequence[Path], moved: Mapping[str, Path]) -> dict[Path, set[Path]]:
    """Batches' folders, the earliest first, with those of `moved` (run id -> run folder) that are their parts.

    A point that later sweeps took over is a child of the first. What cannot be read comes last, for its own error.
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
