"""A copy of a trace file as valid JSON, for programs that read nothing else.

The same pass as the reader's: batches that are JSON are copied as they are, so that no argument is lost and no number
changes; only broken events are written anew. Memory is bounded as it is there.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Raw

from proftrack.trace import repair
from proftrack.trace.members import EVENTS
from proftrack.trace.reader import Parser, check_utf8
from proftrack.trace.source import Buffer, is_gzip, read_ahead, read_chunks
from proftrack.trace.table import Notes

_LIST = msgspec.json.Decoder(list[Raw])


def is_valid(path: Path) -> bool:
    """Whether a trace file is JSON from beginning to end. Stops at the first fault.

    Raises TraceError if it cannot be read, as the reader does.
    """
    try:
        _parse(_Strict, path, _Checked(), salvage=False)
    except _Fault:
        return False
    return True


def write_mended(path: Path, target: Path) -> Notes:
    """Write the events and members of a trace file to `target` as valid JSON, compressed if the file is.

    Returns what was repaired, and why the copy is partial if the file is broken. Raises TraceError if nothing can be
    read.
    """
    with _opened(target, compressed=is_gzip(path)) as file:
        file.write(b'{"%s": [\n' % EVENTS.encode())
        parser = _parse(Parser, path, _Copied(file), salvage=True)
        file.write(b"\n]")
        for name, value in parser.meta.items():
            file.write(f",\n{json.dumps(name)}: {json.dumps(value)}".encode())
        file.write(b"\n}\n")
    return parser.notes


def _parse(kind: type[Parser], path: Path, sink: _Checked, *, salvage: bool) -> Parser:
    with contextlib.closing(read_ahead(read_chunks(path))) as chunks:
        parser = kind(path, Buffer(chunks), sink, salvage=salvage)
        parser.run()
    return parser


@contextlib.contextmanager
def _opened(target: Path, *, compressed: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with target.open("wb") as plain:
        if not compressed:
            yield plain
            return
        with gzip.GzipFile(filename="", fileobj=plain, mode="wb", compresslevel=1) as file:
            yield file


class _Checked:
    """Takes events that are strictly JSON."""

    def batch(self, text: bytes) -> None:
        _LIST.decode(text)
        check_utf8(text)
        self.take(text[1 : text.rindex(b"]")])

    def events(self, data: bytes, found: list[repair.Event]) -> None:
        for event in found:
            piece = data[event.start : event.end]
            self.take(repair.mended(piece) if event.fault else piece)

    def take(self, events: bytes) -> None:
        """Events with commas between them."""


class _Copied(_Checked):
    """Writes the events to a file."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self._separator = b""

    def take(self, events: bytes) -> None:
        if events := events.strip(b" \t\r\n"):
            self._file.write(self._separator + events)
            self._separator = b",\n"


class _Fault(Exception):
    """The file is not JSON."""


class _Strict(Parser):
    """Ends at the first repair."""

    def note_repair(self, what: str, offset: int) -> None:
        raise _Fault
