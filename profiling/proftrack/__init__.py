"""proftrack: tracks torch.profiler results in MLflow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proftrack.analysis.dataframes import analyze
    from proftrack.capture.input_waits import loading
    from proftrack.frontends.loop import profile
    from proftrack.store.history import history

__version__ = "0.1.0"

# Imported at first use, so that `import proftrack` costs nothing. Name: module that defines it.
_PUBLIC = {
    "analyze": "proftrack.analysis.dataframes",
    "history": "proftrack.store.history",
    "loading": "proftrack.capture.input_waits",
    "profile": "proftrack.frontends.loop",
}
__all__ = ["__version__", "analyze", "history", "loading", "profile"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
