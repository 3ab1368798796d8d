"""Names from users and foreign files: which are rejected, and how the others become names of files and folders.

All code that makes a path from the name of an experiment, a point or a trace uses this module; the name that is shown
stays as given.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from urllib.parse import unquote

_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]*(?<!\.)")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows reserves for devices."""
_MAX_LENGTH = 80
"""Maximum characters: with what is appended, less than the 255 bytes that file systems allow."""
_HASH_LENGTH = 8
_CAPTURED = re.compile(r"\.captured(?:\.rank\d+)?\.pt\.trace\.json(?:\.gz)?$")


def file_name(name: str) -> str:
    """A name as one part of a path, safe on any file system however often it is percent-decoded: ASCII, no separators.

    A harmless name stays as it is; any other becomes a readable slug followed by a short hash of the name, so that two
    names never get the same result by accident.
    """
    if len(name) <= _MAX_LENGTH and _HARMLESS.fullmatch(name) and not _DEVICES.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", plain)[: _MAX_LENGTH - _HASH_LENGTH - 1].strip("._-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{slug or 'x'}-{digest}"


def is_captured(name: str) -> bool:
    """Whether the file name is that of a run's trace in which its CUDA graphs are captured: it holds no steps."""
    return _CAPTURED.search(name) is not None


def problem(name: str, most: int) -> str | None:
    """Why a name cannot be shown or stored, as the end of a sentence; None if it can.

    Rejected: empty or blank, longer than `most` characters, with a line break, NUL or another control character.
    """
    if not name.strip():
        return "it is empty"
    if len(name) > most:
        return f"it has {len(name)} characters, and the limit is {most}"
    if not name.isprintable():
        return "it has a character that cannot be printed, such as a line break or NUL"
    return None


def leads_elsewhere(part: str) -> bool:
    """Whether one part of a path could, once percent-decoded, be read as several parts or as another folder.

    MLflow 3.17 clients and servers each decode such names once more than the other side expects.
    """
    while (decoded := unquote(part)) != part:
        part = decoded
    return not part.isprintable() or "/" in part or "\\" in part or part.strip() in ("", ".", "..")
