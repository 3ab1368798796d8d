"""Where a command goes: the modules of the package whose functions it enters, in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import proftrack

PACKAGE = Path(proftrack.__file__).parent


def modules_entered(command: Callable[[], Any]) -> list[str]:
    """Modules in the order in which a function of theirs is first called, as `measures/idle`.

    Call `command` once before: what modules do while they are imported counts too.
    """
    entered: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # The bodies of modules and classes are no calls.
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(f"{PACKAGE}/"):
            entered.setdefault(code.co_filename[len(str(PACKAGE)) + 1 :].removesuffix(".py"))

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        command()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(entered)


def stages(modules: list[str]) -> list[str]:
    """The stages of modules, each where it is first entered."""
    return list(dict.fromkeys(module.partition("/")[0] for module in modules))
