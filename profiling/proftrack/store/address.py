"""The address of an MLflow store: the form that may be shown, and how to reach its UI."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from msgspec import Struct

from proftrack.redact import without_credentials

TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
ARTIFACTS = "mlruns"


class Store(Struct, frozen=True, kw_only=True):
    """A tracking store, resolved and absolute. `uri` may hold a password: only `public` is ever shown or kept."""

    uri: str
    public: str
    given: str
    """The value of MLFLOW_TRACKING_URI, or MLflow's default, without credentials."""
    database: Path | None = None
    """The file of a sqlite store."""

    def __repr__(self) -> str:
        return f"Store({self.public})"

    @property
    def is_server(self) -> bool:
        """Whether the store is an MLflow server."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def artifact_root(self) -> Path | None:
        """Where artifacts of new experiments go; None if the store itself decides."""
        return self.database.parent / ARTIFACTS if self.database else None

    def open_command(self) -> str | None:
        """The command that opens MLflow's UI on this store; None for a server, which already has a UI."""
        if self.is_server or self.public != self.uri:
            return None
        command = [*_mlflow_command(), "server", "--backend-store-uri", self.uri]
        if self.artifact_root:
            # Without it, experiments that the server creates get a location that only the server's clients can write.
            command += ["--default-artifact-root", location_of(self.artifact_root)]
        return shlex.join(command)

    def run_url(self, experiment_id: str, run_id: str, base: str = "http://127.0.0.1:5000") -> str:
        """The address of a run in the UI, or of all runs if `run_id` is empty; `base`: where `open_command` listens.

        Without the workflow type MLflow 3.17 opens its pages for prompts and their traces.
        """
        root = self.public.rstrip("/") if self.is_server else base
        page = f"/#/experiments/{experiment_id}/runs/{run_id}".rstrip("/")
        return f"{root}{page}?workflowType=machine_learning"


def public(uri: str) -> str:
    """A URI without user, password and query."""
    return without_credentials(uri, fragment=True)


def location_of(folder: Path) -> str:
    """A folder as an artifact location. MLflow percent-decodes plain paths as well (3.17), so `%` needs a URI."""
    return folder.as_uri() if "%" in str(folder) else str(folder)


def _mlflow_command() -> list[str]:
    """This Python's mlflow by absolute path: the shell the command is pasted into may find another one, or none."""
    script = Path(sys.executable).with_name("mlflow")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "mlflow"]
