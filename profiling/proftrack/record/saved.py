"""record.json: written, and read back."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from proftrack import untrusted
from proftrack.errors import ProftrackError
from proftrack.record.model import SCHEMA_VERSION, Record
from proftrack.text import plain

MAX_BYTES = 256 << 20
"""Of a record.json that is read: it may come from somebody else."""


def dump(record: Record, *, indent: int = 1) -> bytes:
    """The record as JSON. NaN and infinity cannot occur: a figure that does not exist is null."""
    return msgspec.json.format(msgspec.json.encode(record), indent=indent)


def save(record: Record, path: Path) -> None:
    """Write record.json."""
    path.write_bytes(dump(record) + b"\n")


def load(path: Path) -> Record:
    """Read a saved record.

    Raises ProftrackError where the file is missing, is no record, or was written by a newer version: a higher schema
    version, or a regime, a flag or another word of a closed set that this one does not know and so could not judge by.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ProftrackError(
                f"{path}: {size} bytes, and no record is larger than {MAX_BYTES}", "name a saved record.json"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror})", "name a saved record.json") from error
    try:
        version = untrusted.decode(data, _Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise ProftrackError(
                f"{path}: record of schema version {version}, this proftrack knows up to {SCHEMA_VERSION}", "upgrade it"
            )
        return msgspec.json.decode(data, type=Record)
    except untrusted.TooDeepError as error:
        raise ProftrackError(f"{path}: nested deeper than any record", "name a saved record.json") from error
    except msgspec.MsgspecError as error:
        if "Invalid enum value" in str(error):
            raise ProftrackError(
                f"{path}: holds a word that this proftrack does not know ({plain(str(error))})",
                "read it with the proftrack that wrote it, or a newer one",
            ) from error
        raise ProftrackError(f"{path}: not a proftrack record ({error})", "name a saved record.json") from error


class _Versioned(Struct):
    schema_version: int
