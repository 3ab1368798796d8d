"""The record: everything known about one profiled run or trace, frozen, with a schema version.

Format history
    1   first
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from proftrack import depth
from proftrack.capture.gpu_state import GpuState
from proftrack.capture.result import Timing
from proftrack.environment import Environment
from proftrack.errors import ProftrackError
from proftrack.hardware import Ceilings, StepWork
from proftrack.measures.results import (
    CpuWork,
    Device,
    Flag,
    Idle,
    Kernel,
    Launch,
    Op,
    Region,
    Site,
    Split,
    Step,
    Totals,
    Window,
)
from proftrack.verdict.result import Verdict

SCHEMA_VERSION = 1
MAX_BYTES = 256 << 20
"""Of a record.json that is read: it may come from somebody else."""


class SourceFile(Struct, frozen=True, kw_only=True):
    """One trace file that the record was made from."""

    name: str
    bytes: int
    events: int


class Source(Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    kind: str
    """run (captured by proftrack) or trace (somebody's file)."""
    proftrack_version: str
    files: list[SourceFile]
    profiler: dict[str, bool] = {}
    """The profiler's options as the trace names them; they change what profiling costs."""
    left_out: list[str] = []
    """Files of the run folder that were not kept, for want of space."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What was asked for and when; absent for a bare trace."""

    experiment: str
    params: dict[str, Any]
    """The workload's parameters, resolved."""
    variant_params: list[str]
    schedule: dict[str, int]
    profiler: dict[str, bool]
    fingerprint: str
    """Hash of all that must be equal for two runs to be comparable."""
    fingerprint_keys: dict[str, Any]
    started_ns: int
    ended_ns: int
    peak_memory_bytes: int | None = None
    notes: list[str] = []
    display_name: str = ""
    """Name and parameters on one line."""


class Times(Struct, frozen=True, kw_only=True):
    """The three times of a step, and the latency beside them. Microseconds."""

    step_time_us: float | None = None
    """T: unprofiled where basis is `unprofiled`, else the device window over its steps."""
    step_latency_us: float | None = None
    step_time_profiled_us: float | None = None
    gpu_busy_per_step_us: float | None = None
    """B: union of GPU work in the device window over the steps."""
    roofline_time_us: float | None = None
    """R: the least that this hardware could need."""


class Rates(Struct, frozen=True, kw_only=True):
    """What a step attained: its counted work over T, and its share of what the device can do."""

    tflops: float | None = None
    gbytes_per_s: float | None = None
    """Least bytes of the step over T."""
    mfu: float | None = None
    """FLOPs over T times the attainable rate (measured, not the data sheet's)."""
    mbu: float | None = None
    """The same of bytes."""


class Record(Struct, frozen=True, kw_only=True):
    """record.json; also what `proftrack analyze --json -` prints."""

    schema_version: int = SCHEMA_VERSION
    source: Source
    environment: Environment
    run: RunFacts | None = None
    timing: Timing | None = None
    window: Window
    totals: Totals
    per_step: list[Step]
    ops: list[Op]
    kernels: list[Kernel]
    regions: list[Region]
    idle: Idle
    split: Split | None
    launch: Launch | None
    devices: list[Device]
    times: Times
    quality: list[Flag]
    verdict: Verdict
    rates: Rates | None = None
    ceilings: Ceilings | None = None
    work: StepWork | None = None
    gpu_state: GpuState | None = None
    cpu: CpuWork | None = None
    sites: list[Site] = []
    modules: list[Region] = []
    """nn.Module calls, where stacks were recorded."""


def dump(record: Record, *, indent: int = 1) -> bytes:
    """The record as JSON. NaN and infinity cannot occur: a figure that does not exist is null."""
    return msgspec.json.format(msgspec.json.encode(record), indent=indent)


def save(record: Record, path: Path) -> None:
    """Write record.json."""
    path.write_bytes(dump(record) + b"\n")


def load(path: Path) -> Record:
    """Read a saved record.

    Raises ProftrackError where the file is missing, is no record, or was written by a newer version.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ProftrackError(
                f"{path}: {size} bytes, and no record is larger than {MAX_BYTES}; name a saved record.json"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ProftrackError(f"{path}: cannot be read ({error.strerror}); name a saved record.json") from error
    try:
        version = depth.decode(data, _Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise ProftrackError(
                f"{path}: record of schema version {version}, this proftrack knows up to {SCHEMA_VERSION}; upgrade it"
            )
        return msgspec.json.decode(data, type=Record)
    except depth.TooDeepError as error:
        raise ProftrackError(f"{path}: nested deeper than any record; name a saved record.json") from error
    except msgspec.MsgspecError as error:
        raise ProftrackError(f"{path}: not a proftrack record ({error}); name a saved record.json") from error


class _Versioned(Struct):
    schema_version: int
