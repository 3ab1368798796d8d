"""The one life of a run: what is held, opened, said and left, in which order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders import make_record, write_folder
from stores import mlflow_runs

from proftrack import experiment as experiments
from proftrack import recorder, rundir, signals
from proftrack.errors import CaptureError, StoreError, WorkloadError
from proftrack.experiment import Experiment
from proftrack.recorder import Plan
from proftrack.store import keys, upload


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "small.yaml").write_text("workload: small.py:build\n")
    return experiments.load(str(tmp_path / "small.yaml"), {})


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """A measurement that makes the run folder itself."""
    from proftrack.analysis.pipeline import Analysis

    monkeypatch.setattr("proftrack.recorder.content.write", lambda analysis, *_, **__: analysis.record)

    def measure(folder: Path) -> Any:
        write_folder(folder, make_record())
        return Analysis(make_record(), [])

    return measure


def all_runs() -> list[Any]:
    return mlflow_runs()


def test_the_run_is_open_and_the_folder_held_while_it_is_measured(
    experiment: Experiment, by_hand: Any, store_uri: str
) -> None:
    seen: list[Any] = []

    def measure(folder: Path) -> Any:
        (run,) = all_runs()
        seen.extend([run.info.status, [entry.complete for entry in rundir.logged(folder)]])
        with pytest.raises(StoreError, match="another process is using it"), rundir.locked(folder):
            pass
        return by_hand(folder)

    said: list[str] = []
    recorded = recorder.record(Plan(experiment=experiment), measure, said.append)
    (run,) = all_runs()
    assert seen == ["RUNNING", [False]]
    assert (run.info.run_id, run.info.status) == (recorded.run_id, "FINISHED")
    assert f"Run     {recorded.run_id}" in recorded.lines
    assert said == []
    assert not rundir.spool_root().exists()


def test_what_is_left_is_said_and_the_folder_is_free(
    experiment: Experiment, by_hand: Any, store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("the store is gone", "start it")

    monkeypatch.setattr(upload, "log_folder", fail)
    said: list[str] = []
    folder = tmp_path / "kept"
    with pytest.raises(StoreError, match="the store is gone"):
        recorder.record(Plan(experiment=experiment, output=folder), by_hand, said.append)
    assert said == [f"nothing is lost: all measurements are in {folder}; log it later with: proftrack sync {folder}"]
    assert [run.info.status for run in all_runs()] == ["FAILED"]
    with rundir.locked(folder):
        pass


def test_without_measurements_nothing_is_left_to_speak_of(experiment: Experiment, store_uri: str) -> None:
    def fail(_: Path) -> Any:
        raise WorkloadError("no luck")

    said: list[str] = []
    for mlflow in (True, False):
        with pytest.raises(WorkloadError, match="no luck"):
            recorder.record(Plan(experiment=experiment, mlflow=mlflow), fail, said.append)
    assert said == []
    assert [run.data.tags[keys.ERROR_TAG] for run in all_runs()] == ["no luck"]
    assert not rundir.spool_root().exists()


def test_beside_a_program_a_run_that_cannot_hold_the_profile_does_not_stay_open(
    experiment: Experiment, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("no bucket", "name one")

    monkeypatch.setattr(upload, "begin", fail)
    warned: list[str] = []
    recording = recorder.begin_beside(Plan(experiment=experiment, mlflow=None), warned.append)
    assert warned == [
        f"no bucket; name one; the profile is kept in {recording.folder}; log it later with: proftrack sync"
    ]
    assert recording.run_id is None
    assert [(run.info.status, run.data.tags[keys.ERROR_TAG]) for run in all_runs()] == [
        ("FAILED", "no bucket; name one")
    ]
    recording.fail(CaptureError("over"))
    assert not rundir.spool_root().exists()


class Others:
    """Watched: what they hear, and what they say of themselves."""

    def __init__(self, failure: CaptureError | None = None) -> None:
        self.heard: list[BaseException] = []
        self._failure = failure

    def is_gone(self) -> bool:
        return False

    def fail(self, error: BaseException) -> None:
        self.heard.append(error)

    def failure(self) -> CaptureError | None:
        assert self.heard  # they must hear first, to tell causes from consequences
        return self._failure


@pytest.mark.parametrize("failure", [None, CaptureError("rank 1 failed: no luck")])
def test_a_failure_elsewhere_takes_the_place_of_what_came_of_it_here(failure: CaptureError | None) -> None:
    others, ends, own = Others(failure), list[Any](), WorkloadError("connection reset")
    with pytest.raises((CaptureError, WorkloadError)) as raised, signals.guarded(ends.append, others):
        raise own
    assert raised.value is (failure or own)
    assert ends == [failure or own]
    assert others.heard == [own]


def test_a_block_that_ends_well_ends_once_with_nothing() -> None:
    ends: list[Any] = []
    with signals.guarded(ends.append):
        assert ends == []
    assert ends == [None]
