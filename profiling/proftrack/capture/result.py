"""What a capture leaves behind: the unprofiled timing, the traces, and the facts around them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from proftrack.experiment import Experiment
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.gpu_state import GpuState
from proftrack.record.timing import Timing


class Cycle(Struct, frozen=True, kw_only=True):
    """One active window of the schedule, exported to its own trace."""

    trace: Path
    expected_steps: int


class Capture(Struct, frozen=True, kw_only=True):
    """Everything `capture` measured; the analysis takes it from here."""

    experiment: Experiment
    """What was measured: the experiment that was asked for, with what `auto` became."""
    timing: Timing | None
    """None where a user's loop has too few steps before the recorded ones."""
    cycles: list[Cycle]
    peak_memory_bytes: int | None
    """Largest memory that torch's allocator held during the steps (CUDA only)."""
    started_ns: int
    """Epoch nanoseconds when the capture began; `ended_ns` when it was over."""
    ended_ns: int
    device: str
    """torch device type that the workload ran on: cuda or cpu."""
    ceilings: Ceilings | None = None
    """Attainable rates of the device; None where they were not asked for."""
    work: StepWork | None = None
    """What one step must at least do; None where it could not be counted."""
    gpu: GpuState | None = None
    """Clocks and neighbours of the GPU right behind the timed steps."""
    all_threads: bool = False
    """Whether operators of threads that the user started were recorded."""
    notes: list[str] = []
    """Sentences about what could not be had (GPU asked for and absent, one cycle short, ...)."""
