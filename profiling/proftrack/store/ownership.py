"""Which process a run belongs to, as tags of the run: a later start can tell whether that process lives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from proftrack import __version__, process
from proftrack.errors import StoreError
from proftrack.process import Process, this_process
from proftrack.store import keys
from proftrack.store.runs import StoredRun


def tags() -> dict[str, str]:
    """The tags of a run that this process keeps."""
    return {**tags_of(this_process()), keys.VERSION_TAG: __version__}


def tags_of(process: Process) -> dict[str, str]:
    """The tags that `of` reads back."""
    rest = {name: getattr(process, name) for name in ("started", "boot", "namespace", "machine")}
    return {
        keys.HOST_TAG: process.host,
        keys.PID_TAG: str(process.pid),
        keys.PROCESS_TAG: msgspec.json.encode(rest).decode(),
    }


def of(tags: Mapping[str, str]) -> Process | None:
    """The process that a run's tags name; None where they are absent or unreadable."""
    try:
        fields = msgspec.json.decode(tags[keys.PROCESS_TAG], type=dict[str, str])
        return msgspec.convert({**fields, "host": tags[keys.HOST_TAG], "pid": int(tags[keys.PID_TAG])}, Process)
    except (KeyError, ValueError, msgspec.MsgspecError):
        return None


def is_abandoned(run: StoredRun) -> bool:
    """Whether the process that keeps a run, or kept it, surely is gone; in doubt it lives."""
    owner = of(run.tags)
    return owner is not None and process.is_dead(owner, this_process())


def is_free(run: StoredRun) -> bool:
    """Whether nobody is at work on a run, as far as can be seen from here: it is over, or was abandoned."""
    return run.status != "RUNNING" or is_abandoned(run)


def refuse_at_work(run: StoredRun, folder: Path, what: str) -> None:
    """Raise StoreError where another process surely is logging `what` of `folder` as this run."""
    owner, here = of(run.tags), this_process()
    if run.status == "RUNNING" and owner and owner != here and process.is_alive(owner, here):
        raise StoreError(
            f"{folder}: process {owner.pid} is logging the same {what} now, as run {run.run_id}",
            "wait until that has ended",
        )
