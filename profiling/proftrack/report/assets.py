"""What every HTML page is made of: our style sheets and scripts, and the policy that lets nothing else in."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources


@functools.cache
def asset(name: str) -> str:
    """A file of templates/, as text."""
    return resources.files("proftrack.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Content security policy: this very style and this very script, and nothing from anywhere."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    own = f"script-src {digest(script)}; style-src {digest(style)}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
