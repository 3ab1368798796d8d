"""The bytes of a trace file, decompressed while they are read, and bounded in size."""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from proftrack.errors import TraceError

CHUNK_BYTES = 1 << 20
"""Passed on at once: a batch of events that stays in the processor's cache."""
AHEAD_BYTES = 1 << 22
"""Read or inflated at once: the reading thread waits up to 5 ms for the GIL each time, and must stay ahead."""
COMPRESSED_BYTES = 1 << 19
DEFAULT_MAX_BYTES = 8 << 30
"""Limit for the decompressed JSON: a real 5 GB trace passes."""
MAX_RATIO = 250
"""Real traces compress 10 to 40 times; a bomb comes near deflate's limit of about 1030."""
RATIO_FROM_BYTES = 64 << 20
"""Below this size a high ratio does no harm."""

_GZIP_MAGIC = b"\x1f\x8b"


class TruncatedSource(Exception):
    """The gzip stream ended early or is damaged; everything before that point was delivered."""

    def __init__(self, what: str, *, damaged: bool = False) -> None:
        super().__init__(what)
        self.damaged = damaged
        """Bytes were changed, not merely lost, as the checksum shows."""


def read_chunks(path: Path, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, decompressed if it is gzip (judged by its first bytes, not its name).

    Raises TraceError if the file cannot be read or is larger than `max_bytes` (default 8 GiB of JSON, and no more
    than 250 times its compressed size), and TruncatedSource if a gzip stream ends early.
    """
    chunks = _gunzip(path) if is_gzip(path) else _plain(path)
    yield from _bounded(path, chunks, max_bytes)


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip, by its first bytes. Raises TraceError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP_MAGIC
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})", "name a trace file") from error


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(AHEAD_BYTES):
            yield data


def _gunzip(path: Path) -> Iterator[bytes]:
    """All members of a gzip file, decompressed AHEAD_BYTES at a time."""
    with path.open("rb") as file:
        inflate = zlib.decompressobj(wbits=31)
        pending = b""
        while True:
            if not pending:
                pending = file.read(COMPRESSED_BYTES)
            if inflate.eof:
                pending = pending.lstrip(b"\0")  # tar and tape tools pad with zeros
                if not pending:
                    if file.peek(1):
                        continue
                    return
                if not pending.startswith(_GZIP_MAGIC[: len(pending)]):
                    raise TruncatedSource("the gzip stream is followed by bytes that are not gzip")
                inflate = zlib.decompressobj(wbits=31)
            elif not pending:
                raise TruncatedSource("the gzip stream ends early")
            before = inflate.copy()
            try:
                data = inflate.decompress(pending, AHEAD_BYTES)
            except zlib.error as error:
                yield from _up_to_damage(before, pending)
                raise TruncatedSource(f"the gzip stream is damaged ({error})", damaged=True) from error
            pending = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if data:
                yield data


def _up_to_damage(inflate: Any, pending: bytes) -> Iterator[bytes]:
    """The bytes that decompress before the damage; decompressing all of `pending` at once would yield none of them."""
    parts, size = [], 0
    with contextlib.suppress(zlib.error):
        for i in range(len(pending)):
            parts.append(inflate.decompress(pending[i : i + 1]))
            size += len(parts[-1])
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    yield b"".join(parts)


def _bounded(path: Path, chunks: Iterator[bytes], max_bytes: int | None) -> Iterator[bytes]:
    limit = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
    on_disk = max(path.stat().st_size, 1)
    total = 0
    for data in chunks:
        total += len(data)
        if total > limit:
            raise TraceError(f"{path}: contains more than {limit} bytes of JSON", "raise --max-bytes to read it")
        if max_bytes is None and total > RATIO_FROM_BYTES and total > MAX_RATIO * on_disk:
            raise TraceError(
                f"{path}: its {on_disk} bytes expand to over {MAX_RATIO} times as many, which no real trace does",
                "set --max-bytes to read it",
            )
        yield data


class Buffer:
    """The part of a chunk stream that is being parsed."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.data = b""
        self.offset = 0
        """Position of `data` in the decompressed file."""
        self.at_end = False
        self.fault: TruncatedSource | None = None
        """Why the stream ended early."""

    def take(self) -> bytes:
        """The next chunk, after `data`; empty at the end."""
        try:
            chunk = b"" if self.at_end else next(self._chunks, b"")
        except TruncatedSource as error:
            self.fault, chunk = error, b""
        self.at_end = not chunk
        return chunk

    def fill(self, size: int) -> None:
        """Read until `data` holds at least `size` bytes, or to the end of the stream (`at_end`)."""
        parts, length = [self.data], len(self.data)
        while length < size and (chunk := self.take()):
            parts.append(chunk)
            length += len(chunk)
        self.data = b"".join(parts)

    def consume(self, size: int) -> None:
        """Drop the first `size` bytes of `data`."""
        self.data = self.data[size:]
        self.offset += size

    def skip_to_content(self) -> None:
        """Drop a byte order mark and whitespace, and buffer at least one byte if any is left."""
        self.fill(4)
        self.consume(3 * self.data.startswith(b"\xef\xbb\xbf"))
        while True:
            self.consume(len(self.data) - len(self.data.lstrip(b" \t\r\n")))
            if self.data or self.at_end:
                return
            self.fill(1)


def read_ahead(source: Iterator[bytes], depth: int = 2) -> Generator[bytes, None, None]:
    """The same bytes in chunks, produced by a thread: zlib and file reads release the GIL while the caller parses."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def produce() -> None:
        try:
            for data in source:
                ready.put(data)
                if stop.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=produce, name="proftrack-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            for start in range(0, len(item), CHUNK_BYTES):
                yield item[start : start + CHUNK_BYTES]  # not memoryviews: joining those releases the GIL
    finally:
        stop.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.05)
            except queue.Empty:
                continue
        thread.join()
