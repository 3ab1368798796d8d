"""Whether a store can be used: asked of the store itself, and nothing but a file of a few bytes may stay behind."""

from __future__ import annotations

import contextlib
import email.utils
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from proftrack import rundir
from proftrack.errors import ProftrackError, StoreError, UsageError
from proftrack.store import compat, keys
from proftrack.store import connect as stores
from proftrack.store.address import Store
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries
from proftrack.store.runs import now

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

PROBE_FOLDER = "proftrack-doctor"


class Server(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    version: str | None
    """None where it does not tell."""
    skew_s: float | None
    """Its clock less ours, as far as a header of whole seconds tells; None where it sends none."""


class Written(Struct, frozen=True, kw_only=True):
    """A write that was tried."""

    experiment: str
    location: str
    stays: list[str]
    """What could not be removed again, for want of a permission."""


class Spooled(Struct, frozen=True, kw_only=True):
    """What lies in the spool."""

    waiting: list[Path]
    """Whole, and not in a store as far as they know."""
    waiting_bytes: int
    unfinished: list[Path]
    """Traces without a record, from a run that failed or was killed."""


def ask_server(store: Store) -> Server:
    """Version and clock of a server. Raises StoreError where it does not answer."""
    with explained(store, "asked for its version"), quiet(), quick_retries():
        before = time.time()
        answer = compat.get(store.uri, "/version")
        between = (before + time.time()) / 2
        date = answer.headers.get("Date")
        skew = None
        if date:
            # The header has no fraction of its second: half of one is the best guess.
            skew = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - between
        text = answer.text.strip()[:64] if answer.status_code == 200 else ""
        return Server(version=text if re.match(r"\d+\.\d+", text) else None, skew_s=skew)


def try_to_write(store: Store, client: MlflowClient) -> Written:
    """Write to an MLflow experiment and to its artifacts, and take it back; no run is made.

    In the experiment that MLFLOW_EXPERIMENT_NAME or _ID names, where it exists; else in a new one, deleted afterwards.
    Raises StoreError.
    """
    stays: list[str] = []
    with quiet(), quick_retries(), _experiment(store, client) as experiment:
        stores.check_artifact_location(store, experiment.artifact_location, f"experiment {experiment.name!r}")
        with explained(store, "written to"):
            client.set_experiment_tag(experiment.experiment_id, keys.PROBE_TAG, now())
            with _left(stays, f"the tag {keys.PROBE_TAG} of the experiment"):
                client.delete_experiment_tag(experiment.experiment_id, keys.PROBE_TAG)
        with explained(store, "given an artifact"):
            _try_artifact(store, experiment, stays)
    return Written(experiment=experiment.name, location=experiment.artifact_location, stays=stays)


def spooled() -> Spooled:
    """What lies in the spool now."""
    root = rundir.spool_root()
    folders = [path for path in root.glob("*/") if not path.is_symlink()] if root.is_dir() else []
    whole = []
    with contextlib.suppress(UsageError):
        whole = rundir.find(root)  # also the points of a sweep, which lie deeper
    waiting = [path for path in whole if not _is_logged(path)]
    unfinished = [path for path in folders if path not in whole and rundir.holds_measurements(path) and _free(path)]
    size = sum(file.stat().st_size for path in waiting for file in path.rglob("*") if file.is_file())
    return Spooled(waiting=waiting, waiting_bytes=size, unfinished=unfinished)


def _is_logged(folder: Path) -> bool:
    try:
        return any(entry.complete for entry in rundir.logged(folder))
    except ProftrackError:  # what it says of itself cannot be read: `sync` will tell
        return False


def _free(folder: Path) -> bool:
    """Whether no run is at work in it."""
    try:
        with rundir.locked(folder):
            return True
    except (StoreError, OSError):
        return False


@contextlib.contextmanager
def _experiment(store: Store, client: MlflowClient) -> Iterator[Experiment]:
    name, chosen_id = stores.chosen_experiment()
    with explained(store, "asked for its experiment"):
        found = client.get_experiment_by_name(name) if name else client.get_experiment(chosen_id) if chosen_id else None
    if found is not None:
        yield found
        return
    with explained(store, "given a new experiment"):
        made = stores.make_experiment(store, client, f"proftrack doctor {uuid.uuid4().hex[:12]}")
    try:
        yield made
    finally:
        with explained(store, "asked to delete an experiment"):
            client.delete_experiment(made.experiment_id)
        if store.artifact_root:
            with contextlib.suppress(OSError):
                Path(made.artifact_location).rmdir()


def _try_artifact(store: Store, experiment: Experiment, stays: list[str]) -> None:
    repository = compat.artifacts_at(f"{experiment.artifact_location.rstrip('/')}/{PROBE_FOLDER}", store.uri)
    with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
        file = Path(folder) / "probe.txt"
        file.write_text("proftrack doctor wrote this; it may be deleted\n", encoding="ascii")
        repository.log_artifact(str(file))
        listed = {item.path: item.file_size for item in repository.list_artifacts()}
        if listed.get("probe.txt", -1) not in (file.stat().st_size, None):
            raise StoreError(
                f"{store.public}: an artifact was taken and is not there afterwards", "see the server's log"
            )
    with _left(stays, f"{PROBE_FOLDER}/probe.txt among the artifacts"):
        repository.delete_artifacts()


@contextlib.contextmanager
def _left(stays: list[str], what: str) -> Iterator[None]:
    """Removing takes more rights than writing: what cannot be removed is said, and written over the next time."""
    try:
        yield
    except Exception:
        stays.append(what)
