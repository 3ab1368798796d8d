"""Runs in a real store, made by replaying records: what a capture would have left, in seconds instead of minutes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from calls import show
from run_folders import write_folder

from proftrack.record import Record
from proftrack.store import connect as stores
from proftrack.store import sync


def log(folder: Path, record: Record) -> str:
    """Log a record as a run of the store that MLFLOW_TRACKING_URI names; returns its id."""
    store = stores.resolve()
    number = len(list(folder.glob("run*"))) if folder.is_dir() else 0
    assert record.run is not None
    kept = write_folder(folder / f"run{number}", record)
    return sync.sync_folder(store, stores.connect(store), kept).run_id


class Repository:
    """A Git repository with one file; `commit` returns the new commit's hash."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._git("init", "--quiet", "--initial-branch", "main")

    def commit(self, subject: str) -> str:
        """Change the file and commit it."""
        with (self.folder / "model.py").open("a") as file:
            file.write(f"# {subject}\n")
        self._git("add", "model.py")
        self._git("commit", "--quiet", "--message", subject)
        return self._git("rev-parse", "HEAD")

    def _git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = {"NAME": "Test", "EMAIL": "test@example.org"}
        environment |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and all that a command shows."""
    code, out, err = show(capsys, *arguments)
    return code, out + err


def flat(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


def mlflow_runs(tag: str | None = None, value: str = "") -> list[Any]:
    """All runs of the store, or those with a tag, as MLflow's own client gives them."""
    client = stores.connect(stores.resolve())
    experiments = [each.experiment_id for each in client.search_experiments()]
    return list(client.search_runs(experiments, "" if tag is None else f"tags.`{tag}` = '{value}'"))
