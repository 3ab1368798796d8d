"""The user's browser, if there is one."""

from __future__ import annotations

import os
import sys
import webbrowser


def show(address: str) -> bool:
    """Open an address; False if there is no browser to open it in.

    Without a display Python would start a text browser in this terminal, which can show neither a timeline nor
    Perfetto.
    """
    if sys.platform.startswith("linux") and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
