"""Reads a trace file as a stream: the JSON is never completely in memory, and no event becomes a dict.

Events are decoded in batches of a megabyte. A batch's end is found without parsing it first: a position that looks
like the end of an event is one exactly if the text before it decodes as a list, because brackets and quotes then
balance. Only a batch that does not decode goes through `repair`, event by event.
"""

from __future__ import annotations

import contextlib
import gc
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from proftrack.errors import NotATraceError, TraceError
from proftrack.trace import marks, members, repair
from proftrack.trace.rows import EXACT_ROWS, ROWS, TableBuilder
from proftrack.trace.source import Buffer, read_ahead, read_chunks
from proftrack.trace.table import EventTable, Notes, TraceMeta
from proftrack.trace.values import InexactTimes
from proftrack.untrusted import MAX_LEVELS, TooDeepError, levels

BATCH_BYTES = 1 << 20
MAX_EVENT_BYTES = 64 << 20
"""Anything larger is not an event; bounds the memory used while searching for an event's end."""
MAX_MEMBERS_BYTES = 32 << 20
"""Limit for the keys before the event array, and for those after it."""

_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{)")
_LIST_END = re.compile(rb"\s*\]")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)


class Trace(NamedTuple):
    """A trace file that was read."""

    path: Path
    table: EventTable
    file_bytes: int
    events: int
    """Events of any phase in the file."""


def read(path: Path, *, salvage: bool = False, max_bytes: int | None = None) -> Trace:
    """Read a Chrome trace as written by torch.profiler, plain or gzip.

    With `salvage`, the intact part of a broken file is read, and `table.notes.partial` says why the rest is not.
    Raises TraceError, naming the file, byte offset and line, if the file cannot be read.
    """
    size = _size_on_disk(path)
    with _no_collector(), contextlib.closing(read_ahead(read_chunks(path, max_bytes))) as chunks:
        rows = _Rows()
        parser = Parser(path, Buffer(chunks), rows, salvage=salvage)
        parser.run()
        table = rows.builder.build(_meta(parser.meta), parser.notes)
    return Trace(path, table, size, rows.builder.events_seen)


def _size_on_disk(path: Path) -> int:
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})", "name a trace file") from error
    if stat.S_ISDIR(status.st_mode):
        raise TraceError(f"{path}: is a folder", "name a trace file in it")
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(f"{path}: is a pipe or a device, but a trace is read more than once", "write it to a file")
    if status.st_size == 0:
        raise TraceError(f"{path}: is empty", "export the trace again")
    return status.st_size


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """The rows have no reference cycles; the collector would only scan millions of them for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Sink(Protocol):
    """Takes the events of a file in order."""

    def batch(self, text: bytes) -> None:
        """A list of events as JSON. If it raises msgspec.DecodeError or UnicodeDecodeError, none was taken."""

    def events(self, data: bytes, found: list[repair.Event]) -> None:
        """Events of `data`, which is not JSON."""


class _Rows:
    """The events as a table."""

    def __init__(self) -> None:
        self.builder = TableBuilder()
        self.exact = False

    def batch(self, text: bytes) -> None:
        if not self.exact:
            try:
                rows = ROWS.decode(text)
                check_utf8(text)
                self.builder.add(rows, partial(marks.arguments, text))
                return
            except InexactTimes:
                self.exact = True
            except msgspec.ValidationError:
                pass  # for example, times written as text, which an ExactRow accepts
        exact_rows = EXACT_ROWS.decode(text)
        check_utf8(text)
        self.builder.add(exact_rows, partial(marks.arguments, text))

    def events(self, data: bytes, found: list[repair.Event]) -> None:
        self.builder.add([event.row for event in found], partial(repair.arguments, data, found))


def check_utf8(text: bytes) -> None:
    """Raise UnicodeDecodeError if it is not UTF-8: msgspec does not look into values that it skips."""
    if not text.isascii():
        text.decode("utf-8")


class Parser:
    """One pass over one file: its events go to the sink, its other members and what is wrong with it stay here."""

    def __init__(self, path: Path, buffer: Buffer, sink: Sink, *, salvage: bool) -> None:
        self.path = path
        self.buffer = buffer
        self.sink = sink
        self.salvage = salvage
        self.after_comma = False
        self.repaired = 0
        self.example: str | None = None
        self.skipped = 0
        self.partial: str | None = None
        self.meta: dict[str, Any] = {}

    def run(self) -> None:
        """Read the keys before the events, the events, and the keys after them."""
        in_object = self._header()
        size = BATCH_BYTES
        while True:
            self.buffer.fill(size)
            before = self.buffer.offset
            if self._batch():
                break
            stuck = self.buffer.offset == before  # the buffer holds part of one event
            size = 2 * len(self.buffer.data) if stuck else BATCH_BYTES
        if self.partial is None or self.buffer.data:
            self._trailer(in_object)

    @property
    def notes(self) -> Notes:
        """What was repaired and what was lost."""
        return Notes(repaired=self.repaired, repaired_example=self.example, skipped=self.skipped, partial=self.partial)

    # -- the keys before the events

    def _header(self) -> bool:
        """Consume everything up to the first event. False if the root is a bare list of events, not an object."""
        buffer = self.buffer
        buffer.skip_to_content()
        if buffer.data.startswith(b"["):
            buffer.consume(1)
            return False
        if not buffer.data:
            self._fail(0, f"contains only whitespace{self._fault()}", "export the trace again")
        if not buffer.data.startswith(b"{"):
            self._fail(0, f"is not a JSON trace (it starts with {_shown(buffer.data)})", "name a Chrome trace")
        position = 1
        while True:
            scan = members.scan(buffer.data, position, at_end=buffer.at_end, after_member=position > 1)
            self._keep_members(scan)
            position = scan.position
            if scan.state == "events":
                buffer.consume(position)
                return True
            if scan.state == "broken" and (events := members.find_events(buffer.data, position)):
                self._mend_members(position, events[0])
                buffer.consume(events[1])
                return True
            if scan.state == "closed" or buffer.at_end or len(buffer.data) >= MAX_MEMBERS_BYTES:
                self._no_events(scan)
            buffer.fill(min(2 * len(buffer.data), MAX_MEMBERS_BYTES))

    def _keep_members(self, scan: members.Scan) -> None:
        self.meta.update(scan.members)
        for fault in scan.faults:
            self.note_repair(f"{fault} outside the events", self.buffer.offset)

    def _mend_members(self, start: int, end: int) -> None:
        try:
            self.meta.update(members.mended(self.buffer.data, start, end))
        except ValueError as error:
            self._lost(start, end, f"not valid JSON ({error}) and cannot be repaired without guessing", "the events")
            return
        self.note_repair("a key outside the events", self.buffer.offset + start)

    def _no_events(self, scan: members.Scan) -> NoReturn:
        data, position = self.buffer.data, scan.position
        if members.EVENTS in self.meta:
            value = self.meta[members.EVENTS]
            shown = "null" if value is None else _shown(str(value).encode("utf-8", "replace"))
            self._fail(position, f'"traceEvents" is {shown}, not a list', "export the trace again")
        if scan.state == "closed":
            why = 'contains no "traceEvents": it is JSON of another kind, not a torch.profiler trace'
            raise NotATraceError(self._located(position, why), path=self.path)
        if scan.state == "broken" and (not self.buffer.at_end or data.rstrip().endswith(b"}")):
            self._fail(position, f'{_shown(data[position:])} is not valid JSON, and no "traceEvents" follows')
        if self.buffer.at_end:
            self._fail(len(data), f'the file ends before its "traceEvents"{self._fault()}', "copy it again")
        why = 'no "traceEvents" up to this point: not a torch.profiler trace'
        raise NotATraceError(self._located(len(data), why), path=self.path)

    # -- the events

    def _batch(self) -> bool:
        """Decode one batch; True if there are no more events."""
        data, at_end = self.buffer.data, self.buffer.at_end
        for piece, next_start in [(memoryview(data), len(data))] if at_end else _pieces(data):
            try:
                self._add(b"".join((b"[", piece, b"" if at_end else b"]")))
            except (msgspec.ValidationError, TooDeepError):
                break
            except _NOT_JSON as error:
                if self._last_events(_array_end(error)):
                    return True
                continue
            self._check_last_comma()
            self.buffer.consume(next_start)
            self.after_comma = True
            return at_end
        return self._walk()

    def _last_events(self, end: int | None) -> bool:
        """Decode the last events, those before the buffer's offset `end`; False if more events follow."""
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
            self.note_repair("an extra comma before the end of the events", self.buffer.offset)

    def _add(self, text: bytes) -> None:
        """Hand on a list of events. TooDeepError, msgspec.DecodeError, UnicodeDecodeError: none was added."""
        if levels(text) > MAX_LEVELS + 1:  # the list itself is one level
            raise TooDeepError
        self.sink.batch(text)

    def _walk(self) -> bool:
        """Read event by event a batch that does not decode; True if there are no more events."""
        found = []
        consumed, ended = 0, False
        for item in repair.walk(self.buffer.data, at_end=self.buffer.at_end, after_comma=self.after_comma):
            if isinstance(item, repair.Event):
                found.append(item)
                if item.fault:
                    self.note_repair(item.fault, self.buffer.offset + item.start)
            elif isinstance(item, repair.Fault):
                self.note_repair(item.what, self.buffer.offset + item.start)
            elif isinstance(item, repair.Lost):
                self._lost(item.start, item.end, item.why, "the other events")
            elif isinstance(item, repair.Rest):
                consumed, self.after_comma = item.start, item.after_comma
            else:
                consumed, ended = item.end, True
        if found:
            self.sink.events(self.buffer.data, found)
        self.buffer.consume(consumed)
        if not ended and self.buffer.at_end:
            inside = self.buffer.data.strip()
            self._cut_short(self._ends("inside an event" if inside else "after an event, before the end of the events"))
            self.buffer.consume(len(self.buffer.data))
            return True
        if not ended and len(self.buffer.data) > MAX_EVENT_BYTES:
            self._fail(0, f"no event ends within {MAX_EVENT_BYTES} bytes: not a trace")
        return ended

    # -- the keys after the events

    def _trailer(self, in_object: bool) -> None:
        """Read the rest of the file: all of it, since the checksum of a gzip file is at its very end."""
        buffer = self.buffer
        buffer.fill(MAX_MEMBERS_BYTES)
        if not buffer.at_end:
            self._fail(0, f"more than {MAX_MEMBERS_BYTES} bytes follow the events: not a trace")
        position = self._closing_members() if in_object else 0
        if self.partial is None and (rest := buffer.data[position:].strip(b" \t\r\n")):
            if repair.holds_events(rest):
                self._lost(
                    position, len(buffer.data), "more events after the end of the event list", "the events before them"
                )
            else:
                self.note_repair("data after the end of the trace", buffer.offset + position)
        if buffer.fault and buffer.fault.damaged:
            self._cut_short(f"{buffer.fault}: its figures may be wrong")
        elif buffer.fault:
            self.note_repair(f"{buffer.fault}, after the last byte of the trace,", buffer.offset)

    def _closing_members(self) -> int:
        """Read the keys after the events; returns where the root object ends."""
        data = self.buffer.data
        scan = members.scan(data, 0, at_end=True, after_member=True)
        self._keep_members(scan)
        if scan.state == "closed":
            return scan.position
        if scan.state == "events":
            self._lost(scan.position, len(data), "a second event list", "the first")
            return len(data)
        end = len(data.rstrip())
        if end <= scan.position or not data[:end].endswith(b"}"):
            self._cut_short(self._ends("after the events, before the closing brace"))
        else:
            self._mend_members(scan.position, end - 1)
        return len(data)

    # -- what is wrong, and where

    def _lost(self, start: int, end: int, what: str, others: str) -> None:
        """Bytes [start, end) of the buffer cannot be read: they are `what`; `others` can still be salvaged."""
        if self.salvage and self.partial is not None:
            self.skipped += 1
            return
        problem = f"{self._at(self.buffer.offset + start)}: {_shown(self.buffer.data[start:end])} is {what}"
        if not self.salvage:
            raise TraceError(problem, f"pass --salvage to read {others}")
        self.partial = problem
        self.skipped += 1

    def _cut_short(self, why: str) -> None:
        """The file stops before its events do."""
        problem = f"{self._at(self.buffer.offset + len(self.buffer.data))}: {why}"
        if not self.salvage:
            raise TraceError(problem, "copy it again, or pass --salvage to read the complete events")
        self.partial = self.partial or problem
        self.skipped += 1

    def _ends(self, where: str) -> str:
        return f"the file ends {where}{self._fault()}"

    def _fail(self, position: int, problem: str, remedy: str | None = None) -> NoReturn:
        raise TraceError(self._located(position, problem), remedy)

    def _located(self, position: int, why: str) -> str:
        return f"{self._at(self.buffer.offset + position) if position else self.path}: {why}"

    def _fault(self) -> str:
        return f" ({self.buffer.fault})" if self.buffer.fault else ""

    def note_repair(self, what: str, offset: int) -> None:
        """Something that is not JSON was read without guessing."""
        self.repaired += 1
        if self.example is None:
            self.example = f"{what} at {self._at(offset)}"

    def _at(self, offset: int) -> str:
        """`file, byte N, line L`. Counting lines means reading the file again, which happens only for a fault."""
        lines, seen = 1, 0
        source = Buffer(read_chunks(self.path, 1 << 62))
        while seen < offset and (chunk := source.take()):
            lines += chunk.count(b"\n", 0, offset - seen)
            seen += len(chunk)
        return f"{self.path}, byte {offset}, line {lines}"


def _pieces(data: bytes, tries: int = 8) -> Iterator[tuple[memoryview, int]]:
    """Parts of the buffer that seem to end with an event, the longest first, and where the next event begins."""
    window = 1 << 14
    while True:
        start = max(0, len(data) - window)
        boundaries = list(_BOUNDARY.finditer(data, start))
        if boundaries or start == 0:
            break
        window *= 16
    for match in boundaries[::-1][:tries]:
        yield memoryview(data)[: match.start() + 1], match.end()


def _array_end(error: Exception) -> int | None:
    """Offset in the buffer just after the event array, if the decoder failed on text that follows it; else None.

    msgspec counts bytes from one, and the `[` put before a batch adds one more.
    """
    trailing = _TRAILING.search(str(error))
    return int(trailing[1]) - 2 if trailing else None


def _meta(document: dict[str, Any]) -> TraceMeta:
    """The root's other keys that the measures need; unknown keys and wrong types are left out."""
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
    """The beginning of untrusted bytes, safe to show in a one-line message."""
    return repr(text[:length].decode("utf-8", "replace")) + ("..." if len(text) > length else "")
