"""The result of a capture: the unprofiled timing, the traces, and facts about the run."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from proftrack.experiment import Experiment
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.counters import Counters
from proftrack.record.environment import GpuState
from proftrack.record.timing import Timing


class Cycle(Struct, frozen=True, kw_only=True):
    """One active window of the schedule, with its own trace."""

    trace: Path
    expected_steps: int
    graph_launches: int = 0
    """How often CUDA graphs are replayed in the trace."""


class Capture(Struct, frozen=True, kw_only=True):
    """Everything that `capture` measured: the input of the analysis."""

    experiment: Experiment
    """The experiment that was measured, with `auto` resolved."""
    timing: Timing | None
    """None if a user's loop has too few steps before the recorded ones."""
    cycles: list[Cycle]
    peak_memory_bytes: int | None
    """Largest memory that torch's allocator held during the steps (CUDA only)."""
    started_ns: int
    """Start of the capture in epoch nanoseconds; `ended_ns` is its end."""
    ended_ns: int
    device: str
    """torch device type that the workload ran on: cuda or cpu."""
    ceilings: Ceilings | None = None
    """Attainable rates of the device; None if they were not measured."""
    work: StepWork | None = None
    """The least that one step must do; None if it could not be counted."""
    gpu: GpuState | None = None
    """The GPU's clocks and other processes on it, right after the timed steps."""
    counters: Counters | None = None
    """Hardware counters and energy of the timed steps; None if the device has none."""
    all_threads: bool = False
    """Whether operators of threads that the user started were recorded."""
    tokens_per_step: float | None = None
    """Tokens, or samples, that a step handles; None if the workload does not say."""
    captured: list[Path] = []
    """Traces in which the steps' CUDA graphs are captured once more: they name the kernels of the replays (see
    `measures.captures`). Empty if no step replays a graph."""
    notes: list[str] = []
    """Sentences about what is missing (no GPU, an incomplete cycle, ...)."""
