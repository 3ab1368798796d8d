"""Work in a thread beside a block of code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread beside the block. The event that it gets is set at the block's end, where it is joined."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name="proftrack-beside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
