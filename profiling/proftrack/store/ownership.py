"""Which process a run belongs to, as tags of the run: a later start can tell whether that process lives."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from proftrack import __version__
from proftrack.process import Process, this_process
from proftrack.store import keys


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
