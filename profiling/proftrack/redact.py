"""Takes passwords, keys and tokens out of texts, URLs and command lines, before anything is recorded or shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SECRET_QUERY = re.compile(
    r"([?&][\w.-]*(?:token|secret|sig|signature|password|passwd|pwd|key|credential)=)[^&\s'\"]+", re.I
)
_USER_AND_PASSWORD = re.compile(r"^(?:[^/@:]*:.*|[^/]*)@", re.DOTALL)
"""What stands before the host. A password may hold whatever a careless URL does not encode: up to the last @, then."""
_SECRET_OPTION = re.compile(r"^-{1,2}(?:\w+[-_])*(?:key|token|secret|password|passwd|pwd|credentials?)$", re.IGNORECASE)


def without_credentials(url: str, *, fragment: bool = False) -> str:
    """The URL less user, password and query, with its fragment where asked; `git@host:path` has no secret and stays."""
    match = re.match(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>.*)", url, re.DOTALL)
    if match is None:
        return url
    rest, hash_mark, behind = _USER_AND_PASSWORD.sub("", match["rest"]).partition("#")
    return match["scheme"] + rest.partition("?")[0] + (hash_mark + behind if fragment else "")


def scrub(text: str) -> str:
    """Text in which no URL shows its user, its password, or a query value that is called a key, token or signature."""
    text = re.sub(r"(\w[\w+.-]*://)(?:[^/\s@:]*:\S*|[^/\s'\"]*)@", r"\1", text)
    return _SECRET_QUERY.sub(r"\1...", text)


def scrub_all(value: Any) -> Any:
    """The value with every text in it scrubbed, however deep it lies in dictionaries and lists."""
    if isinstance(value, dict):
        return {key: scrub_all(each) for key, each in value.items()}
    if isinstance(value, list):
        return [scrub_all(each) for each in value]
    return scrub(value) if isinstance(value, str) else value


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The arguments with the values of options that are called a key, a token, a secret or a password blanked."""
    shown: list[str] = []
    secret = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_value = secret and not argument.startswith("-")
        secret = bool(_SECRET_OPTION.search(name))
        shown.append("..." if is_value else f"{name}=..." if secret and equals else argument)
        secret = secret and not equals
    return shown
