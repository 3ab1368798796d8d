"""Traces made by hand, for tests: `TraceBuilder().step(2, at=0, dur=100).launch(at=10, correlation=1).kernel(...)`.

All times are microseconds, as in a trace file. Every method adds one event and returns the builder.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from proftrack.measures import Measures, measure
from proftrack.trace.reader import read
from proftrack.trace.table import EventTable

MAIN = 101
"""The thread that events are on where none is named."""
BACKWARD = 102


class TraceBuilder:
    """Collects the events of one trace."""

    def __init__(self, *, pid: int = 100, sms: int | None = 100, devices: int = 1) -> None:
        self.pid = pid
        self.events: list[Any] = []
        self.members: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
        if sms is not None:
            self.members["deviceProperties"] = [
                {"id": i, "name": f"Test GPU {i}", "numSms": sms} for i in range(devices)
            ]

    # -- any event

    def event(self, **fields: Any) -> TraceBuilder:
        """An event exactly as given."""
        self.events.append(fields)
        return self

    def member(self, **members: Any) -> TraceBuilder:
        """Keys of the root object beside the events."""
        self.members.update(members)
        return self

    def row(
        self, cat: str, name: str, at: float, dur: float, *, thread: Any = MAIN, pid: Any = None, **args: Any
    ) -> TraceBuilder:
        """A complete event with these arguments (`Ev_Idx=3` means the key "Ev Idx")."""
        named = {key.replace("_", " ") if key[0].isupper() else key: value for key, value in args.items()}
        return self.event(
            ph="X", cat=cat, name=name, pid=self.pid if pid is None else pid, tid=thread, ts=at, dur=dur, args=named
        )

    # -- the host

    def step(self, number: int, *, at: float, dur: float, **more: Any) -> TraceBuilder:
        return self.row("user_annotation", f"ProfilerStep#{number}", at, dur, **more)

    def region(self, name: str, *, at: float, dur: float, **more: Any) -> TraceBuilder:
        return self.row("user_annotation", name, at, dur, **more)

    def op(self, name: str, *, at: float, dur: float, **more: Any) -> TraceBuilder:
        return self.row("cpu_op", name, at, dur, **more)

    def python(self, name: str, *, at: float, dur: float, **more: Any) -> TraceBuilder:
        return self.row("python_function", name, at, dur, **more)

    def call(self, name: str, *, at: float, dur: float, cat: str = "cuda_runtime", **more: Any) -> TraceBuilder:
        """A runtime call; `correlation=` joins it with GPU work."""
        return self.row(cat, name, at, dur, **more)

    def launch(
        self, *, at: float, correlation: Any, dur: float = 1, name: str = "cudaLaunchKernel", **more: Any
    ) -> TraceBuilder:
        return self.call(name, at=at, dur=dur, correlation=correlation, **more)

    def sync(self, *, at: float, dur: float, name: str = "cudaDeviceSynchronize", **more: Any) -> TraceBuilder:
        return self.call(name, at=at, dur=dur, **more)

    # -- the GPU

    def gpu(
        self, cat: str, name: str, at: float, dur: float, *, device: Any = 0, stream: Any = 7, **args: Any
    ) -> TraceBuilder:
        return self.row(cat, name, at, dur, pid=device, thread=stream, device=device, stream=stream, **args)

    def kernel(self, name: str = "gemm", *, at: float, dur: float, **args: Any) -> TraceBuilder:
        """A kernel with a grid that fills the GPU, unless `grid=` says otherwise."""
        return self.gpu("kernel", name, at, dur, **{"grid": [1000, 1, 1], "block": [256, 1, 1], **args})

    def memcpy(
        self, name: str = "Memcpy HtoD (Pinned -> Device)", *, at: float, dur: float, **args: Any
    ) -> TraceBuilder:
        return self.gpu("gpu_memcpy", name, at, dur, **args)

    def memset(self, name: str = "Memset (Device)", *, at: float, dur: float, **args: Any) -> TraceBuilder:
        return self.gpu("gpu_memset", name, at, dur, **args)

    def work(
        self, correlation: int, *, launch: float, at: float, dur: float, name: str = "gemm", **args: Any
    ) -> TraceBuilder:
        """A launch of 1 us at `launch`, and its kernel."""
        return self.launch(at=launch, correlation=correlation).kernel(
            name, at=at, dur=dur, correlation=correlation, **args
        )

    # -- what takes no time

    def memory(self, size: Any, *, at: Any, thread: Any = MAIN, pid: Any = None, **args: Any) -> TraceBuilder:
        """An allocation of `size` bytes, or a release if negative, as torch writes it; more arguments by their keys."""
        return self.event(
            ph="i", s="t", cat="cpu_instant_event", name="[memory]", pid=self.pid if pid is None else pid, tid=thread,
            ts=at, args={"Bytes": size, **{key.replace("_", " "): value for key, value in args.items()}},
        )  # fmt: skip

    def counter(self, name: str, *, at: Any, thread: Any = MAIN, pid: Any = None, args: Any) -> TraceBuilder:
        return self.event(ph="C", name=name, pid=self.pid if pid is None else pid, tid=thread, ts=at, args=args)

    def arrow(
        self, phase: str, *, at: Any, id: Any, cat: str = "ac2g", thread: Any = MAIN, pid: Any = None
    ) -> TraceBuilder:
        """The beginning ("s") or end ("f") of a flow."""
        pid = self.pid if pid is None else pid
        return self.event(ph=phase, id=id, pid=pid, tid=thread, ts=at, cat=cat, name=cat)

    # -- CUDA graphs

    def captured(
        self, *launches: tuple[Any, ...], at: float, name: str = "cudaLaunchKernel", thread: Any = MAIN, **more: Any
    ) -> TraceBuilder:
        """A capture of these launches, each (operator, input shapes), one every 10 us: they have no GPU work.

        An operator named like a copy or set of the runtime makes that call.
        """
        self.call("cudaStreamBeginCapture", at=at, dur=1, thread=thread)
        for number, (operator, *dims) in enumerate(launches, 1):
            begin, copies = at + 10 * number, operator.startswith("cudaMem")
            shapes = {"Input_Dims": dims, "Input_type": ["float"] * len(dims)} if dims else {}
            self.op("aten::copy_" if copies else operator, at=begin, dur=8, thread=thread, **shapes)
            call = operator if copies else name
            self.launch(at=begin + 2, correlation=int(at) * 1000 + number, name=call, thread=thread, **more)
        return self.call("cudaStreamEndCapture", at=at + 10 * len(launches) + 10, dur=1, thread=thread)

    def replay(
        self, *work: str, at: float, correlation: int, dur: float = 4, blocks: int = 1000, stream: int = 7
    ) -> TraceBuilder:
        """A launch of a graph at `at`, and this work one after the other, from 5 us later on."""
        self.launch(at=at, dur=3, correlation=correlation, name="cudaGraphLaunch")
        for number, name in enumerate(work):
            add = (
                self.memcpy if name.startswith("Memcpy") else self.memset if name.startswith("Memset") else self.kernel
            )
            size: dict[str, Any] = {"bytes": 64} if add != self.kernel else {"grid": [blocks, 1, 1]}
            begin = at + 5 + (dur + 1) * number
            add(name, at=begin, dur=dur, correlation=correlation, stream=stream, **size)
        return self

    # -- the finished trace

    def document(self) -> dict[str, Any]:
        return {**self.members, "traceEvents": self.events, "traceName": "made by hand"}

    def json(self, indent: int | None = 1) -> bytes:
        return json.dumps(self.document(), indent=indent).encode()

    def write(self, path: Path, indent: int | None = 1) -> Path:
        """The trace as a file; gzip where the name ends in .gz."""
        text = self.json(indent)
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return path

    def table(self) -> EventTable:
        """The trace as the reader reads it."""
        return table_of(self.json())

    def measures(self) -> Measures:
        return measure(self.table())


def table_of(text: bytes, **options: Any) -> EventTable:
    """The event table of a trace given as the bytes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(text)
        return read(path, **options).table


def flags(measures: Measures) -> dict[str, int]:
    """Code and count of every quality flag."""
    return {flag.code: flag.count for flag in measures.flags}


def clean() -> TraceBuilder:
    """Two steps of 100 us in one region each, with a kernel of 40 us each: nothing about it is worth a flag.

    host  |-#2: fwd[mm[L]]------------------|-#3: fwd[mm[L]]------------------|
           0        10-11               100          110-111               200
    GPU               15======55                        115======155
    """
    trace = TraceBuilder()
    for number, at in ((2, 0), (3, 100)):
        trace.step(number, at=at, dur=100).region("forward", at=at + 5, dur=90).op("aten::mm", at=at + 8, dur=10)
        trace.work(number, launch=at + 10, at=at + 15, dur=40)
    return trace


def rows_of(table: EventTable) -> list[tuple[Any, ...]]:
    """The rows of a table with their codes looked up, times in nanoseconds of the file's own clock."""
    return [
        (
            table.names[table.name[i]],
            table.categories[table.category[i]],
            table.threads[table.thread[i]],
            table.lanes[table.lane[i]] if table.lane[i] >= 0 else None,
            int(table.ts[i]) + table.origin_ns,
            int(table.dur[i]),
            bool(table.valid[i]),
            int(table.correlation[i]),
            int(table.external_id[i]),
            int(table.ev_idx[i]),
            int(table.blocks[i]),
            int(table.size[i]),
            table.signatures[table.signature[i]] if table.signature[i] >= 0 else None,
        )
        for i in range(len(table))
    ]
