"""Work in a thread beside a block of code, and the CPUs that threads may run on."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator


def usable_cpus() -> set[int]:
    """The CPUs that this process may run on, by number: containers and batch systems give fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


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
