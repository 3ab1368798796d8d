"""Run work in a thread during a block of code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread during the block. At the end its event argument is set, and the thread is joined."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name="proftrack-beside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
