"""Folders of sweeps and variants that are hostile, torn, moved or large: what `sync` makes of them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import call
from points_by_hand import by_hand
from run_folders import make_record, write_folder
from stores import mlflow_runs

from proftrack import record as records
from proftrack import rundir
from proftrack.errors import ProftrackError
from proftrack.frontends.sweep import measuring
from proftrack.recorder import Batch
from proftrack.rundir import batch as groups
from proftrack.rundir.batch import Group, Part
from proftrack.store import connect, keys, lifecycle, sync

PARENT_TAG = "mlflow.parentRunId"


def run_of(folder: Path, number: int) -> Path:
    """A run folder whose record no other has."""
    record = make_record()
    assert record.run is not None
    facts = msgspec.structs.replace(record.run, experiment="small", started_ns=record.run.started_ns + number)
    return write_folder(folder, msgspec.structs.replace(record, run=facts))


def group_folder(folder: Path, points: int = 2, **changes: Any) -> Group:
    """A sweep that is over, as `--no-mlflow --output` leaves it; `changes` replace fields of its group.json."""
    parts = []
    for number in range(points):
        run_of(folder / "points" / f"p{number}", time.time_ns())
        parts.append(Part(key=f"{number:016x}", name=f"p{number}", folder=f"points/p{number}"))
    (folder / "sweep.md").write_text("all of it\n")
    group = Group(kind="sweep", key="f00d" * 4, experiment="small", name="small sweep of n", ended_ns=1, parts=parts)
    group = msgspec.structs.replace(group, **changes)
    groups.save(folder, group)
    return group


def all_runs() -> list[Any]:
    return mlflow_runs()


def is_parent(run: Any) -> bool:
    return keys.GROUP_TAG in run.data.tags


def by_parent() -> dict[str, list[str]]:
    """Parent run -> its children."""
    found = all_runs()
    parents = [run.info.run_id for run in found if PARENT_TAG not in run.data.tags]
    return {
        parent: sorted(run.info.run_id for run in found if run.data.tags.get(PARENT_TAG) == parent)
        for parent in parents
    }


def artifacts(run_id: str) -> set[str]:
    return {item.path for item in connect.connect(connect.resolve()).list_artifacts(run_id)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment `small` of its own, which is the working directory."""
    project = tmp_path / "project"
    (project / "experiments").mkdir(parents=True)
    (project / "experiments" / "small.yaml").write_text("workload: small.py:build\ndevice: cpu\nparams: {n: 64}\n")
    (project / "experiments" / "small.py").write_text("def build(device, n): return lambda: None\n")
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that were measured, by hand: their n, in order."""
    asked: list[str] = []

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Any:
        asked.append(overrides["n"])
        if overrides["n"] == "13":
            raise ProftrackError("n=13 is unlucky")
        return records.load(run_of(folder, time.time_ns()) / "record.json")

    monkeypatch.setattr(measuring, "Measuring", by_hand(measure))
    return asked


# ---- hostile folders -------------------------------------------------------------------------------------------------


def test_a_groups_tags_delete_nobodys_run(store_uri: str, tmp_path: Path) -> None:
    """Tags by which runs are found, owned and settled are never taken from group.json."""
    found = connect.resolve()
    client = connect.connect(found)
    victims = [sync.sync_folder(found, client, run_of(tmp_path / f"victim{n}", n)).run_id for n in range(8)]
    tags = [client.get_run(victim).data.tags for victim in victims]
    for number, theirs in enumerate(tags):
        said = {name: theirs[name] for name in ("proftrack.record", "proftrack.request", "mlflow.user")}
        group_folder(tmp_path / f"hostile{number}", 1, tags={**said, "device.name": "x", "proftrack.gate": "pass"})
        assert call("sync", str(tmp_path / f"hostile{number}")) == 0
    assert {client.get_run(victim).info.lifecycle_stage for victim in victims} == {"active"}
    parents = [run for run in all_runs() if is_parent(run)]
    assert len(parents) == 8
    for parent in parents:
        assert parent.data.tags["device.name"] == "x"
        assert not {"proftrack.record", "proftrack.gate"} & set(parent.data.tags)


def test_a_parent_run_is_no_duplicate_of_a_record(store_uri: str, tmp_path: Path) -> None:
    """Neither side of it is deleted, whichever has the lower id: a store may have such tags already."""
    found = connect.resolve()
    client = connect.connect(found)
    for number in range(4):
        whole = sync.sync_folder(found, client, run_of(tmp_path / str(number), number)).run_id
        record = client.get_run(whole).data.tags[keys.RECORD_TAG]
        parent = client.create_run("0", tags={keys.RECORD_TAG: record, keys.KIND_TAG: "sweep"}).info.run_id
        client.set_terminated(parent, "FINISHED")
        assert lifecycle.settle(found, client, whole) == whole
        assert lifecycle.settle(found, client, parent) == parent
        assert {client.get_run(each).info.lifecycle_stage for each in (whole, parent)} == {"active"}


def test_a_whole_parent_run_is_not_changed(store_uri: str, tmp_path: Path) -> None:
    """A folder that names the group of somebody's run may add parts that are missing, and nothing else."""
    group = group_folder(tmp_path / "mine", note="mine")
    assert call("sync", str(tmp_path / "mine")) == 0
    ((parent, children),) = by_parent().items()
    client = connect.connect(connect.resolve())
    before = client.get_run(parent)
    group_folder(tmp_path / "hostile", 1, id=group.id, note="pwned", metrics={"x": 1.0}, experiment="other")
    for _ in range(2):
        assert call("sync", str(tmp_path / "hostile")) == 0
        assert {**by_parent()}.keys() == {parent}
        assert len(by_parent()[parent]) == 3 and set(children) < set(by_parent()[parent])
        after = client.get_run(parent)
        assert (after.info.status, after.info.end_time) == ("FINISHED", before.info.end_time)
        assert (after.data.tags, after.data.metrics) == (before.data.tags, before.data.metrics)


def test_a_sync_of_the_same_changes_nothing(store_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the parent has failed, as it should."""
    group_folder(tmp_path / "whole")
    group_folder(tmp_path / "failed", error="1 of 3 points failed")
    assert call("sync", str(tmp_path)) == 0
    before = {run.info.run_id: (run.info.status, run.info.end_time, run.data.tags) for run in all_runs()}
    capsys.readouterr()
    assert call("sync", str(tmp_path)) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if " as run " in line]
    assert len(said) == 6 and all(line.startswith("already in this store") for line in said)
    assert {run.info.run_id: (run.info.status, run.info.end_time, run.data.tags) for run in all_runs()} == before


@pytest.mark.parametrize(
    ("status", "tags", "taken"),
    [
        ("FAILED", {}, True),
        ("FAILED", {"proftrack.host": "elsewhere"}, False),
        ("KILLED", {"mlflow.user": "somebody else"}, False),
        ("KILLED", {keys.GROUP_KEY_TAG: "another"}, False),
        ("FAILED", {keys.RECORD_TAG: "f00d"}, False),
        ("RUNNING", {}, False),  # by this very process, which lives
    ],
)
def test_whose_parent_run_is_gone_on_with(
    store_uri: str, tmp_path: Path, status: str, tags: dict[str, str], taken: bool
) -> None:
    group = group_folder(tmp_path / "kept")
    found = connect.resolve()
    client = connect.connect(found)
    own = {**lifecycle.owner_tags(), keys.GROUP_TAG: group.id, keys.GROUP_KEY_TAG: group.key}
    begun = lifecycle.create(found, client, "0", "begun", {**own, **tags}).run_id
    client.update_run(begun, status=status)
    assert call("sync", str(tmp_path / "kept")) == 0
    assert len(by_parent()) == (1 if taken else 2)
    assert client.get_run(begun).info.status == ("FINISHED" if taken else status)


def test_the_machine_that_measured_a_group_owns_it_as_well(store_uri: str, tmp_path: Path) -> None:
    group = group_folder(tmp_path / "kept", host="node7", user="ann")
    found = connect.resolve()
    client = connect.connect(found)
    own = {
        keys.GROUP_TAG: group.id,
        keys.GROUP_KEY_TAG: group.key,
        "proftrack.host": "node7",
        "mlflow.user": "ann",
    }
    begun = lifecycle.create(found, client, "0", "begun", own).run_id
    client.update_run(begun, status="KILLED")
    assert call("sync", str(tmp_path / "kept")) == 0
    assert by_parent().keys() == {begun}


@pytest.mark.parametrize("named", ["x' or 1=1 --", "", "F" * 32, "a" * 31, "a" * 32 + "\n"])
def test_a_group_with_another_id_is_refused(
    store_uri: str, tmp_path: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group_folder(tmp_path / "hostile", 1, id=named)
    assert call("sync", str(tmp_path / "hostile")) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "is not 32 hex digits" in said
    assert all_runs() == []


# ---- killed at any moment --------------------------------------------------------------------------------------------


@pytest.fixture
def killed(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep of n=8,64 as SIGKILL leaves it once the first point's record is on the disk."""
    left, kept = tmp_path / "left", tmp_path / "kept"

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Any:
        run_of(folder, int(overrides["n"]))
        if not left.exists():
            shutil.copytree(kept, left)
        return records.load(folder / "record.json")

    monkeypatch.setattr(measuring, "Measuring", by_hand(measure))
    assert call("sweep", "small", "-P", "n=8,64", "--no-mlflow", "--output", str(kept)) == 0
    shutil.rmtree(kept)
    return left


@pytest.mark.parametrize("named", [True, False])
def test_a_point_that_was_measured_before_sigkill_is_synced(
    store_uri: str, killed: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where group.json does not name it, and before anything of the folder is discarded."""
    group = groups.load(killed)
    assert group.ended_ns is None and [part.folder is not None for part in group.parts] == [True, True]
    if not named:
        groups.save(killed, msgspec.structs.replace(group, parts=[]))
    (killed / "points" / "half" / "trace").mkdir(parents=True)
    (killed / "points" / "half" / "trace" / "t.json").write_text("{}")
    root = killed.parent / "spool"
    root.mkdir()
    killed.rename(root / "left")
    monkeypatch.setenv("PROFTRACK_SPOOL", str(root))
    assert call("sync") == 0
    ((parent, (child,)),) = by_parent().items()
    tags = connect.connect(connect.resolve()).get_run(child).data.tags
    assert (tags[keys.GROUP_KEY_TAG], keys.PART_TAG in tags) == (group.key, named)
    assert "record.json" in artifacts(child)
    assert {"group.json", "points"} <= artifacts(parent)
    client = connect.connect(connect.resolve())
    assert [item.path for item in client.list_artifacts(parent, "points")] == ["points/half"]
    assert client.get_run(parent).info.status == "FAILED"
    assert not root.exists()


def test_a_point_that_was_measured_before_sigkill_is_not_measured_again(killed: Path, asked: list[str]) -> None:
    assert call("sweep", "small", "-P", "n=8,64", "--no-mlflow", "--output", str(killed)) == 0
    assert asked == ["64"]


def test_a_folder_that_could_not_be_logged_whole_is_kept(
    store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point that is not whole; and files beside those of a parent run that is whole."""
    root = tmp_path / "spool"
    monkeypatch.setenv("PROFTRACK_SPOOL", str(root))
    group = group_folder(root / "one", parts=[])
    (root / "one" / "points" / "p0" / "events.parquet").unlink()
    assert call("sync") == 1
    assert (root / "one" / "points" / "p0" / "record.json").is_file()
    assert [len(children) for children in by_parent().values()] == [1]
    (root / "one" / "points" / "p0" / "events.parquet").write_bytes(b"PAR1")
    assert call("sync") == 0
    assert not root.exists()
    group_folder(root / "two", 1, id=group.id)
    (root / "two" / "more.md").write_text("not in the store")
    assert call("sync") == 0
    assert (root / "two" / "more.md").is_file()


@pytest.mark.skipif(os.name != "posix", reason="locks as POSIX has them")
def test_what_is_being_measured_is_not_synced_away(
    store_uri: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "spool"
    monkeypatch.setenv("PROFTRACK_SPOOL", str(root))
    synced = []

    def measure(overrides: dict[str, str], folder: Path, log: Path) -> Any:
        run_of(folder, int(overrides["n"]))
        synced.append(call("sync"))
        return records.load(folder / "record.json")

    monkeypatch.setattr(measuring, "Measuring", by_hand(measure))
    assert call("sweep", "small", "-P", "n=8,64", "--no-mlflow") == 0
    assert synced == [1, 1]
    assert all_runs() == []
    assert call("sync") == 0
    assert [len(children) for children in by_parent().values()] == [2]
    assert not root.exists()


def test_what_sigkill_left_goes_below_the_sweep_that_went_on(
    store_uri: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command goes on with the run, in another folder; the first folder has a point that was not logged."""
    root, left = tmp_path / "spool", tmp_path / "left"
    monkeypatch.setenv("PROFTRACK_SPOOL", str(root))
    keep = Batch.keep

    def killed(self: Batch, part: Part, folder: Path) -> None:
        if part.name.endswith("64") or left.exists():
            shutil.copytree(folder.parents[1], left, dirs_exist_ok=True)
            raise KeyboardInterrupt
        keep(self, part, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "keep", killed)
        assert call("sweep", "small", "-P", "n=8,64") == 130
    shutil.rmtree(root)
    assert call("sweep", "small", "-P", "n=8,64") == 0
    assert asked == ["8", "64", "64"]
    assert [len(children) for children in by_parent().values()] == [2]
    root.mkdir()
    left.rename(root / "left")
    assert call("sync") == 0
    assert [len(children) for children in by_parent().values()] == [3]
    assert {run.info.status for run in all_runs()} == {"FINISHED"}
    assert not root.exists()


# ---- which parent run ------------------------------------------------------------------------------------------------


def test_other_values_are_another_sweep_that_takes_points_over(store_uri: str, asked: list[str]) -> None:
    """The first one's parent keeps its table, its note and its figures."""
    assert call("sweep", "small", "-P", "n=8,64") == 0
    (first,) = [run for run in all_runs() if is_parent(run)]
    assert call("sweep", "small", "-P", "n=64,128") == 0
    assert asked == ["8", "64", "128"]
    (second,) = [run for run in all_runs() if is_parent(run) and run.info.run_id != first.info.run_id]
    assert [run.data.params["sweep.n"] for run in (first, second)] == ["8,64", "64,128"]
    client = connect.connect(connect.resolve())
    after = client.get_run(first.info.run_id)
    assert (after.data.tags, after.info.end_time) == (first.data.tags, first.info.end_time)
    assert [len(by_parent()[run.info.run_id]) for run in (first, second)] == [2, 1]
    # The same points are the same sweep.
    assert call("sweep", "small", "-P", "n=8,64", "--find-crossover") == 0
    assert len(by_parent()) == 2 and len(asked) == 3


def test_a_folder_that_goes_on_with_other_values_is_another_parent_run(
    store_uri: str, asked: list[str], tmp_path: Path
) -> None:
    arguments = ["sweep", "small", "--no-mlflow", "--output", str(tmp_path / "kept")]
    for given, parents in (("n=8,64", 1), ("n=64,128", 2)):
        assert call(*arguments, "-P", given) == 0
        assert call("sync", str(tmp_path / "kept")) == 0
        assert len(by_parent()) == parents
    assert asked == ["8", "64", "128"]
    assert sorted(run.data.params["sweep.n"] for run in all_runs() if is_parent(run)) == ["64,128", "8,64"]


# ---- a local store that moves ----------------------------------------------------------------------------------------


def test_sweeps_stay_together_when_a_store_moves(
    store_uri: str,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Into another store: the same parents with the same children, one that two sweeps share below the first."""
    assert call("sweep", "small", "-P", "n=8,64") == 0
    assert call("sweep", "small", "-P", "n=64,128,13", "--output", str(tmp_path / "kept")) == 1
    client = connect.connect(connect.resolve())
    first, second = sorted((run for run in all_runs() if is_parent(run)), key=lambda run: run.info.start_time)
    assert [len(by_parent()[each.info.run_id]) for each in (first, second)] == [2, 1]
    sync.sync_folder(connect.resolve(), client, run_of(tmp_path / "alone", 5))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other/mlflow.db")
    mlruns = str(tmp_path / "store" / "mlruns")
    assert call("sync", mlruns) == 0
    moved = {run.data.tags[keys.GROUP_TAG]: run for run in all_runs() if is_parent(run)}
    assert len(all_runs()) == 2 + 3 + 1
    for old, status, children in ((first, "FINISHED", 2), (second, "FAILED", 1)):
        new = moved[old.data.tags[keys.GROUP_TAG]]
        assert (new.info.status, new.data.params, new.data.metrics) == (status, old.data.params, old.data.metrics)
        assert len(by_parent()[new.info.run_id]) == children
    before = {run.info.run_id: (run.info.status, run.info.end_time, run.data.tags) for run in all_runs()}
    capsys.readouterr()
    assert call("sync", mlruns) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if " as run " in line]
    assert len(said) == 7 and all(line.startswith("already in this store") for line in said)
    assert {run.info.run_id: (run.info.status, run.info.end_time, run.data.tags) for run in all_runs()} == before
    # And points are found there by what they were measured under.
    asked.clear()
    assert call("sweep", "small", "-P", "n=8,128") == 0
    assert asked == []


# ---- sizes, and one that fails among others --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["group.json", "logged.json"])
def test_notes_have_a_largest_size_and_the_others_are_logged(
    store_uri: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of 6 GB, which is a hole on the disk."""
    group_folder(tmp_path / "all" / "b", 1)
    hostile = tmp_path / "all" / "a"
    if name == "group.json":
        hostile.mkdir()
    else:
        run_of(hostile, 1)
    with (hostile / name).open("wb") as file:
        file.truncate(6 << 30)
    assert call("sync", str(tmp_path / "all")) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"proftrack: {hostile / name}: more than 16777216 bytes, which proftrack never writes; remove it\n"
    )
    assert [len(children) for children in by_parent().values()] == [1]


def test_a_group_nested_without_end_is_one_sentence(
    store_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "group.json").write_text('{"x":' + "[" * 200_000)
    assert call("sync", str(tmp_path / "a")) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "not a valid group.json of a sweep or of variants" in said


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ProftrackError("no")])
def test_one_folder_that_fails_keeps_no_other_from_the_store(
    store_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    group_folder(tmp_path / "all" / "b", 1)
    run_of(tmp_path / "all" / "c", 1)
    load = rundir.load

    def failing(folder: Path) -> Any:
        if folder.name == "c":
            raise error
        return load(folder)

    monkeypatch.setattr(rundir, "load", failing)
    assert call("sync", str(tmp_path / "all")) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert len(all_runs()) == 2
    # Nor does a part that fails keep the other parts.
    group_folder(tmp_path / "more", parts=[])
    (tmp_path / "more" / "points" / "p0").rename(tmp_path / "more" / "points" / "c")
    assert call("sync", str(tmp_path / "more")) == 1
    assert sorted(len(children) for children in by_parent().values()) == [1, 1]
