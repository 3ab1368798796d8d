"""Reads a trace file as a stream: the JSON is never whole in memory, and no event becomes a dict.

The events are decoded in batches of a megabyte. Where a batch may end is found without parsing it first: a place
that looks like the end of an event is right exactly if what stands before it decodes as a list, since brackets and
quotes then balance. Only a batch that does not decode goes through `repair`, event by event.
"""

from __future__ import annotations

import contextlib
import gc
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from proftrack.errors import NotATraceError, TraceError
from proftrack.trace import members, repair
from proftrack.trace.rows import EXACT_ROWS, ROWS, InexactTimes, TableBuilder
from proftrack.trace.source import Buffer, read_ahead, read_chunks
from proftrack.trace.table import EventTable, Notes, TraceMeta
from proftrack.untrusted import MAX_LEVELS, TooDeepError, levels

BATCH_BYTES = 1 << 20
MAX_EVENT_BYTES = 64 << 20
"""An event larger than this is none; bounds what is held while its end is looked for."""
MAX_MEMBERS_BYTES = 32 << 20
"""Of the keys before the event array, and of those behind it."""

_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{)")
_LIST_END = re.compile(rb"\s*\]")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)


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
    with _no_collector(), contextlib.closing(read_ahead(read_chunks(path, max_bytes))) as chunks:
        parser = _Parser(path, Buffer(chunks), salvage)
        parser.run()
        table = parser.table()
    return Trace(path, table, size, parser.builder.events_seen)


def _size_on_disk(path: Path) -> int:
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})", "name a trace file") from error
    if stat.S_ISDIR(status.st_mode):
        raise TraceError(f"{path}: is a folder", "name a trace file in it")
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(f"{path}: is a pipe or a device, and a trace is read more than once", "write it to a file")
    if status.st_size == 0:
        raise TraceError(f"{path}: is empty", "export the trace again")
    return status.st_size


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

    def __init__(self, path: Path, buffer: Buffer, salvage: bool) -> None:
        self.path = path
        self.buffer = buffer
        self.salvage = salvage
        self.builder = TableBuilder()
        self.exact = False
        self.after_comma = False
        self.repaired = 0
        self.example: str | None = None
        self.skipped = 0
        self.partial: str | None = None
        self.meta: dict[str, Any] = {}

    def run(self) -> None:
        """Read the keys before the events, the events, and the keys behind them."""
        in_object = self._header()
        size = BATCH_BYTES
        while True:
            self.buffer.fill(size)
            before = self.buffer.offset
            if self._batch():
                break
            stuck = self.buffer.offset == before  # the buffer ends inside its only event
            size = 2 * len(self.buffer.data) if stuck else BATCH_BYTES
        if self.partial is None or self.buffer.data:
            self._trailer(in_object)

    def table(self) -> EventTable:
        """The table of what was read."""
        notes = Notes(repaired=self.repaired, repaired_example=self.example, skipped=self.skipped, partial=self.partial)
        return self.builder.build(_meta(self.meta), notes)

    # -- the keys before the events

    def _header(self) -> bool:
        """Consume up to the first event. False where the root is the bare list of events and no object."""
        buffer = self.buffer
        buffer.skip_to_content()
        if buffer.data.startswith(b"["):
            buffer.consume(1)
            return False
        if not buffer.data:
            self._fail(0, f"holds nothing but blanks{self._fault()}; export the trace again")
        if not buffer.data.startswith(b"{"):
            self._fail(0, f"is not a JSON trace (it starts with {_shown(buffer.data)}); name a Chrome trace")
        position = 1
        while True:
            found = members.scan(buffer.data, position, at_end=buffer.at_end, after_member=position > 1)
            self._keep_members(found)
            position = found.position
            if found.state == "events":
                buffer.consume(position)
                return True
            if found.state == "broken" and (events := members.find_events(buffer.data, position)):
                self._mend_members(position, events[0])
                buffer.consume(events[1])
                return True
            if found.state == "closed" or buffer.at_end or len(buffer.data) >= MAX_MEMBERS_BYTES:
                self._no_events(found)
            buffer.fill(min(2 * len(buffer.data), MAX_MEMBERS_BYTES))

    def _keep_members(self, found: members.Scan) -> None:
        self.meta.update(found.members)
        for fault in found.faults:
            self._note_repair(f"{fault} around the events", self.buffer.offset)

    def _mend_members(self, start: int, end: int) -> None:
        try:
            self.meta.update(members.mended(self.buffer.data, start, end))
        except ValueError as error:
            self._lost(start, end, f"not valid JSON ({error}), and no repair of it is certain", "the events")
            return
        self._note_repair("a key beside the events", self.buffer.offset + start)

    def _no_events(self, found: members.Scan) -> None:
        data, position = self.buffer.data, found.position
        if members.EVENTS in self.meta:
            value = self.meta[members.EVENTS]
            what = "null" if value is None else _shown(str(value).encode("utf-8", "replace"))
            self._fail(position, f'"traceEvents" is {what} and no list; export the trace again')
        if found.state == "closed":
            why = 'holds no "traceEvents"; it is JSON of another kind, not a trace of torch.profiler'
            raise NotATraceError(self._located(position, why), path=self.path)
        if found.state == "broken" and (not self.buffer.at_end or data.rstrip().endswith(b"}")):
            self._fail(position, f'{_shown(data[position:])} is not valid JSON, and no "traceEvents" follow')
        if self.buffer.at_end:
            self._fail(len(data), f'ends before its "traceEvents"{self._fault()}; copy it again')
        why = 'no "traceEvents" up to here; not a trace of torch.profiler'
        raise NotATraceError(self._located(len(data), why), path=self.path)

    # -- the events

    def _batch(self) -> bool:
        """Decode one batch; True when there are no more events."""
        data, at_end = self.buffer.data, self.buffer.at_end
        for piece, behind in [(memoryview(data), len(data))] if at_end else _pieces(data):
            try:
                self._add(b"".join((b"[", piece, b"" if at_end else b"]")))
            except (msgspec.ValidationError, TooDeepError):
                break
            except _NOT_JSON as error:
                if self._last_events(_array_end(error)):
                    return True
                continue
            self._check_last_comma()
            self.buffer.consume(behind)
            self.after_comma = True
            return at_end
        return self._walk()

    def _last_events(self, end: int | None) -> bool:
        """Decode the last events, those before the buffer's offset `end`; False where that is not all of them."""
        if end is None:
            return False
        self.buffer.fill(end + repair.LOOK_AHEAD)
        if repair.in_the_midst(self.buffer.data, self.buffer.data.rindex(b"]", 0, end)):
            return False
        try:
            self._add(b"".join((b"[", memoryview(self.buffer.data)[:end])))
        except _NOT_JSON:
            return False
        self._check_last_comma()
        self.buffer.consume(end)
        return True

    def _check_last_comma(self) -> None:
        if self.after_comma and _LIST_END.match(self.buffer.data):
            self._note_repair("a comma before the end of the events", self.buffer.offset)

    def _add(self, text: bytes) -> None:
        """Decode a list of events. Raises TooDeepError, msgspec.DecodeError, UnicodeDecodeError; then none is added."""
        if levels(text) > MAX_LEVELS + 1:  # the list itself is one
            raise TooDeepError
        if not self.exact:
            try:
                self.builder.add(ROWS.decode(text))
                return
            except InexactTimes:
                self.exact = True
            except msgspec.ValidationError:
                pass  # times as text, for one: an ExactRow takes them
        self.builder.add(EXACT_ROWS.decode(text))

    def _walk(self) -> bool:
        """Read a batch that does not decode event by event; True when there are no more events."""
        rows = []
        consumed, ended = 0, False
        for found in repair.walk(self.buffer.data, at_end=self.buffer.at_end, after_comma=self.after_comma):
            if isinstance(found, repair.Event):
                rows.append(found.row)
                if found.fault:
                    self._note_repair(found.fault, self.buffer.offset + found.start)
            elif isinstance(found, repair.Fault):
                self._note_repair(found.what, self.buffer.offset + found.start)
            elif isinstance(found, repair.Lost):
                self._lost(found.start, found.end, found.why, "the other events")
            elif isinstance(found, repair.Rest):
                consumed, self.after_comma = found.start, found.after_comma
            else:
                consumed, ended = found.end, True
        if rows:
            self.builder.add(rows)
        self.buffer.consume(consumed)
        if not ended and self.buffer.at_end:
            self._cut_short(
                "inside an event" if self.buffer.data.strip() else "behind an event, before the end of the events"
            )
            self.buffer.consume(len(self.buffer.data))
            return True
        if not ended and len(self.buffer.data) > MAX_EVENT_BYTES:
            self._fail(0, f"no end of an event within {MAX_EVENT_BYTES} bytes; not a trace")
        return ended

    # -- the keys behind the events

    def _trailer(self, in_object: bool) -> None:
        """Read the rest of the file: all of it, since the check sum of a gzip file stands at its very end."""
        buffer = self.buffer
        buffer.fill(MAX_MEMBERS_BYTES)
        if not buffer.at_end:
            self._fail(0, f"more than {MAX_MEMBERS_BYTES} bytes stand behind the events; not a trace")
        position = self._closing_members() if in_object else 0
        if self.partial is None and (rest := buffer.data[position:].strip(b" \t\r\n")):
            if repair.holds_events(rest):
                self._lost(position, len(buffer.data), "events behind the end of the events", "those before")
            else:
                self._note_repair("something behind the end of the trace", buffer.offset + position)
        if buffer.fault and buffer.fault.damaged:
            self._cut_short("", f"{buffer.fault}: its figures may be wrong")
        elif buffer.fault:
            self._note_repair(f"{buffer.fault}, behind the last byte of the trace,", buffer.offset)

    def _closing_members(self) -> int:
        """Read the keys behind the events; returns where the root object ends."""
        data = self.buffer.data
        found = members.scan(data, 0, at_end=True, after_member=True)
        self._keep_members(found)
        if found.state == "closed":
            return found.position
        if found.state == "events":
            self._lost(found.position, len(data), "a second list of events", "the first")
            return len(data)
        end = len(data.rstrip())
        if end <= found.position or not data[:end].endswith(b"}"):
            self._cut_short("behind the events, before the closing brace")
        else:
            self._mend_members(found.position, end - 1)
        return len(data)

    # -- what is wrong, and where

    def _lost(self, start: int, end: int, why: str, others: str) -> None:
        """Bytes of the buffer that cannot be read."""
        if self.salvage and self.partial is not None:
            self.skipped += 1
            return
        text = f"{self._at(self.buffer.offset + start)}: {_shown(self.buffer.data[start:end])} is {why}"
        if not self.salvage:
            raise TraceError(f"{text}", f"--salvage reads {others}")
        self.partial = text
        self.skipped += 1

    def _cut_short(self, where: str, what: str = "") -> None:
        """The file stops before its events do."""
        at = self._at(self.buffer.offset + len(self.buffer.data))
        why = f"{at}: {what or f'the file ends {where}{self._fault()}'}"
        if not self.salvage:
            raise TraceError(f"{why}", "copy it again, or --salvage reads the events that are whole")
        self.partial = self.partial or why
        self.skipped += 1

    def _fail(self, position: int, why: str) -> NoReturn:
        raise TraceError(self._located(position, why))

    def _located(self, position: int, why: str) -> str:
        return f"{self._at(self.buffer.offset + position) if position else self.path}: {why}"

    def _fault(self) -> str:
        return f" ({self.buffer.fault})" if self.buffer.fault else ""

    def _note_repair(self, what: str, offset: int) -> None:
        self.repaired += 1
        if self.example is None:
            self.example = f"{what} at {self._at(offset)}"

    def _at(self, offset: int) -> str:
        """`file, byte N, line L`: the line is counted by reading the file again, which only a fault pays for."""
        lines, seen = 1, 0
        source = Buffer(read_chunks(self.path, 1 << 62))
        while seen < offset and (chunk := source.take()):
            lines += chunk.count(b"\n", 0, offset - seen)
            seen += len(chunk)
        return f"{self.path}, byte {offset}, line {lines}"


def _pieces(data: bytes, tries: int = 8) -> Iterator[tuple[memoryview, int]]:
    """Parts of the buffer that look as if they ended with an event, the longest first, and where the next begins."""
    window = 1 << 14
    while True:
        start = max(0, len(data) - window)
        found = list(_BOUNDARY.finditer(data, start))
        if found or start == 0:
            break
        window *= 16
    for match in found[::-1][:tries]:
        yield memoryview(data)[: match.start() + 1], match.end()


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
        device_properties=[_scalars(d) for d in devices if isinstance(d, dict)] if isinstance(devices, list) else [],
        distributed=distributed if isinstance(distributed, dict) else None,
        base_time_ns=base if isinstance(base, int) else None,
        fields={k: v for k, v in _scalars(document).items() if k != "baseTimeNanoseconds"},
    )


def _scalars(members: dict[str, Any]) -> dict[str, Any]:
    """Only the texts and numbers."""
    return {k: v for k, v in members.items() if isinstance(v, (str, int, float))}


def _shown(text: bytes, length: int = 60) -> str:
    """The beginning of untrusted bytes, fit for a one-line message."""
    return repr(text[:length].decode("utf-8", "replace")) + ("..." if len(text) > length else "")
