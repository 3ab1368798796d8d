"""The process that owns a run, stored in the run's tags, so that a later start can tell whether it is still alive."""

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
    """The tags of a run that this process owns."""
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
    """The process that a run's tags name; None if they are absent or unreadable."""
    try:
        fields = msgspec.json.decode(tags[keys.PROCESS_TAG], type=dict[str, str])
        return msgspec.convert({**fields, "host": tags[keys.HOST_TAG], "pid": int(tags[keys.PID_TAG])}, Process)
    except (KeyError, ValueError, msgspec.MsgspecError):
        return None


def is_abandoned(run: StoredRun) -> bool:
    """Whether the run's process is certainly dead; if in doubt, it counts as alive."""
    owner = of(run.tags)
    return owner is not None and process.is_dead(owner, this_process())


def is_free(run: StoredRun) -> bool:
    """Whether no process is working on a run, as far as this machine can tell: it has ended, or was abandoned."""
    return run.status != "RUNNING" or is_abandoned(run)


def refuse_if_logging(run: StoredRun, folder: Path, what: str) -> None:
    """Raise StoreError if another process is certainly logging `what` of `folder` to this run."""
    owner, here = of(run.tags), this_process()
    if run.status == "RUNNING" and owner and owner != here and process.is_alive(owner, here):
        raise StoreError(
            f"{folder}: process {owner.pid} is already logging the same {what}, as run {run.run_id}",
            "wait until it has finished",
        )
