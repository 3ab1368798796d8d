"""Writes record.json and reads it back."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack import untrusted
from proftrack.errors import ProftrackError
from proftrack.record.figures import Region
from proftrack.record.model import SCHEMA_VERSION, Record
from proftrack.text import plain

MAX_BYTES = 256 << 20
"""Limit for a record.json to read: it may be untrusted."""


def dump(record: Record, *, indent: int = 1) -> bytes:
    """The record as JSON. NaN and infinity never occur: a missing figure is null."""
    return msgspec.json.format(msgspec.json.encode(record), indent=indent)


def save(record: Record, path: Path) -> None:
    """Write record.json."""
    path.write_bytes(dump(record) + b"\n")


def load(path: Path) -> Record:
    """Read a saved record.

    Raises ProftrackError if the file is missing, is not a record, or was written by a newer version: it has a higher
    schema version, or a regime, a flag or another value of a closed set that this version does not know.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ProftrackError(
                f"{path}: has {size} bytes, but no record is larger than {MAX_BYTES}", "name a saved record.json"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror})", "name a saved record.json") from error
    try:
        version = untrusted.decode(data, _Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise ProftrackError(
                f"{path}: has schema version {version}, but this proftrack knows only versions up to {SCHEMA_VERSION}",
                "upgrade proftrack",
            )
        return _decoded(data, version)
    except untrusted.TooDeepError as error:
        raise ProftrackError(f"{path}: nested deeper than any record", "name a saved record.json") from error
    except msgspec.MsgspecError as error:
        if "Invalid enum value" in str(error):
            raise ProftrackError(
                f"{path}: contains a value that this proftrack does not know ({plain(str(error))})",
                "read it with the proftrack that wrote it, or a newer one",
            ) from error
        raise ProftrackError(f"{path}: not a proftrack record ({error})", "name a saved record.json") from error


class _Versioned(Struct):
    schema_version: int


class _First(Struct):
    """What version 1 has in another form."""

    modules: list[Region] = []


def _decoded(data: bytes, version: int) -> Record:
    if version > 1:
        return msgspec.json.decode(data, type=Record)
    record = msgspec.json.decode(data, type=Record)
    calls = msgspec.json.decode(data, type=_First).modules
    return msgspec.structs.replace(record, modules=[], regions=[*record.regions, *calls])
