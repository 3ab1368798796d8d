"""Names that people and foreign files give: which are refused, and how the others become a folder's or file's name.

Whatever makes a path from an experiment's, a point's or a trace's name goes through here; the name that is shown stays
as it was given.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from urllib.parse import unquote

_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=,+-]*(?<!\.)")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows takes for devices."""
_MOST = 80
"""Characters: with what is put behind it, less than the 255 bytes that file systems allow."""
_HASH = 8


def file_name(name: str) -> str:
    """A name as one part of a path, safe on any file system however often it is percent-decoded: ASCII, no separators.

    A harmless name stays as it is; any other becomes a readable slug with a short hash of the name behind it, so that
    two names never share one result by accident.
    """
    if len(name) <= _MOST and _HARMLESS.fullmatch(name) and not _DEVICES.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", plain)[: _MOST - _HASH - 1].strip("._-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    return f"{slug or 'x'}-{digest}"


def problem(name: str, most: int) -> str | None:
    """Why a name cannot be shown or stored, as the end of a sentence; None where it can.

    Refused: empty or blank, longer than `most` characters, with a line break, NUL or another control character.
    """
    if not name.strip():
        return "it is empty"
    if len(name) > most:
        return f"it has {len(name)} characters and may have {most}"
    if not name.isprintable():
        return "it holds a character that cannot be printed, such as a line break or NUL"
    return None


def leads_elsewhere(part: str) -> bool:
    """Whether one part of a path could be read as more than one, or as another folder, once it is percent-decoded.

    Clients and servers decode such names, each once more than the other thinks (MLflow 3.17).
    """
    while (decoded := unquote(part)) != part:
        part = decoded
    return not part.isprintable() or "/" in part or "\\" in part or part.strip() in ("", ".", "..")
