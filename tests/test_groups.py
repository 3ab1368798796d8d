"""Folders of sweeps and variants that are hostile, torn, moved or large: what `sync` makes of them and of their runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record, write_folder

from proftrack.cli import main
from proftrack.tracking import group as groups
from proftrack.tracking import runs, store, sync
from proftrack.tracking.group import Group, Part

PARENT_TAG = "mlflow.parentRunId"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


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
    return runs.search(store.connect(store.resolve()), "")


def by_parent() -> dict[str, list[str]]:
    """Parent run -> its children."""
    found = all_runs()
    parents = [run.info.run_id for run in found if PARENT_TAG not in run.data.tags]
    return {
        parent: sorted(run.info.run_id for run in found if run.data.tags.get(PARENT_TAG) == parent)
        for parent in parents
    }


def artifacts(run_id: str) -> set[str]:
    return {item.path for item in store.connect(store.resolve()).list_artifacts(run_id)}


# ---- hostile folders -------------------------------------------------------------------------------------------------


def test_a_groups_tags_delete_nobodys_run(store_uri: str, tmp_path: Path) -> None:
    """Tags by which runs are found, owned and settled are never taken from group.json."""
    found = store.resolve()
    client = store.connect(found)
    victims = [sync.sync_folder(found, client, run_of(tmp_path / f"victim{n}", n)).run_id for n in range(8)]
    tags = [client.get_run(victim).data.tags for victim in victims]
    for number, theirs in enumerate(tags):
        said = {name: theirs[name] for name in ("proftrack.record", "proftrack.request", "mlflow.user")}
        group_folder(tmp_path / f"hostile{number}", 1, tags={**said, "device.name": "x", "proftrack.gate": "pass"})
        assert call("sync", str(tmp_path / f"hostile{number}")) == 0
    assert {client.get_run(victim).info.lifecycle_stage for victim in victims} == {"active"}
    parents = [run for run in all_runs() if runs.is_parent(run)]
    assert len(parents) == 8
    for parent in parents:
        assert parent.data.tags["device.name"] == "x"
        assert not {"proftrack.record", "proftrack.gate"} & set(parent.data.tags)


def test_a_parent_run_is_no_duplicate_of_a_record(store_uri: str, tmp_path: Path) -> None:
    """Neither side of it is deleted, whichever has the lower id: a store may have such tags already."""
    found = store.resolve()
    client = store.connect(found)
    for number in range(4):
        whole = sync.sync_folder(found, client, run_of(tmp_path / str(number), number)).run_id
        record = client.get_run(whole).data.tags[runs.RECORD_TAG]
        parent = client.create_run("0", tags={runs.RECORD_TAG: record, runs.KIND_TAG: "sweep"}).info.run_id
        client.set_terminated(parent, "FINISHED")
        assert runs.settle(found, client, whole) == whole
        assert runs.settle(found, client, parent) == parent
        assert {client.get_run(each).info.lifecycle_stage for each in (whole, parent)} == {"active"}
