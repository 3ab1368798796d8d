"""The event table: one row per complete event ("ph": "X"), as numpy columns. All columns are documented here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.trace.categories import GPU_KINDS, HOST_KINDS, Kind

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

TELLING = 2000
"""Characters of a name that identify it: matching the categories' patterns against a megabyte would be slow."""
NONE = -1
"""In an id column: the row has none."""


@dataclass(frozen=True, kw_only=True)
class TraceMeta:
    """The trace's metadata, outside its events."""

    device_properties: list[dict[str, Any]] = field(default_factory=list)
    distributed: dict[str, Any] | None = None
    base_time_ns: int | None = None
    """Epoch nanoseconds that ts counts from; None if ts is itself an epoch time, or if unknown."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The other top-level scalars (with_stack, record_shapes, versions, ...)."""

    def device(self, index: int) -> dict[str, Any] | None:
        """Properties of the device with that id; None if the trace has none."""
        return next((d for d in self.device_properties if d.get("id") == index), None)


class Meeting(NamedTuple):
    """What torch writes beside a collective, as it stands in the file: any value may be missing or of any type."""

    collective: Any
    """`allreduce`, `send`, ..."""
    group: Any
    """Name of the process group."""
    ranks: Any
    """The group's ranks, usually as text; torch shortens long lists: `[0, 1, ..., 63]`."""
    size: Any
    """How many they are."""
    sequence: Any
    """Number of the collective within its group."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryRows:
    """What the allocators did, as `profile_memory` records it: instants named `[memory]`, in file order."""

    ts: Ints
    """Nanoseconds on the table's clock, before whose beginning a row may be; NONE where not `valid`."""
    valid: Bools
    """False if the file's time is missing or far from the complete events."""
    address: Ints
    bytes: Ints
    """Positive for an allocation, negative when memory is freed; 0 if the row does not say."""
    allocated: Ints
    """Bytes allocated on the device afterwards; NONE if the row does not say."""
    reserved: Ints
    """Bytes that the allocator keeps afterwards; NONE if the row does not say."""
    device_type: Ints
    """torch's number: 0 for a CPU, 1 for CUDA; NONE if the row does not say."""
    device: Ints
    """NONE for a CPU."""
    thread: Codes
    """Index into the table's `threads`."""
    ev_idx: Ints

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, kw_only=True, eq=False)
class CounterRows:
    """Counter events (`"ph": "C"`), one row per series of each, in file order."""

    ts: Ints
    """As that of MemoryRows, like the next."""
    valid: Bools
    name: Codes
    """Index into `names`: the counter's name."""
    series: Codes
    """Index into `names`: the key of the value in the event's arguments."""
    value: npt.NDArray[np.float64]
    """NaN for what is not a number."""
    thread: Codes
    """Index into the table's `threads`."""
    names: list[str]

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowRows:
    """Flow events, in file order: arrows from one event (`"ph": "s"`) to another (`"f"`) with the same id and category.

    `fwdbwd` leads from a forward operator to its backward, `ac2g` from a launch to its work.
    """

    ts: Ints
    """As that of MemoryRows, like the next."""
    valid: Bools
    id: Ints
    """A text that is no number has a number of this process's own."""
    category: Codes
    """Index into `categories`."""
    is_end: Bools
    """A point on the way (`"t"`) counts as an end."""
    thread: Codes
    """Index into the table's `threads`."""
    categories: list[str]

    def __len__(self) -> int:
        return len(self.ts)


class LaunchConfig(NamedTuple):
    """How a kernel was launched. NONE for what its row does not say; copies and sets say none of it."""

    blocks: int
    """Thread blocks of the grid."""
    block_threads: int
    """Threads of each block."""
    registers: int
    """Registers of each thread."""
    shared_bytes: int
    """Shared memory of each block, static and dynamic."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Repairs and losses while reading: counts for the quality flags."""

    repaired: int = 0
    """Places that were not valid JSON but could be read without guessing."""
    repaired_example: str | None = None
    skipped: int = 0
    """Events lost in a partial file (`--salvage`)."""
    duplicates: int = 0
    """Events that stood in the file more than once; the table has each once."""
    legacy: bool = False
    """torch.autograd's old profiler wrote the file (trace.legacy): it records neither launches nor kernels."""
    operators_on_gpu: int = 0
    """How many of its operators did something on a GPU."""
    partial: str | None = None
    """Why the file is partial; None if it is complete."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EventTable:
    """Complete events of one trace file. All columns have one entry per row, in file order.

    Times are integer nanoseconds relative to the file's first valid event (`origin_ns` on the file's own clock).
    Rows with impossible times (see `valid`) are kept: GPU work is never dropped, only left out of intervals.
    """

    ts: Ints
    dur: Ints
    """Never negative; 0 if the file's value was invalid."""
    valid: Bools
    """False if ts or dur is missing, negative, absurd or decades away from the rest."""
    name: Codes
    """Index into `names`."""
    kind: npt.NDArray[np.int8]
    """categories.Kind of the row."""
    category: Codes
    """Index into `categories`: the file's own name."""
    thread: Codes
    """Index into `threads`: (pid, tid) as text."""
    device: Codes
    """Device of GPU work (NONE elsewhere)."""
    lane: Codes
    """Index into `lanes`: (device, stream), for GPU work (NONE elsewhere)."""
    correlation: Ints
    """Joins a runtime or driver call with the GPU work it caused."""
    external_id: Ints
    ev_idx: Ints
    """Order in which torch recorded the row: breaks ties in time."""
    config: Codes
    """Index into `configs`: grid, block, registers and shared memory of GPU work (NONE elsewhere)."""
    size: Ints
    """Bytes moved by a copy or set."""
    signature: Codes
    """Index into `signatures`: an operator's input shapes, types and concrete values, as raw JSON."""
    meeting: Codes
    """Index into `meetings`: what the row says of its collective."""
    sequence: Ints
    """Of an operator, autograd's sequence number: a backward operator has that of its forward operator. Every operator
    that makes no node has the number of the next one, so of several the last to start is the node's."""
    forward_thread: Ints
    """Of a backward operator, torch's own number of the thread that its forward operator ran on; else NONE or 0."""
    launches: Codes
    """Of a launch call, index into `names`: the kernel's name, where the call's row has it (ROCm writes it, CUDA does
    not). Not in events.parquet."""

    names: list[str]
    categories: list[str]
    threads: list[tuple[str, str]]
    lanes: list[tuple[int, str]]
    configs: list[LaunchConfig]
    signatures: list[tuple[bytes, bytes, bytes]]
    meetings: list[Meeting]
    meta: TraceMeta
    notes: Notes
    origin_ns: int
    memory: MemoryRows | None = None
    """None if the file has none, like the next two."""
    counters: CounterRows | None = None
    flows: FlowRows | None = None

    def __len__(self) -> int:
        return len(self.ts)

    @cached_property
    def end(self) -> Ints:
        """ts + dur."""
        return self.ts + self.dur

    @cached_property
    def blocks(self) -> Ints:
        """Thread blocks of a kernel's grid (NONE elsewhere)."""
        known = [config.blocks for config in self.configs]
        return np.array([*known, NONE], dtype=np.int64)[self.config]  # NONE is the last

    def of_kind(self, *kinds: Kind) -> Bools:
        """Mask of the rows of these kinds."""
        lookup = np.zeros(len(Kind), dtype=bool)
        lookup[list(kinds)] = True
        return lookup.take(self.kind)

    @property
    def started_ns(self) -> int:
        """The first event's time; in epoch nanoseconds if the file says what its clock counts from."""
        return self.origin_ns + (self.meta.base_time_ns or 0)

    @cached_property
    def gpu_work(self) -> Bools:
        """Mask of GPU work: kernels, copies and sets, with valid times or not."""
        return self.of_kind(*GPU_KINDS)

    @cached_property
    def host(self) -> Bools:
        """Mask of the rows that self CPU time is counted over."""
        return self.of_kind(*HOST_KINDS)

    @cached_property
    def on_stream(self) -> Bools:
        """Mask of GPU work on a lane that is one stream: its name is neither absent nor negative."""
        is_stream = [s not in ("", "None") and not s.startswith("-") for _, s in self.lanes]
        return np.asarray(np.array([*is_stream, False], dtype=bool)[self.lane])  # NONE is the last

    def named(self, predicate: Any) -> Bools:
        """Mask of the rows with a name (cut to TELLING) that satisfies `predicate(str)`, called once per name."""
        table = np.fromiter((bool(predicate(n[:TELLING])) for n in self.names), dtype=bool, count=len(self.names))
        return table.take(self.name) if table.any() else np.zeros(len(self), dtype=bool)

    def take(self, rows: Any) -> EventTable:
        """The table of only these rows (a mask or indices), with all memory rows, counters and flows.

        Names and other shared values are not copied.
        """
        columns = {c: getattr(self, c)[rows] for c in COLUMNS}
        return replace(self, **columns)


COLUMNS = (
    "ts",
    "dur",
    "valid",
    "name",
    "kind",
    "category",
    "thread",
    "device",
    "lane",
    "correlation",
    "external_id",
    "ev_idx",
    "config",
    "size",
    "signature",
    "meeting",
    "sequence",
    "forward_thread",
    "launches",
)
"""The columns of EventTable, in the order of its fields."""
