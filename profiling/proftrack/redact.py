"""Removes passwords, keys and tokens from texts, URLs and command lines before they are recorded or shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SECRET_QUERY = re.compile(
    r"([?&][\w.-]*(?:token|secret|sig|signature|password|passwd|pwd|key|credential)=)[^&\s'\"]+", re.I
)
_USER_AND_PASSWORD = re.compile(r"^(?:[^/@:]*:.*|[^/]*)@", re.DOTALL)
"""The part before the host, up to the last @: a password in a careless URL may have any character."""
_SECRET_OPTION = re.compile(r"^-{1,2}(?:\w+[-_])*(?:key|token|secret|password|passwd|pwd|credentials?)$", re.IGNORECASE)


def without_credentials(url: str, *, fragment: bool = False) -> str:
    """The URL without user, password and query, with its `fragment` if wanted; `git@host:path` is kept: no secret."""
    match = re.match(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>.*)", url, re.DOTALL)
    if match is None:
        return url
    rest, hash_mark, fragment_text = _USER_AND_PASSWORD.sub("", match["rest"]).partition("#")
    return match["scheme"] + rest.partition("?")[0] + (hash_mark + fragment_text if fragment else "")


def scrub(text: str) -> str:
    """The text without users and passwords in URLs, and without query values named like a key, token or signature."""
    text = re.sub(r"(\w[\w+.-]*://)(?:[^/\s@:]*:\S*|[^/\s'\"]*)@", r"\1", text)
    return _SECRET_QUERY.sub(r"\1...", text)


def scrub_all(value: Any) -> Any:
    """The value with every text in it scrubbed, at any depth of dictionaries and lists."""
    if isinstance(value, dict):
        return {key: scrub_all(each) for key, each in value.items()}
    if isinstance(value, list):
        return [scrub_all(each) for each in value]
    return scrub(value) if isinstance(value, str) else value


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `...` for the values of options named like a key, token, secret or password."""
    shown: list[str] = []
    secret = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_value = secret and not argument.startswith("-")
        secret = bool(_SECRET_OPTION.search(name))
        shown.append("..." if is_value else f"{name}=..." if secret and equals else argument)
        secret = secret and not equals
    return shown
