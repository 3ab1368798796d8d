"""Atomic file writes (written aside, then moved into place), file locks, and the message for a missing file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from proftrack.errors import ProftrackError
from proftrack.text import meant


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A hidden file beside `path` to write to. It becomes `path` when the block ends, or is removed if it raises.

    Raises OSError if it cannot be moved into place.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def replace(path: Path, data: bytes, *, mode: int = 0o666, sync: bool = False) -> None:
    """Replace the content of `path` with `data`: readers see the old file or the new one, never a partial one.

    `mode` is the mode of the new file, before the umask. `sync`: wait until it is on disk. Raises OSError.
    """
    with aside(path) as part:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        if sync:
            to_disk(part)
    if sync:
        to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk. Raises OSError."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems without fsync
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path, *, held: ProftrackError | None = None) -> Iterator[None]:
    """Hold the lock file `path` during the block. If another process holds it, raise `held`; without `held`, wait.

    The file stays: removing a lock that other processes wait for would let two of them in. If the file system has no
    locks, or the file cannot be created, nothing is locked: a lock is a second guard here, never the only one.
    """
    from filelock import FileLock, Timeout  # imported here, so that reading a trace does not pay for it (0.04 s)

    lock = FileLock(path, thread_local=False)  # a block may begin in one thread and end in another
    try:
        lock.acquire(timeout=-1 if held is None else 0)
    except Timeout:
        assert held is not None
        raise held from None
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def no_such_file(path: Path) -> str:
    """The message for a missing file, suggesting the most similar name in its folder."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [each.name for each in path.parent.iterdir()]
    return f"{path}: no such file{meant(path.name, names)}"
