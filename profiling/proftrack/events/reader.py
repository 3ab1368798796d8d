"""Reads a trace file as a stream: the JSON is never whole in memory, and no event becomes a dict.

The events are decoded in batches of a few megabytes. Where a batch may end is found without parsing it first: a
place that looks like the end of an event is right exactly if what stands before it decodes as a list, since brackets
and quotes then balance. Only a batch that does not decode goes through `repair`, event by event.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proftrack.errors import TraceError
from proftrack.events import repair
from proftrack.events.rows import EXACT_ROWS, ROWS, InexactTimes, TableBuilder
from proftrack.events.source import TruncatedSource, read_ahead, read_chunks
from proftrack.events.table import EventTable, Notes, TraceMeta

BATCH_BYTES = 1 << 20
MAX_EVENT_BYTES = 64 << 20
"""An event larger than this is none; bounds what is held while its end is looked for."""
MAX_HEADER_BYTES = 64 << 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Trace(NamedTuple):
    """A trace file as read."""

    path: Path
    table: EventTable
    file_bytes: int
    events: int
    """Events of any phase in the file."""


def read(path: Path, *, salvage: bool = False, max_bytes: int | None = None) -> Trace:
    """Read a Chrome trace as torch.profiler writes it, plain or gzip.

    With `salvage`, what is whole in a broken file is read and `table.notes.partial` says why the rest is not.
    Raises TraceError naming the file, byte offset and line where it cannot be read.
    """
    size = _size_on_disk(path)
    with _no_collector():
        parser = _Parser(path, salvage)
        with contextlib.closing(read_ahead(read_chunks(path, max_bytes))) as chunks:
            parser.run(chunks)
        table = parser.table()
    return Trace(path, table, size, parser.builder.events_seen)


def _size_on_disk(path: Path) -> int:
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name a trace file in it")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); name a trace file") from error
    if size == 0:
        raise TraceError(f"{path}: is empty; export the trace again")
    return size


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """The rows hold no cycles; the collector would only look through millions of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Parser:
    """One pass over one file."""

    def __init__(self, path: Path, salvage: bool) -> None:
        self.path = path
        self.salvage = salvage
        self.builder = TableBuilder()
        self.buffer = b""
        self.offset = 0  # of the buffer's first byte in the decompressed file
        self.exact = False
        self.ended: str | None = None  # why the stream ended early
        self.repaired = 0
        self.example: str | None = None
        self.skipped = 0
        self.partial: str | None = None
        self.meta: dict[str, Any] = {}
        self.grow = False  # the buffer ends inside its only event: more of it is needed

    def run(self, chunks: Iterator[bytes]) -> None:
        prefix = self._header(chunks)
        while True:
            at_end = self._fill(chunks, BATCH_BYTES)
            if at_end:
                self._last_batch(prefix)
                return
            if self._batch():
                self._trailer(chunks, prefix)
                return

    def table(self) -> EventTable:
        notes = Notes(repaired=self.repaired, repaired_example=self.example, skipped=self.skipped, partial=self.partial)
        return self.builder.build(_meta(self.meta), notes)

    # -- the three parts of the file: header, events, trailer

    def _header(self, chunks: Iterator[bytes]) -> bytes:
        """Consume up to the first event; returns what stands before the event array (empty for a bare list)."""
        self._fill(chunks, 1)
        while not self.buffer.lstrip() and not self._fill(chunks, len(self.buffer) + 1):
            if len(self.buffer) > MAX_HEADER_BYTES:
                break
        stripped = self.buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if stripped.startswith(b"["):
            self._consume(len(self.buffer) - len(stripped) + 1)
            return b""
        if not stripped.startswith(b"{"):
            raise TraceError(
                f"{self.path}: is not a JSON trace (it starts with {_shown(stripped)}); name a Chrome trace"
            )
        searched = 0
        while True:
            for match in _EVENTS_KEY.finditer(self.buffer, max(0, searched - 64)):
                prefix = self.buffer[: match.start()].lstrip(b"\xef\xbb\xbf")
                if _is_open_object(prefix):
                    self._consume(match.end())
                    return prefix
            searched = len(self.buffer)
            if searched > MAX_HEADER_BYTES or self._fill(chunks, searched + BATCH_BYTES):
                break
        match_ = _EVENTS_KEY.search(self.buffer)
        if match_ is None:
            cut = f" ({self.ended})" if self.ended else ""
            raise TraceError(
                f'{self.path}: holds no "traceEvents"{cut}; it is JSON of another kind, not a trace of torch.profiler'
            )
        self._note_repair("the header is not valid JSON", 0)
        self._consume(match_.end())
        return b"{"

    def _batch(self) -> bool:
        """Decode one batch; True when the event array ended in it."""
        for cut in _last_boundaries(self.buffer):
            try:
                self._add(b"".join((b"[", memoryview(self.buffer)[:cut], b"]")))
            except msgspec.ValidationError:
                break
            except msgspec.DecodeError as error:
                if (end := _array_end(error)) and self._add_last(end):
                    return True
                continue
            except UnicodeDecodeError:
                break
            self._consume(cut + 1)
            return False
        return self._mend_batch(at_end=False)

    def _last_batch(self, prefix: bytes) -> None:
        """What the file still holds: the rest of the events, the end of the array and what stands behind it."""
        text = self.buffer.rstrip()
        if prefix == b"" and text.endswith(b"]"):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                self._add(b"[" + text)
                self._consume(len(self.buffer))
                return
        try:
            EXACT_ROWS.decode(b"[" + text)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if (end := _array_end(error)) and self._add_last(end):
                self._trailer(iter(()), prefix)
                return
        if self._mend_batch(at_end=True):
            self._trailer(iter(()), prefix)

    def _add_last(self, end: int) -> bool:
        """Decode the last events, those before the buffer's offset `end`; False where they do not decode."""
        try:
            self._add(b"[" + self.buffer[:end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        self._consume(end)
        return True

    def _trailer(self, chunks: Iterator[bytes], prefix: bytes) -> None:
        """Read the keys around the event array."""
        if prefix == b"":
            return
        while not self._fill(chunks, len(self.buffer) + BATCH_BYTES):
            if len(self.buffer) > MAX_HEADER_BYTES:
                break
        document = prefix + b'"traceEvents":[]' + self.buffer
        for text in (document, document.rstrip(), prefix + b'"traceEvents":[]}'):
            with contextlib.suppress(ValueError, RecursionError):
                self.meta = json.loads(text.decode("utf-8", "replace"), strict=False)
                break
        if text is not document:
            if self.ended or not self.buffer.strip():
                self._cut_short("ends behind the events, before the closing brace")
            else:
                self._note_repair("what stands behind the events is not valid JSON", self.offset)

    # -- batches

    def _add(self, text: bytes) -> None:
        if not self.exact:
            try:
                self.builder.add(ROWS.decode(text))
                return
            except InexactTimes:
                self.exact = True
        self.builder.add(EXACT_ROWS.decode(text))

    def _mend_batch(self, *, at_end: bool) -> bool:
        """Read a batch event by event, mending what can be; True when the event array ended in it."""
        pieces, array_end = repair.split_events(self.buffer)
        ended = array_end is not None
        done = 0
        for number, piece in enumerate(pieces):
            if not ended and number == len(pieces) - 1 and not (at_end and piece.complete):
                break  # the rest of this event is in the next batch, or nowhere
            self._check_commas(done, piece.start, 1 if number else 0)
            self._mend_event(piece)
            done = piece.start + len(piece.text)
        if ended:
            self._check_commas(done, array_end or 0, 0)
        if ended:
            self._consume(array_end or 0)
            return True
        if at_end:
            self._cut_short("ends inside an event")
            return False
        if done == 0 and len(self.buffer) > MAX_EVENT_BYTES:
            raise TraceError(f"{self._at(self.offset)}: no end of an event within {MAX_EVENT_BYTES} bytes; not a trace")
        self._consume(self._behind_comma(done))
        if done == 0:
            self.grow = True
        return False

    def _mend_event(self, piece: repair.Piece) -> None:
        try:
            row, mended = repair.mend(piece.text)
        except (ValueError, msgspec.MsgspecError) as error:
            self._lost(piece, error)
            return
        self.builder.add([row])
        if mended:
            self._note_repair("an event", self.offset + piece.start)

    def _check_commas(self, start: int, stop: int, wanted: int) -> None:
        """A comma over or out between events is a mend too."""
        if self.buffer.count(b",", start, stop) != wanted:
            self._note_repair("a comma over or missing between events", self.offset + start)

    def _behind_comma(self, position: int) -> int:
        rest = self.buffer[position : position + 64]
        return position + (len(rest) - len(rest.lstrip(b" \t\r\n,")))

    def _lost(self, piece: repair.Piece, error: Exception) -> None:
        where = self._at(self.offset + piece.start)
        if not self.salvage:
            raise TraceError(f"{where}: {_shown(piece.text)} is {error}; --salvage reads the other events") from error
        self.skipped += 1
        self.partial = self.partial or f"an event at {where} cannot be read"

    def _cut_short(self, what: str) -> None:
        """The file stops before its events do."""
        why = f"{self._at(self.offset + len(self.buffer))}: the file {what}" + (
            f" ({self.ended})" if self.ended else ""
        )
        if not self.salvage:
            raise TraceError(f"{why}; it was cut short: copy it again, or --salvage reads the events that are whole")
        self.partial = why
        self.skipped += 1

    def _note_repair(self, what: str, offset: int) -> None:
        self.repaired += 1
        if self.example is None:
            self.example = f"{what} at {self._at(offset)}"

    def _at(self, offset: int) -> str:
        """`file:byte N, line L`: the line is counted by reading the file again, which only an error pays for."""
        lines, seen = 1, 0
        with contextlib.suppress(TruncatedSource, TraceError):
            for chunk in read_chunks(self.path, 1 << 62):
                part = chunk[: max(0, offset - seen)]
                lines += part.count(b"\n")
                seen += len(chunk)
                if seen >= offset:
                    break
        return f"{self.path}, byte {offset}, line {lines}"

    # -- the buffer

    def _fill(self, chunks: Iterator[bytes], size: int) -> bool:
        """Read until the buffer holds `size` bytes; True at the end of the file."""
        parts, held = [self.buffer], len(self.buffer)
        wanted = size if not self.grow else held + size
        self.grow = False
        at_end = False
        while held < wanted:
            try:
                chunk = next(chunks, None)
            except TruncatedSource as error:
                self.ended = str(error)
                chunk = None
            if chunk is None:
                at_end = True
                break
            parts.append(chunk)
            held += len(chunk)
        self.buffer = b"".join(parts)
        return at_end

    def _consume(self, size: int) -> None:
        self.buffer = self.buffer[size:]
        self.offset += size


def _last_boundaries(buffer: bytes, tries: int = 8) -> list[int]:
    """Offsets behind the `}` of places that look like the end of an event, the last ones first."""
    window = 1 << 14
    while True:
        start = max(0, len(buffer) - window)
        found = [match.start() + 1 for match in _BOUNDARY.finditer(buffer, start)]
        if found or start == 0:
            return found[::-1][:tries]
        window *= 16


def _is_open_object(prefix: bytes) -> bool:
    """Whether a key behind this prefix belongs to the root: closed there, the prefix is a whole object."""
    body = prefix.rstrip()
    try:
        msgspec.json.decode(body.removesuffix(b",") + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _array_end(error: Exception) -> int | None:
    """Where in the buffer the text goes on behind the event array, if that is what the decoder minds.

    msgspec counts bytes from one, and the `[` that is put before a batch is one more.
    """
    trailing = _TRAILING.search(str(error))
    return int(trailing[1]) - 2 if trailing else None


def _meta(document: dict[str, Any]) -> TraceMeta:
    """What the measures need of the root's other keys; unknown ones and wrong types are left out."""
    devices = document.get("deviceProperties")
    base = document.get("baseTimeNanoseconds")
    distributed = document.get("distributedInfo")
    return TraceMeta(
        device_properties=[d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else [],
        distributed=distributed if isinstance(distributed, dict) else None,
        base_time_ns=base if isinstance(base, int) else None,
        fields={k: v for k, v in document.items() if isinstance(v, (int, float, str)) and k != "baseTimeNanoseconds"},
    )


def _shown(text: bytes, length: int = 60) -> str:
    """The beginning of untrusted bytes, fit for a one-line message."""
    return repr(text[:length].decode("utf-8", "replace")) + ("..." if len(text) > length else "")
