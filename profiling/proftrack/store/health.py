"""Check whether a store can be used, by using it; at most a tag and a file of a few bytes may stay behind."""

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

from proftrack.errors import StoreError
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
    """A server's version and clock."""

    version: str | None
    """None if the server does not report it."""
    skew_s: float | None
    """Its clock minus ours, to the precision of a header of whole seconds; None if it sends no such header."""


class Written(Struct, frozen=True, kw_only=True):
    """A trial write."""

    experiment: str
    location: str
    stays: list[str]
    """What could not be removed again because a permission is missing."""


def ask_server(store: Store) -> Server:
    """Version and clock of a server. Raises StoreError if it does not answer."""
    with explained(store, "asked for its version"), quiet(), quick_retries():
        before = time.time()
        answer = compat.get(store.uri, "/version")
        between = (before + time.time()) / 2
        date = answer.headers.get("Date")
        skew = None
        if date:
            # The header has whole seconds: half a second more is the best guess.
            skew = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - between
        text = answer.text.strip()[:64] if answer.status_code == 200 else ""
        return Server(version=text if re.match(r"\d+\.\d+", text) else None, skew_s=skew)


def try_to_write(store: Store, client: MlflowClient) -> Written:
    """Write to an MLflow experiment and its artifacts, and remove it again; no run is created.

    Uses the experiment that MLFLOW_EXPERIMENT_NAME or _ID names if it exists, else a new one, deleted afterwards.
    Raises StoreError.
    """
    stays: list[str] = []
    with quiet(), quick_retries(), _experiment(store, client) as experiment:
        stores.check_artifact_location(store, experiment.artifact_location, f"experiment {experiment.name!r}")
        with explained(store, "written to"):
            client.set_experiment_tag(experiment.experiment_id, keys.PROBE_TAG, now())
            with _noting_failure(stays, f"the tag {keys.PROBE_TAG} of the experiment"):
                client.delete_experiment_tag(experiment.experiment_id, keys.PROBE_TAG)
        with explained(store, "given an artifact"):
            _try_artifact(store, experiment, stays)
    return Written(experiment=experiment.name, location=experiment.artifact_location, stays=stays)


@contextlib.contextmanager
def _experiment(store: Store, client: MlflowClient) -> Iterator[Experiment]:
    name, chosen_id = stores.chosen_experiment()
    with explained(store, "asked for its experiment"):
        chosen = (
            client.get_experiment_by_name(name) if name else client.get_experiment(chosen_id) if chosen_id else None
        )
    if chosen is not None:
        yield chosen
        return
    with explained(store, "given a new experiment"):
        temporary = stores.make_experiment(store, client, f"proftrack doctor {uuid.uuid4().hex[:12]}")
    try:
        yield temporary
    finally:
        with explained(store, "asked to delete an experiment"):
            client.delete_experiment(temporary.experiment_id)
        if store.artifact_root:
            with contextlib.suppress(OSError):
                Path(temporary.artifact_location).rmdir()


def _try_artifact(store: Store, experiment: Experiment, stays: list[str]) -> None:
    repository = compat.artifacts_at(f"{experiment.artifact_location.rstrip('/')}/{PROBE_FOLDER}", store.uri)
    with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
        file = Path(folder) / "probe.txt"
        file.write_text("proftrack doctor wrote this; it may be deleted\n", encoding="ascii")
        repository.log_artifact(str(file))
        listed = {item.path: item.file_size for item in repository.list_artifacts()}
        if listed.get("probe.txt", -1) not in (file.stat().st_size, None):
            raise StoreError(
                f"{store.public}: an artifact was accepted but is missing afterwards", "see the server's log"
            )
    with _noting_failure(stays, f"{PROBE_FOLDER}/probe.txt among the artifacts"):
        repository.delete_artifacts()


@contextlib.contextmanager
def _noting_failure(stays: list[str], what: str) -> Iterator[None]:
    """Removing requires more permissions than writing: note what stays; the next check overwrites it."""
    try:
        yield
    except Exception:
        stays.append(what)
